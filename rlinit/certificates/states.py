"""The compiled second checker of proofs by states, for those that take `rlinit.certificates.check` too long.

It reads the same scaled problem as the first, lists the closed sets in another way (each once, by adding parts in one
topological order, so that no set is looked for among those there are), and compares pairs of them in kernels. Numbers
stay exact whatever their length: a number is a row of limbs of 40 bits, sums add limbs without carrying, and only the
sign of a sum is asked for. It shares no code with the passes over ideals that find plans and bounds.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import IntArray
from rlinit.certificates import check
from rlinit.kernels.compiled import njit

FIRST_PAIRS = 1_000_000
"""Pairs of sets up to which the first checker alone is asked, about a second of it."""

MOST_PAIRS = 20_000_000_000
"""Pairs of sets that the kernels may compare, minutes of them."""

MOST_BYTES = 2_000_000_000
"""Memory for the closed sets, their sums, and what is reached."""

_BITS = 40
"""Bits of a limb: sums of 2^22 of them fit into 63 bits."""

_CHUNK = 20_000_000
"""Pairs compared between two looks at the clock."""


class Search:
    """Asks the first checker, and beyond its budget of pairs or sets the compiled one.

    Parameters
    ----------
    first_pairs
        Pairs of sets from which the compiled one takes over.
    """

    def __init__(self, first_pairs: int = FIRST_PAIRS) -> None:
        self.first_pairs = first_pairs
        self.compiled = False
        """Whether the compiled one was needed."""

    def __call__(self, costs: check.Costs, threshold: Fraction) -> list[int] | None:
        """Return what `rlinit.certificates.check.reached_states` returns."""
        costs.most_pairs = self.first_pairs
        try:
            return check.reached_states(costs, threshold)
        except check.TooLong:
            self.compiled = True
            return reached_states(costs, threshold)


def reached_states(costs: check.Costs, threshold: Fraction) -> list[int] | None:
    """Return how many sets 1, 2, ... whole stages below a threshold reach; None if the set of all ops is one.

    Parameters
    ----------
    costs
        A problem of stages.
    threshold
        Seconds or bytes.

    Raises
    ------
    rlinit.certificates.check.TooLong
        Sets or pairs take more memory or time than there is.
    """
    lattice = check.Lattice(costs.graph, check.absorbed(costs))
    if costs.objective == "pipeline":
        return _pipeline(check.PipelineStates(lattice, costs, threshold))
    return _memory(check.MemoryStates(lattice, costs, threshold))


class Sets(NamedTuple):
    """The m closed sets, in the order of one of their sums, as bits of W words, and their F sums of L limbs each."""

    bits: Any  # (m, W)
    sums: Any  # (m, F, L)
    live_start: Any  # (m + 1,) where the tensors made in a set and read outside begin in `live`
    live: Any


class Tensors(NamedTuple):
    """The part that makes each of T tensors, those that read it, and what it costs to move into and out of a class."""

    made: Any  # (T,)
    reads: Any  # (T, W)
    enter: Any  # (C, T, L)
    leave: Any  # (C, T, L)


class Limits(NamedTuple):
    """What a stage on each of C classes of devices may cost; sums 0 and 1 of a set are its least work and its bytes."""

    threshold: Any  # (L,)
    overflow: Any  # (C,) the sum that counts a class's seconds of streaming, -1 without any
    cache: Any  # (C, L) the part of them that its cache saves
    bounded: Any  # (C,) whether it has a limit of bytes
    memory: Any  # (C, L)
    banned: Any  # (C, W)
    stride: Any  # (C,) what one more device of a class adds to a code of devices used
    digit: Any  # (K, C) devices of a class that a code says are used
    count: Any  # (C,)


class Spans(NamedTuple):
    """Of each set, the first and last of `rows`, sets that a stage may end with, that are worth a look."""

    rows: Any
    low: Any  # (m,)
    high: Any  # (m,)


@njit
def sign(limbs: Any) -> int:
    """Return the sign of a number."""
    carry = rest = np.int64(0)
    for limb in limbs:
        carry += limb
        rest |= carry & ((1 << _BITS) - 1)
        carry >>= _BITS
    return -1 if carry < 0 else 1 if rest or carry else 0


@njit
def _inside(small: Any, large: Any) -> bool:
    """Return whether one set lies in another."""
    for w in range(len(small)):  # noqa: SIM110  (compiled: no generators)
        if small[w] & ~large[w]:
            return False
    return True


@njit
def _holds(bits: Any, at: int, part: int) -> bool:
    """Return whether one of the sets holds a part."""
    return bool((bits[at, part >> 6] >> np.uint64(part & 63)) & np.uint64(1))


@njit
def _grows(bits: Any, small: int, large: int) -> bool:
    """Return whether one of the sets lies in another; slices of rows would take longer than the comparison."""
    for w in range(bits.shape[1]):  # noqa: SIM110  (compiled: no generators)
        if bits[small, w] & ~bits[large, w]:
            return False
    return True


@njit
def _closed_sets(needs: Any, most: int) -> Any:
    """Return every closed set of parts in topological order as bits, the set it grew from, and the part it grew by.

    A set grows by parts behind its last one alone. The parts of a closed set up to any are closed, so each has exactly
    one way to grow. With more than `most` sets, there are `most` + 1 rows.
    """
    n, words = needs.shape
    room = min(most + 1, 1024)
    bits, source, last = np.zeros((room, words), np.uint64), np.full(room, -1), np.full(room, -1)
    at, count = 0, 1
    while at < count:
        for part in range(last[at] + 1, n):
            if not _inside(needs[part], bits[at]):
                continue
            if count == room:
                if room > most:
                    return bits, source, last
                more = min(room, most + 1 - room)
                bits = np.concatenate((bits, np.zeros((more, words), np.uint64)))
                source, last = np.concatenate((source, source[:more])), np.concatenate((last, last[:more]))
                room += more
            bits[count] = bits[at]
            bits[count, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
            source[count], last[count] = at, part
            count += 1
        at += 1
    return bits[:count], source[:count], last[:count]


@njit
def _add_up(source: Any, last: Any, weights: Any) -> Any:
    """Return the sums of every set over the weights (n, F, L) of its parts."""
    sums = np.zeros((len(source), weights.shape[1], weights.shape[2]), np.int64)
    for i in range(1, len(source)):
        sums[i] = sums[source[i]] + weights[last[i]]
    return sums


@njit
def _live_tensors(bits: Any, made: Any, reads: Any) -> Any:
    """Return where the tensors made in a set and read outside begin, and these tensors, set by set."""
    start = np.zeros(len(bits) + 1, np.int64)
    for write in range(2):
        live = np.empty(start[-1], np.int32)
        count = 0
        for i in range(len(bits)):
            for t in range(len(made)):
                if _holds(bits, i, made[t]) and not _inside(reads[t], bits[i]):
                    if write:
                        live[count] = t
                    count += 1
            start[i + 1] = count
    return start, live


@njit
def _spans(keys: Any, most: Any) -> Any:
    """Return, for each of the rising numbers, the first that is as large, and the first that exceeds it by more."""
    m = len(keys)
    low, high = np.zeros(m, np.int64), np.zeros(m, np.int64)
    a = b = 0
    for i in range(m):
        while sign(keys[a] - keys[i]) < 0:
            a += 1
        while b < m and sign(keys[b] - keys[i] - most) <= 0:
            b += 1
        low[i], high[i] = a, b
    return low, high


@njit
def _is_below(sets: Sets, tensors: Tensors, limits: Limits, c: int, small: int, large: int, cost: Any) -> bool:
    """Return whether the stage from one set to another costs less than the threshold on a class; `cost` is room for it.

    Allocating arrays for sums would take nine tenths of the time.
    """
    sums, words = sets.sums, sets.bits.shape[1]
    if limits.bounded[c]:
        for limb in range(len(cost)):
            cost[limb] = sums[large, 1, limb] - sums[small, 1, limb] - limits.memory[c, limb]
        if sign(cost) > 0:
            return False
    streamed, extra = limits.overflow[c], 0
    if streamed >= 0:
        for limb in range(len(cost)):
            cost[limb] = sums[large, streamed, limb] - sums[small, streamed, limb] - limits.cache[c, limb]
        extra = sign(cost) > 0
    for limb in range(len(cost)):
        cost[limb] = (
            (cost[limb] if extra else 0) + sums[large, 2 + c, limb] - sums[small, 2 + c, limb] - limits.threshold[limb]
        )
    if sign(cost) >= 0:
        return False
    for w in range(words):
        if sets.bits[large, w] & ~sets.bits[small, w] & limits.banned[c, w]:
            return False
    for at in range(sets.live_start[small], sets.live_start[small + 1]):
        t = sets.live[at]
        for w in range(words):
            if sets.bits[large, w] & ~sets.bits[small, w] & tensors.reads[t, w]:
                for limb in range(len(cost)):
                    cost[limb] += tensors.enter[c, t, limb]
                break
    for at in range(sets.live_start[large], sets.live_start[large + 1]):
        t = sets.live[at]
        if not _holds(sets.bits, small, tensors.made[t]):
            for limb in range(len(cost)):
                cost[limb] += tensors.leave[c, t, limb]
    return bool(sign(cost) < 0)


@njit
def _extend(
    sets: Sets, tensors: Tensors, limits: Limits, span: Spans, used: Any, covered: Any, following: Any, first: int
) -> Any:
    """Mark what stages reach from the sets of `used` from `first` on; return where it stopped, and pairs compared.

    For each set and code of devices used: `used` says whether the stages before reach it so, `covered` whether any did
    with no more devices of any class, `following` whether one stage more does.
    """
    pairs, num_codes = 0, used.shape[1]
    mine, cost = np.empty(num_codes, np.int64), np.empty(sets.sums.shape[2], np.int64)
    for small in range(first, len(used)):
        count = 0
        for code in range(num_codes):
            if used[small, code]:
                mine[count] = code
                count += 1
        if not count:
            continue
        if pairs > _CHUNK:
            return small, pairs
        pairs += span.high[small] - span.low[small]
        for at in range(span.low[small], span.high[small]):
            large = span.rows[at]
            if num_codes == 1 and (covered[large, 0] or following[large, 0]):
                continue
            if large == small or not _grows(sets.bits, small, large):
                continue
            for c in range(len(limits.count)):
                known = below = False
                for code in mine[:count]:
                    grown = code + limits.stride[c]
                    if limits.digit[code, c] >= limits.count[c] or covered[large, grown] or following[large, grown]:
                        continue
                    if not known:
                        known, below = True, _is_below(sets, tensors, limits, c, small, large, cost)
                    if below:
                        following[large, grown] = True
    return len(used), pairs


class Stage(NamedTuple):
    """What one stage of a `memory` problem may hold: bytes as limbs, each with whether there is such a limit."""

    cache: Any
    cached: bool
    free: Any  # caches of the stages behind it
    freed: bool
    streamed: Any  # bytes beyond caches of all stages
    streams: bool
    sent: Any
    sends: bool
    banned: Any  # (W,)


@njit
def _extend_memory(
    sets: Sets, tensors: Tensors, stage: Stage, span: Spans, used: Any, least: Any, marked: Any, grown: Any, first: int
) -> Any:
    """Mark what a stage reaches from the sets of `used` from `first` on, with the least bytes beyond caches.

    Return where it stopped, and pairs compared.
    """
    pairs, held = 0, sets.sums[:, 0]
    nothing = np.zeros_like(stage.cache)
    for small in range(first, len(used)):
        if not used[small]:
            continue
        if pairs > _CHUNK:
            return small, pairs
        pairs += max(0, span.high[small] - span.low[small])
        for large in range(span.low[small], span.high[small]):
            if not _grows(sets.bits, small, large):
                continue
            if not _inside(sets.bits[large] & stage.banned, sets.bits[small]):
                continue
            spare = held[large] - held[small] - stage.cache
            total = least[small] + (spare if stage.cached and sign(spare) > 0 else nothing)
            if stage.streams:
                later = held[-1] - held[large] - stage.free
                if sign(total - stage.streamed + (later if stage.freed and sign(later) > 0 else nothing)) > 0:
                    continue
            if stage.sends:
                sent = nothing - stage.sent
                for at in range(sets.live_start[large], sets.live_start[large + 1]):
                    if not _holds(sets.bits, small, tensors.made[sets.live[at]]):
                        sent += tensors.leave[0, sets.live[at]]
                if sign(sent) > 0:
                    continue
            if not marked[large] or sign(total - grown[large]) < 0:
                marked[large] = True
                carry = np.int64(0)
                for limb in range(len(total)):
                    carry += total[limb]
                    grown[large, limb] = carry & ((1 << _BITS) - 1)
                    carry >>= _BITS
    return len(used), pairs


class Listing:
    """The closed sets of a lattice as arrays, sorted by one of their sums.

    Parameters
    ----------
    lattice
        What must share a stage, and what reads what.
    weights
        (F, parts) numbers of the parts, of which each set has the sums.
    most
        For the first of these, what a stage may have at most; sets are sorted by the sum that leaves fewest pairs.
    others
        Further numbers that sums are compared with.
    """

    def __init__(self, lattice: check.Lattice, weights: list[list[int]], most: list[int], others: list[int]) -> None:
        n, largest = len(lattice.parts), max(map(abs, [*map(sum, weights), *most, *others]))
        self.num_limbs, self.num_words = 1 + largest.bit_length() // _BITS, 1 + n // 64
        order = check.topological(n, [(u, v) for v, needs in enumerate(lattice.needs) for u in bits_of(needs)])
        self.rank = {part: at for at, part in enumerate(order)}
        room = MOST_BYTES // (16 * (self.num_words + len(weights) * self.num_limbs + 2))
        bits, source, last = _closed_sets(self.masks([lattice.needs[part] for part in order]), room)
        if len(bits) > room:
            raise check.TooLong(f"the proof lists more than {room:,} sets")
        sums = _add_up(source, last, np.stack([self.numbers([row[part] for row in weights]) for part in order]))
        self.full = int(np.argmax(np.bitwise_count(bits).sum(axis=1)))
        self._sort(bits, sums, most)
        made = np.array([self.rank[part] for part, _, _ in lattice.tensors], np.int64)
        self.reads = self.masks([mask for _, mask, _ in lattice.tensors])
        self.made = made
        self.sets = Sets(self.bits, self.sums, *_live_tensors(self.bits, made, self.reads))

    def _sort(self, bits: Any, sums: Any, most: list[int]) -> None:
        """Keep the sets in the order of the sum that leaves fewest pairs, and the first and last partner of each."""
        best = -1
        for key, limit in enumerate(most):
            order = _in_order(sums[:, key])
            low, high = _spans(sums[order, key], self.numbers([limit])[0])
            if best < 0 or int((high - low).sum()) < best:
                best, self.low, self.high = int((high - low).sum()), low, high
                self.order = order
        self.bits, self.sums = bits[self.order], sums[self.order]
        self.full = int(np.flatnonzero(self.order == self.full)[0])
        self.empty = int(np.flatnonzero(self.order == 0)[0])

    def numbers(self, values: list[int]) -> IntArray:
        """Return (values, L) whole numbers as limbs; the last has the sign."""
        tops = self.num_limbs - 1
        return np.array(
            [
                [value >> _BITS * at & (-1 if at == tops else (1 << _BITS) - 1) for at in range(tops + 1)]
                for value in values
            ],
            np.int64,
        ).reshape(-1, tops + 1)

    def whole(self, limbs: IntArray) -> Any:
        """Return the whole numbers that limbs (m, L) stand for."""
        return sum(limbs[:, at].astype(object) << _BITS * at for at in range(self.num_limbs))

    def masks(self, masks: list[int]) -> Any:
        """Return (masks, W) sets of parts, given by the lattice's bits, by those of the topological order."""
        found = np.zeros((len(masks), self.num_words), np.uint64)
        for row, mask in zip(found, masks, strict=True):
            for part in bits_of(mask):
                row[self.rank[part] >> 6] |= np.uint64(1 << (self.rank[part] & 63))
        return found


