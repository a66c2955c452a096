"""Ops that a file has taken apart, found by the expressions that they have become. The expressions are data.

``Mul(x, Sigmoid(x))`` is a Mul of a tensor and its own sigmoid. A name with a capital is a kind of op, or several
(``Mul/Div``), and in brackets stand the tensors that it reads and that are no constants, in any order. A small
name is a tensor from elsewhere, the same wherever the name is; ``c = Sub(...)`` names the tensor of an op, before it is
read again. What has a ``?`` may be missing: a tensor alone, an op so that the last of what it reads takes its place.
Views between the ops of an expression are part of it, and need not be said.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from rlinit.coarsening.joined_axes import joined_axes
from rlinit.coarsening.merging import contracted
from rlinit.coarsening.rules import InvalidRules
from rlinit.graph import Graph

_TOKEN = re.compile(r"\s*([A-Za-z][\w/]*|[?=(),])")
_Names = Mapping[str, int]
"""Op of each tensor that an expression has named so far."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An expression: an op of one of some kinds, or, without kinds, a tensor from elsewhere.

    Parameters
    ----------
    name
        What the tensor is called; "" for ops that nothing refers to.
    kinds
        Kinds of op that fit.
    is_optional
        Whether it may be missing.
    reads
        What the op reads.
    """

    name: str
    kinds: frozenset[str] = frozenset()
    is_optional: bool = False
    reads: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Return the pattern that a text in the notation of this module says.

        Raises
        ------
        InvalidRules
            The text is no such expression.

        Examples
        --------
        >>> found = Pattern.parse("Add?(m?, MatMul(x))")
        >>> sorted(found.kinds), found.is_optional, [read.name for read in found.reads], found.reads[0].is_optional
        (['Add'], True, ['m', ''], True)
        """
        tokens = _TOKEN.findall(text)
        if "".join(tokens) != "".join(text.split()):
            raise InvalidRules(f"{text!r} has something else than names and ?=(),")
        rest = [*tokens, ""][::-1]
        found = _parsed(rest, text)
        if rest != [""] or not found.kinds:
            raise InvalidRules(f"{text!r} is not one op and what it reads")
        return found


def _parsed(rest: list[str], text: str) -> Pattern:
    """Return the pattern at the end of the reversed tokens, and take it off them."""
    name, kinds = "", frozenset[str]()
    word = rest.pop()
    if rest[-1:] == ["="]:
        rest.pop()
        name, word = word, rest.pop()
    if word[:1].isupper():
        kinds = frozenset(word.split("/"))
    elif word.isalpha() and not name:
        name = word
    else:
        raise InvalidRules(f"{text!r} has {word!r} where a kind or a tensor is expected")
    is_optional = rest[-1] == "?" and bool(rest.pop())
    reads: list[Pattern] = []
    if kinds and rest[-1] == "(":
        while rest.pop() in ("(", ","):
            reads.append(_parsed(rest, text))
            if rest[-1] not in (",", ")"):
                raise InvalidRules(f"{text!r} has {rest[-1]!r} where ',' or ')' is expected")
    return Pattern(name, kinds, is_optional, tuple(reads))


@functools.cache
def whole_ops() -> tuple[tuple[str, Pattern], ...]:
    """Return kind and pattern of what exporters take apart (``whole_ops.toml``), the first to be tried first."""
    text = resources.files("rlinit.coarsening").joinpath("whole_ops.toml").read_text(encoding="utf-8")
    return tuple((row["kind"], Pattern.parse(row["is"])) for row in tomllib.loads(text)["op"])


def with_whole_ops(graph: Graph, results: Collection[int] = ()) -> Graph:
    """Return the graph with one op in place of each expression of ``whole_ops.toml``, called like its last op.

    It holds and computes what the ops did. Its ``nodes`` are all of theirs, in order, and its ``parts`` have name and
    tensors of each but the last.

    Parameters
    ----------
    graph
        As an importer gives it: its ops have the extras ``node``, ``nodes`` and ``tensors``.
    results
        Ops whose tensors leave the graph.
    """
    found = matches(graph, whole_ops(), results)
    last = {ops[-1]: (kind, ops) for kind, ops in found}
    inside = {v for _, ops in found for v in ops[:-1]}
    kept = [v for v in range(graph.num_ops) if v not in inside]
    groups = [last[v][1] if v in last else [v] for v in kept]
    kinds = [last[v][0] if v in last else graph.kinds[v] for v in kept]
    rows = [dict(graph.extras.get(v, {})) for v in kept]
    for row, ops in zip(rows, groups, strict=True):
        if len(ops) > 1:
            for key in ("axes", "operands"):
                row.pop(key, None)
            row |= joined_axes(graph, ops)
            if constants := sum(graph.extras[v].get("constant_bytes", 0) for v in ops):
                row["constant_bytes"] = constants
            row["nodes"] = [node for v in ops for node in graph.extras[v]["nodes"]]
            row["parts"] = [[graph.extras[v]["node"], *graph.extras[v]["tensors"]] for v in ops[:-1]]
    return dataclasses.replace(contracted(graph, groups), kinds=tuple(kinds), extras=dict(enumerate(rows)))


