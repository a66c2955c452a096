"""The choice of variants of a stage's ops: the least seconds under a memory, an exact knapsack.

Nodes are taken one after the other, and of all choices so far those are kept that no other is as fast as in as few
bytes. Equal layers need no listing so: however many there are, choices that differ by which of them is recomputed are
as large, and the fastest is kept. A multiplier of the memory, from the Lagrangian dual, drops choices that cannot end
within both limits. What a stage between two ideals has to choose from is gathered here as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.exact.stages.groups.arrays import GroupData, GroupLimits, GroupSums, Lattice, StageRows, VariantArrays
from rlinit.exact.stages.ideals.passes import entering, leaving
from rlinit.exact.stages.ideals.table import has_bit
from rlinit.kernels.compiled import njit

MOST_CHOICES = 20_000
"""Choices that are kept at most after each node; with more, the answer is unknown."""


@njit(cache=True, nogil=True)
def _cheapest(
    first: IntArray, cost: FloatArray, size: FloatArray, second_price: float, byte_price: float, choice: IntArray
) -> tuple[float, float]:
    """Write each node's row of least price, ties by bytes, then seconds; return the sums of seconds and bytes."""
    total_cost, total_size = 0.0, 0.0
    for x in range(len(first) - 1):
        best = first[x]
        for r in range(first[x] + 1, first[x + 1]):
            price = second_price * cost[r] + byte_price * size[r]
            least = second_price * cost[best] + byte_price * size[best]
            if (price, size[r], cost[r]) < (least, size[best], cost[best]):
                best = r
        choice[x] = best
        total_cost += cost[best]
        total_size += size[best]
    return total_cost, total_size


@njit(cache=True, nogil=True)
def choose(
    first: IntArray, cost: FloatArray, size: FloatArray, most_cost: float, most_size: float, choice: IntArray
) -> int:
    """Write a row for each of k nodes, of at most so many seconds and bytes; return 1, 0 if there is none, -1 unknown.

    Parameters
    ----------
    first
        (k + 1,) where each node's rows begin.
    cost, size
        Seconds and bytes of each row.
    most_cost, most_size
        The limits of their sums.
    choice
        (k,) where the rows are written; what it holds where the answer is not 1 means nothing.
    """
    most_cost *= 1.0 + ROUNDING
    seconds, held = _cheapest(first, cost, size, 1.0, 0.0, choice)
    if seconds > most_cost:
        return 0
    if held <= most_size:
        return 1
    fast_seconds, fast_held = seconds, held
    small_seconds, small_held = _cheapest(first, cost, size, 0.0, 1.0, choice)
    if small_held > most_size:
        return 0
    if small_seconds <= most_cost:
        return 1
    # Walk the convex hull of (bytes, seconds) to the price of a byte at which what is relaxed just fits.
    while True:
        price = (small_seconds - fast_seconds) / (fast_held - small_held)
        seconds, held = _cheapest(first, cost, size, 1.0, price, choice)
        if seconds + price * (held - most_size) > most_cost:
            return 0
        if held <= most_size:
            if seconds <= most_cost:
                return 1
            if seconds >= small_seconds:
                break
            small_seconds, small_held = seconds, held
        else:
            if held >= fast_held:
                break
            fast_seconds, fast_held = seconds, held
    return _listed(first, cost, size, most_cost, most_size, price, choice)


@njit(cache=True, nogil=True)
def _least_behind(first: IntArray, value: FloatArray) -> FloatArray:
    """Return (k + 1,) the least sum of a figure over the rows of each node and those behind it."""
    rest = np.zeros(len(first))
    for x in range(len(first) - 2, -1, -1):
        least = np.inf
        for r in range(first[x], first[x + 1]):
            least = min(least, value[r])
        rest[x] = rest[x + 1] + least
    return rest


@njit(cache=True, nogil=True)
def _worth_listing(
    first: IntArray, cost: FloatArray, size: FloatArray, price: float, most_both: float
) -> NDArray[np.bool_]:
    """Return the rows that a choice within the limits may have.

    A row is out where no choice with it is within the priced limit, or where another is as fast in as few bytes.
    """
    both, kept = cost + price * size, np.zeros(first[-1], np.bool_)
    spare = most_both - _least_behind(first, both)[0]
    for x in range(len(first) - 1):
        least = both[first[x] : first[x + 1]].min()
        for r in range(first[x], first[x + 1]):
            kept[r] = both[r] - least <= spare
            for s in range(first[x], first[x + 1]):
                if cost[s] <= cost[r] and size[s] <= size[r] and (cost[s] < cost[r] or size[s] < size[r] or s < r):
                    kept[r] = False
    return kept


@njit(cache=True, nogil=True)
def _keep_undominated(
    new: FloatArray, source: IntArray, order: IntArray, sums: FloatArray, back: IntArray, end: int
) -> int:
    """Write sums, given by bytes, that none before is as fast as, from `end` on; return where they end."""
    fastest, q = np.inf, 0
    while q < len(order):
        best = order[q]
        while q < len(order) and new[order[q], 1] == new[best, 1]:
            if new[order[q], 0] < new[best, 0]:
                best = order[q]
            q += 1
        if new[best, 0] < fastest:
            fastest = new[best, 0]
            sums[end, 0], sums[end, 1] = new[best, 0], new[best, 1]
            back[end, 0], back[end, 1] = source[best, 0], source[best, 1]
            end += 1
    return end


