"""The tags of single values that JSON does not know, and how each is written, read and shown.

Wire format: tags and payloads never change; a new form gets a new tag.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from streams.wire.misfit import Misfit, type_name

__all__ = ["INT_MAX", "INT_MIN", "SCALARS", "SCALAR_TAGS", "Scalar", "float_tagged", "int_tagged", "text_tagged"]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
"""Whole numbers outside are tagged: most JSON readers cannot hold them."""


class Scalar(NamedTuple):
    """One kind of value: `write` gives the payload, `read` takes it back, `show` makes it readable for people."""

    tag: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    show: Callable[[Any], Any]


def _b64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _unb64(payload: str) -> bytes:
    return base64.b64decode(payload, validate=True)


def int_tagged(value: int) -> dict[str, Any]:
    """Hexadecimal, because Python refuses to read decimal numbers of more than 4,300 digits."""
    return {"$": "@int", "v": hex(value)}


def float_tagged(value: float) -> dict[str, Any]:
    """For NaN and the infinities, which JSON does not have."""
    return {"$": "@float", "v": repr(value)}


def text_tagged(value: str) -> dict[str, Any]:
    """For text with lone surrogates, which UTF-8 cannot hold; `surrogatepass` keeps each code point as it is."""
    return {"$": "@str", "v": _b64(value.encode("utf-8", "surrogatepass"))}


def _read_text(payload: str) -> str:
    return _unb64(payload).decode("utf-8", "surrogatepass")


def _show_text(payload: str) -> str:
    return _read_text(payload).encode("utf-8", "backslashreplace").decode("utf-8")


def _show_int(payload: str) -> str:
    value = int(payload, 16)
    return str(value) if value.bit_length() <= 10_000 else payload


def _write_moment(value: datetime | time) -> Any:
    """ISO text says it all unless there is a zone, a name of the offset, or a fold."""
    zone = value.tzinfo
    if zone is None:
        return value.isoformat() if not value.fold else {"at": value.isoformat(), "fold": 1}
    if type(zone) is timezone:
        _, *name = zone.__getinitargs__()  # type: ignore[attr-defined] # the public name "UTC+08:00" hides the rest
        if not name and not value.fold:
            return value.isoformat()
        return {"at": value.isoformat(), "name": name[0] if name else None, "fold": value.fold}
    if type(zone) is ZoneInfo and zone.key is not None:
        _check_zone(value, zone.key)
        return {"at": value.replace(tzinfo=None).isoformat(), "zone": zone.key, "fold": value.fold}
    if type(zone).__module__.partition(".")[0] == "pydantic_core":  # what pydantic gives to dates that it has parsed
        return {"at": value.isoformat(), "tz": "pydantic", "fold": value.fold}
    raise Misfit(
        f"the time zone is a {type_name(type(zone))}, which would not come back as one; "
        "use datetime.timezone or zoneinfo.ZoneInfo with a key"
    )


def _check_zone(value: datetime | time, key: str) -> None:
    """Two ZoneInfo objects for one key differ at a fold, and a file may carry a key that the system lacks."""
    try:
        zone = ZoneInfo(key)
    except (LookupError, ValueError) as error:
        raise Misfit(
            f"the time zone {key!r} is not in this machine's database; use ZoneInfo with a known key"
        ) from error
    if zone is not value.tzinfo and value.replace(tzinfo=zone) != value:
        raise Misfit(f"the time zone {key!r} differs from ZoneInfo({key!r}); use that one")


def _moment_reader(cls: type[datetime | time]) -> Callable[[Any], Any]:
    def read(payload: Any) -> Any:
        if type(payload) is str:
            return cls.fromisoformat(payload)
        value = cls.fromisoformat(payload["at"])
        if payload.get("zone") is not None:
            value = value.replace(tzinfo=_zone(payload["zone"]))
        elif payload.get("name") is not None:
            value = value.replace(tzinfo=timezone(value.utcoffset() or timedelta(), payload["name"]))
        elif payload.get("tz") == "pydantic" and (pydantic := sys.modules.get("pydantic_core")):
            # Without pydantic the same offset as a datetime.timezone is equal, and all that there is.
            value = value.replace(tzinfo=pydantic.TzInfo((value.utcoffset() or timedelta()).total_seconds()))
        return value.replace(fold=payload["fold"])

    return read


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (LookupError, ValueError) as error:
        raise Misfit(f"the time zone {key!r} is not in this machine's database; install the package tzdata") from error


def _show_moment(payload: Any) -> Any:
    if type(payload) is str:
        return payload
    return f"{payload['at']}[{payload['zone']}]" if payload.get("zone") else payload["at"]


def _write_timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _read_timedelta(payload: list[int]) -> timedelta:
    days, seconds, microseconds = payload
    return timedelta(days, seconds, microseconds)


def _same(payload: Any) -> Any:
    return payload


SCALARS: dict[type, Scalar] = {
    bytes: Scalar("@bytes", _b64, _unb64, _same),
    bytearray: Scalar("@bytearray", _b64, lambda payload: bytearray(_unb64(payload)), _same),
    Decimal: Scalar("@decimal", str, Decimal, _same),
    datetime: Scalar("@datetime", _write_moment, _moment_reader(datetime), _show_moment),
    time: Scalar("@time", _write_moment, _moment_reader(time), _show_moment),
    date: Scalar("@date", date.isoformat, date.fromisoformat, _same),
    timedelta: Scalar("@timedelta", _write_timedelta, _read_timedelta, lambda payload: str(_read_timedelta(payload))),
    UUID: Scalar("@uuid", str, UUID, _same),
}

SCALAR_TAGS: dict[str, Scalar] = {
    "@int": Scalar("@int", hex, lambda payload: int(payload, 16), _show_int),
    "@float": Scalar("@float", repr, float, _same),
    "@str": Scalar("@str", text_tagged, _read_text, _show_text),
    **{scalar.tag: scalar for scalar in SCALARS.values()},
}
