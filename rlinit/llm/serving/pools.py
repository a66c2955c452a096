"""Machines that read prompts and machines that make answers: two pools, each with all layers, and the cache between.

Layers are counted twice: the first L read prompts, the L behind them make answers, and every device holds a span of
either. A layout of both pools is then a layout of 2 L layers, and what bounds those bounds every split into pools. The
unit of all rates is tokens made: a prompt counts as the tokens of its answer.

Where a request goes from p to q in the first pool, q gets its prompt's vectors; in the second, those of each token
made; and a device that makes answers gets the cache of its layers from all devices on which that prompt was read. Which
paths of the two pools are taken together is therefore part of the flow. Its nodes are pairs (p, d) of devices that
hold a layer in common, through which a request goes in the order of their ends:

    maximise the flow through pairs, such that what enters a device is at most its rate,
    and what a link carries of vectors, or of the caches that pairs have in common, is at most its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.errors import SolverFailure
from rlinit.limits import LARGEST
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet
from rlinit.llm.serving.layouts import Flow, Route, paths_of

Pair = tuple[str, str]


class Traffic(NamedTuple):
    """What two pools move over links.

    Parameters
    ----------
    layers
        Of the model, L.
    passes
        That make the answer of a request.
    bandwidths, latencies
        (from, to) -> bytes a second, and seconds.
    prompt_bytes, token_bytes
        Vectors of a prompt, and of a token made, for each token made.
    cache_bytes
        (L, L + 1) of a prompt's cache in j layers from a first one on, for each token made.
    """

    layers: int
    passes: float
    bandwidths: Mapping[Pair, float]
    latencies: Mapping[Pair, float]
    prompt_bytes: float
    token_bytes: float
    cache_bytes: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can say, and a checker reads."""
        links = [{"from": a, "to": b, "bytes_per_s": min(r, LARGEST)} for (a, b), r in self.bandwidths.items()]
        sizes = {"prompt_bytes": self.prompt_bytes, "token_bytes": self.token_bytes}
        return {"layers": self.layers, **sizes, "cache_bytes": self.cache_bytes[:, 1].tolist(), "links": links}

    def narrowed(self, fleet: Fleet) -> list[Fleet]:
        """Return fleets whose rates are cut to what links let through of caches, for a search that leaves them out.

        In one of them a device may send its cache over all its links together, and gets what it needs over one; in the
        other one the other way round. Where links are wide, both are the same, and there is one.

        Parameters
        ----------
        fleet
            Rates, over 2 L layers.
        """
        found = [self.cut(fleet, np.sum, np.max), self.cut(fleet, np.max, np.sum)]
        alike = np.array_equal(found[0].rates, found[1].rates)
        return [one for one in found[: 1 if alike else 2] if one.devices]

    def cut(self, fleet: Fleet, out: Callable[..., Any], into: Callable[..., Any]) -> Fleet:
        """Return a fleet whose rates are cut to links of each device; what passes nothing is left out.

        Parameters
        ----------
        fleet
            Rates, over 2 L layers.
        out, into
            What links of a device let through together.
        """
        rates = fleet.rates.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            for at, name in enumerate(fleet.devices):
                for half, end in ((slice(None, self.layers), 0), (slice(self.layers, None), 1)):
                    through = (out, into)[end](
                        [0.0, *(rate for pair, rate in self.bandwidths.items() if pair[end] == name)]
                    )
                    held = rates[at, half, : self.layers + 1]
                    np.fmin(held, through / self.cache_bytes, out=held)
        kept = np.flatnonzero(rates.any(axis=(1, 2))).tolist()
        part = fleet.part(kept)
        return replace(part, rates=rates[kept])

    def join(self, fleet: Fleet, spans: Mapping[str, tuple[int, int]]) -> tuple[float, Flow]:
        """Return the largest flow of a layout over the hardware's links, and what it sends from where to where.

        Parameters
        ----------
        fleet, spans
            As for `paths`.
        """
        flow: Flow = {}
        paths = self.paths(fleet, spans)
        for path in paths:
            for pair in pairwise([SOURCE, *path.devices, SINK]):
                flow[pair] = flow.get(pair, 0.0) + path.tokens_per_s
        return math.fsum(path.tokens_per_s for path in paths), flow

    def paths(self, fleet: Fleet, spans: Mapping[str, tuple[int, int]]) -> tuple[Route, ...]:
        """Return the paths of the largest flow of a layout over the hardware's links, largest first.

        Parameters
        ----------
        fleet
            Rates, over 2 L layers.
        spans
            Device -> (first layer, the one after its last).
        """
        index = {name: at for at, name in enumerate(fleet.devices)}
        passed = {name: fleet.rate(index[name], *span) for name, span in spans.items()}
        arcs = [arc for arc in self._arcs(spans) if all(self.bandwidths[pair] > 0 for pair in arc.carried)]
        found = paths_of(_largest(arcs, passed, self.bandwidths))
        used: dict[Any, float] = {}
        routes, by_ends = [], {arc.ends: arc for arc in arcs}
        for nodes, rate in found:
            taken = [by_ends[ends] for ends in pairwise([SOURCE, *nodes, SINK])]
            for what, share in chain.from_iterable(arc.shares(passed, self.bandwidths) for arc in taken):
                used[what] = used.get(what, 0.0) + rate * share
            names = sorted({name for arc in taken for name in arc.entered}, key=lambda name: spans[name])
            routes.append((tuple(names), rate, self._route_seconds(fleet, spans, names)))
        over = max([1.0, *used.values()])  # what a linear program's rounding is above what there is
        return tuple(sorted((Route(n, rate / over, s) for n, rate, s in routes), key=lambda path: -path.tokens_per_s))

    def _route_seconds(self, fleet: Fleet, spans: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
        """Return the seconds of a request: its prompt, the way of its cache, and the passes that make its answer."""
        total, moves = sum(fleet.seconds_of({name: spans[name] for name in names}).values()), []
        for a, b in product(names, names):
            if spans[a][1] == spans[b][0] != self.layers:
                reads = spans[a][1] < self.layers
                sent = self.prompt_bytes * self.passes / self.bandwidths[a, b]
                total += self.latencies[a, b] + sent if reads else self.passes * fleet.delays[a, b]
            elif moved := self._common(spans[a], spans[b]):
                moves.append(self.latencies[a, b] + moved * self.passes / self.bandwidths[a, b])
        return total + max(moves, default=0.0)

    def _common(self, reads: tuple[int, int], makes: tuple[int, int]) -> float:
        """Return the bytes of cache, for each token made, of layers that a device reads and another one makes."""
        start, end = max(reads[0], makes[0] - self.layers), min(reads[1], makes[1] - self.layers)
        return float(self.cache_bytes[start, end - start]) if reads[1] <= self.layers and start < end else 0.0

    def _arcs(self, spans: Mapping[str, tuple[int, int]]) -> Iterator[_Arc]:
        """Yield the ways of a request from pair to pair: the device that ends first is followed by the next one."""
        begin: dict[int, list[str]] = {}
        for name, (start, _) in spans.items():
            begin.setdefault(start, []).append(name)
        ahead: list[tuple[str, str]] = list(product(begin.get(0, []), begin.get(self.layers, [])))
        met = set(ahead)
        for pair in ahead:
            yield _Arc((SOURCE, pair), pair, self._carried(spans, pair))
        while ahead:
            p, d = ahead.pop()
            reads, makes = spans[p][1], spans[d][1]
            if reads == self.layers and makes == 2 * self.layers:
                yield _Arc(((p, d), SINK), (), {})
                continue
            moves = reads < self.layers and reads <= makes - self.layers
            for name in begin.get(reads if moves else makes, []):
                pair, hop = ((name, d), (p, name)) if moves else ((p, name), (d, name))
                carried = self._carried(spans, pair) | {hop: self.prompt_bytes if moves else self.token_bytes}
                yield _Arc(((p, d), pair), (name,), carried)
                if pair not in met:
                    met.add(pair)
                    ahead.append(pair)

    def _carried(self, spans: Mapping[str, tuple[int, int]], pair: Pair) -> dict[Pair, float]:
        moved = self._common(spans[pair[0]], spans[pair[1]])
        return {pair: moved} if moved else {}


class _Arc(NamedTuple):
    """A step between pairs of devices, the devices that it enters, and what links carry for each token made."""

    ends: tuple[Any, Any]
    entered: tuple[str, ...]
    carried: dict[Pair, float]

    def shares(self, passed: Mapping[str, float], bandwidths: Mapping[Pair, float]) -> Iterator[tuple[Any, float]]:
        """Yield each device and link with the share of it that one token a second takes."""
        yield from ((name, 1.0 / passed[name]) for name in self.entered)
        yield from ((pair, moved / bandwidths[pair]) for pair, moved in self.carried.items())


def stacked(read: FloatArray, made: FloatArray) -> FloatArray:
    """Return (d, 2 L, 2 L + 1) of two tables of (d, L, L + 1), none from the first layers to the others.

    Parameters
    ----------
    read, made
        Of layers that read prompts, and of those that make answers.
    """
    count, layers, _ = read.shape
    table = np.zeros((count, 2 * layers, 2 * layers + 1))
    table[:, :layers, : layers + 1], table[:, layers:, : layers + 1] = read, made
    return table


def _largest(
    arcs: Sequence[_Arc], passed: Mapping[str, float], bandwidths: Mapping[Pair, float]
) -> dict[tuple[Any, Any], float]:
    """Return the largest flow through pairs of devices: tokens a second of each arc that is used."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    scale = max(passed.values(), default=0.0)
    limits: dict[Any, int] = {}
    nodes: dict[Any, int] = {}
    uses: list[tuple[float, int, int]] = []
    balance: list[tuple[float, int, int]] = []
    for column, arc in enumerate(arcs):
        for what, share in arc.shares(passed, bandwidths):
            uses.append((share * scale, limits.setdefault(what, len(limits)), column))
        for sign, end in zip((-1.0, 1.0), arc.ends, strict=True):
            if end not in (SOURCE, SINK):
                balance.append((sign, nodes.setdefault(end, len(nodes)), column))
    if not any(arc.ends[1] == SINK for arc in arcs):
        return {}
    matrices: list[Any] = []
    for entries, size in ((uses, len(limits)), (balance, len(nodes))):
        values, rows, columns = zip(*entries, strict=True)
        matrices.append(coo_array((values, (rows, columns)), shape=(size, len(arcs))).tocsr())
    goal = [-1.0 if arc.ends[0] == SOURCE else 0.0 for arc in arcs]
    found = linprog(goal, A_ub=matrices[0], b_ub=np.ones(len(limits)), A_eq=matrices[1], b_eq=np.zeros(len(nodes)))
    if found.x is None:
        raise SolverFailure(f"the linear program of two pools ended with {found.message!r}")
    return {arc.ends: float(rate * scale) for arc, rate in zip(arcs, found.x, strict=True) if rate > 0}
