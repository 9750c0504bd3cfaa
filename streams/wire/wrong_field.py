"""Finds the field of a record that does not fit its schema. Slow, and asked only after a writer has failed."""

from __future__ import annotations

from typing import Any

from streams.wire.binary import FAULTS, PRIMITIVES, Model, WrongField, definitions, short_name

__all__ = ["find_wrong_field"]


def find_wrong_field(schema: Any, value: Any, model: Model) -> WrongField:
    """Where the first fault is; without a path where the fault is no field's."""
    try:
        _Finder(schema, model).check(schema, value)
    except WrongField as wrong:
        return wrong
    return WrongField("", type(value).__name__)


class _Finder:
    def __init__(self, schema: Any, model: Model) -> None:
        self._model = model
        self._definitions = dict(definitions(schema))

    def check(self, schema: Any, value: Any) -> None:
        """Raise WrongField, or one of FAULTS where `value` itself is of a wrong type."""
        record = self._definitions.get(schema) if isinstance(schema, str) else None
        if isinstance(schema, list):
            self._union(schema, value)
        elif record or (isinstance(schema, dict) and schema["type"] == "record"):
            self._record(record or schema, value)
        elif isinstance(schema, dict) and schema["type"] == "array":
            if isinstance(value, str):
                raise TypeError
            for item in value:
                self.check(schema["items"], item)
        else:
            PRIMITIVES[schema if isinstance(schema, str) else schema["type"]](value)

    def _union(self, schema: list[Any], value: Any) -> None:
        if len(schema) == 2 and schema[0] == "null":
            if value is not None:
                self.check(schema[1], value)
            return
        branches = {self._model.classes[short_name(branch)]: branch for branch in schema}
        self.check(branches[type(value)], value)

    def _record(self, schema: dict[str, Any], value: Any) -> None:
        fields = schema["fields"]
        if not isinstance(value, tuple) or len(value) != len(fields):
            raise WrongField("", type(value).__name__)
        for field, part in zip(fields, value, strict=True):
            self._field(f"{short_name(schema)}.{field['name']}", field["type"], part)

    def _field(self, place: str, schema: Any, part: Any) -> None:
        name = place.partition(".")[2]
        forth = self._model.fields.get(place, (None,))[0]
        try:
            self.check(schema, forth(part) if forth else part)
        except WrongField as wrong:
            raise WrongField(f"{name}.{wrong.path}" if wrong.path else name, wrong.kind) from None
        except UnicodeEncodeError:
            raise WrongField(name, "text with a lone surrogate") from None
        except OverflowError:
            raise WrongField(name, "a number beyond 64 bits") from None
        except FAULTS:
            raise WrongField(name, type(part).__name__) from None
