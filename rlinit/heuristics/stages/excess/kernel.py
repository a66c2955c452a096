"""Compiled annealing of stages under a trial bottleneck.

The energy is what devices cost beyond the trial, added up: devices below it pull nothing. A device (a *slot*) runs a
stage or several, which share its memory and cache. A node that moves changes the costs of two stages alone, the one it
leaves and the one it enters: where else a tensor is made or read stays as it is. Nodes move to other stages, alone or
with all that they lead to (or need) in their stage, or change places with a node of another; stages exchange devices.
Where no edge is between two neighbouring stages they exchange positions, which costs nothing and opens other stages to
their nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.heuristics.stages.excess.moves import (
    Csr,
    busy_on,
    carry_node,
    count_reader,
    draw_stage_beside,
    draw_stage_between,
    overflow_s,
    shift,
)
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import CostArrays, Precedence, TensorArrays

_SWAPS, _EXCHANGES, _GROUPS = 0.4, 0.05, 0.1
"""Shares of moves in which two nodes change places, two stages exchange devices, as often their positions, and nodes
move with what they lead to."""

_MOST_GROUPED = 32
"""Nodes that move together at most."""

_EXCESS, _LEAST, _TEMPERATURE = range(3)
"""Places in `ExcessState.now`."""


class ExcessState(NamedTuple):
    """Where annealing is.

    Parameters
    ----------
    stage, best
        (n,) stage of each node now, and where the excess was least.
    slot, best_slot
        (K,) slot of each stage now, and where the excess was least.
    classes, best_classes
        (k,) class of each slot now, and where the excess was least.
    member, place, size
        (K, n) nodes of each stage, (n,) position of a node among them, (K,) how many they are.
    inside, made
        (m, K) how many readers of each tensor a stage holds, (m,) the stage that makes it.
    busy, held, cost
        (k,) seconds of work and transfers, parameter bytes and cost of each slot.
    now
        (3,) excess, least excess so far, and temperature, in seconds.
    """

    stage: IntArray
    best: IntArray
    slot: IntArray
    best_slot: IntArray
    classes: IntArray
    best_classes: IntArray
    member: NDArray[np.int32]
    place: IntArray
    size: IntArray
    inside: NDArray[np.int32]
    made: IntArray
    busy: FloatArray
    held: FloatArray
    cost: FloatArray
    now: FloatArray


@njit(cache=True, nogil=True)
def excess_state(
    start: IntArray,
    slot: IntArray,
    classes: IntArray,
    trial: float,
    hot: float,
    costs: CostArrays,
    tensors: TensorArrays,
) -> ExcessState:
    """Return the state at an assignment.

    Parameters
    ----------
    start, slot, classes
        (n,) stage of each node, (K,) slot of each stage, (k,) class of each slot.
    trial
        Seconds that no device should exceed.
    hot
        Temperature, in seconds.
    costs, tensors
        The problem; no tensors where they cost nothing.
    """
    n, k, m = len(start), len(classes), len(tensors.src)
    state = ExcessState(
        start.copy(),
        start.copy(),
        slot.copy(),
        slot.copy(),
        classes.copy(),
        classes.copy(),
        np.zeros((len(slot), n), np.int32),
        np.zeros(n, np.int64),
        np.zeros(len(slot), np.int64),
        np.zeros((m, len(slot)), np.int32),
        start[tensors.src],
        np.zeros(k),
        np.zeros(k),
        np.zeros(k),
        np.zeros(3),
    )
    reads, makes = (tensors.in_indptr, tensors.in_tensor), (tensors.out_indptr, tensors.out_tensor)
    for v in range(n):
        state.held[slot[start[v]]] += costs.param[v]
        _enter(v, start[v], state.stage, state.member, state.place, state.size)
        count_reader(v, start[v], 1, reads, state.inside)
    for at in range(len(slot)):
        c, members = classes[slot[at]], state.member[at, : state.size[at]]
        seconds = (costs.work[c], costs.in_s[c], costs.out_s[c])
        state.busy[slot[at]] += busy_on(at, members, seconds, reads, makes, tensors.indptr, state.inside, state.made)
    for s in range(k):
        c = classes[s]
        state.cost[s] = state.busy[s] + overflow_s(state.held[s], costs.cache[c], costs.memory[c], costs.overflow[c])
        state.now[_EXCESS] += max(0.0, state.cost[s] - trial)
    state.now[_LEAST] = state.now[_EXCESS]
    state.now[_TEMPERATURE] = hot
    return state


@njit(cache=True, nogil=True)
def _enter(v: int, at: int, stage: IntArray, member: NDArray[np.int32], place: IntArray, size: IntArray) -> None:
    """List node v with the nodes of a stage."""
    member[at, size[at]] = v
    place[v] = size[at]
    size[at] += 1
    stage[v] = at


@njit(cache=True, nogil=True)
def _leave(v: int, at: int, member: NDArray[np.int32], place: IntArray, size: IntArray) -> None:
    """Take node v out of a stage's list."""
    size[at] -= 1
    last = member[at, size[at]]
    member[at, place[v]] = last
    place[last] = place[v]


