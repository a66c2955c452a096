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
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.llm.serving.fleets import Fleet, Kinds

_BISECTIONS = 200
"""Of a rate: what is left of the interval is below a double's rounding."""

_FARTHEST, _NEAR = 5.0, 1e-3
"""Of the logarithm of a factor that sizes are multiplied by: where it is looked for, and to what."""

_CLASSES, _LONGEST, _SPLITS = 8, 40.0, 4
"""Classes of passes at first, the shortest pass times which the last one begins, and how often classes are halved."""

_USED, _NARROW = 0.03, 1.03
"""Share of the flow from which on a class is halved, unless its ends are as close as this."""

_ROWS, _CLOSE = 80, 2e-3
"""Spans of each kind that a linear program gets at most, and how close its value is to be to what it proves."""

_DIGITS = 9
"""Of seconds, by which layers are told apart."""

_DEAREST = 30.0
"""Of seconds and of devices in a linear program, in sizes of all layers."""


class PassClass(NamedTuple):
    """Passes of about one length, and the multipliers of a proof there.

    Parameters
    ----------
    from_s
        Seconds from which on; to those of the next class.
    sizes
        (L,) of the layers.
    wait
        Of a second in a device.
    caps
        Device -> what it pays to pass as much as the class does; else nothing.
    """

    from_s: float
    sizes: tuple[float, ...]
    wait: float
    caps: Mapping[str, float]


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
        (C, K) of each kind.
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
        with np.errstate(invalid="ignore"):
            spent = np.where(self.waits > 0, self.waits * self.lengths[1:], 0.0)
        return float((self.before[:, -1] - spent - self.caps @ counts).min())


def options_of(fleet: Fleet, kinds: Kinds) -> list[Options]:
    """Return how devices of each kind can be used.

    Parameters
    ----------
    fleet, kinds
        Devices, rates and links.
    """
    found, runs = [], fleet.runs
    for rates, members in zip(kinds.rates, kinds.members, strict=True):
        starts, held = np.nonzero(rates)
        ends, passed = starts + held, rates[starts, held]
        if runs is None:
            none = np.zeros(len(starts))
            found.append(Options(starts, ends, none, passed, none + math.inf, none))
            continue
        fastest = np.concatenate([[0.0], np.cumsum(runs.seconds.min(axis=(0, 1)))])
        rest = fastest[-1] - (fastest[ends] - fastest[starts])
        before = np.concatenate([np.zeros((len(runs.batches), 1)), np.cumsum(runs.seconds[members[0]], axis=1)], axis=1)
        seconds, rooms = before[:, ends] - before[:, starts], runs.rooms[members[0], starts, held]
        batches = runs.batches[:, None]
        with np.errstate(divide="ignore"):
            most = np.minimum(batches / seconds, passed)
        fits = (batches <= rooms) & (seconds + rest <= runs.longest_s * (1 + ROUNDING)) & (seconds < math.inf)
        rows = np.broadcast_arrays(starts, ends, seconds, most, rooms, seconds + rest)
        found.append(Options(*(np.ascontiguousarray(one[fits]) for one in rows)))
    return found


@njit(cache=True, nogil=True)
def best_option(
    options: Options, lengths: FloatArray, before: FloatArray, waits: FloatArray, caps: FloatArray, flow: float,
    passed: FloatArray,
) -> tuple[float, int]:  # fmt: skip
    """Return the largest V of the options, and which has it; -1 where none is above 0.

    Parameters
    ----------
    options
        Of a kind.
    lengths, before, waits, caps
        As `Multipliers`, the last of them of the kind.
    flow
        Tokens a second that no device passes more than.
    passed
        (C,) receives what the best option passes of each class.
    """
    count = len(waits)
    best, chosen = 0.0, -1
    xs, vs, classes, values = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1, np.int64), np.zeros(count)
    for i in range(len(options.starts)):
        most, least = min(options.rates[i], flow), options.least[i]
        highest = 0.0
        for k in range(count):
            values[k] = 0.0
            if least <= lengths[k + 1]:
                value = before[k, options.ends[i]] - before[k, options.starts[i]] - caps[k]
                values[k] = value - waits[k] * options.seconds[i]
                highest = max(highest, values[k])
        if most * highest <= best:
            continue
        n = 1  # points of the concave function, the first one being (0, 0)
        for k in range(count):
            x, v = max(lengths[k], least), values[k]
            if v <= vs[n - 1]:
                continue
            while n > 1 and (vs[n - 1] - vs[n - 2]) * (x - xs[n - 2]) <= (v - vs[n - 2]) * (xs[n - 1] - xs[n - 2]):
                n -= 1
            xs[n], vs[n], classes[n] = x, v, k
            n += 1
        mean, at, share = options.rooms[i] / most, 0, 0.0
        while at < n - 1 and xs[at + 1] <= mean:
            at += 1
        worth = vs[at]
        if at < n - 1:
            share = (mean - xs[at]) / (xs[at + 1] - xs[at])
            worth += share * (vs[at + 1] - vs[at])
        if most * worth > best:
            best, chosen = most * worth, i
            passed[:] = 0.0
            if at > 0:
                passed[classes[at]] += most * (1 - share)
            if at < n - 1:
                passed[classes[at + 1]] += most * share
    return best, chosen


