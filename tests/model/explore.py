"""An explicit-state explorer: every reachable state, breadth first, so that the first bad one has a shortest trace."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Edge(NamedTuple, Generic[S]):
    """One step: what is done, where it leads, and whether it is a fault (nothing may depend on one happening)."""

    label: tuple
    state: S
    fault: bool


class System(NamedTuple, Generic[S]):
    """What is explored. `canonical` maps states that differ only in names to one of them."""

    initial: S
    steps: Callable[[S], Iterable[Edge[S]]]
    violation: Callable[[S], str]
    goal: Callable[[S], bool]
    canonical: Callable[[S], S]


class Found(NamedTuple, Generic[S]):
    """The size of the graph, and the shortest trace to a violation, or to a state that no longer reaches the goal."""

    states: int
    edges: int
    depth: int
    complaint: str
    trace: list[tuple[tuple, S]]


class TooManyStatesError(Exception):
    """The bounds are too wide for the limit."""


def explore(system: System[S], *, states_max: int = 3_000_000) -> Found[S]:
    """Look at every reachable state. Stops at the first violation."""
    first = system.canonical(system.initial)
    numbers: dict[S, int] = {first: 0}
    order = [first]
    parents, depths = array("l", [-1]), array("l", [0])
    sources, targets = array("l"), array("l")
    edges = at = 0
    while at < len(order):
        for _, state, fault in system.steps(order[at]):
            edges += 1
            small = system.canonical(state)
            number = numbers.get(small)
            if number is None:
                number = numbers[small] = len(order)
                order.append(small)
                parents.append(at)
                depths.append(depths[at] + 1)
                if complaint := system.violation(small):
                    return Found(len(order), edges, depths[-1], complaint, _trace(system, order, parents, number))
                if len(order) > states_max:
                    raise TooManyStatesError(f"more than {states_max} states: narrow the bounds")
            if not fault:
                sources.append(at)
                targets.append(number)
        at += 1
    stuck = _stuck(system, order, sources, targets)
    if stuck is not None:
        complaint = "from here the goal cannot be reached any more, without another fault"
        return Found(len(order), edges, depths[stuck], complaint, _trace(system, order, parents, stuck))
    return Found(len(order), edges, depths[-1], "", [])


def _stuck(system: System[S], order: list[S], sources: array, targets: array) -> int | None:
    """The first state from which no path without faults leads to a goal."""
    incoming: list[list[int]] = [[] for _ in order]
    for source, target in zip(sources, targets, strict=True):
        incoming[target].append(source)
    reaching = bytearray(len(order))
    front = [number for number, state in enumerate(order) if system.goal(state)]
    for number in front:
        reaching[number] = 1
    while front:
        for source in incoming[front.pop()]:
            if not reaching[source]:
                reaching[source] = 1
                front.append(source)
    number = reaching.find(0)
    return None if number < 0 else number


def _trace(system: System[S], order: list[S], parents: array, number: int) -> list[tuple[tuple, S]]:
    """The path to a state, walked again with the names as they were, so that a worker keeps its own on the way."""
    path = [number]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return list(_walk(system, [order[n] for n in reversed(path)]))


def _walk(system: System[S], path: list[S]) -> Iterator[tuple[tuple, S]]:
    state = system.initial
    for wanted in path[1:]:
        for label, after, _ in system.steps(state):
            if system.canonical(after) == wanted:
                yield label, after
                state = after
                break
