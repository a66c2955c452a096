"""What compiled annealings share: stage costs kept up to date by tensor counts, moves, and a 12-norm as the energy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import CostArrays, TensorArrays

_POWER = 12.0
"""Stages weigh in by this power of their cost: near the bottleneck, but not blind to the stages just below it."""

_ENERGY, _TEMPERATURE, _BEST, _REFERENCE = range(4)
"""Places in `AnnealingState.now`."""


Csr = tuple[IntArray, IntArray]
"""Where the entries of each row begin, and the entries."""


class AnnealingState(NamedTuple):
    """Where annealing is: all that a later call needs to go on as if there had been one.

    The current assignment `stage` and the `best` one (n,), the class of each stage `classes` (k,), `inside` (m, k) how
    many consumers of each tensor a stage holds, `tensor_stage` (m,) where it is made, parameter bytes `held` and `cost`
    (k,) of each stage, and `now` (4,): energy, temperature, best value, and the cost that energies are relative to.
    """

    stage: IntArray
    best: IntArray
    classes: IntArray
    inside: NDArray[np.int32]
    tensor_stage: IntArray
    held: FloatArray
    cost: FloatArray
    now: FloatArray


@njit(cache=True, nogil=True)
def overflow_s(held: float, cache: float, memory: float, rate: float) -> float:
    """Return the seconds of overflow of so many bytes, inf where they do not fit.

    Parameters
    ----------
    held
        Bytes.
    cache, memory, rate
        Of the device: bytes without overflow and at most, seconds for each byte of overflow.
    """
    if held > memory:
        return np.inf
    return (held - cache) * rate if held > cache else 0.0


@njit(cache=True, nogil=True)
def count_reader(v: int, at: int, sign: int, reads: Csr, inside: NDArray[np.int32]) -> None:
    """Count a node among the readers in a stage (sign 1), or no longer (-1).

    Parameters
    ----------
    v, at, sign
        The node, the stage, and which of both.
    reads
        Tensors that each node reads.
    inside
        (m, k) how many readers of each tensor a stage holds, changed in place.
    """
    for q in range(reads[0][v], reads[0][v + 1]):
        inside[reads[1][q], at] += sign


@njit(cache=True, nogil=True)
def carry_node(v: int, i: int, j: int, reads: Csr, makes: Csr, inside: NDArray[np.int32], made: IntArray) -> None:
    """Take a node as a reader and a maker of tensors from stage i to j.

    Parameters
    ----------
    v, i, j
        The node and the stages.
    reads, makes
        Tensors that each node reads, and makes.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it; changed in place.
    """
    count_reader(v, i, -1, reads, inside)
    count_reader(v, j, 1, reads, inside)
    for q in range(makes[0][v], makes[0][v + 1]):
        made[makes[1][q]] = j


@njit(cache=True, nogil=True)
def busy_on(
    at: int,
    members: NDArray[np.int32],
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    inside: NDArray[np.int32],
    made: IntArray,
) -> float:
    """Return the seconds of work and transfers of a stage on a device.

    Parameters
    ----------
    at, members
        The stage and its nodes.
    seconds
        What nodes, tensors in and tensors out take on the device.
    reads, makes, indptr
        Tensors that each node reads, and makes; where the readers of each tensor begin.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it.
    """
    work, in_s, out_s = seconds
    total = 0.0
    for v in members:
        total += work[v]
        for q in range(reads[0][v], reads[0][v + 1]):
            t = reads[1][q]
            if made[t] != at:
                total += in_s[t] / inside[t, at]
        for q in range(makes[0][v], makes[0][v + 1]):
            t = makes[1][q]
            if inside[t, at] < indptr[t + 1] - indptr[t]:
                total += out_s[t]
    return total


@njit(cache=True, nogil=True)
def shift(
    v: int,
    ends: tuple[int, int, int, int],
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    inside: NDArray[np.int32],
    made: IntArray,
) -> tuple[float, float]:
    """Return by how much the seconds of two stages change when a node goes from the one to the other.

    No other stage's change: where else its tensors are made and read stays as it is.

    Parameters
    ----------
    v, ends
        The node, and (i, j, class of i, class of j).
    reads, makes, indptr
        Tensors that each node reads, and makes; where the readers of each tensor begin.
    seconds
        By class, what nodes, tensors in and tensors out take.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it.
    """
    i, j, c, d = ends
    work, in_s, out_s = seconds
    one, two = -work[c, v], work[d, v]
    for q in range(reads[0][v], reads[0][v + 1]):
        t = reads[1][q]
        users = indptr[t + 1] - indptr[t]
        if made[t] == i:
            if inside[t, i] == users:
                one += out_s[c, t]
        elif inside[t, i] == 1:
            one -= in_s[c, t]
        if made[t] == j:
            if inside[t, j] == users - 1:
                two -= out_s[d, t]
        elif inside[t, j] == 0:
            two += in_s[d, t]
    for q in range(makes[0][v], makes[0][v + 1]):
        t = makes[1][q]
        users = indptr[t + 1] - indptr[t]
        if inside[t, i] < users:
            one -= out_s[c, t]
        if inside[t, i] > 0:
            one += in_s[c, t]
        if inside[t, j] < users:
            two += out_s[d, t]
        if inside[t, j] > 0:
            two -= in_s[d, t]
    return one, two


@njit(cache=True, nogil=True, inline="always")
def move_node(v: int, target: int, costs: CostArrays, tensors: TensorArrays, state: AnnealingState) -> None:
    """Move node v to stage `target` and bring stage costs, held bytes and tensor counts up to date.

    Arrays are taken out of their bundles once: a field read in the loop costs a reference count each time.

    Parameters
    ----------
    v, target
        The node, and another stage than its own.
    costs, tensors
        The problem.
    state
        Changed in place, but for `best` and `now`.
    """
    seconds, param, cache, rate = (costs.work, costs.in_s, costs.out_s), costs.param, costs.cache, costs.overflow
    reads, makes = (tensors.in_indptr, tensors.in_tensor), (tensors.out_indptr, tensors.out_tensor)
    stage, classes, cost, held = state.stage, state.classes, state.cost, state.held
    inside, made, origin = state.inside, state.tensor_stage, stage[v]
    c, d = classes[origin], classes[target]
    first, second = shift(v, (origin, target, c, d), reads, makes, tensors.indptr, seconds, inside, made)
    carry_node(v, origin, target, reads, makes, inside, made)
    before, after = held[origin] - param[v], held[target] + param[v]
    # Memories do not count here: who moves a node looks at them first.
    first += overflow_s(before, cache[c], np.inf, rate[c]) - overflow_s(held[origin], cache[c], np.inf, rate[c])
    second += overflow_s(after, cache[d], np.inf, rate[d]) - overflow_s(held[target], cache[d], np.inf, rate[d])
    cost[origin], cost[target] = cost[origin] + first, cost[target] + second
    held[origin], held[target] = before, after
    stage[v] = target


@njit(cache=True, nogil=True)
def energy(cost: FloatArray, reference: float) -> float:
    """Return the sum of the twelfth powers of the costs relative to the reference.

    Parameters
    ----------
    cost
        (k,) seconds of each stage or device.
    reference
        Seconds, above 0.
    """
    total = 0.0
    for value in cost:
        fourth = (value / reference) ** 2
        fourth *= fourth
        total += fourth * fourth * fourth
    return total


@njit(cache=True, nogil=True)
def annealing_state(
    start: IntArray, classes: IntArray, hot: float, costs: CostArrays, tensors: TensorArrays
) -> AnnealingState:
    """Return the state at a monotone assignment `start` (n,) with stages of `classes` (k,), at temperature `hot`.

    Parameters
    ----------
    start
        (n,) stage of each node; no edge leads to a smaller one.
    classes
        (k,) class of the device at each stage.
    hot
        Temperature, relative to the energy.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    """
    n, k, m = len(start), len(classes), len(tensors.src)
    state = AnnealingState(
        start.copy(),
        start.copy(),
        classes.copy(),
        np.zeros((m, k), np.int32),
        start[tensors.src],
        np.zeros(k),
        np.zeros(k),
        np.zeros(4),
    )
    reads = tensors.in_indptr, tensors.in_tensor
    for v in range(n):
        state.held[start[v]] += costs.param[v]
        count_reader(v, start[v], 1, reads, state.inside)
    for at in range(k):
        state.cost[at] = _cost_on(at, classes[at], costs, tensors, state)
    state.now[_BEST] = state.now[_REFERENCE] = state.cost.max()
    state.now[_TEMPERATURE] = hot
    if state.now[_REFERENCE] > 0.0:
        state.now[_ENERGY] = energy(state.cost, state.now[_REFERENCE])
    return state


@njit(cache=True, nogil=True)
def draw_node(rng: np.random.Generator, stage: IntArray, owner: IntArray, wanted: int) -> int:
    """Return a random node; one of the owner that is wanted, where eight draws find one.

    Parameters
    ----------
    rng
        Draws the node.
    stage
        (n,) stage of each node.
    owner
        (k,) whose each stage is: its device, or the stage itself.
    wanted
        An owner, or -1 for any.
    """
    v = int(rng.integers(0, len(stage)))
    if wanted >= 0:
        for _ in range(8):
            if owner[stage[v]] == wanted:
                break
            v = int(rng.integers(0, len(stage)))
    return v


@njit(cache=True, nogil=True)
def draw_stage_between(
    rng: np.random.Generator,
    v: int,
    num_stages: int,
    stage: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
) -> int:
    """Return a random other stage between those of the node's producers and consumers, -1 where there is none.

    Parameters
    ----------
    rng
        Draws the stage.
    v
        The node.
    num_stages
        Number of stages.
    stage
        (n,) stage of each node.
    succ_indptr, succ, pred_indptr, pred
        Consumers and producers of each node, as CSR.
    """
    low = 0
    for e in range(pred_indptr[v], pred_indptr[v + 1]):
        low = max(low, int(stage[pred[e]]))
    high = num_stages - 1
    for e in range(succ_indptr[v], succ_indptr[v + 1]):
        high = min(high, int(stage[succ[e]]))
    if low >= high:
        return -1
    target = low + int(rng.integers(0, high - low))
    return target + 1 if target >= stage[v] else target


@njit(cache=True, nogil=True)
def _cost_on(at: int, c: int, costs: CostArrays, tensors: TensorArrays, state: AnnealingState) -> float:
    """Return what stage `at` costs on class c but for memory, inf where its nodes may not run there."""
    reads, makes = (tensors.in_indptr, tensors.in_tensor), (tensors.out_indptr, tensors.out_tensor)
    members, seconds = (
        np.flatnonzero(state.stage == at).astype(np.int32),
        (costs.work[c], costs.in_s[c], costs.out_s[c]),
    )
    total = busy_on(at, members, seconds, reads, makes, tensors.indptr, state.inside, state.tensor_stage)
    return total + overflow_s(state.held[at], costs.cache[c], np.inf, costs.overflow[c])


@njit(cache=True, nogil=True)
def accepts_energy(rng: np.random.Generator, tried: float, now: FloatArray) -> bool:
    """Return whether a move to the energy `tried` is taken; if so, it is the energy from now on.

    The 12-norm rises by the factor (tried / energy)^(1/12); its relative rise is what the temperature is held to.

    Parameters
    ----------
    rng
        Draws where the energy rises.
    tried
        Energy after the move.
    now
        `AnnealingState.now`.
    """
    rise = (tried / now[_ENERGY]) ** (1.0 / _POWER) - 1.0 if now[_ENERGY] > 0.0 else 0.0
    if rise <= 0.0 or rng.random() < np.exp(-rise / now[_TEMPERATURE]):
        now[_ENERGY] = tried
        return True
    return False