def _in_order(limbs: IntArray) -> IntArray:
    """Return the order of the numbers (m, L) from the least to the largest; equal ones stay as they are."""
    carried = limbs.T.copy()
    for low, high in itertools.pairwise(carried):
        high += low >> _BITS
        low &= (1 << _BITS) - 1
    return np.lexsort(carried)


def bits_of(mask: int) -> list[int]:
    """Return the places of the bits of a number."""
    return [at for at, digit in enumerate(reversed(f"{mask:b}")) if digit == "1"]


def _pipeline(states: check.PipelineStates) -> list[int] | None:
    """Return what `reached_states` does, of a pipeline."""
    classes, k = states.classes, sum(states.count)
    works = [[each or 0 for each in row[0]] for row in classes]
    least = [
        min(each for each in column if each is not None) for column in zip(*(row[0] for row in classes), strict=True)
    ]
    streams = [[each * row[3][1] for each in states.param] for row in classes if row[3] is not None]
    others = [row[3][0] * row[3][1] for row in classes if row[3] is not None] + [row[4] or 0 for row in classes]
    others += [states.threshold, *(each for row in classes for part in row[1:3] for each in part)]
    weights, most = [least, states.param, *works, *streams], [states.threshold - 1, states.most_bytes()]
    one = Listing(states.lattice, weights, most, others)
    enter, leave = (np.stack([one.numbers(row[side]) for row in classes]) for side in (1, 2))
    tensors, limits = Tensors(one.made, one.reads, enter, leave), _limits(states, one)
    num_codes, num_sets = len(limits.digit), len(one.bits)
    if 3 * num_codes * num_sets > MOST_BYTES:
        raise check.TooLong(f"the proof lists {num_sets:,} sets by {num_codes:,} numbers of devices")
    done, held = (one.whole(one.sums[:, key]) for key in (0, 1))
    fits = [states.left(stages, done[one.full], held[one.full]) for stages in range(k + 1)]
    needed = np.array([bisect_left(fits, True, key=lambda fit: fit(*row)) for row in zip(done, held, strict=True)])
    used, covered = (np.zeros((num_sets, num_codes), np.bool_) for _ in range(2))
    used[one.empty, 0] = True
    reached, pairs = list[int](), 0
    for stage in range(1, k + 1):
        keep = needed <= k - stage
        before = np.concatenate([[0], np.cumsum(keep)])
        span = Spans(np.flatnonzero(keep), before[one.low], before[one.high])
        following, at = np.zeros_like(used), 0
        while at < num_sets:
            check.need(not states.expired(), "the search has no time left")
            at, compared = _extend(one.sets, tensors, limits, span, used, covered, following, at)
            pairs += compared
            if pairs > MOST_PAIRS:
                raise check.TooLong(f"the proof compares more than {MOST_PAIRS:,} pairs of sets")
        if following[one.full].any():
            return None
        reached.append(int(following.any(axis=1).sum()))
        used = following
        covered |= following
        for code in np.flatnonzero(limits.digit.sum(axis=1) == stage):
            for c in np.flatnonzero(limits.digit[code] < limits.count):
                covered[:, code + limits.stride[c]] |= covered[:, code]
    return reached


