"""The bound by coverage: every layer is on devices that pass the flow, by how long passes take.

A layout serves F tokens a second along paths, of which one passes f and takes a token T seconds from the first layer to
the last. A device holds one span S and works on one batch of b sequences, in t seconds. It passes c = b / t at most,
and by Little's law the sequences whose cache it keeps, the sum of f T over its paths, are at most its room B.

Let paths be of classes k by T, from T(k) to T(k + 1), that serve F(k), together F. The devices of a path hold every
layer, their seconds add up to T(k + 1) at most, and none passes more of a class than F(k). So for any y(k), sizes of
layers, and w(k), p(k, d) >= 0, the sum over devices of what they pass of class k, times

    v(k) = y(k)(S) - w(k) t - p(k, d),

is at least F(k) m(k), with m(k) = sum of y(k) - w(k) T(k + 1) - sum over devices of p(k, d).

What a device passes, f(k), adds up to min(c, F) at most, and f(k) max(T(k), t + the least seconds of all other layers)
to B. Its largest sum of f(k) v(k) is therefore V = c' e(B / c'), where c' = min(c, F) and e is the least concave
function that is at least 0 and, at the seconds of each class, v(k). With the best span and batch of each device,

    F min over k of m(k)  <=  sum over devices of max over spans and batches of V.

V / F does not grow with F, so that the largest F that satisfies it bounds every layout.

One class of all passes with w = p = 0 leaves what caches and batches let each device pass by itself: sizes alone, which
is all there is where only rates are known. Otherwise y, w and p are a linear program's, whose rows are the best spans
so far (Kelley's method, halfway between its best and its last point), and classes in which flow goes are halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, SAFETY, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.effort import NARROW
from rlinit.kernels.compiled import njit
from rlinit.llm.serving.fleets import Fleet, Kinds

_BISECTIONS = 200
"""Of a rate: what is left of the interval is below a double's rounding."""

_FARTHEST = 5.0
"""Of the logarithm of a factor that sizes are multiplied by: where it is looked for."""

LONGEST = 64.0
"""Times the shortest pass, beyond which caches hold passes back rather than batches; classes double up to it."""

_MOST = 24
"""Classes of passes, from which on none is halved; before, those that a fair share of the flow or more goes in are."""

_MOST_COSTLY = 30.0
"""Multipliers at most, in sizes of all layers."""


class Options(NamedTuple):
    """Ways to use a device of one kind: spans and batches.

    Parameters
    ----------
    starts, ends
        (N,) first layer, and the one after the last.
    seconds, rates, rooms
        (N,) of a batch, tokens a second, sequences under way.
    least
        (N,) seconds that no pass through it is below.
    """

    starts: IntArray
    ends: IntArray
    seconds: FloatArray
    rates: FloatArray
    rooms: FloatArray
    least: FloatArray


class Multipliers(NamedTuple):
    """Of classes of passes.

    Parameters
    ----------
    lengths
        (C + 1,) seconds of their ends.
    before
        (C, L + 1) sizes of all layers before each.
    waits
        (C,) of a second.
    caps
        (K, C) of each kind.
    """

    lengths: FloatArray
    before: FloatArray
    waits: FloatArray
    caps: FloatArray

    def margin(self, counts: IntArray) -> float:
        """Return what a token a second is worth at least.

        Parameters
        ----------
        counts
            (K,) devices of each kind.
        """
        spent = self.waits * np.where(self.waits > 0, self.lengths[1:], 0.0)
        return float((self.before[:, -1] - spent - counts @ self.caps).min())


