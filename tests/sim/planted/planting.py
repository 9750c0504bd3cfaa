"""Puts a fault into the running program: one textual replacement in a module's source, made real in its functions.

The module's source is compiled with the replacement, and each function whose code it changes gets the new code, in
place: whoever has imported the function, and every object with the method, has the fault too. `planted` takes it out
again. A replacement that does not match exactly once, or that changes no function, is refused: it has gone stale.
"""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

__all__ = ["Edit", "Fault", "Stale", "plant", "planted"]


class Stale(AssertionError):
    """A planted fault does not fit the code any more."""


class Edit(NamedTuple):
    """One replacement in one module."""

    module: str
    old: str
    new: str


class Fault(NamedTuple):
    """A mistake that somebody could make, and what finds it."""

    name: str
    breaks: str
    """What is wrong with it, for people."""
    edits: tuple[Edit, ...]
    seeds: tuple[int, ...] = ()
    """Seeds of the simulator that find it, the first of them alone suffices; or else:"""
    test: str = ""
    """An existing test that fails with it."""
    says: str = ""
    """What an invariant says of it, or a part of the failing test's output."""
    kafka: bool = False
    """Only a real broker shows it."""


Swap = tuple[FunctionType, CodeType]


def plant(fault: Fault) -> list[Swap]:
    """Put the fault in; return what `uproot` needs to take it out."""
    swaps: list[Swap] = []
    try:
        for module in dict.fromkeys(edit.module for edit in fault.edits):
            swaps += _plant(module, [edit for edit in fault.edits if edit.module == module])
    except BaseException:
        uproot(swaps)
        raise
    return swaps


def uproot(swaps: list[Swap]) -> None:
    """Take a fault out."""
    for function, code in reversed(swaps):
        function.__code__ = code


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """With the fault in the program."""
    swaps = plant(fault)
    try:
        yield
    finally:
        uproot(swaps)


def _plant(name: str, edits: list[Edit]) -> list[Swap]:
    module = importlib.import_module(name)
    source = edited = inspect.getsource(module)
    for edit in edits:
        if source.count(edit.old) != 1 or edited.count(edit.old) != 1:
            message = f"{edit.old!r} stands {source.count(edit.old)} times in {name}, and not once"
            raise Stale(message)
        edited = edited.replace(edit.old, edit.new)
    path = module.__file__ or "?"
    before = _codes(compile(source, path, "exec", dont_inherit=True))
    after = _codes(compile(edited, path, "exec", dont_inherit=True))
    changed = {name: code for name, code in after.items() if name in before and not _same(before[name], code)}
    swaps = [
        (function, function.__code__) for function in _functions(module) if function.__code__.co_qualname in changed
    ]
    if not swaps or set(after) - set(before):
        message = f"{edits[0].new!r} in {name} changes no function that is there"
        raise Stale(message)
    for function, _ in swaps:
        function.__code__ = changed[function.__code__.co_qualname]
    return swaps


def _codes(top: CodeType) -> dict[str, CodeType]:
    """The code of the functions of a module by their names; what is inside a function belongs to it."""
    found: dict[str, CodeType] = {}

    def walk(code: CodeType) -> None:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                if "<locals>" not in constant.co_qualname:
                    found[constant.co_qualname] = constant
                if not constant.co_flags & inspect.CO_NEWLOCALS or constant.co_flags & inspect.CO_OPTIMIZED == 0:
                    walk(constant)

    walk(top)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, wherever they stand in the file."""
    return (
        (one.co_code, one.co_names, one.co_varnames, one.co_freevars)
        == (
            other.co_code,
            other.co_names,
            other.co_varnames,
            other.co_freevars,
        )
        and all(
            _same(mine, yours) if isinstance(mine, CodeType) and isinstance(yours, CodeType) else _equal(mine, yours)
            for mine, yours in zip(one.co_consts, other.co_consts, strict=False)
        )
        and len(one.co_consts) == len(other.co_consts)
    )


def _equal(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _functions(module: ModuleType) -> list[FunctionType]:
    """Every function of the module that is alive, also those that decorators have wrapped."""
    gc.unfreeze()  # a worker of another test has frozen them, and they would not be among the objects
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == module.__file__
    ]
