"""From what a caller hands over to an encoded command, and from stored bytes back to what a caller is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streams.authoring.app import App
from streams.authoring.graph import Graph
from streams.authoring.workflow import Workflow
from streams.errors import RunFailed, UsageError, ValueNotStorable, ValueRefused, ValueTooLarge, ValueUnreadable
from streams.kernel.bodies import Failure
from streams.kernel.commands import Request, Start
from streams.log.port import RECORD_BYTES_MAX
from streams.wire.app_codec import make_codec
from streams.wire.keys import check_run_id
from streams.wire.records import CommandUnreadable, encode_command
from streams.wire.values import ValueCodec

__all__ = ["AnyWorkflow", "Attributes", "Draft", "Drafts", "Values"]

AnyWorkflow = Workflow[Any, Any] | Graph[Any] | str
Attributes = Mapping[str, str]

_HEADER_BYTES = 200


class Draft(NamedTuple):
    """A command before it is sent; `data` is its encoded form."""

    run_id: str
    command_id: str
    data: bytes


class Values:
    """The values of an app. Where only its name is known, they come back as plain data."""

    def __init__(self, app: App | str) -> None:
        self.typed = not isinstance(app, str)
        self.codec: ValueCodec = (
            make_codec((), {}) if isinstance(app, str) else make_codec(app.annotations, app.named_types)
        )

    def encode(self, value: Any, what: str) -> bytes:
        """Raises `ValueRefused` that says what it was."""
        try:
            try:
                return self.codec.encode(value)
            except ValueNotStorable:
                # The class of an answer stands only inside workflow code, where no annotation of the app shows it.
                self.codec.learn(type(value))
                return self.codec.encode(value)
        except ValueRefused as refused:
            raise type(refused)(f"{what}: {refused.message}", refused.path) from refused

    def decode(self, data: bytes) -> Any:
        """Raises `ValueUnreadable` for a type that the app does not know."""
        return self.codec.decode(data) if self.typed else self.codec.to_plain(data)

    def failure(self, error: Failure) -> RunFailed:
        """The stored error of a run as an exception."""
        details = None
        if error.details is not None:
            try:
                details = self.decode(error.details)
            except ValueUnreadable:
                details = self.codec.to_plain(error.details)
        return RunFailed(error.code, error.message, details)


class Drafts:
    """Writes commands. `new_id` makes the ids by which a repeat of one and the same request is known."""

    def __init__(self, values: Values, new_id: Callable[[], str]) -> None:
        self.values = values
        self._new_id = new_id

    def start(
        self,
        workflow: AnyWorkflow,
        input_: Any,
        *,
        run_id: str,
        version: int | None,
        attributes: Attributes | None,
        command_id: str | None = None,
    ) -> Draft:
        """A start. A workflow object starts its own version, a name the newest that the worker has."""
        name, own = (workflow, None) if isinstance(workflow, str) else (workflow.name, workflow.version)
        data = self.values.encode(input_, f"the input of run {run_id!r}")
        request = Start(name, data, own if version is None else version, _checked(attributes or {}))
        return self.request(run_id, request, command_id)

    def request(self, run_id: str, request: Request, command_id: str | None = None, operator: str = "") -> Draft:
        """Any command. Raises `UsageError` for names that no run can have, `ValueTooLarge` for what fits no record."""
        check_run_id(run_id)
        command_id = command_id or self._new_id()
        try:
            data = encode_command(request, command_id=command_id, operator=operator)
        except CommandUnreadable as error:
            kind = ValueTooLarge if error.code == "VALUE_TOO_LARGE" else UsageError
            raise kind(f"run {run_id!r}: {error.message}") from error
        size = len(run_id.encode()) + len(data) + _HEADER_BYTES
        if size > RECORD_BYTES_MAX:
            message = f"the command for run {run_id!r} takes {size:,} bytes, a record at most {RECORD_BYTES_MAX:,}"
            raise ValueTooLarge(f"{message}; keep large values elsewhere and send a reference")
        return Draft(run_id, command_id, data)


def _checked(attributes: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"attribute {name!r}={value!r}: names and values of attributes are text")
    return tuple(sorted(attributes.items()))