@njit(cache=True, nogil=True)
def _carried(
    chosen: IntArray,
    first: int,
    last: int,
    forth: int,
    i: int,
    j: int,
    reads: Csr,
    makes: Csr,
    inside: NDArray[np.int32],
    made: IntArray,
) -> None:
    """Carry the chosen nodes first..last-1: those before `forth` from stage i to j, the others back."""
    for q in range(first, last):
        origin, target = (i, j) if q < forth else (j, i)
        carry_node(chosen[q], origin, target, reads, makes, inside, made)


@njit(cache=True, nogil=True)
def _tried(
    chosen: IntArray,
    count: int,
    forth: int,
    ends: tuple[int, int, int, int],
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    param: FloatArray,
    inside: NDArray[np.int32],
    made: IntArray,
) -> tuple[float, float, float]:
    """Carry all chosen nodes but the last; return by how much seconds of i and j, and bytes of i, change with it."""
    i, j, c, d = ends
    one, two, held = 0.0, 0.0, 0.0
    for q in range(count):
        v = chosen[q]
        if q < forth:
            x, y = shift(v, ends, reads, makes, indptr, seconds, inside, made)
            held -= param[v]
        else:
            y, x = shift(v, (j, i, d, c), reads, makes, indptr, seconds, inside, made)
            held += param[v]
        one += x
        two += y
        if q + 1 < count:
            _carried(chosen, q, q + 1, forth, i, j, reads, makes, inside, made)
    return one, two, held


@njit(cache=True, nogil=True)
def _loads(
    chosen: IntArray, count: int, forth: int, first: FloatArray, second: FloatArray, param: FloatArray
) -> tuple[float, float, float]:
    """Return what `_tried` does where tensors cost nothing: in half the time."""
    one, two, held = 0.0, 0.0, 0.0
    for q in range(count):
        v, sign = chosen[q], -1.0 if q < forth else 1.0
        one, two, held = one + sign * first[v], two - sign * second[v], held + sign * param[v]
    return one, two, held


@njit(cache=True, nogil=True)
def _bars(v: int, at: int, without: int, stage: IntArray, indptr: IntArray, row: IntArray, sign: int) -> bool:
    """Return whether a neighbour of node v keeps it from stage `at`: one beyond it (times `sign`), or `without`."""
    for e in range(indptr[v], indptr[v + 1]):  # noqa: SIM110 - numba knows no any()
        if row[e] == without or sign * (stage[row[e]] - at) > 0:
            return True
    return False


@njit(cache=True, nogil=True)
def gather_group(v: int, stage: IntArray, row: Csr, met: NDArray[np.bool_], chosen: IntArray) -> int:
    """List a node and what leads on from it within its stage; return how many they are, 0 for too many.

    Parameters
    ----------
    v
        The node.
    stage
        (n,) stage of each node.
    row
        Successors, or predecessors, as CSR.
    met
        (n,) all false, before and after.
    chosen
        Takes the nodes; fewer than it has room for are listed.
    """
    chosen[0], count, at = v, 1, 0
    met[v] = True
    while at < count:
        for e in range(row[0][chosen[at]], row[0][chosen[at] + 1]):
            u = row[1][e]
            if stage[u] == stage[v] and not met[u] and count < len(chosen):
                chosen[count] = u
                met[u] = True
                count += 1
        at += 1
    for q in range(count):
        met[chosen[q]] = False
    return count if count < len(chosen) else 0


