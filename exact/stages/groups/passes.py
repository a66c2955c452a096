"""The compiled pass over pairs of ideals for stages of several devices, from the last stage to the first.

Counted from the end, a stage knows how many replicas come behind it, and so how many micro-batches it has in flight.
Under a threshold on the seconds of a stage, what is behind an ideal is described by the devices of each kind and the
replicas. Fewer of each is never worse, so that an ideal keeps the labels that no other is below. And of the numbers of
replicas with which a stage is within the threshold, the least is enough: more take more devices, and leave more
micro-batches in flight to the stages before.

Counts of devices of all kinds but the first are one number, the *cell*: the sum of ``stride`` times count. Bounds add
devices of all kinds up by their worth (`rlinit.stages.groups.problem.worth_of_kinds`).
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray, WordArray
from rlinit.exact.stages.groups.arrays import (
    Border,
    GroupData,
    GroupLimits,
    GroupSums,
    Growing,
    Lattice,
    Shares,
    StageRows,
    VariantArrays,
)
from rlinit.exact.stages.groups.variants import ROUNDING, choose
from rlinit.exact.stages.ideals.passes import entering, leaving
from rlinit.kernels.compiled import njit

LABEL_COLUMNS = 7
"""Of a label: devices of the first kind, replicas, ideal at which its first stage ends, label there, form, index of its
replicas (those of several kinds behind those of one), cell."""


@njit(cache=True, nogil=True)
def _new_shares(limits: GroupLimits) -> Shares:
    """Return room for what is known of mixes."""
    num_rows, num_kinds = len(limits.mix_first) - 1, len(limits.counts)
    real, known = np.zeros(num_kinds), np.zeros((num_rows, num_kinds), np.int64)
    return Shares(real, real.copy(), np.zeros(num_kinds, np.int64), np.zeros(num_rows, np.int64), known, known.copy())


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
def choose_rows(count: int, most: float, share: float, y: int, part: float, memory: float, rows: StageRows) -> int:
    """Choose variants of a stage's gathered rows within so many seconds and the memory; see `choose`.

    Parameters
    ----------
    count, most
        Its nodes, and seconds that they may take.
    share
        What gradients count.
    y, part
        Micro-batches in flight, and the part that a replica has of what all share.
    memory
        Bytes.
    rows
        As `gather` wrote them; `choice` is written.
    """
    for r in range(rows.first[count]):
        rows.cost[r] = rows.busy[r] + share * rows.gradient[r]
        rows.size[r] = rows.held[r] * y + rows.fixed[r] + rows.shared[r] * part
    return choose(rows.first[: count + 1], rows.cost, rows.size, most, memory, rows.choice)


@njit(cache=True, nogil=True)
def largest_share(
    i: int, j: int, c: int, x: int, behind: int, limit: float, most: int, data: GroupData, rows: StageRows
) -> tuple[int, int]:
    """Return the most micro-batches of a batch that each replica of a form may take in a stage on several kinds.

    Its variants are in `rows`. Also returned is how many choices of variants were too many to list.

    Parameters
    ----------
    i, j, c, x
        The ideals of the stage, the form, and the index of its replicas of all kinds.
    behind
        Replicas from the stage on.
    limit, most
        Seconds at most, and micro-batches that are enough.
    data, rows
        As for `group_pass`, and room for the stage.
    """
    _, variants, limits, lattice = data
    count, n = gather(i, j, c, lattice.crossings.bits, variants, rows), limits.microbatches
    exchanged, moved = 0.0, moved_seconds(i, j, c, lattice)
    seconds = moved
    for q in range(count):
        exchanged += limits.most_params[c, rows.node[q]]
        seconds += rows.busy[rows.first[q] : rows.first[q + 1]].min()
    left = limit - limits.mix_s[c, x] * exchanged
    if left < 0.0:
        return 0, 0
    high = most if seconds <= left else min(most, int(left * n / seconds * (1.0 + 1e-9)))
    low, taken, unknown = 0, high, 0
    while taken > 0:
        part = max(taken / n, 1.0 / limits.mix_total[x])
        y = in_flight(behind, taken, 1, limits)
        answer = choose_rows(count, left * (n / taken) - moved, 0.0, y, part, limits.memory[c], rows)
        unknown += answer < 0
        if answer == 1:
            low = taken
        else:
            high = taken - 1
        if low == high:
            if answer == 1 or low == 0:
                break
            taken = low  # its choice once more
        else:
            taken = (low + high + 1) // 2
    return low, unknown


@njit(cache=True, nogil=True, inline="always")
def in_flight(behind: int, taken: int, more: int, limits: GroupLimits) -> int:
    """Return the micro-batches in flight of a stage, where so many are the replicas from it on.

    Parameters
    ----------
    behind, taken
        Replicas from the stage on, and micro-batches of a batch that a replica takes.
    more
        1 for a stage on several kinds, else 0.
    limits
        How they count.
    """
    if limits.flying == 0:
        return 1
    return min(taken, -(-behind * taken // limits.microbatches) + more) if limits.flying == 1 else taken


@njit(cache=True, nogil=True, inline="always")
def least_in_flight(behind: int, limits: GroupLimits) -> int:
    """Return the micro-batches in flight, at least, of a stage on one kind with any number of replicas.

    Parameters
    ----------
    behind, limits
        Replicas behind the stage, and how they count.
    """
    most, taken = limits.replicas[-1], limits.taken[-1]
    return min(taken, -(-(behind + most) // most)) if limits.flying == 1 else in_flight(behind, taken, 0, limits)


@njit(cache=True, nogil=True, inline="always")
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
    if seconds * (1.0 - ROUNDING) <= limit:
        return 0
    if gradient >= limit:
        return len(limits.replicas)
    least = (seconds - gradient) / (limit - gradient) * (1.0 - 1e-9)
    if least > limits.num_devices:
        return len(limits.replicas)
    return int(limits.index_of[int(np.ceil(least))])


@njit(cache=True, nogil=True)
def holders_of(bits: WordArray, n: int) -> WordArray:
    """Return (n, w) the ideals that hold each node, by its bit.

    Parameters
    ----------
    bits, n
        Members of the ideals, and how many nodes there are.
    """
    one = np.uint64(1)
    holders = np.zeros((n, (len(bits) + 63) // 64), np.uint64)
    for i in range(len(bits)):
        for v in range(n):
            if (bits[i, v >> 6] >> np.uint64(v & 63)) & one != 0:
                holders[v, i >> 6] |= one << np.uint64(i & 63)
    return holders


@njit(cache=True, nogil=True)
def new_border(variants: VariantArrays, num_ideals: int) -> Border:
    """Return room for the border of an ideal.

    Parameters
    ----------
    variants, num_ideals
        Of all nodes, and how many ideals there are.
    """
    edges = np.zeros(len(variants.succ) + 1, np.int64)
    return Border(np.zeros(len(variants.bit_of), np.int64), edges, edges.copy(), np.zeros(num_ideals, np.int64))


@njit(cache=True, nogil=True)
def look_around(i: int, lattice: Lattice, variants: VariantArrays, border: Border) -> tuple[int, int]:
    """Write the border of an ideal; return how many edges leave it, and how many ideals hold it.

    An ideal holds another if it holds the maximal nodes of that.

    Parameters
    ----------
    i
        The ideal.
    lattice, variants
        Of ideals and nodes.
    border
        Where it is written.
    """
    bits, one = lattice.crossings.bits, np.uint64(1)
    num_tops, num_edges, num_above = 0, 0, 0
    for x in range(len(variants.bit_of)):
        if (bits[i, x >> 6] >> np.uint64(x & 63)) & one == 0:
            continue
        v = variants.node_of[x]
        top = True
        for q in range(variants.succ_indptr[v], variants.succ_indptr[v + 1]):
            u = variants.bit_of[variants.succ[q]]
            if (bits[i, u >> 6] >> np.uint64(u & 63)) & one != 0:
                top = False
            else:
                border.head[num_edges], border.edge[num_edges] = u, q
                num_edges += 1
        if top:
            border.top[num_tops] = x
            num_tops += 1
    for w in range(i >> 6, lattice.holders.shape[1]):
        word = ~np.uint64(0)
        for q in range(num_tops):
            word &= lattice.holders[border.top[q], w]
        j = w << 6
        while word != 0 and j < len(bits):
            if word & np.uint64(255) == 0:
                word >>= np.uint64(8)
                j += 8
                continue
            if word & one != 0 and j >= i:
                border.above[num_above] = j
                num_above += 1
            word >>= one
            j += 1
    return num_edges, num_above


@njit(cache=True, nogil=True)
def moved_seconds(i: int, j: int, c: int, lattice: Lattice) -> float:
    """Return the seconds of the tensors that enter or leave the stage between two ideals.

    Parameters
    ----------
    i, j, c, lattice
        The ideals, and the degree index.
    """
    bits, _, cross_indptr, cross, source_bit, consumer_indptr, consumer_bit = lattice.crossings
    seconds = entering(i, j, c, bits, cross_indptr, cross, consumer_indptr, consumer_bit, lattice.transfer_s)
    return float(seconds + leaving(i, j, c, bits, cross_indptr, cross, source_bit, lattice.transfer_s))


@njit(cache=True, nogil=True, inline="always")
def border_seconds(
    i: int, j: int, num_edges: int, sums: GroupSums, lattice: Lattice, border: Border, seconds: FloatArray
) -> None:
    """Write the seconds of tensors and, at least, of gathers at the borders of the stage between two ideals, by degree.

    All those at the two borders, less what passes: tensors and edges that leave both ideals.

    Parameters
    ----------
    i, j, num_edges
        The ideals, and how many edges leave the smaller one.
    sums, lattice, border
        Of the ideals, and of the smaller one.
    seconds
        (c,) where they are written.
    """
    bits, _, cross_indptr, cross, _, consumer_indptr, consumer_bit = lattice.crossings
    one = np.uint64(1)
    for c in range(len(seconds)):
        seconds[c] = sums.crossing_s[i, c] + sums.crossing_s[j, c] + sums.sync_in[i, c] + sums.sync_out[j, c]
        seconds[c] -= sums.error_s[c]
    for q in range(cross_indptr[i], cross_indptr[i + 1]):
        t = cross[q]
        read, passes = False, False
        for r in range(consumer_indptr[t], consumer_indptr[t + 1]):
            word, bit = consumer_bit[r] >> 6, np.uint64(consumer_bit[r] & 63)
            if (bits[j, word] >> bit) & one == 0:
                passes = True
            elif (bits[i, word] >> bit) & one == 0:
                read = True
        if passes:
            for c in range(len(seconds)):
                seconds[c] -= lattice.transfer_s[c, t] * (1.0 if read else 2.0)
    for q in range(num_edges):
        u, e = border.head[q], border.edge[q]
        if (bits[j, u >> 6] >> np.uint64(u & 63)) & one == 0:
            for c in range(len(seconds)):
                seconds[c] -= lattice.edge_in[e, c] + lattice.edge_out[e, c]


@njit(cache=True, nogil=True, inline="always")
def least_bytes(i: int, j: int, c: int, y: int, part: float, sums: GroupSums) -> float:
    """Return the bytes that a device of the stage between two ideals holds at least.

    Parameters
    ----------
    i, j, c, y, part
        The ideals, the degree index, micro-batches in flight, and the part that a replica has of what all share.
    sums
        Of the ideals.
    """
    k, known = 0, 1
    while k + 1 < sums.filled.shape[1] and 2 * known <= y:
        k += 1
        known *= 2
    held = sums.held[j, c] - sums.held[i, c]
    shared = (sums.shared[j, c] - sums.shared[i, c]) * part
    return float(shared + sums.filled[j, k, c] - sums.filled[i, k, c] + (y - known) * held - y * sums.error_bytes[c])


@njit(cache=True, nogil=True, inline="always")
def fits(
    at: int, y: int, i: int, j: int, c: int, work: float, gradient: float, limit: float, sums: GroupSums,
    limits: GroupLimits,
) -> bool:  # fmt: skip
    """Return whether a stage may be within all limits, with the best of its nodes' variants in every respect.

    Parameters
    ----------
    at, y
        Index of its number of replicas, and micro-batches in flight.
    i, j, c, work, gradient
        Its ideals, degree index, and seconds at least with one replica, and of gradients with ever more.
    limit, sums, limits
        Most seconds, and of all ideals.
    """
    quick = (work + limits.share[c, at] * gradient) * (1.0 - ROUNDING) <= limit * limits.speed[at]
    return bool(quick and least_bytes(i, j, c, y, limits.part[at], sums) <= limits.memory[c])


@njit(cache=True, nogil=True, inline="always")
def fitting_replicas(
    behind: int, i: int, j: int, c: int, around: float, limit: float, sums: GroupSums, limits: GroupLimits
) -> tuple[int, float, float]:
    """Return the first index of a number of replicas with which a stage may be within all limits; see `fits`.

    Its seconds with one replica and those of gradients are returned as well.

    Parameters
    ----------
    behind
        Replicas behind the stage.
    i, j, c, around
        Its ideals, degree index, and seconds at its borders.
    limit, sums, limits
        Most seconds, and of all ideals.
    """
    work = sums.time[j, c] - sums.time[i, c] + around
    gradient = sums.gradient[j, c] - sums.gradient[i, c] - sums.error_s[c]
    at = first_replicas(work, gradient, limit, limits)
    while at < len(limits.replicas):
        y = in_flight(behind + limits.replicas[at], limits.taken[at], 0, limits)
        if fits(at, y, i, j, c, work, gradient, limit, sums, limits):
            break
        at += 1
    return at, work, gradient


@njit(cache=True, nogil=True, inline="always")
def _begin_shares(
    i: int, j: int, g: int, limit: float, sums: GroupSums, limits: GroupLimits, around: FloatArray, shares: Shares
) -> bool:
    """Write what stages between two ideals take on each kind, at least; return whether two kinds may have a part."""
    shares.turn[:] = limits.mix_first[:-1]
    shares.known[:] = -1
    kinds = 0
    for k in range(len(shares.seconds)):
        c, shares.seconds[k] = limits.form_of[g, k], np.inf
        if c >= 0 and sums.lacking[j, c] == sums.lacking[i, c]:
            seconds = sums.time[j, c] - sums.time[i, c] + around[c] - sums.error_s[c]
            shares.seconds[k] = max(0.0, seconds * (1.0 - 1e-9))
            shares.exchanged[k] = max(0.0, sums.exchanged[j, c] * (1.0 - 1e-9) - sums.exchanged[i, c])
        kinds += shares.seconds[k] <= limit * limits.microbatches
    return kinds > 1


@njit(cache=True, nogil=True, inline="always")
def _tightened(i: int, j: int, c: int, x: int, behind: int, most: int, sums: GroupSums, limits: GroupLimits) -> int:
    """Return no less than `largest_share`, where so many are enough, by the least bytes of each node."""
    low, taken = 0, most
    while low < most:
        part, y = max(taken / limits.microbatches, 1.0 / limits.mix_total[x]), in_flight(behind, taken, 1, limits)
        if least_bytes(i, j, c, y, part, sums) <= limits.memory[c]:
            low = taken
        else:
            most = taken - 1
        taken = (low + most + 1) // 2
    return most


@njit(cache=True, nogil=True, inline="always")
def _make_up_batch(
    i: int, j: int, g: int, row: int, x: int, s: int, limit: float, data: GroupData, rows: StageRows, shares: Shares
) -> tuple[bool, int]:
    """Return whether the replicas of a mix make up a batch, and how many choices were too many to list.

    By the time that each kind has at most, then by its bytes at least, then by its best choice.
    """
    sums, _, limits, _ = data
    unknown, total, n, fresh = 0, 0, limits.microbatches, shares.known[row].max() < 0
    for k in range(len(limits.counts)):
        d, c = limits.mixes[x, k], limits.form_of[g, k]
        if d and fresh:
            left = limit - limits.mix_s[c, x] * shares.exchanged[k]
            shares.most[k] = 0
            if left >= 0.0:
                shares.most[k] = n if shares.seconds[k] <= left else int(left * n / shares.seconds[k])
            total += d * shares.most[k] if shares.most[k] else -n * s
        elif d:
            shares.most[k] = shares.known[row, k]
            total += d * shares.most[k]
    for exact in range(2):
        for k in range(len(limits.counts)):
            d, c, most = limits.mixes[x, k], limits.form_of[g, k], shares.most[k]
            if d == 0 or total < n or (not fresh and in_flight(s, most, 1, limits) == shares.flying[row, k]):
                continue
            if exact:
                shares.most[k], missed = largest_share(i, j, c, x, s, limit, most, data, rows)
                unknown += missed
                shares.known[row, k] = shares.most[k]
                shares.flying[row, k] = in_flight(s, shares.most[k], 1, limits)
            else:
                shares.most[k] = _tightened(i, j, c, x, s, most, sums, limits)
            total += d * (shares.most[k] - most) if shares.most[k] else -n * s
    return total >= n, unknown


@njit(cache=True, nogil=True, inline="always")
def _mixed_label(label: int, x: int, t: int, room: int, limits: GroupLimits, growing: Growing) -> tuple[int, int, int]:
    """Return cell, replicas and devices of the first kind with a mix before a label; -1 if that is of no use."""
    devices, s, cell = growing.labels[label, 0], growing.labels[label, 1], growing.labels[label, 6]
    worth = limits.cell_worth[cell] + devices * limits.kind_worth[0] + t * limits.mix_worth[x]
    to, taken, s = cell, devices + t * limits.mixes[x, 0], s + limits.mix_total[x]
    if worth > room or taken > limits.counts[0] or s > limits.most_replicas:
        return -1, s, taken
    for k in range(1, len(limits.counts)):
        if limits.used[cell, k] + t * limits.mixes[x, k] > limits.counts[k]:
            return -1, s, taken
        to += t * limits.mixes[x, k] * limits.stride[k]
    return to if growing.best[to, s] > taken else -1, s, taken


@njit(cache=True, nogil=True)
def _extend_mixed(
    i: int, j: int, room: int, limit: float, data: GroupData, growing: Growing, shares: Shares
) -> tuple[int, int]:
    """Extend the labels of an ideal by stages on several kinds; return steps, and choices too many to list.

    Of the mixes of a row the first that makes up a batch is enough, and with more replicas behind it is no earlier one:
    labels come by replicas. One that is of no use to any label has none after it that is.
    """
    (sums, _, limits, _), (ends, labels, best, came, rows, around) = data, growing
    met, unknown = 0, 0
    for g in range(len(limits.form_of)):
        if not _begin_shares(i, j, g, limit, sums, limits, around, shares):
            continue
        any_form = limits.form_of[g].max()
        t, begin = limits.degrees[any_form], ends[j + 1]
        while begin < ends[j]:
            end, behind = begin, labels[begin, 1]
            while end < ends[j] and labels[end, 1] == behind:
                end += 1
            for row in range(len(shares.turn)):
                label = begin
                while shares.turn[row] < limits.mix_first[row + 1]:
                    x, before = shares.turn[row], label
                    while label < end and _mixed_label(label, x, t, room, limits, growing)[0] < 0:
                        label += 1
                    met += label - before + 1
                    if label == end:
                        break
                    s = behind + limits.mix_total[x]
                    enough, missed = _make_up_batch(i, j, g, row, x, s, limit, data, rows, shares)
                    met, unknown = met + 20, unknown + missed
                    if enough:
                        met += end - label
                        for after in range(label, end):
                            to, _, taken = _mixed_label(after, x, t, room, limits, growing)
                            if to >= 0:
                                _note(best[to], came[to], taken, s, j, after, any_form, len(limits.replicas) + x)
                        break
                    shares.turn[row] = x + 1
                    shares.known[row] = -1
            begin = end
    return met, unknown


@njit(cache=True, nogil=True)
def _note(best: IntArray, came: IntArray, devices: int, behind: int, j: int, label: int, c: int, at: int) -> None:
    """Take a label where none of its cell with as few replicas has as few devices."""
    for s in range(behind, len(best)):
        if best[s] <= devices:
            break
        best[s] = devices
        came[s, 0], came[s, 1], came[s, 2], came[s, 3] = j, label, c, at


@njit(cache=True, nogil=True)
def _extend_form(
    i: int, j: int, c: int, at: int, work: float, gradient: float, limit: float, data: GroupData, growing: Growing
) -> tuple[int, int]:
    """Extend the labels of an ideal by a stage in a form; return steps, and choices of variants too many to list."""
    (sums, variants, limits, lattice), (ends, labels, best, came, rows, _) = data, growing
    t, k, moved, met, unknown, count, answer = limits.degrees[c], limits.kind[c], 0.0, 0, 0, -1, -1
    y, known_at, known_behind, asked_at, asked_y = 0, -1, -1, -1, -1
    for label in range(ends[j + 1], ends[j]):
        devices, behind, cell = labels[label, 0], labels[label, 1], labels[label, 6]
        left = limits.counts[k] - (devices if k == 0 else limits.used[cell, k])
        while True:
            met += 1
            d = limits.replicas[at]
            s, to, taken = behind + d, cell + t * d * limits.stride[k], devices + (t * d if k == 0 else 0)
            if s > limits.most_replicas or t * d > left or best[to, s] <= taken:  # more replicas are no better
                break
            if at != known_at or behind != known_behind:
                y, known_at, known_behind = in_flight(s, limits.taken[at], 0, limits), at, behind
            if at != asked_at or y != asked_y:
                asked_at, asked_y, answer = at, y, 0
                if fits(at, y, i, j, c, work, gradient, limit, sums, limits):
                    if count < 0:
                        count = gather(i, j, c, lattice.crossings.bits, variants, rows)
                        moved = moved_seconds(i, j, c, lattice)
                    seconds = limit * limits.speed[at] - moved
                    share, part = limits.share[c, at], limits.part[at]
                    answer = choose_rows(count, seconds, share, y, part, limits.memory[c], rows)
                    met += 10 * count
                    unknown += answer < 0
            if answer == 1:
                _note(best[to], came[to], taken, s, j, label, c, at)
                break
            at += 1
            if at == len(limits.replicas):
                return met, unknown
    return met, unknown


@njit(cache=True, nogil=True)
def group_pass(
    limit: float,
    last: int,
    quota: int,
    data: GroupData,
    ends: IntArray,
    labels: IntArray,
    least: IntArray,
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
    data
        Of ideals and nodes, and what there is.
    ends
        (p + 1,) where each ideal's labels end; those of ideal j begin at ``ends[j + 1]``, for the largest stands first.
    labels
        (room, 7) see `LABEL_COLUMNS`.
    least
        (p,) least worth of devices of the labels of each ideal above `last`.
    """
    sums, variants, limits, lattice = data
    p, num_degrees, alike = len(ends) - 1, len(limits.degrees), len(limits.counts) == 1
    border, around = new_border(variants, p), np.zeros(len(limits.degrees))
    rows = new_rows(len(variants.bit_of), len(variants.time))
    best = np.empty((len(limits.used), limits.most_replicas + 1), np.int64)
    came = np.zeros((len(limits.used), limits.most_replicas + 1, 4), np.int64)
    growing, shares = Growing(ends, labels, best, came, rows, around), _new_shares(limits)
    met, unknown, i = 0, 0, last
    while i >= 0:
        size = ends[i + 1]  # labels of larger ideals end here
        if met > quota or size + best.size > len(labels):
            return i, met, size, unknown
        before = max(sums.devices_s[i] / limit, sums.devices_bytes[i] / limits.memory.max()) * (1.0 - 1e-9)
        if before > limits.all_worth:
            ends[i], i = size, i - 1
            continue
        room = limits.all_worth - int(np.ceil(before))
        none = min(limits.counts[0], room // limits.kind_worth[0]) + 1
        best.fill(none)
        num_edges, num_above = look_around(i, lattice, variants, border)
        met += num_above + lattice.holders.shape[1]
        for q in range(num_above - 1, 0, -1):
            j = border.above[q]
            begin, end = ends[j + 1], ends[j]
            if begin == end:
                continue
            # Every stage to here takes devices of so much worth, and leads to more replicas than the fewest there.
            least_behind = min(labels[begin, 1] + 1, limits.most_replicas)
            gain = (best[0, least_behind] - 1 if alike else room) - least[j]
            if gain < 1 or (sums.devices_s[j] - sums.devices_s[i]) * (1.0 - 1e-9) > gain * limit:
                continue
            flying = least_in_flight(labels[begin, 1], limits)
            priced = False
            for c in range(num_degrees):
                t, work = limits.degrees[c], sums.time[j, c] - sums.time[i, c]
                if (
                    t > limits.counts[limits.kind[c]]
                    or sums.lacking[j, c] != sums.lacking[i, c]
                    or (work - sums.error_s[c]) * (1.0 - ROUNDING) * limits.worth[c] > gain * limit
                    or least_bytes(i, j, c, flying, limits.part[-1], sums) > limits.memory[c]
                ):
                    continue
                if not priced:
                    border_seconds(i, j, num_edges, sums, lattice, border, around)
                    priced = True
                at, work, gradient = fitting_replicas(labels[begin, 1], i, j, c, around[c], limit, sums, limits)
                if at == len(limits.replicas):
                    continue
                fewest_behind = min(labels[begin, 1] + limits.replicas[at], limits.most_replicas)
                if limits.worth[c] * limits.replicas[at] > gain or (
                    alike and best[0, fewest_behind] <= least[j] + t * limits.replicas[at]
                ):
                    continue
                steps, missed = _extend_form(i, j, c, at, work, gradient, limit, data, growing)
                met, unknown = met + steps, unknown + missed
            if len(limits.mixes):
                if not priced:
                    border_seconds(i, j, num_edges, sums, lattice, border, around)
                steps, missed = _extend_mixed(i, j, room, limit, data, growing, shares)
                met, unknown = met + steps, unknown + missed
        ends[i], least[i] = _kept(best, came, none, room, limits, labels, size)
        i -= 1
    return -1, met, ends[0], unknown


@njit(cache=True, nogil=True)
def _kept(
    best: IntArray, came: IntArray, none: int, room: int, limits: GroupLimits, labels: IntArray, size: int
) -> tuple[int, int]:
    """Write the labels of an ideal that no other is below behind those there are, those of fewer replicas first.

    Returns where they end, and their least worth. Cells of fewer devices have smaller numbers.
    """
    fewest, least = np.full(len(best), none), limits.all_worth + 1
    for s in range(best.shape[1]):
        for cell in range(len(best)):
            for k in range(1, len(limits.counts)):
                if limits.used[cell, k] > 0:
                    fewest[cell] = min(fewest[cell], fewest[cell - limits.stride[k]])
            devices = best[cell, s]
            worth = limits.cell_worth[cell] + devices * limits.kind_worth[0]
            if devices < fewest[cell] and worth <= room:
                fewest[cell], least = devices, min(least, worth)
                labels[size, 0], labels[size, 1], labels[size, 6] = devices, s, cell
                for q in range(4):
                    labels[size, 2 + q] = came[cell, s, q]
                size += 1
    return size, least