def covered(options: list[Options], counts: IntArray, found: Multipliers, flow: float) -> float:
    """Return the sum over devices of the largest V.

    Parameters
    ----------
    options, counts
        Of each kind.
    found
        Multipliers.
    flow
        F.
    """
    unused = np.empty(len(found.waits))
    values = [
        best_option(one, found.lengths, found.before, found.waits, caps, flow, unused)[0]
        for one, caps in zip(options, np.ascontiguousarray(found.caps.T), strict=True)
    ]
    return float(counts @ np.array(values))


def largest_covered(options: list[Options], counts: IntArray, found: Multipliers, high: float = math.inf) -> float:
    """Return the root of the inequality of coverage, rounded up; a rate that is refuted where there is one.

    Parameters
    ----------
    options, counts, found
        As for `covered`.
    high
        A rate that is known to be refuted.
    """
    margin = found.margin(counts)
    if margin <= 0:
        return high
    rates = np.array([one.rates.max(initial=0.0) for one in options])
    low, high = 0.0, min(high, float(counts @ rates))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        more = covered(options, counts, found, middle) * (1 + ROUNDING) >= margin * middle
        low, high = (middle, high) if more else (low, middle)
        if high - low <= ROUNDING * high:
            break
    return high * (1 + 4 * ROUNDING)


def by_sizes(sizes: FloatArray, kinds: int) -> Multipliers:
    """Return the multipliers of one class of all passes, by sizes alone.

    Parameters
    ----------
    sizes
        (L,) of the layers.
    kinds
        How many there are.
    """
    before = np.concatenate([[0.0], np.cumsum(sizes)])[None]
    return Multipliers(np.array([0.0, math.inf]), before, np.zeros(1), np.zeros((1, kinds)))


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
    options = options_of(replace(fleet, runs=None), kinds)

    def scaled(power: float) -> FloatArray:
        return fleet.layer_sizes * np.where(ahead, math.exp(power), 1.0)

    found = minimize_scalar(
        lambda power: largest_covered(options, kinds.counts, by_sizes(scaled(power), len(options))),
        bounds=(-_FARTHEST, _FARTHEST), options={"xatol": _NEAR},
    )  # fmt: skip
    return replace(fleet, sizes=scaled(found.x))


