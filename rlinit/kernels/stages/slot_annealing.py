"""Compiled annealing where a device runs several stages, or any ops: the energy is of devices, not of stages.

Stages are moved between as in `annealing`, at costs without caches and memories, which the stages of a device (its
*slot*) share and which come in here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.annealing import (
    AnnealingState,
    accepts_energy,
    draw_node,
    draw_stage_between,
    energy,
    move_node,
)
from rlinit.kernels.stages.arrays import CostArrays, Precedence, TensorArrays

_ENERGY, _TEMPERATURE, _BEST, _REFERENCE = range(4)
"""Places in `AnnealingState.now`."""

_SWAPS, _NEIGHBOURS = 0.3, 0.5
"""Of the moves of loose ops, the share that exchange two, and of the rest the share that join a neighbour."""


_MOVES, _PATIENCE = 0.2, 20_000
"""Of the tries of `balance_slots`, the share that move one node; failures in a row after which any try is taken."""


class Slots(NamedTuple):
    """Devices that run several stages: `slot` (K,) of each stage, and by slot (k,) `cache`, `memory` (with its room for
    rounding), `rate` of overflow, and room for `load` and `held`.
    """

    slot: IntArray
    cache: FloatArray
    memory: FloatArray
    rate: FloatArray
    load: FloatArray
    held: FloatArray


@njit(cache=True, nogil=True)
def _weigh(cost: FloatArray, held: FloatArray, slots: Slots) -> None:
    """Add up what stages cost and hold by slot; a slot whose memory is too small costs inf."""
    load, total = slots.load, slots.held
    load[:] = 0.0
    total[:] = 0.0
    for j in range(len(cost)):
        load[slots.slot[j]] += cost[j]
        total[slots.slot[j]] += held[j]
    for s in range(len(load)):
        if total[s] > slots.memory[s]:
            load[s] = np.inf
        elif total[s] > slots.cache[s]:
            load[s] += (total[s] - slots.cache[s]) * slots.rate[s]


@njit(cache=True, nogil=True)
def _anywhere(rng: np.random.Generator, v: int, num_stages: int, stage: IntArray, order: Precedence) -> int:
    """Return a random other stage, that of a neighbour in half of the draws; -1 where that is the node's own."""
    before = order.pred_indptr[v + 1] - order.pred_indptr[v]
    beside = before + order.succ_indptr[v + 1] - order.succ_indptr[v]
    if beside > 0 and rng.random() < _NEIGHBOURS:
        e = int(rng.integers(0, beside))
        u = order.pred[order.pred_indptr[v] + e] if e < before else order.succ[order.succ_indptr[v] + e - before]
        return int(stage[u]) if stage[u] != stage[v] else -1
    target = int(rng.integers(0, num_stages - 1))
    return target + 1 if target >= stage[v] else target


@njit(cache=True, nogil=True)
def anneal_slots(
    rng: np.random.Generator,
    moves: int,
    cooling: float,
    monotone: bool,
    costs: CostArrays,
    tensors: TensorArrays,
    order: Precedence,
    state: AnnealingState,
    slots: Slots,
) -> None:
    """Try so many moves, each at a temperature lower by the factor `cooling`; bring the state up to date.

    Monotone: a node moves to a random other stage between its latest producer's and its earliest consumer's. Else it
    moves anywhere, or two nodes change places. The energy is the 12-norm of the slots' costs. Every other move tries a
    node of the costliest slot.

    Parameters
    ----------
    rng
        Draws the moves.
    moves
        How many.
    cooling
        Factor of the temperature, relative to the energy, from move to move.
    monotone
        Whether stages are in the order of the data.
    costs, tensors, order
        The problem, without caches and memories.
    state
        Where annealing is, as `annealing_state` returns it; a reference below 0 is set to the costs at the start.
    slots
        Which stages share a device, and what they share.
    """
    now, stage, work, classes = state.now, state.stage, costs.work, state.classes
    cost, held, num_stages = state.cost, state.held, len(slots.slot)
    _weigh(cost, held, slots)
    if now[_REFERENCE] < 0.0:
        now[_REFERENCE] = now[_BEST] = slots.load.max()
    reference = now[_REFERENCE]
    if not 0.0 < reference < np.inf or num_stages == 1:
        return
    now[_ENERGY] = energy(slots.load, reference)
    for step in range(moves):
        now[_TEMPERATURE] *= cooling
        v = draw_node(rng, stage, slots.slot, int(np.argmax(slots.load)) if step & 1 == 1 else -1)
        other, origin = -1, int(stage[v])
        if monotone:
            target = draw_stage_between(
                rng, v, num_stages, stage, order.succ_indptr, order.succ, order.pred_indptr, order.pred
            )
        elif rng.random() < _SWAPS:
            other = int(rng.integers(0, len(stage)))
            target = int(stage[other]) if stage[other] != origin else -1
        else:
            target = _anywhere(rng, v, num_stages, stage, order)
        if target < 0 or work[classes[target], v] == np.inf:
            continue
        if other >= 0:
            if work[classes[origin], other] == np.inf:
                continue
            move_node(other, origin, costs, tensors, state)
        move_node(v, target, costs, tensors, state)
        _weigh(cost, held, slots)
        if accepts_energy(rng, energy(slots.load, reference), now):
            value = slots.load.max()
            if value < now[_BEST]:
                now[_BEST] = value
                state.best[:] = stage
        else:
            move_node(v, origin, costs, tensors, state)
            if other >= 0:
                move_node(other, target, costs, tensors, state)
            _weigh(cost, held, slots)


@njit(cache=True, nogil=True)
def balance_slots(
    rng: np.random.Generator,
    tries: int,
    costs: CostArrays,
    tensors: TensorArrays,
    state: AnnealingState,
    slots: Slots,
) -> None:
    """Move nodes of the costliest slot, or exchange them with any others, where no slot then costs as much.

    Annealing by the 12-norm ends near such a minimum and not in it. After `_PATIENCE` failures one try is taken as it
    is. `state.best` and its value are brought up to date.

    Parameters
    ----------
    rng
        Draws the tries.
    tries
        How many.
    costs, tensors
        The problem, without caches and memories.
    state
        An assignment of nodes to any slots, as `annealing_state` returns it.
    slots
        What slots hold at most.
    """
    stage, classes, work, now = state.stage, state.classes, costs.work, state.now
    _weigh(state.cost, state.held, slots)
    now[_BEST] = top = slots.load.max()
    failures = 0
    for _ in range(tries):
        v = draw_node(rng, stage, slots.slot, int(np.argmax(slots.load)))
        origin, other = int(stage[v]), -1
        if rng.random() < _MOVES:
            target = int(rng.integers(0, len(slots.slot)))
        else:
            other = int(rng.integers(0, len(stage)))
            target = int(stage[other])
            if work[classes[origin], other] == np.inf:
                continue
        if target == origin or work[classes[target], v] == np.inf:
            continue
        if other >= 0:
            move_node(other, origin, costs, tensors, state)
        move_node(v, target, costs, tensors, state)
        _weigh(state.cost, state.held, slots)
        value = slots.load.max()
        failures += 1
        if value < top or (failures > _PATIENCE and value < np.inf):
            top, failures = value, 0
            if value < now[_BEST]:
                now[_BEST] = value
                state.best[:] = stage
        else:
            move_node(v, origin, costs, tensors, state)
            if other >= 0:
                move_node(other, target, costs, tensors, state)
            _weigh(state.cost, state.held, slots)