@njit(cache=True, nogil=True, forceinline=True)
def _drawn(
    rng: np.random.Generator,
    draw: float,
    groups: float,
    monotone: bool,
    stage: IntArray,
    member: NDArray[np.int32],
    size: IntArray,
    after: Csr,
    before: Csr,
    met: NDArray[np.bool_],
    chosen: IntArray,
) -> tuple[int, int, int, int]:
    """Choose nodes; return the stages they leave and enter, how many they are, and how many of them go that way.

    One node, a node of either stage, or, for a `draw` below `groups`, a node with all that it leads to in its stage.
    Either the stage that is entered is below 0 or there are no nodes where they may not move.
    """
    chosen[0] = v = int(rng.random() * len(stage))
    i, k = stage[v], len(size)
    if draw < groups:
        onward = rng.random() < 0.5
        j = i + 1 if onward else i - 1
        count = gather_group(v, stage, after if onward else before, met, chosen) if 0 <= j < k else 0
        return i, j, count, count
    if monotone:
        j = draw_stage_between(rng, v, k, stage, after[0], after[1], before[0], before[1])
    else:
        j = draw_stage_beside(rng, v, k, stage, after[0], after[1], before[0], before[1])
    if draw >= groups + _SWAPS or j < 0 or size[j] == 0:
        return i, j, 1, 1
    chosen[1] = u = member[j, int(rng.random() * size[j])]
    if monotone:
        row, sign = (before, 1) if i < j else (after, -1)
        if _bars(u, i, v, stage, row[0], row[1], sign):
            return i, -1, 0, 0
    return i, j, 2, 1


@njit(cache=True, nogil=True)
def _turned(
    i: int,
    after: Csr,
    reads: Csr,
    makes: Csr,
    inside: NDArray[np.int32],
    made: IntArray,
    stage: IntArray,
    slot: IntArray,
    member: NDArray[np.int32],
    size: IntArray,
) -> None:
    """Let stages i and i + 1 exchange positions, and keep their devices, where no edge is between them."""
    for v in member[i, : size[i]]:
        for e in range(after[0][v], after[0][v + 1]):
            if stage[after[1][e]] == i + 1:
                return
    for at in (i, i + 1):
        for v in member[at, : size[at]]:
            carry_node(v, at, 2 * i + 1 - at, reads, makes, inside, made)
            stage[v] = 2 * i + 1 - at
    for q in range(max(size[i], size[i + 1])):
        member[i, q], member[i + 1, q] = member[i + 1, q], member[i, q]
    for values in (slot, size):
        values[i], values[i + 1] = values[i + 1], values[i]


@njit(cache=True, nogil=True)
def _on_slot(
    s: int,
    c: int,
    slot: IntArray,
    member: NDArray[np.int32],
    size: IntArray,
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    param: FloatArray,
    inside: NDArray[np.int32],
    made: IntArray,
) -> tuple[float, float]:
    """Return the seconds of work and transfers of all stages of a slot on a class, and their parameter bytes."""
    busy, held = 0.0, 0.0
    rows = (seconds[0][c], seconds[1][c], seconds[2][c])
    for at in range(len(slot)):
        if slot[at] == s:
            members = member[at, : size[at]]
            busy += busy_on(at, members, rows, reads, makes, indptr, inside, made)
            for v in members:
                held += param[v]
    return busy, held


