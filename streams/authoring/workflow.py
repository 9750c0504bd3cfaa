"""Workflows: pure coroutines over a context."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streams.authoring.context import Context
from streams.authoring.durability import EVERY_STEP, Durability
from streams.errors import Refused
from streams.kernel.bodies import Activation
from streams.kernel.changes import UNCHECKED, decode_field

if TYPE_CHECKING:
    from streams.kernel.codec import Codec
    from streams.kernel.driver import Driver
    from streams.kernel.run import Run

__all__ = ["Workflow"]

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output


@dataclass(frozen=True, slots=True)
class Workflow(Generic[I, O]):
    """One version of a workflow; made by `@app.workflow`."""

    name: str
    version: int
    function: Callable[[Context, I], Coroutine[Any, Any, O]]
    input: Any
    output: Any
    code: str = field(default="", repr=False)
    durability: Durability = EVERY_STEP

    def base(self, data: bytes, codec: Codec) -> tuple[tuple[tuple[str, bytes], ...], tuple[Activation, ...]]:
        """The checked input. A workflow has one field, and no nodes."""
        return (("input", codec.conform(data, self.input)),), ()

    def enter(self, driver: Driver, run: Run) -> Coroutine[Any, Any, Any]:
        """The coroutine, with a fresh copy of its input."""
        name, field_value = run.base[0]
        if name == UNCHECKED:
            value = self._checked(field_value.chunks[0], driver)
        else:
            value = decode_field(field_value, driver.codec)
        coroutine = self.function(Context(driver), value)
        if not isinstance(coroutine, Coroutine):
            raise driver.fault(f"workflow {self.name!r} is no coroutine function; write `async def`")
        return coroutine

    def _checked(self, data: bytes, driver: Driver) -> Any:
        """The input of a run that was started before the workflow was loaded, so nobody has checked it yet."""
        try:
            return driver.codec.decode(driver.codec.conform(data, self.input))
        except Refused as refused:
            raise driver.fault(f"the input does not fit: {refused.message}") from refused
