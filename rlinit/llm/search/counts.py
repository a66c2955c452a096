"""Units in a row on any places as a program that counts units which are alike, and the rows that tighten it.

A row is cut into blocks, each a period of p unlike units repeated r times (attention and experts of every layer); a
slot is a unit of a period. Places between which nothing is moved, such as a device and its streams, are one station.
With whole numbers

    x[i, p]      repeats in which slot i is on place p,
    v[s]         whether station s is used at all,
    w[i, s]      whether slot i of a repeated block is on station s at all,
    t[i, s, z]   cuts from station s to z between slot i and the one after it (from the last to the first of the next
                 repeat, or of the next block),

the cost is that of units and cuts, and memory is a sum over x. A block whose cuts into and out of every (i, s) are as
many as its repeats there, and whose used (i, s) are connected, is a path, and every path is such a block (Euler's
theorem on directed multigraphs): since cuts go from a slot to the next only, it has the row's units in order.
Connectivity is added where a point lacks it: a set of (i, s) that holds a used one, but not the block's entry, is
entered at least once (`Counts.connections`). So are facets of what a memory has room for (`Counts.facets`). Sums of x
over sets of stations that are near each other are columns too, to be branched on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np

from rlinit.arrays import NOTABLE, ROUNDING, SAFETY, BoolArray, FloatArray, IntArray
from rlinit.exact.solvers.max_flow import FlowNetwork, max_flow
from rlinit.llm.search.contiguous import Places
from rlinit.llm.search.packing import Facet, Packing

_LONGEST_PERIOD = 12
"""Units of a period: six layers of two, as where every sixth looks back at everything."""

_LIFTED = 3
"""Single units that a facet takes in, beside first and last where these share bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """least <= terms . columns <= limit.

    Parameters
    ----------
    terms
        Column -> coefficient.
    least, limit
        Either may be infinite.
    """

    terms: dict[int, float]
    least: float = -np.inf
    limit: float = np.inf


@dataclass(slots=True, eq=False)
class _Group:
    """Units on a station that take of a memory: columns of small and large ones, and of single units."""

    memory: int
    station: int
    packing: Packing
    small: list[int]
    large: list[int]
    singles: list[list[int]]
    known: dict[tuple[int, ...], list[Row]] = field(default_factory=dict)