def matches(
    graph: Graph, patterns: Sequence[tuple[str, Pattern]], results: Collection[int] = ()
) -> list[tuple[str, list[int]]]:
    """Return the kind and the ops of every expression found, the op that gives its tensor last; no op is in two.

    Parameters
    ----------
    graph
        The graph.
    patterns
        Kind and expression; earlier ones are looked for first.
    results
        Ops whose tensors leave the graph, so that none but an expression's last may be among them.
    """
    readers = _Readers(graph, results)
    position = {v: at for at, v in enumerate(graph.order.tolist())}
    taken: set[int] = set()
    found = []
    for kind, pattern in patterns:
        for root in graph.order[::-1].tolist():
            if root in taken or graph.kinds[root] not in pattern.kinds | _kinds_below(pattern):
                continue
            for _, members in readers.bindings(pattern, root, {}):
                whole = readers.closed(members, root)
                if whole is not None and len(members) > 1 and not whole & taken:
                    taken |= whole
                    found.append((kind, sorted(whole, key=position.__getitem__)))
                    break
    return found


def _kinds_below(pattern: Pattern) -> frozenset[str]:
    """Return the kinds that may take the place of an op that is missing."""
    if not pattern.is_optional or not pattern.reads:
        return frozenset()
    return pattern.reads[-1].kinds | _kinds_below(pattern.reads[-1])


class _Readers:
    """A graph in which views are looked through."""

    def __init__(self, graph: Graph, results: Collection[int]) -> None:
        self._graph, self._results = graph, results
        self._is_view = [bool(graph.extras.get(v, {}).get("view")) for v in range(graph.num_ops)]
        self._read = [list[int]() for _ in range(graph.num_ops)]
        self._readers = [list[int]() for _ in range(graph.num_ops)]
        for u, v in graph.edges.tolist():
            self._readers[u].append(v)
            self._read[v].append(u)
        self._origin = list(range(graph.num_ops))
        for v in graph.order.tolist():
            if self._is_view[v] and len(self._read[v]) == 1:
                self._origin[v] = self._origin[self._read[v][0]]

    def bindings(self, pattern: Pattern, op: int, names: _Names) -> Iterator[tuple[_Names, frozenset[int]]]:
        """Yield each way in which an op's tensor is what a pattern says: the names bound, and the ops it takes."""
        if pattern.name in names or not pattern.kinds:
            if names.get(pattern.name, op) == op:
                yield {**names, pattern.name: op}, frozenset()
            return
        if self._graph.kinds[op] in pattern.kinds and not self._is_view[op]:
            bound = {**names, pattern.name: op} if pattern.name else names
            for after, members in self._reads(pattern.reads, op, bound):
                yield after, members | {op}
        if pattern.is_optional and pattern.reads:
            yield from self.bindings(pattern.reads[-1], op, names)

    def _reads(self, reads: Sequence[Pattern], op: int, names: _Names) -> Iterator[tuple[_Names, frozenset[int]]]:
        """Yield each way in which an op reads what patterns say, and nothing else."""
        read = dict.fromkeys(self._origin[u] for u in self._read[op])
        for chosen in itertools.permutations(range(len(reads)), len(read)) if len(read) <= len(reads) else ():
            missing = [reads[at] for at in range(len(reads)) if at not in chosen]
            if all(_may_miss(one) for one in missing):
                yield from self._together(sorted(zip(chosen, read, strict=True)), reads, names)

    def _together(
        self, pairs: Sequence[tuple[int, int]], reads: Sequence[Pattern], names: _Names
    ) -> Iterator[tuple[_Names, frozenset[int]]]:
        if not pairs:
            yield names, frozenset()
            return
        at, op = pairs[0]
        for bound, members in self.bindings(reads[at], op, names):
            for after, others in self._together(pairs[1:], reads, bound):
                yield after, members | others

    def closed(self, members: frozenset[int], root: int) -> set[int] | None:
        """Return the members and the views between them; None where another tensor than the root's leaves them."""
        whole, todo = set(members), [v for v in members if v != root]
        while todo:
            v = todo.pop()
            if v in self._results or not self._readers[v]:
                return None
            outside = [w for w in self._readers[v] if w not in whole]
            if not all(self._is_view[w] for w in outside):
                return None
            whole.update(outside)
            todo += outside
        return whole


def _may_miss(pattern: Pattern) -> bool:
    """Whether nothing at all may stand in a pattern's place."""
    return pattern.is_optional and all(_may_miss(read) for read in pattern.reads)