def options_of(fleet: Fleet, kinds: Kinds) -> list[Options]:
    """Return how devices of each kind can be used.

    Parameters
    ----------
    fleet, kinds
        Devices, rates and how they can be run.
    """
    runs = fleet.runs
    assert runs is not None
    found, fastest = [], _before(runs.seconds.min(axis=(0, 1)))
    for rates, members in zip(kinds.rates, kinds.members, strict=True):
        starts, held = np.nonzero(rates)
        ends, before = starts + held, _before(runs.seconds[members[0]])
        seconds, rooms = before[:, ends] - before[:, starts], runs.rooms[members[0], starts, held]
        least = seconds + fastest[-1] - (fastest[ends] - fastest[starts])
        with np.errstate(divide="ignore"):
            most = np.minimum(runs.batches[:, None] / seconds, rates[starts, held])
        fits = (runs.batches[:, None] <= rooms) & (least <= runs.longest_s * (1 + ROUNDING)) & (seconds < math.inf)
        rows = np.broadcast_arrays(starts, ends, seconds, most, rooms, least)
        found.append(Options(*(one[fits] for one in rows)))
    return found


def _before(sizes: FloatArray) -> FloatArray:
    """Return (.., L + 1) sums of what is before each layer."""
    return np.concatenate([np.zeros((*sizes.shape[:-1], 1)), np.cumsum(sizes, axis=-1)], axis=-1)


@njit(cache=True, nogil=True)
def best_option(options: Options, found: Multipliers, kind: int, flow: float, passed: FloatArray) -> tuple[float, int]:
    """Return the largest V of the options, and which has it; -1 where none is above 0.

    Parameters
    ----------
    options, kind
        Of a kind, and its number.
    found
        Multipliers.
    flow
        Tokens a second that no device passes more than.
    passed
        (C,) receives what the best option passes of each class.
    """
    lengths, before, waits, caps = found
    starts, ends, seconds, rates, rooms, leasts = options
    best, chosen, values = 0.0, -1, np.zeros(len(waits))
    for i in range(len(starts)):
        most, least = min(rates[i], flow), leasts[i]
        for k in range(len(waits)):
            values[k] = before[k, ends[i]] - before[k, starts[i]]
            values[k] -= caps[kind, k] + waits[k] * seconds[i]
            if least > lengths[k + 1] * (1 + ROUNDING):
                values[k] = 0.0
        if most * values.max() <= best:
            continue
        mean = rooms[i] / most
        for j in range(-1, len(waits)):  # e between what is passed of class j, or not at all, and of class k
            at, value = (max(lengths[j], least), values[j]) if j >= 0 else (0.0, 0.0)
            for k in range(len(waits) if at <= mean else 0):
                end = max(lengths[k], least)
                share = (mean - at) / (end - at) if end > mean and values[k] > value else 0.0
                worth = most * (value + share * (values[k] - value))
                if worth > best:
                    best, chosen = worth, i
                    passed[:] = 0.0
                    passed[k] = most * share
                    passed[max(j, 0)] += most * (1.0 - share) if j >= 0 else 0.0
    return best, chosen


def largest_covered(options: list[Options], counts: IntArray, found: Multipliers, high: float) -> float:
    """Return the root of the inequality of coverage, rounded up; a rate that is refuted where there is one.

    Parameters
    ----------
    options, counts
        Of each kind.
    found
        Multipliers.
    high
        A rate that is known to be refuted.
    """
    margin, unused = found.margin(counts), np.empty(len(found.waits))
    if margin <= 0:
        return high

    def covers(flow: float) -> bool:
        values = [best_option(one, found, kind, flow, unused)[0] for kind, one in enumerate(options)]
        return bool(counts @ values * (1 + ROUNDING) >= margin * flow)

    return _root(min(high, float(counts @ [one.rates.max(initial=0.0) for one in options])), covers)


def by_sizes(kinds: Kinds, sizes: FloatArray) -> float:
    """Return the root of the inequality of one class of all passes with w = p = 0, rounded up.

    Parameters
    ----------
    kinds
        Devices and rates.
    sizes
        (L,) of the layers.
    """
    held = span_sizes(sizes)

    def covers(flow: float) -> bool:
        covered = kinds.counts @ (held * np.minimum(kinds.rates, flow)).max(axis=(1, 2))
        return bool(covered * (1 + ROUNDING) >= sizes.sum() * flow)

    return _root(float((kinds.counts * kinds.rates.max(axis=(1, 2))).sum()), covers)


