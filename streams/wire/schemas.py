"""Finds the Avro schemas of every record version and knows them by fingerprint, so that no registry is needed."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from streams.errors import WireError

__all__ = ["MARKER", "PREFIX_BYTES", "Registry", "Schema", "SchemaUnknown", "packed_schemas"]

MARKER = b"\xc3\x01"
"""The first two bytes of Avro's single-object encoding; the fingerprint follows, then the body. Never change."""

PREFIX_BYTES = 10


class SchemaUnknown(WireError):
    """A record of a release that this one does not know. Nothing is wrong with it, so nothing may be guessed."""

    code = "SCHEMA_VERSION_UNSUPPORTED"


class Schema(NamedTuple):
    """One version of one record. `definition` is parsed: names are full, each defined where it is first used."""

    name: str
    version: int
    prefix: bytes
    definition: dict[str, Any]

    @property
    def title(self) -> str:
        """The name of its file, which is how people look it up."""
        return f"{self.name}-{self.version}"


class Registry:
    """All versions of all records. A schema that was ever written with stays for good: old records must be readable."""

    def __init__(self, schemas: Iterable[Schema]) -> None:
        self._by_prefix: dict[bytes, Schema] = {}
        self._by_title: dict[str, Schema] = {}
        self._newest: dict[str, Schema] = {}
        for schema in sorted(schemas):
            if same := self._by_prefix.get(schema.prefix):
                raise WireError(
                    f"the schemas {same.title} and {schema.title} have the same fingerprint, so no reader could tell "
                    "them apart; defaults, docs and logical types do not count: change a name or a type"
                )
            self._by_prefix[schema.prefix] = schema
            self._by_title[schema.title] = schema
            self._newest[schema.name] = schema

    def titled(self, title: str) -> Schema:
        """The schema of this name and version, as its file is called."""
        return self._by_title[title]

    def newest(self, name: str) -> Schema:
        """The version that this release writes."""
        return self._newest[name]

    def of(self, data: bytes, name: str) -> Schema:
        """The schema that `data` was written with, which must be a version of the record `name`."""
        prefix = data[:PREFIX_BYTES]
        schema = self._by_prefix.get(prefix)
        if schema is not None and schema.name == name:
            return schema
        if schema is not None:
            raise WireError(f"expected a record {name}, got a record {schema.name} (schema {schema.title})")
        if len(prefix) < PREFIX_BYTES or not prefix.startswith(MARKER):
            raise WireError(
                f"expected a record {name} in Avro's single-object encoding (C3 01, then a fingerprint of 8 bytes), "
                f"got {len(data)} bytes that do not begin like one"
            )
        known = ", ".join(each.title for each in self._by_prefix.values() if each.name == name)
        raise SchemaUnknown(
            f"the record was written with the schema of fingerprint {prefix[2:].hex()}, which this release does not "
            f"have (it reads {known}); a newer release of streams, or another program, wrote it: upgrade this one"
        )


@cache
def packed_schemas() -> Registry:
    """The schemas that come with this release."""
    packed = importlib.resources.files("streams") / "_schemas"
    folder: Traversable = packed if packed.is_dir() else Path(__file__).resolve().parents[2] / "schemas"
    return Registry(_parse(file) for file in folder.iterdir() if file.name.endswith(".avsc"))


def _parse(file: Traversable) -> Schema:
    name, _, version = file.name.removesuffix(".avsc").rpartition("-")
    raw = json.loads(file.read_text("utf-8"))
    crc = fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO")  # hexadecimal, least significant byte first
    definition = parse_schema(raw)
    assert isinstance(definition, dict)
    return Schema(name, int(version), MARKER + bytes.fromhex(crc), definition)