class Program:
    """The linear program of multipliers, rates in shares of one that is refuted.

    Parameters
    ----------
    options, counts
        Of each kind.
    groups
        (L,) of the layers: those alike have one size.
    """

    def __init__(self, options: list[Options], counts: IntArray, groups: IntArray) -> None:
        self.options, self.counts, self.groups = options, counts, groups
        self.members = np.bincount(groups)
        each = np.eye(len(self.members))[groups] / self.members
        self.before = np.concatenate([np.zeros((1, len(self.members))), np.cumsum(each, axis=0)])
        self.active: set[tuple[int, int]] = set()

    def solve(self, lengths: FloatArray) -> tuple[Multipliers, float, FloatArray]:
        """Return multipliers, what they prove, and (C,) flow of each class at which they do.

        Parameters
        ----------
        lengths
            (C + 1,) seconds of the ends of classes.
        """
        from scipy.optimize import linprog

        kinds, classes = len(self.counts), len(lengths) - 1
        finite = np.isfinite(lengths[1:])
        width = kinds + classes * (1 + kinds + len(self.members))
        rows: list[FloatArray] = []
        used: list[tuple[int, int]] = []
        sums = np.zeros((classes, width))
        for k in range(classes):
            parts = self._parts(sums[k], classes)
            parts[0][k], parts[1][:, k], parts[2][k] = -1.0, -1.0, 1.0
        for kind, at in sorted(self.active):
            one = self.options[kind]
            for k in np.flatnonzero(one.least[at] <= lengths[1:]).tolist():
                seconds = max(lengths[k], one.least[at])
                most = min(one.rates[at], 1.0, one.rooms[at] / seconds if seconds > 0 else math.inf)
                rows.append(self._row(kind, at, np.eye(classes)[k] * most, lengths))
                used.append((kind, at))
        most_of = np.concatenate([np.full(classes, _DEAREST) * finite, np.full(classes * kinds, _DEAREST)])
        upper = np.concatenate([np.full(kinds, np.inf), most_of, np.full(width - kinds - len(most_of), np.inf)])
        goal = np.concatenate([self.counts, np.zeros(width - kinds)])
        best = point = np.zeros(width)
        self._parts(point, classes)[2][:] = self.members / self.members.sum()
        proven, least, flow = math.inf, 0.0, np.zeros(classes)
        result = self._multipliers(point, lengths)
        for _ in range(_ROWS):
            found, total = self._multipliers(point, lengths), 0.0
            for kind, one in enumerate(self.options):
                passed = np.zeros(classes)
                caps = np.ascontiguousarray(found.caps[:, kind])
                value, at = best_option(one, lengths, found.before, found.waits, caps, 1.0, passed)
                total += self.counts[kind] * value
                if at >= 0:
                    rows.append(self._row(kind, at, passed, lengths))
                    used.append((kind, at))
            if total < proven:
                proven, best, result = total, point, found
            if proven - least <= _CLOSE * proven:
                break
            solved = linprog(
                goal, A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=sums, b_eq=np.ones(classes),
                bounds=[(0.0, most) for most in upper.tolist()],
            )  # fmt: skip
            if solved.x is None or solved.fun is None:
                break  # what is proven so far holds
            least, point = solved.fun, 0.5 * (solved.x + best)
            flow = np.abs(solved.eqlin.marginals)
            self.active = {used[at] for at in np.flatnonzero(solved.ineqlin.marginals).tolist()}
        return result, proven, flow

    def _parts(self, row: FloatArray, classes: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return views of what is of waits (C,), of caps (K, C) and of sizes (C, groups)."""
        kinds = len(self.counts)
        ends = np.cumsum([kinds, classes, classes * kinds])
        return row[kinds : ends[1]], row[ends[1] : ends[2]].reshape(kinds, -1), row[ends[2] :].reshape(classes, -1)

    def _row(self, kind: int, at: int, passed: FloatArray, lengths: FloatArray) -> FloatArray:
        """Return the row of what an option passes of each class: the kind's value is at least what that is worth."""
        classes, one = len(passed), self.options[kind]
        row = np.zeros(len(self.counts) + classes * (1 + len(self.counts) + len(self.members)))
        row[kind] = -1.0
        waits, caps, sizes = self._parts(row, classes)
        waits[:] = -passed * one.seconds[at] / lengths[1:]
        caps[kind] = -passed / self.counts[kind]
        sizes[:] = np.outer(passed, self.before[one.ends[at]] - self.before[one.starts[at]])
        return row

    def _multipliers(self, point: FloatArray, lengths: FloatArray) -> Multipliers:
        """Return the multipliers of a point, where a token of each class is worth 1 but for rounding."""
        classes = len(lengths) - 1
        waits, caps, sizes = (np.maximum(part, 0.0) for part in self._parts(point, classes))
        sizes *= ((1.0 + waits + caps.sum(axis=0)) / sizes.sum(axis=1))[:, None]
        before = np.concatenate([np.zeros((classes, 1)), np.cumsum((sizes / self.members)[:, self.groups], axis=1)], 1)
        return Multipliers(lengths, before, waits / lengths[1:], np.ascontiguousarray((caps / self.counts[:, None]).T))


def by_passes(fleet: Fleet, kinds: Kinds, high: float) -> tuple[float, tuple[PassClass, ...]]:
    """Return the bound by classes of passes, rounded up, and the proof; a rate that is refuted where none is better.

    Parameters
    ----------
    fleet, kinds
        Devices, rates and how they can be run.
    high
        A rate that is refuted.
    """
    options, counts, runs = options_of(fleet, kinds), kinds.counts, fleet.runs
    shortest = min((float(one.least.min(initial=math.inf)) for one in options), default=math.inf)
    if runs is None or not 0 < shortest < math.inf or high <= 0:
        return high, ()
    scaled = [one._replace(rates=one.rates / high, rooms=one.rooms / high) for one in options]
    program = Program(scaled, counts, _alike(runs.seconds))
    ends = shortest * np.geomspace(1.0, _LONGEST, _CLASSES + 1)[1:-1]
    lengths = np.concatenate([[0.0], ends[ends < runs.longest_s], [runs.longest_s]])
    best, proof = 1.0, None
    for _ in range(_SPLITS):
        found, proven, flow = program.solve(lengths)
        if proven < best:
            best, proof = proven, found
        between = [
            math.sqrt(max(a, shortest) * b) for (a, b), share in zip(pairwise(lengths.tolist()), flow, strict=True)
            if share > _USED * flow.sum() and max(a, shortest) * _NARROW < b < math.inf
        ]  # fmt: skip
        if not between:
            break
        lengths = np.sort([*lengths, *between])
    if proof is None:
        return high, ()
    names = [[fleet.devices[at] for at in members] for members in kinds.members]
    rows = tuple(
        PassClass(
            from_s, tuple(np.diff(before).tolist()), wait,
            {name: cap for some, cap in zip(names, caps, strict=True) for name in some if cap > 0},
        )
        for from_s, before, wait, caps in zip(
            proof.lengths.tolist(), proof.before, proof.waits.tolist(), proof.caps.tolist(), strict=False
        )
    )  # fmt: skip
    return min(high, largest_covered(scaled, counts, proof, 1.0) * high), rows


def _alike(seconds: FloatArray) -> IntArray:
    """Return (L,) groups of layers that take equally long on every device."""
    return np.unique(rounded(seconds.reshape(-1, seconds.shape[-1])), axis=1, return_inverse=True)[1].reshape(-1)


def rounded(seconds: FloatArray) -> FloatArray:
    """Return seconds without the digits that sums of floats leave open.

    Parameters
    ----------
    seconds
        Of any shape.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        units = 10.0 ** (np.floor(np.log10(seconds)) - _DIGITS)
        return np.where((seconds > 0) & (seconds < math.inf), np.round(seconds / units) * units, seconds)