def _root(high: float, covers: Callable[[float], bool]) -> float:
    """Return the most tokens a second that are covered, rounded up; more than `high` are not."""
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if covers(middle) else (low, middle)
        if high - low <= ROUNDING * high:
            break
    return high * (1 + 4 * ROUNDING)


def span_sizes(sizes: FloatArray) -> FloatArray:
    """Return (.., L, L + 1) size of j layers from a first one on; spans that end behind the last one stop there.

    Parameters
    ----------
    sizes
        (.., L) of the layers.
    """
    before, count = _before(sizes), sizes.shape[-1]
    ends = np.minimum(np.arange(count)[:, None] + np.arange(count + 1), count)
    return np.asarray(before[..., ends] - before[..., :-1, None])


def balanced(fleet: Fleet, first: int) -> Fleet:
    """Return a fleet with sizes of its first layers against those of the others at which coverage proves most.

    Parameters
    ----------
    fleet
        Devices and rates.
    first
        How many of the layers.
    """
    from scipy.optimize import minimize_scalar

    if not fleet.devices:
        return fleet
    kinds, ahead = fleet.kinds(), np.arange(fleet.layers) < first

    def scaled(power: float) -> FloatArray:
        return fleet.sizes * np.where(ahead, math.exp(power), 1.0)

    found = minimize_scalar(lambda power: by_sizes(kinds, scaled(power)), bounds=(-_FARTHEST, _FARTHEST))
    return replace(fleet, sizes=scaled(found.x))


def best_multipliers(
    options: list[Options], counts: IntArray, groups: IntArray, lengths: FloatArray, budget: Budget
) -> Multipliers:
    """Return the multipliers that prove least of those found, rates in shares of one that is refuted.

    Of each class a point has a row: the wait for all of its seconds, the caps of all devices of each kind, and the
    sizes of groups of layers.

    Parameters
    ----------
    options, counts
        Of each kind.
    groups
        (L,) of the layers: those alike have one size.
    lengths
        (C + 1,) seconds of the ends of classes at first; no pass is below the first one.
    budget
        Of time.
    """
    members = np.bincount(groups)
    point = best = np.tile([*np.zeros(1 + len(counts)), *members / len(groups)], (len(lengths) - 1, 1))
    shares = _before((np.eye(len(members))[groups] / members).T).T
    rows: list[tuple[int, float, FloatArray, FloatArray]] = []
    proven, least, flow = math.inf, 0.0, np.zeros(len(point))
    while not budget.expired:
        found, total = _multipliers(point, lengths, counts, groups), 0.0
        for kind, one in enumerate(options):
            passed = np.zeros(len(point))
            value, at = best_option(one, found, kind, 1.0, passed)
            total += counts[kind] * value
            if at >= 0:
                rows.append((kind, one.seconds[at], shares[one.ends[at]] - shares[one.starts[at]], passed))
        if total < proven:
            best, proven = point, total
        if proven - least <= NARROW * proven:
            halved = (_MOST * flow > flow.sum()) & (np.diff(lengths) > NARROW * lengths[1:])  # none without end
            if len(flow) >= _MOST or not halved.any():
                break
            lengths = np.sort([*lengths, *np.sqrt(lengths[:-1] * lengths[1:])[halved]])
            best, behind = np.repeat(best, 1 + halved, axis=0), np.flatnonzero(halved) + 1
            rows = [(*row[:3], np.insert(row[3], behind, 0.0)) for row in rows]
        solved = _solved(rows, counts, lengths)
        if solved is None:
            break  # what is proven so far holds
        least, point, flow = solved
        point = 0.5 * (point + best)
    return _multipliers(best, lengths, counts, groups)


