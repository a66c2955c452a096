"""The compiled pass over pairs of ideals for stages of several devices, from the last stage to the first.

Counted from the end, a stage knows how many replicas come behind it, and so how many micro-batches it has in flight.
Under a threshold on the seconds of a stage, what is behind an ideal is told by two numbers: devices and replicas.
Fewer of both is never worse, so that each ideal keeps the pairs that no other is below. And of the numbers of
replicas with which a stage is within the threshold, the least is enough: more take more devices, and leave more
micro-batches in flight to the stages before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.stages.groups.variants import choose
from rlinit.exact.stages.ideals.passes import Crossings, closed_under_readers, entering, inclusion, leaving
from rlinit.kernels.compiled import njit

LABEL_COLUMNS = 6
"""Of a label: devices, replicas, ideal at which its first stage ends, label there, degree index, replicas of the
stage."""

_ROOM = 1e-12
"""Relative room for rounding of sums of seconds and bytes."""


class GroupSums(NamedTuple):
    """Sums over the nodes of each of p ideals, by degree index (c, p): the least of each node's variants.

    Parameters
    ----------
    time, gradient, held, fixed, shared
        Seconds, and bytes.
    lacking
        How many nodes have no variant.
    crossing_s
        (c, p) seconds of the tensors that leave the ideal.
    devices_s, devices_bytes
        (p,) least seconds of devices that the nodes take, and bytes of devices that they fill, at any degree.
    """

    time: FloatArray
    gradient: FloatArray
    held: FloatArray
    fixed: FloatArray
    shared: FloatArray
    lacking: IntArray
    crossing_s: FloatArray
    devices_s: FloatArray
    devices_bytes: FloatArray


class VariantArrays(NamedTuple):
    """What each variant takes: `GroupProblem`, with nodes by bit (`node_of`, `bit_of`) and its neighbours."""

    row_indptr: IntArray
    time: FloatArray
    gradient: FloatArray
    held: FloatArray
    fixed: FloatArray
    shared: FloatArray
    sync_indptr: IntArray
    sync_s: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    node_of: IntArray
    bit_of: IntArray


class GroupLimits(NamedTuple):
    """Degrees (c,), numbers of replicas (q,), devices, replicas of all stages, bytes (c,), and micro-batches in flight.

    `share` (c, q) is `GroupProblem.gradient_share`.
    `index_of` (devices + 1,) says which number of replicas is the first of at least so many, q where none is.
    `flying`: 0 for one, 1 for those of the replicas from the stage on, 2 for all of `microbatches`.
    """

    degrees: IntArray
    replicas: IntArray
    share: FloatArray
    index_of: IntArray
    num_devices: int
    most_replicas: int
    memory: FloatArray
    microbatches: int
    flying: int


class StageRows(NamedTuple):
    """Room for the rows of a stage: nodes, where each one's rows begin, and their figures."""

    node: IntArray
    first: IntArray
    row: IntArray
    busy: FloatArray
    gradient: FloatArray
    held: FloatArray
    fixed: FloatArray
    shared: FloatArray
    cost: FloatArray
    size: FloatArray
    choice: IntArray


