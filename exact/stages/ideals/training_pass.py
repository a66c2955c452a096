"""The compiled pass of the dynamic program over pairs of ideals for training pipelines, from the last stage on.

Counted from the end, a stage knows how many come after it, and so how many micro-batches it has in flight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray, NodeArray, WordArray
from rlinit.exact.stages.ideals.table import has_bit
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.recomputation import cheapest_blocks


class IdealArrays(NamedTuple):
    """The p ideals by ascending weight, and sums over each: work (c, p), forbidden nodes (c, p), parameters (p,)."""

    weight: IntArray
    bits: WordArray
    work: FloatArray
    ruled_out: IntArray
    params: FloatArray


class LinkArrays(NamedTuple):
    """Links: bit of the sender, bits of the receivers in CSR form, seconds (c, l), and which links each ideal cuts."""

    src: IntArray
    indptr: IntArray
    dst: IntArray
    in_s: FloatArray
    out_s: FloatArray
    cut_indptr: IntArray
    cut: NodeArray


class MemoryArrays(NamedTuple):
    """Bytes: state (p,), made (p,), crossing (p,), width of each bit, and memory (c,), cache (c,), overflow (c,)."""

    state: FloatArray
    made: FloatArray
    crossing: FloatArray
    width: FloatArray
    memory: FloatArray
    cache: FloatArray
    overflow_s_per_byte: FloatArray
    microbatches: int


class BlockArrays(NamedTuple):
    """Blocks that may be recomputed: bits (b, w), bytes (b,), seconds (c, b), order by seconds for each byte (c, b).

    Mode 0: none, 1: as needed, 2: all.
    """

    bits: WordArray
    saved: FloatArray
    seconds: FloatArray
    order: IntArray
    mode: int


class StateArrays(NamedTuple):
    """States: that after one more stage of a class (S, c), stages filled (S,), the most weight that the stages left can
    take (S,), and by stages filled the micro-batches in flight, and those that recomputed blocks hold nothing of.
    """

    step: IntArray
    used: IntArray
    most_weight: IntArray
    in_flight: FloatArray
    droppable: FloatArray


class LabelArrays(NamedTuple):
    """Of state s at ideal j, (S, p): the least bottleneck of the stages after j, where they are those that s counts.

    And the ideal at which the first of them ends, and its class.
    """

    label: FloatArray
    back: NDArray[np.int32]
    back_class: NDArray[np.int8]


@njit(cache=True, nogil=True)
def _within(inner: WordArray, outer: WordArray) -> bool:
    for w in range(len(inner)):
        if inner[w] & ~outer[w] != 0:
            return False
    return len(inner) > 0


@njit(cache=True, nogil=True)
def _link_cost(
    i: int,
    j: int,
    c: int,
    bits: WordArray,
    links: LinkArrays,
    seen: IntArray,
) -> float:
    """Return the seconds of the links between the stage between two ideals and what is outside it."""
    src, indptr, dst, in_s, out_s, cut_indptr, cut = links
    cost = 0.0
    for side in range(2):
        ideal = j if side == 0 else i
        for q in range(cut_indptr[ideal], cut_indptr[ideal + 1]):
            e = cut[q]
            if side == 0:
                seen[e] = j
            elif seen[e] == j:
                continue
            if has_bit(bits[j], src[e]) and not has_bit(bits[i], src[e]):
                cost += out_s[c, e]
                continue
            for r in range(indptr[e], indptr[e + 1]):
                if has_bit(bits[j], dst[r]) and not has_bit(bits[i], dst[r]):
                    cost += in_s[c, e]
                    break
    for q in range(cut_indptr[j], cut_indptr[j + 1]):
        seen[cut[q]] = -1
    return cost


@njit(cache=True, nogil=True)
def _largest(before: WordArray, after: WordArray, of_bit: FloatArray) -> float:
    """Return the largest value of a bit that is in `after` and not in `before`."""
    most = 0.0
    for w in range(len(after)):
        if after[w] & ~before[w] == 0:
            continue
        for b in range(64 * w, min(64 * w + 64, len(of_bit))):
            if of_bit[b] > most and has_bit(after, b) and not has_bit(before, b):
                most = of_bit[b]
    return most


@njit(cache=True, nogil=True)
def _recomputing(
    before: WordArray,
    after: WordArray,
    blocks: BlockArrays,
    c: int,
    flying: float,
    fixed: float,
    room: float,
    slack: float,
) -> tuple[float, bool]:
    """Return the seconds of recomputation that a stage needs (inf where not below `slack`), and whether that is exact.

    `fixed` are the bytes of the stage without recomputation.
    """
    bits, saved, seconds_of, order_of, mode = blocks
    seconds, order = seconds_of[c], order_of[c]
    if mode == 0 or (mode == 1 and fixed <= room):
        return (0.0 if fixed <= room else np.inf), True
    inside_saved, inside_seconds = np.empty(len(saved)), np.empty(len(saved))
    size, total, largest, cost = 0, 0.0, 0.0, 0.0
    for b in order:
        inside = True
        for w in range(len(before)):
            if bits[b, w] & (before[w] | ~after[w]) != 0:
                inside = False
                break
        if inside:
            inside_saved[size], inside_seconds[size] = saved[b], seconds[b]
            size += 1
            total += saved[b]
            largest = max(largest, saved[b])
            cost += seconds[b]
    if mode == 2:
        return (cost if fixed - flying * total + largest <= room else np.inf), True
    if fixed - flying * total > room:
        return np.inf, True
    chosen = np.zeros(size, np.bool_)
    found, exact = cheapest_blocks(inside_saved[:size], inside_seconds[:size], flying, fixed, room, slack, chosen)
    for b in range(size):
        if chosen[b]:
            return found, exact
    return np.inf, exact


@njit(cache=True, nogil=True)
def _stages_ending(
    j: int,
    c: int,
    limit: float,
    reach: int,
    ends: IntArray,
    ideals: IdealArrays,
    links: LinkArrays,
    memory: MemoryArrays,
    blocks: BlockArrays,
    states: StateArrays,
    labels: LabelArrays,
    seen: IntArray,
) -> tuple[int, bool]:
    """Extend the labels of states `ends` at ideal j by every stage of class c that ends there.

    `seen` is scratch, -1 for every link. Returns the work, of which a pair that is not priced takes 1, and whether
    every choice of blocks was exact.
    """
    weight, bits, work, ruled_out, params = ideals
    cut_indptr = links.cut_indptr
    state, made, crossing, width, room_of, cache, overflow, m = memory
    step, used, most_weight, in_flight, droppable = states
    label, back, back_class = labels
    extra = np.empty(len(in_flight))
    after_of = step[ends, c]
    label_of, most_of = label[ends, j], most_weight[after_of]
    exact, i, work_done = True, j, 0
    while i > 0 and weight[i - 1] >= weight[j] - reach:
        i -= 1
        work_done += 1 + len(ends)
        useful = False
        for q in range(len(ends)):
            useful = useful or (label[after_of[q], i] > label_of[q] and weight[i] <= most_of[q])
        if not useful or not _within(bits[i], bits[j]):
            continue
        cost = work[c, j] - work[c, i] + max(params[j] - params[i] - cache[c], 0.0) * overflow[c]
        work_done += bits.shape[1]
        if cost > limit or ruled_out[c, j] != ruled_out[c, i] or state[j] - state[i] > room_of[c]:
            continue
        work_done += cut_indptr[i + 1] - cut_indptr[i] + cut_indptr[j + 1] - cut_indptr[j]
        cost += _link_cost(i, j, c, bits, links, seen)
        if cost > limit:
            continue
        fixed = state[j] - state[i] + (m + 1) * crossing[i] + m * crossing[j] + _largest(bits[i], bits[j], width)
        slack = np.nextafter(limit - cost, np.inf)
        extra[:] = -1.0
        for s in ends:
            after = step[s, c]
            u, whole = used[after], made[j] - made[i]
            if extra[u] < 0.0:
                bytes_held = fixed + in_flight[u] * whole
                extra[u], sure = _recomputing(bits[i], bits[j], blocks, c, droppable[u], bytes_held, room_of[c], slack)
                exact = exact and sure
            reached = max(cost + extra[u], label[s, j])
            if reached <= limit and reached < label[after, i] and weight[i] <= most_weight[after]:
                label[after, i] = reached
                back[after, i] = j
                back_class[after, i] = c
    return work_done, exact


@njit(cache=True, nogil=True)
def training_pass(
    limit: float,
    last: int,
    quota: int,
    reach: IntArray,
    ideals: IdealArrays,
    links: LinkArrays,
    memory: MemoryArrays,
    blocks: BlockArrays,
    states: StateArrays,
    labels: LabelArrays,
) -> tuple[int, int, bool]:
    """Extend the labels of the ideals from `last` down by every stage of cost at most `limit` that ends there.

    `reach` is the (c,) most weight of a stage. Stops after an ideal once more than `quota` of work was done; returns
    the next ideal, the pairs, and whether every choice of blocks was exact.

    Parameters
    ----------
    limit
        Most seconds of a stage.
    last
        The ideal that is begun with.
    quota
        Work after which no further ideal is begun: pairs, and what is looked at for each.
    reach
        (c,) most weight of a stage.
    ideals, links
        The ideals, and the links that each cuts.
    memory, blocks
        What stages hold, and what may be recomputed.
    states
        Which stages are filled.
    labels
        (S, p) each, changed in place.
    """
    label, step = labels.label, states.step
    seen = np.full(len(links.src), -1, np.int64)
    ends = np.empty(len(label), np.int64)
    met, exact = 0, True
    for j in range(last, 0, -1):
        if met > quota:
            return j, met, exact
        for c in range(len(reach)):
            num_ends = 0
            for s in range(len(label)):
                if label[s, j] <= limit and step[s, c] >= 0:
                    ends[num_ends] = s
                    num_ends += 1
            if num_ends > 0:
                pairs, sure = _stages_ending(
                    j, c, limit, reach[c], ends[:num_ends], ideals, links, memory, blocks, states, labels, seen
                )
                met += pairs
                exact = exact and sure
    return 0, met, exact
