"""One kind of record: writes one version of it in Avro's single-object encoding, and reads every version."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from streams.errors import WireError
from streams.wire.binary import FAULTS, Model
from streams.wire.readers import Read, check_classes, compile_reader
from streams.wire.schemas import PREFIX_BYTES, Registry, packed_schemas
from streams.wire.writers import compile_writer
from streams.wire.wrong_field import find_wrong_field

__all__ = ["RecordCodec"]


class RecordCodec:
    """`model` says which classes stand for the schema's records; the outermost one is a tuple without an entry."""

    def __init__(
        self, name: str, model: Model, registry: Registry | None = None, *, version: int | None = None
    ) -> None:
        self._name = name
        self._model = model
        self._registry = packed_schemas() if registry is None else registry
        self.written = self._registry.newest(name) if version is None else self._registry.titled(f"{name}-{version}")
        check_classes(self.written.definition, model)
        self._readers: dict[bytes, Read] = {}

    @cached_property
    def _write(self) -> Callable[[Any], bytes]:
        """Compiled when it is first needed, as the readers are: that takes up to 10 ms, and few programs need all."""
        return compile_writer(self.written.definition, self.written.prefix, self._model)

    def encode(self, value: Any) -> bytes:
        write = self._write
        try:
            return write(value)
        except FAULTS:
            wrong = find_wrong_field(self.written.definition, value, self._model)
        where = f"its field {wrong.path}" if wrong.path else "its outermost form"
        raise WireError(
            f"a record {self._name} cannot be written: {where} does not take {wrong.kind} (schema {self.written.title})"
        ) from None  # the errors before it hold the payload

    def decode(self, data: bytes) -> Any:
        read = self._readers.get(data[:PREFIX_BYTES]) or self._reader(data)
        try:
            value, end = read(data, PREFIX_BYTES)
            if end > len(data):
                raise EOFError
        except (EOFError, *FAULTS) as error:
            raise WireError(
                f"the record {self._name} is damaged: its {len(data)} bytes end too early or do not fit the schema "
                f"they name ({type(error).__name__})"
            ) from None
        if end != len(data):
            raise WireError(f"the record {self._name} ends after {end} bytes, but {len(data)} were stored")
        return value

    def _reader(self, data: bytes) -> Read:
        schema = self._registry.of(data, self._name)
        check_classes(schema.definition, self._model)
        self._readers[schema.prefix] = compile_reader(schema.definition, self._model)
        return self._readers[schema.prefix]