class Counts:
    """Columns x, w, t and those of buffers and of shared bytes, and the rows that every walk satisfies.

    Parameters
    ----------
    problem
        Units, places and memories.
    """

    def __init__(self, problem: Places) -> None:
        self.problem = problem
        q = problem.seconds.shape[0]
        self.station = _stations(problem.transfer_s)
        self.num_stations = s = int(self.station.max()) + 1
        self._cut_into_slots(_kinds(problem))
        slots, room = len(self.unit), problem.room_bytes
        self.size = np.zeros((len(room), slots, q))
        for p in range(q):
            self.size[problem.weight_home[p], :, p] += problem.weight_bytes[self.unit]
            self.size[problem.cache_home[p], :, p] += problem.cache_bytes[self.unit]
        self.x = np.arange(slots * q).reshape(slots, q)
        self.w = self.x.size + np.arange(slots * s).reshape(slots, s)
        self.v = self.x.size + self.w.size + np.arange(s)
        self.t = int(self.v[-1]) + 1 + np.arange(len(self.after) * s * s).reshape(len(self.after), s, s)
        begin = int(self.v[-1]) + 1 + self.t.size
        self.clusters = _clusters(problem.transfer_s, self.station)
        self.sums = begin + np.arange(slots * len(self.clusters)).reshape(slots, len(self.clusters))
        begin += self.sums.size
        self.buffer = {int(p): begin + at for at, p in enumerate(np.flatnonzero(problem.buffer_bytes))}
        begin += len(self.buffer)
        sharing = np.unique(problem.weight_home) if problem.shared_bytes else ()
        self.shared = {int(m): begin + at for at, m in enumerate(sharing)}
        self.num_columns = begin + len(self.shared)
        self.scale, self.cost, self.high = self._columns()
        self.rows = [*self._assignment(), *self._usage(), *self._memory(), *self._order()]
        self.groups, self.network = list(self._groups()), self._network()
        extra = np.array([*self.buffer.values(), *self.shared.values()], np.int64)
        self.branched = (self.x[self.repeats == 1].ravel(), extra, self.v, self.sums.ravel(), self.w.ravel(),
                         self.x.ravel(), self.t.ravel())  # fmt: skip

    def _cut_into_slots(self, kinds: Sequence[int]) -> None:
        """Set the first unit, the repeats and the block of each slot, and (slot, slot after it, cuts between them)."""
        units: list[int] = []
        repeats: list[int] = []
        blocks: list[int] = []
        slots: list[int] = []
        self.after: list[tuple[int, int, int]] = []
        for b, (start, period, times) in enumerate(_blocks(kinds)):
            first = len(units)
            if first:
                self.after.append((first - 1, first, 1))
            units += range(start, start + period)
            repeats += [times] * period
            blocks += [b] * period
            slots += [*range(first, first + period)] * times
            self.after += [(i, i + 1, times) for i in range(first, first + period - 1)]
            if times > 1:
                self.after.append((first + period - 1, first, times - 1))
        self.unit, self.repeats, self.block = np.array(units), np.array(repeats), np.array(blocks)
        self.slot = np.array(slots)

    # -- the program -------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[float, FloatArray, FloatArray]:
        """Return a unit of costs, costs in it, and the most that a column may be; all are at least 0."""
        problem, cost, high = self.problem, np.zeros(self.num_columns), np.ones(self.num_columns)
        seconds = problem.seconds[:, self.unit].T
        room = np.repeat(problem.room_bytes[:, None], len(self.unit), axis=1)
        room[:, [0, -1]] += problem.shared_bytes
        sized = np.where(self.size > 0, self.size, 1.0)
        fitting = np.where(self.size > 0, room[:, :, None] / sized + SAFETY, np.inf).min(axis=0)
        most = np.where(np.isfinite(seconds), np.minimum(np.floor(fitting), self.repeats[:, None]), 0.0)
        first = [int(np.flatnonzero(self.station == s)[0]) for s in range(self.num_stations)]
        transfer = problem.transfer_s[np.ix_(first, first)]
        linked = np.isfinite(transfer)
        high[self.sums] = self.repeats[:, None]
        cost[self.x], high[self.x] = np.where(most > 0, seconds, 0.0), most
        for s in range(self.num_stations):
            some = most[:, self.station == s].max(axis=1) > 0
            high[self.w[:, s]] = some & (self.repeats > 1)
        for at, (_, _, count) in enumerate(self.after):
            cost[self.t[at]], high[self.t[at]] = np.where(linked, transfer, 0.0), np.where(linked, count, 0)
        least = float(np.where(most > 0, seconds, np.inf).min(axis=1) @ self.repeats)
        scale = least if 0.0 < least < np.inf else float(min(cost[cost > 0], default=1.0))
        return scale, cost / scale, high

    def _assignment(self) -> Iterator[Row]:
        """Each slot is somewhere in every repeat; cuts into and out of a station are as many as repeats there."""
        for i, repeats in enumerate(self.repeats.tolist()):
            yield Row(dict.fromkeys(self.x[i].tolist(), 1.0), repeats, repeats)
        for i, at in product(range(len(self.unit)), range(len(self.clusters))):
            held = self.x[i, np.isin(self.station, self.clusters[at])].tolist()
            yield Row(dict.fromkeys(held, 1.0) | {int(self.sums[i, at]): -1.0}, 0.0, 0.0)
        for end, i, s in product((0, 1), range(len(self.unit)), range(self.num_stations)):
            cuts = [self.t[at, s, :] if end == 0 else self.t[at, :, s] for at, row in enumerate(self.after)
                    if row[end] == i]  # fmt: skip
            if cuts:
                terms = dict.fromkeys(np.concatenate(cuts).tolist(), 1.0)
                yield Row(terms | dict.fromkeys(self.x[i, self.station == s].tolist(), -1.0), 0.0, 0.0)

    def _usage(self) -> Iterator[Row]:
        """Tie what slots and stations are used to x: at most as often as units fit; what is used is entered."""
        for i, s in np.argwhere(self.high[self.x] > 0).tolist():
            yield Row(
                {int(self.x[i, s]): 1.0, int(self.v[self.station[s]]): -float(self.high[self.x[i, s]])}, limit=0.0
            )
        for i, s in np.argwhere(self.high[self.w] > 0).tolist():
            places = self.x[i, self.station == s]
            most = min(float(self.high[places].sum()), float(self.repeats[i]))
            used = dict.fromkeys(places.tolist(), 1.0)
            yield Row(used | {int(self.w[i, s]): -most}, limit=0.0)
            yield Row(used | {int(self.w[i, s]): -1.0}, least=0.0)
            yield Row({int(self.w[i, s]): 1.0, int(self.v[s]): -1.0}, limit=0.0)
        for s in range(self.num_stations):
            inside = np.zeros(self.w.shape, bool)
            inside[:, s] = True
            yield self._entered(int(self.v[s]), inside)

    def _memory(self) -> Iterator[Row]:
        """Add up what units, buffers and shared bytes take of each memory."""
        problem = self.problem
        for p, column in self.buffer.items():
            for v in self.x[:, p].tolist():
                yield Row({v: 1.0, column: -float(self.high[v])}, limit=0.0)
        for m, column in self.shared.items():
            homes = problem.weight_home == m
            for i in (0, -1):
                yield Row({column: 1.0} | dict.fromkeys(self.x[i, homes].tolist(), -1.0), limit=0.0)
        for m, room in enumerate(problem.room_bytes.tolist()):
            if 0.0 < room < np.inf:
                terms = {int(self.x[i, p]): float(self.size[m, i, p]) / room for i, p in np.argwhere(self.size[m] > 0)}
                for p, column in self.buffer.items():
                    if problem.cache_home[p] == m:
                        terms[column] = float(problem.buffer_bytes[p]) / room
                if m in self.shared:
                    terms[self.shared[m]] = -problem.shared_bytes / room
                yield Row(terms, limit=1.0 + ROUNDING)

    def _order(self) -> Iterator[Row]:
        """Let the first of two places that may be swapped have no fewer repeated units, as some best walk has them."""
        inner, known = self.repeats > 1, np.zeros(len(self.station), bool)
        for p, e in combinations(range(len(self.station)), 2):
            if not known[p] and _swappable(self.problem, p, e):
                known[p] = True
                terms = dict.fromkeys(self.x[inner, p].tolist(), 1.0) | dict.fromkeys(self.x[inner, e].tolist(), -1.0)
                yield Row(terms, least=0.0)

    def _entered(self, used: int, inside: BoolArray) -> Row:
        """Return that (slots, stations) are entered, by a cut or by the first unit, where what they hold is used."""
        terms = {used: -1.0} | dict.fromkeys(self.x[0, inside[0, self.station]].tolist(), 1.0)
        for at, (one, other, _) in enumerate(self.after):
            terms |= dict.fromkeys(self.t[at][~inside[one][:, None] & inside[other][None, :]].tolist(), 1.0)
        return Row(terms, least=0.0)

    # -- rows that a point violates ----------------------------------------------------------------------------

    def _network(self) -> FlowNetwork:
        """Return the network from the start (node 0) over (slot, station) to a node for each station."""
        s, (slots, q) = self.num_stations, self.x.shape
        nodes = 1 + np.arange(slots * s).reshape(slots, s)
        gather = 1 + slots * s + np.arange(s)
        tails = [np.zeros(q, np.int64), *(np.repeat(nodes[one], s) for one, _, _ in self.after), nodes.ravel()]
        heads = [nodes[0, self.station], *(np.tile(nodes[other], s) for _, other, _ in self.after)]
        return FlowNetwork.from_pairs(
            1 + (slots + 1) * s, np.concatenate(tails), np.concatenate([*heads, np.tile(gather, slots)])
        )

    def connections(self, point: FloatArray) -> list[Row]:
        """Return rows of connectivity that a point violates: minimum cuts between the start and what is used."""
        amounts = np.concatenate([point[self.x[0]], point[self.t].ravel(), np.full(self.w.size, 2.0)])
        amounts[amounts < NOTABLE / 100] = 0.0
        capacities, network = self.network.capacities(amounts, np.zeros(len(amounts))), self.network
        nodes = len(network.first) - 1
        found: list[Row] = []
        covered, scratch = np.zeros(nodes, bool), np.zeros((3, nodes), np.int64)
        for columns, first in ((self.v, 1 + self.w.size), (self.w.ravel(), 1)):
            for at in np.argsort(-point[columns], kind="stable").tolist():
                want, node = float(point[columns[at]]), first + at
                if want < 10 * NOTABLE:
                    break
                if (
                    not covered[node]
                    and max_flow(
                        network.first,
                        network.head,
                        network.twin,
                        capacities.copy(),
                        0,
                        node,
                        want - NOTABLE,
                        *scratch,
                    )
                    <= want - NOTABLE
                ):
                    outside = scratch[0] >= 0
                    covered |= ~outside
                    found.append(self._entered(int(columns[at]), ~outside[1 : 1 + self.w.size].reshape(self.w.shape)))
            if found:
                break
        return found

    def facets(self, point: FloatArray) -> list[Row]:
        """Return for each memory and station the facet of what there is room for that a point violates most."""
        found = []
        for group in self.groups:
            if point[group.small].sum() + point[group.large].sum() < NOTABLE:
                continue
            beside = tuple(at for at, held in enumerate(group.singles) if point[held].sum() > 0.5)
            if beside not in group.known:
                group.known[beside] = [self._row(group, facet) for facet in group.packing.facets(beside)]
            rows = [row for some in {(), beside} for row in group.known.get(some, ())]
            beyond = [sum(a * point[v] for v, a in row.terms.items()) for row in rows]
            if max(beyond, default=0.0) > NOTABLE:
                found.append(rows[int(np.argmax(beyond))])
        return found

    def _row(self, group: _Group, facet: Facet) -> Row:
        """Return a facet in columns; where its station is not used at all, both sides are 0."""
        terms = {int(self.v[group.station]): -facet.limit, self.shared.get(group.memory, 0): -facet.shared}
        for columns, a in zip((group.small, group.large, *group.singles), (facet.small, facet.large, *facet.singles),
                              strict=True):  # fmt: skip
            terms |= dict.fromkeys(columns, a)
        for column in (
            *self.t[:, np.arange(self.num_stations) != group.station, group.station].ravel().tolist(),
            *self.x[0, self.station == group.station].tolist(),
        ):
            terms[column] = terms.get(column, 0) - facet.visits
        return Row({v: float(a) for v, a in terms.items() if a}, limit=0.0)

    def _groups(self) -> Iterator[_Group]:
        """Return what is counted together: units on a station that take of a memory, beside single ones."""
        problem, last, many = self.problem, len(self.unit) - 1, self.repeats > 1
        least = min(problem.weight_bytes[0], problem.weight_bytes[-1])
        for m, s in product(np.flatnonzero(np.isfinite(problem.room_bytes)).tolist(), range(self.num_stations)):
            places = np.flatnonzero(self.station == s)
            columns = self.x[:, places]
            usable = self.high[columns] > 0
            taken = np.where(usable & many[:, None], self.size[m][:, places], 0.0)
            if not taken.any():
                continue
            together = m in self.shared and 0 < problem.shared_bytes <= least
            homes = places[problem.weight_home[places] == m]
            singles = [(float(self.size[m][i, homes].min(initial=np.inf)), self.x[i, homes].tolist()) for i in (0, last)
                       if together]  # fmt: skip
            others = np.setdiff1d(np.flatnonzero(~many), [0, last] if together else [])
            for i in others[:_LIFTED].tolist():
                most = float(np.where(self.high[self.x[i, places]] > 0, self.size[m][i, places], 0.0).max())
                if most > 0:
                    singles.append((most, self.x[i, places[self.size[m][i, places] == most]].tolist()))
            packing = Packing(
                float(problem.room_bytes[m]) + (problem.shared_bytes if m in self.shared and not together else 0.0),
                taken[self.slot], bool((usable[many].sum(axis=1) == 1).all() and (taken[many] > 0).any(axis=1).all()),
                tuple(size for size, _ in singles), problem.shared_bytes if together else 0.0,
            )  # fmt: skip
            small = (taken > 0) & (taken < packing.split)
            yield _Group(m, s, packing, columns[small].tolist(), columns[taken >= packing.split].tolist(),
                         [held for _, held in singles])  # fmt: skip

    # -- walks -------------------------------------------------------------------------------------------------

    def walk(self, point: FloatArray) -> IntArray | None:
        """Return the place of each unit for whole x and t; None where what is used is not connected.

        An Euler path through each block (Hierholzer); stations of the path become places as x has them.
        """
        x, t = np.rint(point[self.x]).astype(int), np.rint(point[self.t]).astype(int)
        left: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for at, (one, other, _) in enumerate(self.after):
            for s, z in np.argwhere(t[at] > 0).tolist():
                if self.block[one] == self.block[other]:
                    left.setdefault((one, s), []).extend([(other, z)] * int(t[at, s, z]))
        entry = (0, int(self.station[np.argmax(x[0])]))
        places: list[int] = []
        for b in range(int(self.block[-1]) + 1):
            way, trail = [entry], []
            while way:
                onward = left.get(way[-1])
                if onward:
                    way.append(onward.pop())
                else:
                    trail.append(way.pop())
            inner = self.block == b
            if len(trail) != self.repeats[inner].sum():
                return None
            last = trail[0]
            for i, s in reversed(trail):
                open_ = np.flatnonzero((x[i] > 0) & (self.station == s))
                if not len(open_):
                    return None
                places.append(int(open_[0]))
                x[i, open_[0]] -= 1
            at = next(
                (at for at, row in enumerate(self.after) if row[0] == last[0] and self.block[row[1]] == b + 1), -1
            )
            if at >= 0:
                entry = (self.after[at][1], int(np.argmax(t[at, last[1]])))
        return np.array(places)


