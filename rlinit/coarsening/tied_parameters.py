"""Graphs whose ops share parameters as graphs without: by which readers are together, or as a relaxation.

A device or stage holds a shared parameter once, however many of its readers it runs (`rlinit.tensors`).
With some readers together, colocated with one copy, and a copy for each other reader, there is nothing shared any more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from rlinit.graph import Graph

Together = tuple[frozenset[int], ...]
"""Sets of ops, each of which is together."""

_MOST_CASES = 16
"""Cases that are solved one by one: those of four sets of two readers, or of one set of four."""


def has_tied(graph: Graph) -> bool:
    """Return whether ops share parameters.

    Parameters
    ----------
    graph
        Of any kind.
    """
    return any(len(one.readers) > 1 for one in graph.shared)


def arranged(graph: Graph, together: Together, *, colocated: bool = True) -> Graph:
    """Return a graph without shared parameters, in which the first of each set holds what the set shares.

    Parameters
    ----------
    graph
        With shared parameters.
    together
        Readers that are together; all others hold copies.
    colocated
        Whether they have to be.
    """
    held, unheld, group = graph.param_bytes.copy(), graph.unheld_bytes.copy(), graph.colocation.copy()
    set_of = {v: -1 - at for at, ops in enumerate(together) for v in ops}
    for one in graph.shared:
        seen: set[int] = set()
        for v in one.readers:
            at = set_of.get(v, v)
            if at in seen:
                held[v] = max(0.0, held[v] - one.size_bytes)
                unheld[v] += one.size_bytes
            seen.add(at)
    for at, ops in enumerate(together) if colocated else ():
        joined = np.isin(group, [group[v] for v in ops if group[v] >= 0])
        joined[list(ops)] = True
        group[joined] = len(graph.groups) + at
    names = tuple(f"together {at}" for at in range(len(together)))
    return dataclasses.replace(
        graph, param_bytes=held, unheld_bytes=unheld, colocation=group, groups=(*graph.groups, *names), shared=()
    )


def relaxed(graph: Graph) -> Graph:
    """Return a graph without shared parameters, in which each reader holds an equal part: sets of ops hold no more.

    Parameters
    ----------
    graph
        With shared parameters.
    """
    held, unheld = graph.param_bytes.copy(), graph.unheld_bytes.copy()
    for one in graph.shared:
        less = one.size_bytes * (1.0 - 1.0 / len(one.readers))
        for v in one.readers:
            held[v] = max(0.0, held[v] - less)
            unheld[v] += less
    return dataclasses.replace(graph, param_bytes=held, unheld_bytes=unheld, shared=())


def joined(sets: Iterable[frozenset[int]]) -> Together:
    """Return sets of two ops and more, those with an op in common as one, in the order of their first ops.

    Parameters
    ----------
    sets
        Of ops.
    """
    found: list[frozenset[int]] = []
    for one in sets:
        if len(one) > 1:
            met = [other for other in found if other & one]
            found = [other for other in found if other not in met] + [one.union(*met)]
    return tuple(sorted(found, key=min))


def cases_of(graph: Graph) -> list[Together] | None:
    """Return all that may be together, nothing first; None where there are more than `_MOST_CASES`.

    Parameters
    ----------
    graph
        With shared parameters.
    """
    sets = sorted({one.readers for one in graph.shared if len(one.readers) > 1})
    found: dict[Together, None] = {(): None}
    choices = [list(_partitions(readers)) for readers in sets if len(readers) <= _MOST_CASES.bit_length()]
    if len(choices) < len(sets) or math.prod(map(len, choices)) > _MOST_CASES:
        return None
    for chosen in product(*choices):
        found[joined(part for parts in chosen for part in parts)] = None
    return list(found)


def _partitions(items: Sequence[int]) -> Iterator[list[frozenset[int]]]:
    """Yield every way to split items into sets."""
    if not items:
        yield []
        return
    for parts in _partitions(items[1:]):
        yield [frozenset(items[:1]), *parts]
        for at, part in enumerate(parts):
            yield [*parts[:at], part | {items[0]}, *parts[at + 1 :]]
