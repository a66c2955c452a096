"""What walks of units over places cost at least, proven by branch and bound.

A walk gives each unit u a place p, at cost[p, u] and a transfer for each change of places; places draw on memories, and
a memory m has room for b_m bytes. With prices of at least 0 on the memories,

    L(prices) = min over walks of   cost(walk) + prices . used(walk)   -   prices . b

is at most the cost of every walk that fits, since for these the prices add nothing positive. The minimum is a dynamic
program over units, places, and which of some places were visited so far (`best_walk`), so that L is exact but for the
rounding of sums, which is taken off. The prices that make L largest are multipliers of a linear program over the walks
that were found so far (Dantzig and Wolfe); whatever they are, L holds.

Where L stays below the best walk, a node is split, by the first of these that the program's mixture of walks leaves
open: where a unit is that is alone of its kind; whether a place is visited at all; how many units of a kind it has, by
a priced row of its own; where any one unit is. Further rows say how many units of its two most numerous sizes a memory
has room for: facets of the convex hull of these pairs of whole numbers.

References
----------
Dantzig, Wolfe: Decomposition principle for linear programs, Operations Research 8, 1960. Geoffrion: Lagrangean
relaxation for integer programming, Mathematical Programming Study 2, 1974.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.llm.contiguous import Places

__all__ = ["ProvenWalk", "prove_walk"]

_WORK = 2e9
"""Steps of all dynamic programs, some half a second."""

_OVERHEAD = 1e6
"""Steps that as much time goes by in as around a dynamic program, its linear program included."""

_FEW_BITS, _MOST_BITS = 3, 9
"""Places that a walk may have to visit: eight sets of them before units are counted, 512 at last."""

_COLUMNS = 200
"""Walks that a node begins with."""

_CLOSED = 1e-9
"""Relative difference of bound and value at which a node is done: what rounding leaves of equal sums."""

_ROUNDING = 1e-13
"""Relative error of a sum of costs and prices over all units, taken off every bound."""

_INTEGRAL = 1e-6
"""Distance from a whole number at which a share of walks counts as one."""


_PIVOTS = 2_000
"""Pivots of one linear program; its rows are some twenty."""


@dataclass(frozen=True, slots=True)
class ProvenWalk:
    """The place of each unit, none where no walk was found, and what was proven that no walk is below.

    Parameters
    ----------
    places
        (n,) place of each unit.
    bound
        inf where nothing fits.
    closed
        Whether the search came to its end, so that the walk is best, or none fits.
    """

    places: tuple[int, ...]
    bound: float
    closed: bool


@njit(cache=True, nogil=True)
def best_walk(
    cost: FloatArray, transfer: FloatArray, bit: IntArray, num_bits: int, first: FloatArray, last: FloatArray
) -> tuple[float, IntArray]:
    """Return the least cost of a walk of units over places that visits all of some places, and the walk.

    A state is the set of those places visited so far and the current one; all of them are gone through, in
    O(n 2^b q^2) steps.

    Parameters
    ----------
    cost
        (n, q) of each unit on each place; inf: not there.
    transfer
        (q, q) from place to place; 0 on the diagonal.
    bit
        (q,) number of a place that has to be visited, -1 of others.
    num_bits
        Places b that have to be.
    first, last
        (q,) added for the place of the first unit, and for that of the last.

    Returns
    -------
    tuple
        The cost, inf where there is no walk, and (n,) places.
    """
    n, q = cost.shape
    sets = 1 << num_bits
    now = np.full((sets, q), np.inf)
    came = np.full((n, sets, q), -1, np.int16)  # twice the place before, and one more where the set had this one
    for e in range(q):
        now[0 if bit[e] < 0 else 1 << bit[e], e] = cost[0, e] + first[e]
    for u in range(1, n):
        after = np.full((sets, q), np.inf)
        for seen in range(sets):
            for e in range(q):
                own = 0 if bit[e] < 0 else 1 << bit[e]
                if cost[u, e] == np.inf or (own and not seen & own):
                    continue
                best, source = now[seen, e], 2 * e + 1
                for d in range(q):
                    reached = now[seen, d] + transfer[d, e]
                    if reached < best:
                        best, source = reached, 2 * d + 1
                if own:
                    for d in range(q):
                        reached = now[seen ^ own, d] + transfer[d, e]
                        if reached < best:
                            best, source = reached, 2 * d
                if best < np.inf:
                    after[seen, e] = best + cost[u, e]
                    came[u, seen, e] = source
        now = after
    walk = np.full(n, -1, np.int64)
    seen, e, least = sets - 1, -1, np.inf
    for d in range(q):
        if now[seen, d] + last[d] < least:
            least, e = now[seen, d] + last[d], d
    if e >= 0:
        for u in range(n - 1, -1, -1):
            walk[u] = e
            source = came[u, seen, e]
            if source % 2 == 0 and bit[e] >= 0:
                seen ^= 1 << bit[e]
            e = source // 2
    return least, walk


@njit(cache=True, nogil=True)
def _entering(costs: FloatArray, usage: FloatArray, duals: FloatArray, tolerance: float, first: bool) -> int:
    """Return the column of least reduced cost, or the first below 0, -1 - i for the slack of row i; -r - 2 for none."""
    k, r = usage.shape
    enter: int = -r - 2
    worst = -tolerance
    for j in range(k):
        reduced = costs[j] - duals[0]
        for i in range(r):
            reduced -= duals[1 + i] * usage[j, i]
        if reduced < worst:
            enter = j
            if first:
                return enter
            worst = reduced
    for i in range(r):
        if -duals[1 + i] < worst:
            enter = -1 - i
            worst = -duals[1 + i]
    return enter


@njit(cache=True, nogil=True)
def master_duals(
    costs: FloatArray, usage: FloatArray, limit: FloatArray, basis: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Solve min costs . w with the w adding up to 1 and usage^T w <= limit, by the primal simplex method.

    Only a proposal: what follows from its multipliers is proven elsewhere.

    Parameters
    ----------
    costs
        (k,) of the columns; the first one may always be taken.
    usage
        (k, r) of the rows.
    limit
        (r,).
    basis
        (r + 1,) columns of a feasible basis, -1 - i for the slack of row i; changed in place.

    Returns
    -------
    tuple
        (r + 1,) multipliers, that of the sum first, and (k,) the w.
    """
    k, r = usage.shape
    m = r + 1
    matrix = np.zeros((m, m))
    right = np.ones(m)
    right[1:] = limit
    for at in range(m):
        j = basis[at]
        if j >= 0:
            matrix[0, at] = 1.0
            matrix[1:, at] = usage[j]
        else:
            matrix[-j, at] = 1.0
    inverse = np.linalg.inv(matrix)
    values = inverse @ right
    scale = np.abs(costs[1:]).max() if k > 1 else 1.0
    duals = np.zeros(m)
    for pivot in range(_PIVOTS):
        duals[:] = 0.0
        for at in range(m):
            if basis[at] >= 0:
                duals += costs[basis[at]] * inverse[at]
        enter = _entering(costs, usage, duals, 1e-12 * scale, pivot > _PIVOTS // 2)
        if enter == -m - 1:
            break
        if enter >= 0:
            column = inverse[:, 0].copy()
            for i in range(r):
                column += inverse[:, 1 + i] * usage[enter, i]
        else:
            column = inverse[:, -enter].copy()
        leave, step = -1, np.inf
        for at in range(m):
            if column[at] > 1e-11:
                ratio = max(values[at], 0.0) / column[at]
                if ratio < step or (ratio == step and basis[at] < basis[leave]):
                    leave, step = at, ratio
        if leave < 0:
            break
        basis[leave] = enter
        inverse[leave] /= column[leave]
        values[leave] = step
        for at in range(m):
            if at != leave and column[at] != 0.0:
                inverse[at] -= column[at] * inverse[leave]
                values[at] -= column[at] * step
    shares = np.zeros(k)
    for at in range(m):
        if basis[at] >= 0:
            shares[basis[at]] = max(values[at], 0.0)
    return duals, shares


@njit(cache=True, nogil=True)
def _priced_costs(
    seconds: FloatArray, use: FloatArray, prices: FloatArray, terms: FloatArray, kind: IntArray, barred: BoolArray
) -> FloatArray:
    """Return (n, q) costs of units with (m,) prices of memories and (q, k) those of rows; inf where barred."""
    n, q = seconds.shape
    cost = np.full((n, q), np.inf)
    for u in range(n):
        for p in range(q):
            if not barred[u, p]:
                value = seconds[u, p] + terms[p, kind[u]]
                for m in range(len(prices)):
                    value += prices[m] * use[m, u, p]
                cost[u, p] = value
    return cost


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A row: (q, k) terms times units of each kind on each place are at most `limit`; a cut follows from memory."""

    terms: FloatArray
    limit: float
    cut: bool = False


@dataclass(slots=True)
class _Node:
    """What is barred, which places have to be visited, rows on counts, and prices and walks to begin with."""

    bound: float
    barred: BoolArray
    must: tuple[int, ...]
    rows: tuple[_Row, ...]
    prices: FloatArray
    row_prices: dict[_Row, float] = field(default_factory=dict)
    columns: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


def prove_walk(problem: Places, walks: Sequence[Sequence[int]] = ()) -> ProvenWalk:
    """Return the best walk known, and what none is below: the best one's cost, unless the work ends before.

    Parameters
    ----------
    problem
        Units, places and memories.
    walks
        Walks to begin with, where some are known; better ones may be found.
    """
    search = _Search(problem)
    for walk in walks:
        search.offer(np.asarray(walk, np.int64))
    return search.solve()


class _Search:
    """Branch and bound, best bound first."""

    def __init__(self, problem: Places) -> None:
        self.problem, self.seconds = problem, np.ascontiguousarray(problem.seconds.T)
        self.num_units, self.num_places = n, q = self.seconds.shape
        numbers: dict[object, int] = {}
        rows = [(*self.seconds[u].tolist(), problem.weight_bytes[u], problem.cache_bytes[u]) for u in range(n)]
        self.kind = np.array([numbers.setdefault(row, len(numbers)) for row in rows])
        self.num_kinds = len(numbers)
        self.example = np.array([int(np.flatnonzero(self.kind == kind)[0]) for kind in range(self.num_kinds)])
        self.single = np.bincount(self.kind)[self.kind] == 1
        room = problem.room_bytes
        self.bounded = np.flatnonzero(np.isfinite(room))
        self.scale = np.where((room > 0) & np.isfinite(room), room, 1.0)
        self.use = self._uses()
        self.priced_use = np.ascontiguousarray(self.use[self.bounded])
        self.barred = (self.use > (room / self.scale)[:, None, None]).any(axis=0) | ~np.isfinite(self.seconds)
        self.ceiling = self._ceiling()
        self.known_facets: dict[tuple[int, float], list[_Row]] = {}
        self.best_walk: IntArray | None = None
        self.best, self.work, self.nodes, self.num_walks = np.inf, 0.0, 0, 0
        self.walks, self.costs = np.zeros((64, n), np.int64), np.zeros(64)
        self.used, self.counts = np.zeros((64, len(self.bounded))), np.zeros((64, q * self.num_kinds))

    def _uses(self) -> FloatArray:
        """Return (m, n, q) the share of each memory's room that a unit takes on a place."""
        use = np.zeros((len(self.scale), self.num_units, self.num_places))
        for p in range(self.num_places):
            use[self.problem.weight_home[p], :, p] += self.problem.weight_bytes
            use[self.problem.cache_home[p], :, p] += self.problem.cache_bytes
        return use / self.scale[:, None, None]

    def solve(self) -> ProvenWalk:
        """Search until nothing is left open, or the work is done."""
        start = _Node(0.0, self.barred, (), (), np.zeros(len(self.bounded)))
        waiting: list[tuple[float, int, _Node]] = [(0.0, 0, start)]
        done = np.inf
        while waiting:
            bound, _, node = heapq.heappop(waiting)
            if bound < self._target() and self.work < _WORK:
                self.nodes += 1
                children = self._split(node, *self._bounded(node)) if node.bound < self._target() else []
                if node.bound < self._target():
                    for at, child in enumerate(children):
                        heapq.heappush(waiting, (node.bound, -2 * self.nodes + at, child))
                    done = done if children else min(done, self._settled(node))
                    continue
                bound = node.bound
            done = min(done, bound)
        if self.best_walk is None:
            return ProvenWalk((), np.inf if done >= self.ceiling else done, done >= self.ceiling)
        return ProvenWalk(tuple(self.best_walk.tolist()), min(done, self.best), done >= self._target())

    def _settled(self, node: _Node) -> float:
        """Return the bound of a node that cannot be split: of its one walk, which was offered, if that does not fit."""
        walk = np.argmin(node.barred, axis=1)
        return node.bound if self.problem.fits(walk) else np.inf

    def _target(self) -> float:
        """Return the bound from which on a node holds nothing better than what is known."""
        return self.best * (1.0 - _CLOSED) if np.isfinite(self.best) else self.ceiling

    def _ceiling(self) -> float:
        """Return a cost above that of every walk."""
        seconds = np.where(self.barred, 0.0, self.seconds).max(axis=1).sum()
        links = self.problem.transfer_s[np.isfinite(self.problem.transfer_s)].max(initial=0.0)
        return float((seconds + self.num_units * links) * 1.01) or 1e-300

    # -- bounds ------------------------------------------------------------------------------------------------

    def _bounded(self, node: _Node) -> tuple[FloatArray, IntArray]:
        """Raise a node's bound by better and better prices; return the last mixture: shares and walks."""
        rows, program = list(node.rows), _Program(self.ceiling)
        chosen = self._columns(node)
        known = {self.walks[j].tobytes() for j in chosen}
        limit = self._limit(node, rows)
        prices = np.concatenate([node.prices, [node.row_prices.get(row, 0.0) for row in rows]])
        shares = np.zeros(0)
        while True:
            bound, walk = self._priced(node, rows, prices, limit)
            node.bound = max(node.bound, bound)
            if node.bound >= self._target() or walk is None or self.work > _WORK:
                break
            if walk.tobytes() not in known:
                known.add(walk.tobytes())
                chosen = np.append(chosen, self._add(walk))
            elif len(shares):
                # Nothing better at these prices: they are the best, but for rows that are not there yet.
                cuts = [row for row in self._violated(node, shares[1:], chosen) if row not in rows]
                if cuts:
                    rows += cuts
                    limit = self._limit(node, rows)
                elif shares[0] <= _INTEGRAL or not program.dearer():
                    break
            prices, shares = program.solve(self.costs[chosen], self._usage(chosen, rows), limit)
        node.prices = prices[: len(self.bounded)]
        node.row_prices = dict(zip(rows, prices[len(self.bounded) :].tolist(), strict=True))
        node.rows = tuple(row for row in rows if not row.cut or node.row_prices[row] > 0.0)
        share = np.zeros(len(chosen))
        share[: max(0, len(shares) - 1)] = shares[1:]
        liked = self.costs[chosen] + self._usage(chosen, rows) @ prices
        node.columns = chosen[np.argsort(liked, kind="stable")[:_COLUMNS]]
        return share, self.walks[chosen]

    def _limit(self, node: _Node, rows: Sequence[_Row]) -> FloatArray:
        """Return the right-hand sides: rooms of memories, then rows."""
        held = np.zeros(len(self.scale))
        for place in node.must:
            held[self.problem.cache_home[place]] += self.problem.buffer_bytes[place]
        rooms = (self.problem.room_bytes - held)[self.bounded] / self.scale[self.bounded]
        return np.concatenate([rooms, [row.limit for row in rows]])

    def _usage(self, chosen: IntArray, rows: Sequence[_Row]) -> FloatArray:
        """Return (columns, rows) what walks take."""
        usage = np.zeros((len(chosen), len(self.bounded) + len(rows)))
        usage[:, : len(self.bounded)] = self.used[chosen]
        for at, row in enumerate(rows, len(self.bounded)):
            usage[:, at] = self.counts[chosen] @ row.terms.ravel()
        return usage

    def _priced(
        self, node: _Node, rows: Sequence[_Row], prices: FloatArray, limit: FloatArray
    ) -> tuple[float, IntArray | None]:
        """Return the bound of a node at prices, and the walk that gives it; None where there is no walk."""
        cost = self._reduced(node, rows, prices)
        left = np.flatnonzero(np.isfinite(cost).any(axis=0))
        bit = np.full(self.num_places, -1, np.int64)
        bit[list(node.must)] = np.arange(len(node.must))
        self.work += _OVERHEAD + self.num_units * 2.0 ** len(node.must) * len(left) ** 2 * 2
        cost, transfer, bit = (
            np.ascontiguousarray(cost[:, left]),
            self.problem.transfer_s[np.ix_(left, left)],
            bit[left],
        )
        homes, least, walk = self.problem.weight_home[left], np.inf, None
        for home in np.unique(homes) if self.problem.shared_bytes else [-1]:
            first = np.where((homes == home) | (home < 0), 0.0, np.inf)
            last = np.where((homes == home) & (home >= 0), -self._spared(home, prices), 0.0)
            value, found = best_walk(cost, transfer, bit, len(node.must), first, last)
            if value < least:
                least, walk = value, left[found]
        if walk is None:
            return np.inf, None
        paid = float(prices @ np.abs(limit))
        return float(least - prices @ limit - _ROUNDING * self.num_units * (abs(least) + paid)), walk

    def _spared(self, memory: int, prices: FloatArray) -> float:
        """Return what the bytes that first and last unit share cost in a memory."""
        at = np.flatnonzero(self.bounded == memory)
        return float(prices[at[0]] / self.scale[memory] * self.problem.shared_bytes) if len(at) else 0.0

    def _reduced(self, node: _Node, rows: Sequence[_Row], prices: FloatArray) -> FloatArray:
        """Return (n, q) costs of units with prices; inf where barred."""
        m = len(self.bounded)
        terms = np.zeros((self.num_places, self.num_kinds))
        for row, price in zip(rows, prices[m:].tolist(), strict=True):
            if price > 0.0:
                terms += price * row.terms
        return np.asarray(_priced_costs(self.seconds, self.priced_use, prices[:m], terms, self.kind, node.barred))

    def _violated(self, node: _Node, shares: FloatArray, chosen: IntArray) -> list[_Row]:
        """Return facets of the whole numbers of units that memories have room for, which a mixture violates."""
        count = (shares @ self.counts[chosen[: len(shares)]]).reshape(self.num_places, self.num_kinds)
        settled = np.flatnonzero((~node.barred).sum(axis=1) == 1)
        found = []
        for m in self.bounded.tolist():
            beyond = [float((row.terms * count).sum()) - row.limit for row in self._facets(m, node, settled)]
            if max(beyond, default=0.0) > _INTEGRAL:
                found.append(self._facets(m, node, settled)[int(np.argmax(beyond))])
        return found

    def _facets(self, m: int, node: _Node, settled: IntArray) -> list[_Row]:
        """Return the facets of what fits a memory of its two most numerous sizes of units.

        Bytes of other units that are settled are taken off its room.
        """
        taken = self.use[m][self.example].T * self.scale[m]  # (q, k)
        sizes: dict[float, int] = {}
        for size, number in zip(taken.max(axis=0).tolist(), np.bincount(self.kind).tolist(), strict=True):
            sizes[size] = sizes.get(size, 0) + number
        usual = sorted((size for size in sizes if size > 0), key=lambda size: (-sizes[size], -size))[:2]
        alone = [u for u in settled.tolist() if taken[:, self.kind[u]].max() not in usual]
        bytes_of = [float(self.use[m, u, int(np.argmin(node.barred[u]))] * self.scale[m]) for u in alone]
        spent = sum(bytes_of)
        key = (m, spent)
        if key not in self.known_facets:
            room = float(self.problem.room_bytes[m]) + self.problem.shared_bytes - spent
            terms = [np.where(taken == size, 1.0, 0.0) for size in usual]
            rows = []
            if len(usual) == 1:
                rows = [_Row(terms[0], float(np.floor(max(room, 0.0) / usual[0] + 1e-9)), True)]
            elif usual:
                rows = [
                    _Row(one * terms[0] + other * terms[1], limit, True)
                    for one, other, limit in _hull(usual, [sizes[size] for size in usual], max(room, 0.0))
                ]
            self.known_facets[key] = rows
        return self.known_facets[key]

    def _add(self, walk: IntArray) -> int:
        """Keep a walk as a column; return its number."""
        at = self.num_walks
        if at == len(self.costs):
            self.walks, self.costs, self.used, self.counts = (
                np.concatenate([kept, np.zeros_like(kept)]) for kept in (self.walks, self.costs, self.used, self.counts)
            )
        self.num_walks += 1
        used = self.use[:, np.arange(self.num_units), walk].sum(axis=1)
        ends = self.problem.weight_home[walk[[0, -1]]]
        if ends[0] == ends[1]:
            used[ends[0]] -= self.problem.shared_bytes / self.scale[ends[0]]
        size = self.num_places * self.num_kinds
        self.walks[at], self.costs[at] = walk, self.problem.cost(walk)
        self.used[at], self.counts[at] = (
            used[self.bounded],
            np.bincount(walk * self.num_kinds + self.kind, minlength=size),
        )
        self.offer(walk)
        return at

    def offer(self, walk: IntArray) -> None:
        """Keep a walk that fits and costs less than the best so far."""
        cost = self.problem.cost(walk)
        if cost < self.best and self.problem.fits(walk):
            self.best, self.best_walk = cost, walk.copy()

    def _columns(self, node: _Node) -> IntArray:
        """Return the walks of a node's parent that it allows."""
        found = node.columns
        allowed = ~node.barred[np.arange(self.num_units), self.walks[found]].any(axis=1)
        visits = self.counts[found].reshape(len(found), self.num_places, self.num_kinds).sum(axis=2)
        for place in node.must:
            allowed &= visits[:, place] > 0
        return found[allowed]

    # -- branching ---------------------------------------------------------------------------------------------

    def _split(self, node: _Node, shares: FloatArray, walks: IntArray) -> list[_Node]:
        """Return two nodes that hold between them all walks of a node but none that both hold."""
        kept = shares > 0.0
        shares, walks = shares[kept] / max(shares[kept].sum(), 1e-300), walks[kept]
        if len(walks):
            children = self._by_single(node, shares, walks) or self._by_visit(node, shares, walks, _FEW_BITS)
            children = children or self._by_count(node, shares, walks)
            children = children or self._by_visit(node, shares, walks, _MOST_BITS)
            if children:
                return children
        return self._by_unit(node, shares, walks)

    def _by_single(self, node: _Node, shares: FloatArray, walks: IntArray) -> list[_Node]:
        """Split by whether a unit that is alone of its kind is on a place."""
        on = np.array([(walks[:, self.single] == place).T @ shares for place in range(self.num_places)]).T
        doubt = np.minimum(on, 1.0 - on)
        if not doubt.size or doubt.max() < _INTEGRAL:
            return []
        at, place = np.unravel_index(int(np.argmax(doubt)), doubt.shape)
        return self._on_or_off(node, int(np.flatnonzero(self.single)[at]), int(place))

    def _by_visit(self, node: _Node, shares: FloatArray, walks: IntArray, most: int) -> list[_Node]:
        """Split by whether a place is visited, the one that is most in doubt."""
        visited = np.array([(walks == place).any(axis=1) @ shares for place in range(self.num_places)])
        doubt = np.minimum(visited, 1.0 - visited)
        buffered = (self.problem.buffer_bytes > 0) & (visited > _INTEGRAL)
        doubt = np.where(buffered, np.maximum(doubt, 0.01), doubt)
        doubt[list(node.must)] = 0.0
        place = int(np.argmax(doubt))
        if doubt[place] < _INTEGRAL or len(node.must) >= most:
            return []
        barred = node.barred.copy()
        barred[:, place] = True
        return [replace(node, must=(*node.must, place)), replace(node, barred=barred)]

    def _by_count(self, node: _Node, shares: FloatArray, walks: IntArray) -> list[_Node]:
        """Split by how many units of a kind are on a place, where that is furthest from a whole number."""
        count = np.zeros((self.num_places, self.num_kinds))
        for share, walk in zip(shares, walks, strict=True):
            np.add.at(count, (walk, self.kind), share)
        doubt = np.abs(count - np.rint(count))
        place, kind = np.unravel_index(int(np.argmax(doubt)), doubt.shape)
        if doubt[place, kind] < _INTEGRAL:
            return []
        low = float(np.floor(count[place, kind]))
        terms = np.zeros_like(count)
        terms[place, kind] = 1.0
        return [replace(node, rows=(*node.rows, row)) for row in (_Row(terms, low), _Row(-terms, -low - 1.0))]

    def _by_unit(self, node: _Node, shares: FloatArray, walks: IntArray) -> list[_Node]:
        """Split by whether one unit is on a place: where walks differ or, if they do not, where there is a choice."""
        choices = (~node.barred).sum(axis=1)
        open_ = np.flatnonzero(choices > 1)
        if not len(open_):
            return []
        if len(walks):
            on = np.array([(walks == place).T @ shares for place in range(self.num_places)]).T
            doubt = np.minimum(on, 1.0 - on)[open_]
            at, place = (int(one) for one in np.unravel_index(int(np.argmax(doubt)), doubt.shape))
            if doubt[at, place] < _INTEGRAL:
                place = int(walks[0][open_[at]])
            unit = open_[at]
        else:
            unit, place = open_[0], int(np.flatnonzero(~node.barred[open_[0]])[0])
        return self._on_or_off(node, int(unit), place)

    def _on_or_off(self, node: _Node, unit: int, place: int) -> list[_Node]:
        """Return a node with a unit on a place, and one with it elsewhere."""
        there, elsewhere = node.barred.copy(), node.barred.copy()
        there[unit] = True
        there[unit, place] = node.barred[unit, place]
        elsewhere[unit, place] = True
        return [replace(node, barred=barred) for barred in (there, elsewhere)]


class _Program:
    """The linear program over walks of a node; whatever it says of prices, bounds at them hold."""

    def __init__(self, ceiling: float) -> None:
        self._ceiling, self._artificial = ceiling, 4.0 * ceiling
        self._basis = np.zeros(0, np.int64)

    def dearer(self) -> bool:
        """Raise the cost of taking no walk at all, where prices may have to rise further; False at the end."""
        self._artificial *= 1e3
        return self._artificial < 1e9 * self._ceiling

    def solve(self, costs: FloatArray, usage: FloatArray, limit: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return prices of the rows, and shares: of no walk, then of each walk.

        Parameters
        ----------
        costs, usage, limit
            Of walks, (columns, rows) what they take, and of rows.
        """
        costs = np.concatenate([[self._artificial], costs])
        usage = np.ascontiguousarray(np.vstack([np.minimum(limit, 0.0)[None], usage]))
        fresh = np.concatenate([[0], -1 - np.arange(len(limit))])
        if len(self._basis) != len(fresh):
            self._basis = fresh.copy()
        try:
            duals, shares = master_duals(costs, usage, limit, self._basis)
        except np.linalg.LinAlgError:  # what rounding left of the basis is singular
            self._basis = fresh.copy()
            duals, shares = master_duals(costs, usage, limit, self._basis)
        return np.maximum(-duals[1:], 0.0), shares


def _hull(size: Sequence[float], most: Sequence[int], room: float) -> list[tuple[float, float, float]]:
    """Return the facets (a, b, limit), a i + b j <= limit, of the counts of two sizes that there is room for."""
    corners: list[tuple[int, int]] = []
    for i in range(min(most[0], int(room / size[0] + 1e-9)) + 1):
        j = min(most[1], int(max(0.0, room - i * size[0]) / size[1] + 1e-9))
        while len(corners) > 1 and _turn(corners[-2], corners[-1], (i, j)) >= 0:
            corners.pop()
        corners.append((i, j))
    sides = [(float(a[1] - b[1]), float(b[0] - a[0]), a) for a, b in pairwise(corners)]
    facets = [(one, other, one * at[0] + other * at[1]) for one, other, at in sides]
    return [*facets, (1.0, 0.0, float(corners[-1][0]))]


def _turn(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> int:
    """Return whether b lies below the line from a to c (> 0), on it (0) or above it (< 0)."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