@njit(cache=True, nogil=True)
def _listed(
    first: IntArray,
    cost: FloatArray,
    size: FloatArray,
    most_cost: float,
    most_size: float,
    price: float,
    choice: IntArray,
) -> int:
    """Choose by listing the sums that are worth keeping after each node; see `choose`."""
    most_both = (most_cost + price * most_size) * (1.0 + ROUNDING)
    kept = _worth_listing(first, cost, size, price, most_both)
    # Kept sums of all nodes, one after the other: seconds, bytes, the sum that it came from, the row.
    sums = np.zeros((64, 2))
    back = np.zeros((64, 2), np.int64)
    rest_cost, rest_size = _least_behind(first, cost), _least_behind(first, size)
    rest_both = _least_behind(first, cost + price * size)
    begin, end = 0, 1
    for x in range(len(first) - 1):
        options = first[x + 1] - first[x]
        new = np.empty(((end - begin) * options, 2))
        source = np.empty(((end - begin) * options, 2), np.int64)
        count = 0
        for at in range(begin, end):
            for r in range(first[x], first[x + 1]):
                a, b = sums[at, 0] + cost[r], sums[at, 1] + size[r]
                if (
                    kept[r]
                    and a + rest_cost[x + 1] <= most_cost
                    and b + rest_size[x + 1] <= most_size
                    and a + price * b + rest_both[x + 1] <= most_both
                ):
                    new[count, 0], new[count, 1] = a, b
                    source[count, 0], source[count, 1] = at, r
                    count += 1
        if count == 0:
            return 0
        order = np.argsort(new[:count, 1], kind="mergesort")
        while end + count > len(sums):
            sums = np.concatenate((sums, np.zeros_like(sums)))
            back = np.concatenate((back, np.zeros_like(back)))
        begin, end = end, _keep_undominated(new, source, order, sums, back, end)
        if end - begin > MOST_CHOICES:
            return -1
    at = end - 1  # the fastest of those that fit
    for x in range(len(first) - 2, -1, -1):
        choice[x] = back[at, 1]
        at = back[at, 0]
    return 1


@njit(cache=True, nogil=True)
def new_rows(num_nodes: int, num_rows: int) -> StageRows:
    """Return room for the rows of a stage of at most so many nodes and rows.

    Parameters
    ----------
    num_nodes, num_rows
        How many.
    """
    whole, real = np.zeros(num_nodes + 1, np.int64), np.zeros(num_rows)
    row = np.zeros(num_rows, np.int64)
    return StageRows(whole.copy(), whole.copy(), row, real.copy(), real.copy(), real.copy(), whole.copy())


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
def least_bytes(i: int, j: int, c: int, y: int, part: float, sums: GroupSums) -> float:
    """Return the bytes that a device of the stage between two ideals holds at least.

    Parameters
    ----------
    i, j, c, y, part
        The ideals, the degree index, micro-batches in flight, and the part that a replica has of what all share.
    sums
        Of the ideals.
    """
    held, shared = sums.held[j, c] - sums.held[i, c], sums.shared[j, c] - sums.shared[i, c]
    return float(sums.fixed[j, c] - sums.fixed[i, c] + y * (held - sums.error_bytes[c]) + part * shared)


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
        Where they are written, with busy seconds and gathers at borders.
    """
    n = len(variants.bit_of)
    count, size = 0, 0
    for bit in range(n):
        if has_bit(bits[i], bit) or not has_bit(bits[j], bit):
            continue
        v = variants.node_of[bit]
        rows.node[count], rows.first[count] = v, size
        count += 1
        at, before, after = c * n + v, variants.pred_indptr[v], variants.succ_indptr[v]
        num_before = variants.pred_indptr[v + 1] - before
        for r in range(variants.row_indptr[at], variants.row_indptr[at + 1]):
            seconds, sync = variants.time[r], variants.sync_indptr[r]
            for q in range(num_before):
                if has_bit(bits[i], variants.bit_of[variants.pred[before + q]]):
                    seconds += variants.sync_s[sync + q]
            for q in range(variants.succ_indptr[v + 1] - after):
                if not has_bit(bits[j], variants.bit_of[variants.succ[after + q]]):
                    seconds += variants.sync_s[sync + num_before + q]
            rows.row[size], rows.busy[size] = r, seconds
            size += 1
    rows.first[count] = size
    return count


@njit(cache=True, nogil=True)
def choose_rows(
    count: int, most: float, share: float, y: int, part: float, memory: float, variants: VariantArrays, rows: StageRows
) -> int:
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
    variants, rows
        Of all nodes, and those of the stage as `gather` wrote them; `choice` is written.
    """
    for at in range(rows.first[count]):
        r = rows.row[at]
        rows.cost[at] = rows.busy[at] + share * variants.gradient[r]
        rows.size[at] = variants.held[r] * y + variants.fixed[r] + variants.shared[r] * part
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
        answer = choose_rows(count, left * (n / taken) - moved, 0.0, y, part, limits.memory[c], variants, rows)
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
