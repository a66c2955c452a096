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

from rlinit.arrays import ROUNDING, IntArray
from rlinit.exact.stages.groups.arrays import GroupData, GroupLimits, GroupSums, Growing, Shares, StageRows
from rlinit.exact.stages.groups.variants import (
    choose_rows,
    gather,
    in_flight,
    largest_share,
    least_bytes,
    moved_seconds,
    new_rows,
)
from rlinit.exact.stages.ideals.passes import inclusion
from rlinit.kernels.compiled import njit


@njit(cache=True, nogil=True)
def _new_shares(limits: GroupLimits) -> Shares:
    """Return room for what is known of mixes."""
    real = np.zeros(len(limits.counts))
    return Shares(real, real.copy(), np.zeros(len(real), np.int64), np.zeros(len(limits.mix_first) - 1, np.int64))


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


@njit(cache=True, nogil=True, forceinline=True)
def _begin_shares(i: int, j: int, g: int, limit: float, data: GroupData, shares: Shares) -> bool:
    """Write what stages between two ideals take on each kind, at least; return whether two kinds may have a part."""
    sums, _, limits, lattice = data
    shares.turn[:] = limits.mix_first[:-1]
    kinds = 0
    for k in range(len(shares.seconds)):
        c, shares.seconds[k] = limits.form_of[g, k], np.inf
        if c >= 0 and sums.lacking[j, c] == sums.lacking[i, c]:
            seconds = sums.time[j, c] - sums.time[i, c] + moved_seconds(i, j, c, lattice) - sums.error_s[c]
            shares.seconds[k] = max(0.0, seconds * (1.0 - 1e-9))
            shares.exchanged[k] = max(0.0, sums.exchanged[j, c] * (1.0 - 1e-9) - sums.exchanged[i, c])
        kinds += shares.seconds[k] <= limit * limits.microbatches
    return kinds > 1


@njit(cache=True, nogil=True, inline="always")
def _within_memory(i: int, j: int, c: int, x: int, behind: int, most: int, sums: GroupSums, limits: GroupLimits) -> int:
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


@njit(cache=True, nogil=True)
def _make_up_batch(
    i: int, j: int, g: int, x: int, s: int, limit: float, data: GroupData, rows: StageRows, shares: Shares
) -> tuple[bool, int]:
    """Return whether the replicas of a mix make up a batch, and how many choices were too many to list.

    By the time that each kind has at most, then by its bytes at least, then by its best choice.
    """
    sums, _, limits, _ = data
    unknown, total, n = 0, 0, limits.microbatches
    for closer in range(3):
        for k in range(len(limits.counts)):
            d, c, most = limits.mixes[x, k], limits.form_of[g, k], shares.most[k]
            if d == 0 or (closer and total < n):
                continue
            if closer == 0:
                left, most = limit - limits.mix_s[c, x] * shares.exchanged[k], 0
                if left >= 0.0:
                    most = n if shares.seconds[k] <= left else int(left * n / shares.seconds[k])
            else:
                total -= d * most
                if closer == 1:
                    most = _within_memory(i, j, c, x, s, most, sums, limits)
                else:
                    most, missed = largest_share(i, j, c, x, s, limit, most, data, rows)
                    unknown += missed
            shares.most[k] = most
            total += d * most if most else -n * s
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
    (_, _, limits, _), (ends, labels, best, came, rows) = data, growing
    met, unknown = 0, 0
    for g in range(len(limits.form_of)):
        if not _begin_shares(i, j, g, limit, data, shares):
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
                    enough, missed = _make_up_batch(i, j, g, x, s, limit, data, rows, shares)
                    met, unknown = met + 20, unknown + missed
                    if enough:
                        met += end - label
                        for after in range(label, end):
                            to, _, taken = _mixed_label(after, x, t, room, limits, growing)
                            if to >= 0:
                                _note(best[to], came[to], taken, s, j, after, any_form, len(limits.replicas) + x)
                        break
                    shares.turn[row] = x + 1
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


