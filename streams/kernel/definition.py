"""What the kernel asks of definitions: workflows to enter, tasks to know the rules of, types to check input against."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streams.kernel.bodies import Activation, Change, Policy

if TYPE_CHECKING:
    from streams.kernel.codec import Codec
    from streams.kernel.driver import Driver
    from streams.kernel.run import Run

__all__ = ["Advance", "Definition", "Definitions", "TaskSpec"]


class TaskSpec(Protocol):
    """A task as the kernel sees it."""

    @property
    def name(self) -> str: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def pool(self) -> str:
        """Which of the worker's slots it takes: "loop" for async functions, "thread" for plain ones."""

    @property
    def idempotent(self) -> bool: ...
    @property
    def reconciles(self) -> bool: ...
    @property
    def result(self) -> Any:
        """The annotated type of its result, which an operator's value must fit."""


class Advance(NamedTuple):
    """What a coroutine returns to go on in a new generation: a super-step has ended and another one follows."""

    changes: tuple[Change, ...]
    active: tuple[Activation, ...]
    arrived: tuple[str, ...]


class Definition(Protocol):
    """One version of a workflow or graph."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def code(self) -> str:
        """The fingerprint of its code, without comments."""

    def base(self, data: bytes, codec: Codec) -> tuple[tuple[tuple[str, bytes], ...], tuple[Activation, ...]]:
        """The checked input as fields, and the nodes to begin with. Raises `Refused` for input that does not fit."""

    def enter(self, driver: Driver, run: Run) -> Coroutine[Any, Any, Any]:
        """The coroutine of this generation; it returns the run's result or an `Advance`."""


class Definitions(Protocol):
    """Everything that an app defines."""

    def workflow(self, name: str, version: int | None) -> Definition | None:
        """The given version, or the latest; None where it is not loaded."""

    def versions(self, name: str) -> Iterable[int]:
        """The loaded versions of a workflow, none where the name is unknown."""

    def task(self, name: str) -> TaskSpec | None:
        """A task by its name."""

    @property
    def signals(self) -> Mapping[str, Any]:
        """The declared signals and the types of their values."""

    @property
    def effects(self) -> Mapping[str, Any]:
        """The declared effects and the types of their payloads."""

    @property
    def replies(self) -> Mapping[str, Any]:
        """The declared effects and the types of the replies to their requests."""