@njit(cache=True, nogil=True)
def anneal_excess(
    rng: np.random.Generator,
    moves: int,
    cooling: float,
    trial: float,
    monotone: bool,
    bound: bool,
    costs: CostArrays,
    tensors: TensorArrays,
    order: Precedence,
    state: ExcessState,
) -> bool:
    """Try so many moves, each at a temperature lower by the factor `cooling`; return whether the trial is met.

    Arrays are taken out of their bundles once: a field read in the loop makes it ten times slower.

    Parameters
    ----------
    rng
        Draws the moves.
    moves
        Moves at most; none after the trial is met.
    cooling
        Factor of the temperature from move to move.
    trial
        Seconds that no device should exceed.
    monotone
        Whether no edge leads to a smaller stage. Otherwise a node moves anywhere.
    bound
        Whether stages are bound to their slots, which exchange devices then. Otherwise stages exchange slots.
    costs, tensors, order
        The problem; no tensors where they cost nothing.
    state
        Changed in place.
    """
    seconds, param, cache, memory = (costs.work, costs.in_s, costs.out_s), costs.param, costs.cache, costs.memory
    reads, makes = (tensors.in_indptr, tensors.in_tensor), (tensors.out_indptr, tensors.out_tensor)
    work, rate, indptr, counted = costs.work, costs.overflow, tensors.indptr, len(tensors.src) > 0
    after, before = (order.succ_indptr, order.succ), (order.pred_indptr, order.pred)
    stage, slot, classes = state.stage, state.slot, state.classes
    member, place, size = state.member, state.place, state.size
    inside, made = state.inside, state.made
    met, chosen = np.zeros(len(stage), np.bool_), np.empty(_MOST_GROUPED, np.int64)
    busy, held, cost = state.busy, state.held, state.cost
    excess, least, temperature, k = state.now[_EXCESS], state.now[_LEAST], state.now[_TEMPERATURE], len(slot)
    groups = _GROUPS if counted and monotone else 0.0  # without transfers nothing holds nodes together
    turns = 0.0 if bound or not monotone else _EXCHANGES
    for _ in range(moves):
        if least <= SAFETY * trial or k == 1:
            break
        temperature *= cooling
        draw = rng.random()
        count, forth = 0, 0
        if draw > 1.0 - turns:
            i = int(rng.random() * (k - 1))
            _turned(i, after, reads, makes, inside, made, stage, slot, member, size)
            continue
        if draw < _EXCHANGES:
            i, j = int(rng.random() * k), int(rng.random() * k)
        else:
            i, j, count, forth = _drawn(
                rng, draw - _EXCHANGES, groups, monotone, stage, member, size, after, before, met, chosen
            )
            if j < 0 or count == 0:
                continue
        a, b = slot[i], slot[j]
        first, second = classes[a], classes[b]
        if count == 0:
            if a == b or (first == second and (bound or k == len(classes))):
                continue
            if bound:
                first, second = second, first
            else:
                slot[i], slot[j] = b, a
            one, param_one = _on_slot(a, first, slot, member, size, reads, makes, indptr, seconds, param, inside, made)
            two, param_two = _on_slot(b, second, slot, member, size, reads, makes, indptr, seconds, param, inside, made)
        else:
            if counted:
                ends = (i, j, first, second)
                one, two, gone = _tried(chosen, count, forth, ends, reads, makes, indptr, seconds, param, inside, made)
            else:
                one, two, gone = _loads(chosen, count, forth, work[first], work[second], param)
            if a == b:
                one, two, gone = one + two, one + two, 0.0
            one, two, param_one, param_two = busy[a] + one, busy[b] + two, held[a] + gone, held[b] - gone
        cost_one = one + overflow_s(param_one, cache[first], memory[first], rate[first])
        cost_two = two + overflow_s(param_two, cache[second], memory[second], rate[second])
        rise = max(0.0, cost_one - trial) - max(0.0, cost[a] - trial)
        if a != b:
            rise += max(0.0, cost_two - trial) - max(0.0, cost[b] - trial)
        if not rise < np.inf or (rise > 0.0 and rng.random() >= np.exp(-rise / temperature)):
            if counted and count > 1:
                _carried(chosen, 0, count - 1, forth, j, i, reads, makes, inside, made)
            if count == 0:
                slot[i], slot[j] = a, b
            continue
        if counted and count > 0:
            _carried(chosen, count - 1, count, forth, i, j, reads, makes, inside, made)
        for q in range(count):
            origin, target = (i, j) if q < forth else (j, i)
            _leave(chosen[q], origin, member, place, size)
            _enter(chosen[q], target, stage, member, place, size)
        busy[a], busy[b], held[a], held[b], cost[a], cost[b] = one, two, param_one, param_two, cost_one, cost_two
        classes[a], classes[b] = first, second
        excess += rise
        if excess < least:
            least = excess
            state.best[:] = stage
            state.best_slot[:] = slot
            state.best_classes[:] = classes
    state.now[:] = excess, least, temperature
    return bool(least <= SAFETY * trial)
