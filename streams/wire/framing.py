"""One kind of record: writes its newest version in Avro's single-object encoding and reads every version."""

from __future__ import annotations

from typing import Any

from streams.errors import WireError
from streams.wire.binary import FAULTS, Compiler, Model, Read, WrongField
from streams.wire.schemas import PREFIX_BYTES, Registry, packed_schemas

__all__ = ["RecordCodec"]


class RecordCodec:
    """`model` says which classes stand for the schema's records; the outermost one is a tuple without an entry."""

    def __init__(self, name: str, model: Model, registry: Registry | None = None) -> None:
        self._name = name
        self._model = model
        self._registry = packed_schemas() if registry is None else registry
        self.newest = self._registry.newest(name)
        self._write, read = Compiler(model).compile(self.newest.definition)
        self._readers: dict[bytes, Read] = {self.newest.prefix: read}

    def encode(self, value: Any) -> bytes:
        try:
            return self.newest.prefix + self._write(value)
        except WrongField as wrong:
            where = f"its field {wrong.path}" if wrong.path else "its outermost form"
            raise WireError(
                f"a record {self._name} cannot be written: {where} does not take {wrong.kind} "
                f"(schema {self.newest.title})"
            ) from None  # the errors before it hold the payload

    def decode(self, data: bytes) -> Any:
        read = self._readers.get(data[:PREFIX_BYTES]) or self._reader(data)
        try:
            value, end = read(data, PREFIX_BYTES)
        except FAULTS as error:
            raise WireError(
                f"the record {self._name} is damaged: its {len(data)} bytes end too early or do not fit the schema "
                f"they name ({type(error).__name__})"
            ) from None
        if end != len(data):
            raise WireError(f"the record {self._name} ends after {end} bytes, but {len(data)} were stored")
        return value

    def _reader(self, data: bytes) -> Read:
        schema = self._registry.of(data, self._name)
        _, self._readers[schema.prefix] = Compiler(self._model).compile(schema.definition)
        return self._readers[schema.prefix]
