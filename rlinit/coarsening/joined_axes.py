"""The axes of several ops as one: see `rlinit.importers.common.axes`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rlinit.graph import Graph

_NEEDED = -1
"""Label of a dimension that is needed whole."""
Factors = list[int]
"""A dimension as factors, the slowest first; each is a number that `_Factors` gives."""


def joined_axes(graph: Graph, ops: Sequence[int]) -> dict[str, Any]:
    """Return ``axes`` and ``operands`` of some ops as one; nothing where those of one of them are not known.

    A dimension is a product of factors, which views regroup and labels equate. One label stands for each factor that is
    the slowest of every dimension it is in and that no op needs all of; what is summed over stays so where nothing but
    constants is added afterwards.

    Parameters
    ----------
    graph
        The ops, with what importers note.
    ops
        Those that become one, in order; only the last one's output is read by others.
    """
    number = {graph.names[v]: v for v in ops}
    factors = _Factors()
    operands: list[tuple[list[Any], list[Factors]]] = []
    made: dict[int, list[Factors]] = {}
    for at, v in enumerate(ops):
        row = graph.extras.get(v, {})
        axes, read = row.get("axes"), row.get("operands")
        shape = next((list(sizes) for _, *sizes in row.get("outputs", ())), None)
        if axes is None or not read or shape is None or not ("labels" in axes or "view" in axes) or "units" in axes:
            return {}
        rows = []
        for operand in read:
            if operand[0] in number:
                rows.append(made[number[operand[0]]])
            else:
                rows.append([factors.new(size) for size in operand[1:]])
                operands.append((operand, rows[-1]))
        if "view" in axes:
            made[v] = factors.regrouped([one for dim in rows[0] for one in dim], shape)
            continue
        made[v] = [factors.new(size) for size in shape]
        *labels, out = axes["labels"]
        adds = all(graph.kinds[u] == "Add" and _adds_constants(graph, u) for u in ops[at + 1 :])
        factors.relate([*zip(rows, labels, strict=True), (made[v], out)], out, keep_sums=adds)
    whole = [*(dims for _, dims in operands), made[ops[-1]]]
    labels, units = factors.labels(whole)
    axes = {"labels": labels, **({"units": units} if units else {})}
    return {"axes": axes, "operands": [operand for operand, _ in operands]}


def _adds_constants(graph: Graph, v: int) -> bool:
    return sum(bool(name) for name, *_ in graph.extras[v].get("operands", ())) <= 1


class _Factors:
    """Factors of dimensions in sets of those that are one; a factor may turn out to be a product of two."""

    def __init__(self) -> None:
        self._size: list[int] = []
        self._leader: list[int] = []
        self._halves: dict[int, tuple[int, int]] = {}
        self._needed: set[int] = set()

    def new(self, size: int) -> Factors:
        """Return a dimension of a size as one factor, of size one as none."""
        if size == 1:
            return []
        self._size.append(size)
        self._leader.append(len(self._leader))
        return [len(self._leader) - 1]

    def _prime(self, dim: Iterable[int]) -> Factors:
        """Return a dimension by the factors that are no products."""
        found = []
        for one in dim:
            while self._leader[one] != one:
                one = self._leader[one]
            found += self._prime(self._halves[one]) if one in self._halves else [one]
        return found

    def _taken(self, rest: Factors, size: int) -> Factors | None:
        """Take factors of a size off a reversed list; None where no factor ends there."""
        found: Factors = []
        while size > 1:
            if not rest:
                return None
            one = self._prime([rest.pop()])
            first, *others = one
            rest += others[::-1]
            common = math.gcd(self._size[first], size)
            if common not in (self._size[first], size):
                return None
            if common < self._size[first]:
                self._halves[first] = (*self.new(common), *self.new(self._size[first] // common))  # type: ignore[assignment]
                first, second = self._halves[first]
                rest.append(second)
            found.append(first)
            size //= self._size[first]
        return found

    def regrouped(self, dim: Factors, shape: Sequence[int]) -> list[Factors]:
        """Return the dimensions of another shape; all of what does not fall into factors is needed."""
        rest, found = dim[::-1], list[Factors]()
        for size in shape:
            taken = self._taken(rest, size)
            if taken is None:
                self._needed |= set(dim)
                return [self.new(size) for size in shape]
            found.append(taken)
        return found

    def relate(self, rows: Sequence[tuple[list[Factors], list[int]]], out: list[int], *, keep_sums: bool) -> None:
        """Equate the dimensions of each label; all is needed of those without one, or summed over."""
        by_label: dict[int, list[Factors]] = {}
        for dims, labels in rows:
            for dim, label in zip(dims, labels, strict=True):
                if label == _NEEDED:
                    self._needed |= set(dim)
                else:
                    by_label.setdefault(label, []).append(dim)
        for label, (first, *others) in by_label.items():
            for other in others:
                self._equate(first, other)
            if label not in out and not keep_sums:
                self._needed |= set(first)

    def _equate(self, dim: Factors, other: Factors) -> None:
        rests = self._prime(dim)[::-1], self._prime(other)[::-1]
        while all(rests):
            size = min(self._size[rest[-1]] for rest in rests)
            one, two = (self._taken(rest, size) for rest in rests)
            if one is None or two is None:
                self._needed |= {*dim, *other}
                return
            if one != two:
                self._leader[two[0]] = one[0]

    def labels(self, rows: Sequence[list[Factors]]) -> tuple[list[list[int]], dict[str, int]]:
        """Return a label for each dimension, and into how many parts those fall that have further factors."""
        needed = set(self._prime(self._needed))
        units: dict[str, int] = {}
        for dims in rows:
            for dim in map(self._prime, dims):
                needed |= set(dim[1:])
                if len(dim) > 1:
                    units[str(dim[0])] = self._size[dim[0]]
        found = [
            [dim[0] if dim and dim[0] not in needed else _NEEDED for dim in map(self._prime, dims)] for dims in rows
        ]
        return found, {label: count for label, count in units.items() if int(label) not in needed}