def _solved(
    spans: list[tuple[int, float, FloatArray, FloatArray]], counts: IntArray, lengths: FloatArray
) -> tuple[float, FloatArray, FloatArray] | None:
    """Return the value and the point of the linear program whose rows are some spans, and the flow of each class."""
    from scipy.optimize import linprog

    which, seconds, parts, passed = map(np.array, zip(*spans, strict=True))
    kinds, classes = len(counts), len(lengths) - 1
    signs, own = np.concatenate([-np.ones(1 + kinds), np.ones(parts.shape[1])]), np.eye(kinds)[which]
    rows = np.empty((len(spans), classes, len(signs)))
    rows[:, :, 0] = -seconds[:, None] / lengths[1:]
    rows[:, :, 1 : 1 + kinds] = (-own / counts)[:, None]
    rows[:, :, 1 + kinds :] = parts[:, None]
    rows *= passed[:, :, None]
    solved = linprog(
        [*counts, *np.zeros(classes * len(signs))],
        A_ub=np.hstack([-own, rows.reshape(len(rows), -1)]), b_ub=np.zeros(len(rows)),
        A_eq=np.hstack([np.zeros((classes, kinds)), np.kron(np.eye(classes), signs)]), b_eq=np.ones(classes),
        bounds=(0.0, _MOST_COSTLY),
    )  # fmt: skip
    if solved.x is None or solved.fun is None:
        return None
    return float(solved.fun), solved.x[kinds:].reshape(classes, -1), np.abs(solved.eqlin.marginals)


def _multipliers(point: FloatArray, lengths: FloatArray, counts: IntArray, groups: IntArray) -> Multipliers:
    """Return the multipliers of a point, where a token of each class is worth 1 but for rounding."""
    waits, caps, sizes = np.split(np.maximum(point, 0.0), [1, 1 + len(counts)], axis=1)
    sizes = sizes * ((1.0 + waits[:, 0] + caps.sum(axis=1)) / sizes.sum(axis=1))[:, None]
    before = _before((sizes / np.bincount(groups))[:, groups])
    return Multipliers(lengths, before, waits[:, 0] / lengths[1:], np.array((caps / counts).T))


def by_passes(fleet: Fleet, kinds: Kinds, high: float, time_limit_s: float) -> tuple[float, dict[str, Any]]:
    """Return the bound by classes of passes, rounded up, and the proof; a rate that is refuted where none is better.

    Parameters
    ----------
    fleet, kinds
        Devices, rates and how they can be run.
    high
        A rate that is refuted.
    time_limit_s
        Of the search for multipliers.
    """
    counts, runs = kinds.counts, fleet.runs
    options = options_of(fleet, kinds) if runs is not None else []
    shortest = min((float(one.least.min(initial=math.inf)) for one in options), default=math.inf)
    if runs is None or not 0 < shortest < math.inf or high <= 0:
        return high, {}
    scaled = [one._replace(rates=one.rates / high, rooms=one.rooms / high) for one in options]
    ends = shortest * 2.0 ** np.arange(1, math.log2(LONGEST))
    lengths = np.array([shortest, *ends[ends < runs.longest_s], runs.longest_s])
    found = best_multipliers(scaled, counts, _alike(runs.seconds), lengths, Budget(time_limit_s))
    rate = largest_covered(scaled, counts, found, 1.0) * high
    named = [(fleet.devices[at], caps) for some, caps in zip(kinds.members, found.caps, strict=True) for at in some]
    proof = {
        "ends_s": found.lengths[1:-1].tolist(), "sizes": np.diff(found.before).tolist(), "waits": found.waits.tolist(),
        "caps": {name: caps.tolist() for name, caps in named if caps.any()},
    }  # fmt: skip
    return (rate, proof) if rate < high else (high, {})


def _alike(seconds: FloatArray) -> IntArray:
    """Return (L,) groups of layers that take equally long on every device, but for rounding."""
    rows = seconds.reshape(-1, seconds.shape[-1])
    return np.unique(np.round(rows / (SAFETY * rows.max(axis=1)[:, None])), axis=1, return_inverse=True)[1].reshape(-1)