@njit(cache=True, nogil=True)
def new_rows(num_nodes: int, num_rows: int) -> StageRows:
    """Return room for the rows of a stage of at most so many nodes and rows.

    Parameters
    ----------
    num_nodes, num_rows
        How many.
    """
    whole, real = np.zeros(num_nodes + 1, np.int64), np.zeros(num_rows)
    return StageRows(
        whole.copy(), whole.copy(), np.zeros(num_rows, np.int64), real.copy(), real.copy(), real.copy(), real.copy(),
        real.copy(), real.copy(), real.copy(), whole.copy(),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def gather(i: int, j: int, c: int, bits, variants: VariantArrays, rows: StageRows) -> int:  # type: ignore[no-untyped-def]
    """Write the rows of the stage between ideals i and j at a degree index; return its number of nodes.

    Parameters
    ----------
    i, j
        The ideals.
    c
        The degree index.
    bits
        (p, w) members of the ideals.
    variants
        Of all nodes.
    rows
        Where they are written: busy seconds with gathers at borders, gradients, bytes.
    """
    n = len(variants.bit_of)
    one = np.uint64(1)
    count, size = 0, 0
    for w in range(bits.shape[1]):
        left = bits[j, w] & ~bits[i, w]
        base = w * 64
        while left != 0:
            if left & one == 0:
                left >>= one
                base += 1
                continue
            v = variants.node_of[base]
            left >>= one
            base += 1
            rows.node[count] = v
            rows.first[count] = size
            count += 1
            at = c * n + v
            before, after = variants.pred_indptr[v], variants.succ_indptr[v]
            num_before = variants.pred_indptr[v + 1] - before
            for r in range(variants.row_indptr[at], variants.row_indptr[at + 1]):
                seconds = variants.time[r]
                sync = variants.sync_indptr[r]
                for q in range(num_before):
                    u = variants.bit_of[variants.pred[before + q]]
                    if (bits[i, u >> 6] >> np.uint64(u & 63)) & one != 0:
                        seconds += variants.sync_s[sync + q]
                for q in range(variants.succ_indptr[v + 1] - after):
                    u = variants.bit_of[variants.succ[after + q]]
                    if (bits[j, u >> 6] >> np.uint64(u & 63)) & one == 0:
                        seconds += variants.sync_s[sync + num_before + q]
                rows.row[size] = r
                rows.busy[size] = seconds
                rows.gradient[size] = variants.gradient[r]
                rows.held[size] = variants.held[r]
                rows.fixed[size] = variants.fixed[r]
                rows.shared[size] = variants.shared[r]
                size += 1
    rows.first[count] = size
    return count


@njit(cache=True, nogil=True)
def choose_rows(
    count: int, moved: float, c: int, at: int, y: float, limit: float, limits: GroupLimits, rows: StageRows
) -> int:
    """Choose variants of a stage's gathered rows within the threshold and the memory; see `choose`.

    Parameters
    ----------
    count
        Its nodes.
    moved
        Seconds of its tensors.
    c, at, y
        Degree index, index of its number of replicas, and micro-batches in flight.
    limit, limits
        Seconds at most, and what there is.
    rows
        As `gather` wrote them; `choice` is written.
    """
    d, share = limits.replicas[at], limits.share[c, at]
    for r in range(rows.first[count]):
        rows.cost[r] = rows.busy[r] + share * rows.gradient[r]
        rows.size[r] = rows.held[r] * y + rows.fixed[r] + rows.shared[r] / d
    return choose(rows.first[: count + 1], rows.cost, rows.size, limit * d - moved, limits.memory[c], rows.choice)


@njit(cache=True, nogil=True)
def in_flight(behind: int, d: int, limits: GroupLimits) -> int:
    """Return the micro-batches in flight of a stage of d replicas, where so many are those from it on.

    Parameters
    ----------
    behind, d
        Replicas from the stage on, and its own.
    limits
        How they count.
    """
    if limits.flying == 0:
        return 1
    return -(-(behind if limits.flying == 1 else limits.microbatches) // d)


@njit(cache=True, nogil=True)
def first_replicas(seconds: float, gradient: float, limit: float, limits: GroupLimits) -> int:
    """Return the index of the first number of replicas that may bring a stage of so many seconds within the threshold.

    Shares of gradients are taken as d - 1, their least.

    Parameters
    ----------
    seconds, gradient
        Of the stage with one replica, and of its gradients with ever more.
    limit
        Most seconds.
    limits
        What there is.
    """
    if seconds * (1.0 - _ROOM) <= limit or gradient >= limit:
        return 0
    least = (seconds - gradient) / (limit - gradient) * (1.0 - 1e-9)
    if least > limits.num_devices:
        return len(limits.replicas)
    return int(limits.index_of[int(np.ceil(least))])


@njit(cache=True, nogil=True)
def moved_seconds(i: int, j: int, c: int, crossings: Crossings, transfer_s: FloatArray) -> float:
    """Return the seconds of the tensors that enter or leave the stage between two ideals.

    Parameters
    ----------
    i, j, c
        The ideals, and the degree index.
    crossings, transfer_s
        See `group_pass`.
    """
    bits, _, cross_indptr, cross, source_bit, consumer_indptr, consumer_bit = crossings
    seconds = entering(i, j, c, bits, cross_indptr, cross, consumer_indptr, consumer_bit, transfer_s)
    return float(seconds + leaving(i, j, c, bits, cross_indptr, cross, source_bit, transfer_s))


@njit(cache=True, nogil=True)
def fewest_devices(
    limit: float,
    first: int,
    quota: int,
    sums: GroupSums,
    limits: GroupLimits,
    crossings: Crossings,
    transfer_s: FloatArray,
    fewest: IntArray,
) -> tuple[int, int]:
    """Count devices that stages within the threshold take at least to hold each ideal, from `first` on.

    Variants are taken at their best in each respect, and one micro-batch is in flight. Returns the ideal that is next,
    and the steps; see `group_pass` for the parameters.

    Parameters
    ----------
    fewest
        (p,) the counts, of which those of smaller ideals are there; more than there are devices where there is no way.
    """
    bits, first_open, cross_indptr, cross, _, consumer_indptr, consumer_bit = crossings
    p, closed, met = len(fewest), np.zeros(bits.shape[1], np.uint64), 0
    for i in range(first, p - 1):
        if met > quota:
            return i, met
        room = limits.num_devices - fewest[i]
        if room < 0 or (sums.devices_s[p - 1] - sums.devices_s[i]) * (1.0 - 1e-9) > room * limit:
            continue
        last_word = closed_under_readers(i, bits, cross_indptr, cross, consumer_indptr, consumer_bit, closed)
        for j in range(i + 1, p):
            met += 1
            gain = min(fewest[j] - 1 - fewest[i], room)
            if gain < 1 or (sums.devices_s[j] - sums.devices_s[i]) * (1.0 - 1e-9) > gain * limit:
                continue
            within = inclusion(i, j, bits, first_open, closed, last_word)
            if within == 0:
                continue
            for c in range(len(limits.degrees)):
                if sums.lacking[c, j] != sums.lacking[c, i]:
                    continue
                size = sums.held[c, j] - sums.held[c, i] + sums.fixed[c, j] - sums.fixed[c, i]
                if size * (1.0 - _ROOM) > limits.memory[c]:
                    continue
                if within == 2:
                    moved = sums.crossing_s[c, i] + sums.crossing_s[c, j]
                else:
                    moved = moved_seconds(i, j, c, crossings, transfer_s)
                shared = sums.shared[c, j] - sums.shared[c, i]
                work, gradient = sums.time[c, j] - sums.time[c, i], sums.gradient[c, j] - sums.gradient[c, i]
                for at in range(first_replicas(work + moved, gradient, limit, limits), len(limits.replicas)):
                    d, met = limits.replicas[at], met + 1
                    if limits.degrees[c] * d > gain:
                        break
                    seconds = work + moved + limits.share[c, at] * gradient
                    if max(seconds / (limit * d), (size + shared / d) / limits.memory[c]) <= 1.0 + _ROOM:
                        fewest[j] = fewest[i] + limits.degrees[c] * d
                        gain = fewest[j] - 1 - fewest[i]
                        break
    return p - 1, met


@njit(cache=True, nogil=True)
def _note(best: IntArray, came: IntArray, devices: int, behind: int, j: int, label: int, c: int, d: int) -> None:
    """Take a label where none with as few replicas has as few devices."""
    for s in range(behind, len(best)):
        if best[s] <= devices:
            break
        best[s] = devices
        came[s, 0], came[s, 1], came[s, 2], came[s, 3] = j, label, c, d


@njit(cache=True, nogil=True)
def group_pass(
    limit: float,
    last: int,
    quota: int,
    sums: GroupSums,
    variants: VariantArrays,
    limits: GroupLimits,
    fewest: IntArray,
    crossings: Crossings,
    transfer_s: FloatArray,
    ends: IntArray,
    labels: IntArray,
) -> tuple[int, int, int, int]:
    """Extend the labels of ideals below `last` by every stage within the threshold, from larger ideals to smaller ones.

    Stops before an ideal once more than `quota` steps are done, or where `labels` has no room for it; returns the ideal
    that is next, the steps, the labels in use, and how many choices of variants were too many to list: a stage with
    such a choice was left out.

    Parameters
    ----------
    limit
        Most seconds of a stage.
    last
        The ideal to begin with; those above it have their labels.
    quota
        Steps after which no further ideal is begun.
    sums, variants, limits
        Of ideals and nodes, and what there is.
    fewest
        (p,) devices that each ideal takes at least; see `fewest_devices`.
    crossings
        Members and tensors of the ideals.
    transfer_s
        (c, m) seconds of each tensor on either side of a border.
    ends
        (p + 1,) where each ideal's labels end; those of ideal j begin at ``ends[j + 1]``, for the largest stands first.
    labels
        (room, 6) see `LABEL_COLUMNS`.
    """
    bits, first_open, cross_indptr, cross, _, consumer_indptr, consumer_bit = crossings
    p, num_degrees = len(ends) - 1, len(limits.degrees)
    closed = np.zeros(bits.shape[1], np.uint64)
    most_rows = 0
    for a in range(num_degrees):
        n = len(variants.bit_of)
        most_rows = max(most_rows, variants.row_indptr[(a + 1) * n] - variants.row_indptr[a * n])
    rows = new_rows(len(variants.bit_of), most_rows)
    best = np.empty(limits.most_replicas + 1, np.int64)
    came = np.zeros((limits.most_replicas + 1, 4), np.int64)
    met, unknown = 0, 0
    i = last
    while i >= 0:
        size = ends[i + 1]  # labels of larger ideals end here
        if met > quota or size + limits.most_replicas + 1 > len(labels):
            return i, met, size, unknown
        before = max(fewest[i], np.int64(np.ceil(sums.devices_bytes[i] / limits.memory.max() * (1.0 - 1e-9))))
        room = limits.num_devices - before
        if room < 0:
            ends[i] = size
            i -= 1
            continue
        best.fill(room + 1)
        last_word = closed_under_readers(i, bits, cross_indptr, cross, consumer_indptr, consumer_bit, closed)
        for j in range(p - 1, i, -1):
            begin, end = ends[j + 1], ends[j]
            met += 1
            if begin == end:
                continue
            # Every stage to here takes so many devices, and leads to more replicas than the fewest there.
            gain = best[min(labels[begin, 1] + 1, limits.most_replicas)] - 1 - labels[end - 1, 0]
            if gain < 1 or (sums.devices_s[j] - sums.devices_s[i]) * (1.0 - 1e-9) > gain * limit:
                continue
            within = inclusion(i, j, bits, first_open, closed, last_word)
            if within == 0:
                continue
            for c in range(num_degrees):
                if sums.lacking[c, j] != sums.lacking[c, i]:
                    continue
                if within == 2:
                    moved = sums.crossing_s[c, i] + sums.crossing_s[c, j]
                else:
                    moved = moved_seconds(i, j, c, crossings, transfer_s)
                t, shared = limits.degrees[c], sums.shared[c, j] - sums.shared[c, i]
                work, gradient = sums.time[c, j] - sums.time[c, i], sums.gradient[c, j] - sums.gradient[c, i]
                held, fixed = sums.held[c, j] - sums.held[c, i], sums.fixed[c, j] - sums.fixed[c, i]
                at, count, asked_d, asked_y, answer = (
                    first_replicas(work + moved, gradient, limit, limits),
                    -1,
                    -1,
                    -1,
                    0,
                )
                for label in range(begin, end):
                    devices, behind = labels[label, 0], labels[label, 1]
                    while at < len(limits.replicas):
                        d = limits.replicas[at]
                        s = behind + d
                        if s > limits.most_replicas or best[s] <= devices + t * d:  # more replicas are no better
                            break
                        met += 1
                        y = in_flight(s, d, limits)
                        seconds = work + moved + limits.share[c, at] * gradient
                        holds = held * y + fixed + shared / d
                        if max(seconds / (limit * d), holds / limits.memory[c]) > 1.0 + _ROOM:
                            at += 1
                            continue
                        if d != asked_d or y != asked_y:
                            if count < 0:
                                count = gather(i, j, c, bits, variants, rows)
                            answer = choose_rows(count, moved, c, at, float(y), limit, limits, rows)
                            met += 10 * count
                            asked_d, asked_y = d, y
                            if answer < 0:
                                unknown += 1
                        if answer == 1:
                            _note(best, came, devices + t * d, s, j, label, c, d)
                            break
                        at += 1
        ends[i] = _kept(best, came, room + 1, labels, size)
        i -= 1
    return -1, met, ends[0], unknown


@njit(cache=True, nogil=True)
def _kept(best: IntArray, came: IntArray, none: int, labels: IntArray, size: int) -> int:
    """Write the labels of an ideal behind those there are; return where they end."""
    fewest = none
    for s in range(len(best)):
        if best[s] < fewest:
            fewest = best[s]
            labels[size, 0], labels[size, 1] = fewest, s
            for q in range(4):
                labels[size, 2 + q] = came[s, q]
            size += 1
    return size