@njit(cache=True, nogil=True, inline="always")
def _may_fit(
    at: int, y: int, i: int, j: int, c: int, work: float, gradient: float, limit: float, sums: GroupSums,
    limits: GroupLimits,
) -> bool:  # fmt: skip
    """Return whether a stage is within all limits with the best of its nodes' variants in every respect."""
    seconds = (work + limits.share[c, at] * gradient) * (1.0 - ROUNDING)
    if seconds > limit * limits.speed[at]:
        return False
    return bool(least_bytes(i, j, c, y, limits.part[at], sums) <= limits.memory[c])


@njit(cache=True, nogil=True)
def _extend_form(i: int, j: int, c: int, gain: int, limit: float, data: GroupData, growing: Growing) -> tuple[int, int]:
    """Extend the labels of an ideal by a stage in a form; return steps, and choices of variants too many to list."""
    (sums, variants, limits, lattice), (ends, labels, best, came, rows) = data, growing
    t, k, moved, met, unknown, count, answer = limits.degrees[c], limits.kind[c], 0.0, 0, 0, -1, -1
    moved = moved_seconds(i, j, c, lattice)
    work = sums.time[j, c] - sums.time[i, c] - sums.error_s[c] + moved
    gradient = sums.gradient[j, c] - sums.gradient[i, c] - sums.error_s[c]
    at, y, known_at, known_behind, asked_at, asked_y = 0, 0, -1, -1, -1, -1
    behind = labels[ends[j + 1], 1]
    while at < len(limits.replicas):
        y = in_flight(behind + limits.replicas[at], limits.taken[at], 0, limits)
        if _may_fit(at, y, i, j, c, work, gradient, limit, sums, limits):
            break
        at += 1
    if at == len(limits.replicas) or limits.worth[c] * limits.replicas[at] > gain:
        return at, 0
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
                if _may_fit(at, y, i, j, c, work, gradient, limit, sums, limits):
                    if count < 0:
                        count = gather(i, j, c, lattice.crossings.bits, variants, rows)
                    seconds, share, part = limit * limits.speed[at] - moved, limits.share[c, at], limits.part[at]
                    answer = choose_rows(count, seconds, share, y, part, limits.memory[c], variants, rows)
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
        (room, 7) of a label: devices of the first kind, replicas, ideal at which its first stage ends, label there,
        form, index of its replicas (those of several kinds behind those of one), cell. The first is that of all nodes.
    least
        (p,) least worth of devices of the labels of each ideal above `last`.
    """
    sums, variants, limits, lattice = data
    p, num_degrees, alike = len(ends) - 1, len(limits.degrees), len(limits.counts) == 1
    bits, first_open, words = lattice.crossings.bits, lattice.crossings.first_open, lattice.crossings.bits.shape[1]
    rows = new_rows(len(variants.bit_of), len(variants.time))
    best = np.empty((len(limits.used), limits.most_replicas + 1), np.int64)
    came = np.zeros((len(limits.used), limits.most_replicas + 1, 4), np.int64)
    growing, shares = Growing(ends, labels, best, came, rows), _new_shares(limits)
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
        met += p - i
        for j in range(p - 1, i, -1):
            # Every stage to here takes devices of so much worth, and leads to more replicas than the fewest there.
            fewest = min(labels[ends[j + 1], 1] + 1, limits.most_replicas)
            gain = (best[0, fewest] - 1 if alike else room) - least[j]
            seconds = (sums.devices_s[j] - sums.devices_s[i]) * (1.0 - 1e-9)
            if ends[j] == ends[j + 1] or gain < 1 or seconds > gain * limit:
                continue
            if inclusion(i, j, bits, first_open, bits[i], words - 1) == 0:
                continue
            flying = least_in_flight(labels[ends[j + 1], 1], limits)
            for c in range(num_degrees):
                work = (sums.time[j, c] - sums.time[i, c] - sums.error_s[c]) * (1.0 - ROUNDING)
                if (
                    sums.lacking[j, c] == sums.lacking[i, c]
                    and work * limits.worth[c] <= gain * limit
                    and least_bytes(i, j, c, flying, limits.part[-1], sums) <= limits.memory[c]
                ):
                    steps, missed = _extend_form(i, j, c, gain, limit, data, growing)
                    met, unknown = met + steps, unknown + missed
            if len(limits.mixes):
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
