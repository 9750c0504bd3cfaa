"""Durability modes: what has to be durable before a step may run, and which tasks may run before it."""

from __future__ import annotations

from typing import Any, Literal, get_args

__all__ = ["EVERY_STEP", "PIPELINED", "Durability", "check_durability", "check_pure"]

Durability = Literal["every_step", "pipelined"]
"""`every_step`: the commit of a step comes before the next one. `pipelined`: pure tasks run while it is under way."""

EVERY_STEP: Durability = "every_step"
PIPELINED: Durability = "pipelined"

_TOUCHES = {
    "key": "a business key names something outside that must not be done twice",
    "reconcile": "a look-up asks what was done outside",
    "idempotent=False": "it says that a repeat does harm",
}


def check_durability(what: str, durability: Any) -> Durability:
    """Return the mode. Raises ValueError for one that does not exist."""
    if durability not in get_args(Durability):
        message = f"{what}: durability={durability!r}; it is one of {', '.join(map(repr, get_args(Durability)))}"
        raise ValueError(message)
    return durability  # type: ignore[no-any-return]


def check_pure(name: str, **touches: Any) -> None:
    """Raise ValueError for what a task that is pure=True cannot have."""
    for option in [option for option, value in touches.items() if value]:
        message = (
            f"task {name!r}: pure=True does not go with {option}: {_TOUCHES[option]}, and a pure task touches nothing. "
            f"Leave out one of the two"
        )
        raise ValueError(message)