def _limits(states: check.PipelineStates, one: Listing) -> Limits:
    """Return the limits of a pipeline's stages; of one class of devices only whether a set is reached counts."""
    classes, alone = states.classes, len(states.classes) == 1
    counts = [1] if alone else [each + 1 for each in states.count]
    streams, place = [-1] * len(classes), 2 + len(classes)
    for c, row in enumerate(classes):
        if row[3] is not None:
            streams[c], place = place, place + 1
    return Limits(
        one.numbers([states.threshold])[0],
        np.array(streams),
        one.numbers([0 if row[3] is None else row[3][0] * row[3][1] for row in classes]),
        np.array([row[4] is not None for row in classes]),
        one.numbers([row[4] or 0 for row in classes]),
        one.masks(states.banned),
        np.zeros(1, np.int64) if alone else np.cumprod([1, *counts[:-1]]),
        np.stack(np.unravel_index(np.arange(prod(counts)), counts, order="F"), axis=1),
        np.array([1] if alone else states.count),
    )


def _memory(states: check.MemoryStates) -> list[int] | None:
    """Return what `reached_states` does, of parameters in memory."""
    most, caches = states.most, states.caches
    limits = [each or 0 for each in (*most, *caches, sum(filter(None, caches)), states.streamed, states.sent)]
    one = Listing(states.lattice, [states.param], [max(most)], [*limits, *states.sizes])
    sizes = one.numbers(states.sizes)[None]
    tensors = Tensors(one.made, one.reads, sizes, sizes)
    used, least = np.zeros(len(one.bits), np.bool_), np.zeros((len(one.bits), one.num_limbs), np.int64)
    used[one.empty] = True
    reached, pairs, held = list[int](), 0, one.whole(one.sums[:, 0])
    for i, limit in enumerate(most):
        behind = caches[i + 1 :]
        figures = caches[i], None if None in behind else sum(behind), states.streamed, states.sent
        low, high = _spans(one.sums[:, 0], one.numbers([limit])[0])
        low = np.maximum(low, bisect_left(held, held[-1] - sum(most[i + 1 :])))
        told = [(one.numbers([each or 0])[0], each is not None) for each in figures]
        stage = Stage._make([*itertools.chain.from_iterable(told), one.masks([states.banned[i]])[0]])
        span, following, grown, at = Spans(low, low, high), np.zeros_like(used), np.zeros_like(least), 0
        while at < len(used):
            check.need(not states.expired(), "the search has no time left")
            at, compared = _extend_memory(one.sets, tensors, stage, span, used, least, following, grown, at)
            pairs += compared
            if pairs > MOST_PAIRS:
                raise check.TooLong(f"the proof compares more than {MOST_PAIRS:,} pairs of sets")
        used, least = following, grown
        reached.append(int(used.sum()))
    return None if used[one.full] else reached