def _swappable(problem: Places, p: int, e: int) -> bool:
    """Return whether two places, and the memories of their weights, may swap names without any change."""
    places, memories = np.arange(len(problem.weight_home)), np.arange(len(problem.room_bytes))
    one, other = problem.weight_home[[p, e]].tolist()
    places[[p, e]], memories[[one, other]] = (e, p), (other, one)
    return (
        bool((problem.seconds[places] == problem.seconds).all())
        and bool((problem.transfer_s[np.ix_(places, places)] == problem.transfer_s).all())
        and bool((problem.buffer_bytes[places] == problem.buffer_bytes).all())
        and bool((problem.room_bytes[memories] == problem.room_bytes).all())
        and all(bool((home[places] == memories[home]).all()) for home in (problem.weight_home, problem.cache_home))
    )


def _kinds(problem: Places) -> list[int]:
    """Return the kind of each unit; the first and the last are alone of theirs."""
    numbers: dict[object, int] = {}
    n = len(problem.weight_bytes)
    rows = [
        (*problem.seconds[:, u].tolist(), problem.weight_bytes[u], problem.cache_bytes[u], u if u in (0, n - 1) else -1)
        for u in range(n)
    ]
    return [numbers.setdefault(row, len(numbers)) for row in rows]


def _blocks(kinds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a row into repeated periods (start, period, repeats), the one that covers most units first."""
    at = 0
    while at < len(kinds):
        best = (at, 1, 1)
        for period in range(1, min(_LONGEST_PERIOD, (len(kinds) - at) // 2) + 1):
            repeats = 1
            while kinds[at + repeats * period : at + (repeats + 1) * period] == kinds[at : at + period]:
                repeats += 1
            if repeats > 1 and period * repeats > best[1] * best[2]:
                best = (at, period, repeats)
        yield best
        at += best[1] * best[2]


def _stations(transfer: FloatArray) -> IntArray:
    """Return the station of each place: places with no transfer between them, and equal ones to all others."""
    station = np.full(len(transfer), -1)
    for p in range(len(transfer)):
        for e in range(p):
            if not transfer[p, e] and not transfer[e, p] and (transfer[p] == transfer[e]).all() and (
                transfer[:, p] == transfer[:, e]
            ).all():  # fmt: skip
                station[p] = station[e]
                break
        if station[p] < 0:
            station[p] = station.max() + 1
    return station


def _clusters(transfer: FloatArray, station: IntArray) -> list[IntArray]:
    """Return sets of stations between which a cut takes less than half of what it takes to any other station."""
    first = [int(np.flatnonzero(station == s)[0]) for s in range(int(station.max()) + 1)]
    near = np.minimum(transfer, transfer.T)[np.ix_(first, first)]
    found: dict[tuple[int, ...], IntArray] = {}
    for limit in np.unique(near[(near > 0) & np.isfinite(near)]).tolist():
        label = np.arange(len(near))
        for s, z in np.argwhere(near <= limit).tolist():
            label[label == label[z]] = label[s]
        for one in np.unique(label):
            inside = label == one
            if 1 < inside.sum() < len(near) and near[inside][:, ~inside].min() >= 2 * limit:
                found[tuple(np.flatnonzero(inside).tolist())] = np.flatnonzero(inside)
    return sorted(found.values(), key=len, reverse=True)
