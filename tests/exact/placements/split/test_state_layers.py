"""Layers of partial schedules: which states are kept, and which dominate which."""

from __future__ import annotations

import numpy as np

from rlinit.exact.placements.split.state_layers import (
    BlockMemory,
    BlockOps,
    Child,
    Index,
    Layer,
    empty_child,
    empty_index,
    empty_layer,
    find_open,
    is_dominated,
    is_ready,
    make_child,
    shrink,
    store,
)


def _ops() -> BlockOps:
    """Return a -> b of 1 s each on two devices 0.5 s apart, in a block of its own."""
    comm = np.array([[[0.0, 0.5], [0.5, 0.0]]] * 2)
    indptr, pred = np.array([0, 0, 1]), np.array([0])
    return BlockOps(0, np.ones((2, 2)), comm, indptr, pred, np.array([0, 1]), np.array([2, 0]), np.zeros(2, np.bool_))


def _memory() -> BlockMemory:
    none = np.zeros(2, np.int64)
    return BlockMemory(np.ones(2), np.full(2, 9.0), True, np.arange(2), none, np.zeros(2, np.bool_))


def _child_of_nothing(device: int, finish: float) -> tuple[Layer, Child]:
    """Return the empty schedule, and its child that runs a on a device."""
    ops, here, child = _ops(), empty_layer(4, 2, 2, 1), empty_child(2, 2, 1)
    here.free[:] = 0.0
    child.bound[:], child.score[:] = finish, finish
    find_open(ops, 1, child)
    make_child(ops, _memory(), here, 0, 0, device, finish, child)
    return here, child


def _layer_with(children: list[tuple[int, float]]) -> tuple[Layer, Index]:
    there, index = empty_layer(8, 2, 2, 1), empty_index(8, 8)
    for row, (device, finish) in enumerate(children):
        here, child = _child_of_nothing(device, finish)
        store(here, 0, there, row, index, 1, child)
    return there, index


def test_an_op_is_ready_once_after_what_it_needs() -> None:
    """An op that is done, or lacks a predecessor, is not ready."""
    assert is_ready(0b01, 0b10, 0b01)
    assert not is_ready(0b00, 0b10, 0b01)
    assert not is_ready(0b11, 0b10, 0b01)


def test_a_child_knows_its_open_tensors() -> None:
    """Op a is open until b has run, and arrives on the other device after its transfer."""
    _, child = _child_of_nothing(0, 1.0)
    assert child.number.tolist() == [1, 0, 0]
    assert child.opened[0] == 0
    assert child.arrive[0].tolist() == [1.0, 1.5]
    assert child.free.tolist() == [1.0, 0.0]
    assert child.held.tolist() == [1.0, 0.0]
    assert child.device.tolist() == [0, -1]


def test_a_later_state_of_the_same_ops_is_dominated() -> None:
    """What ends no earlier is dropped; what ends earlier drops the stored one; another device is incomparable."""
    there, index = _layer_with([(0, 1.0)])
    assert is_dominated(_ops(), True, there, index, 1, _child_of_nothing(0, 2.0)[1])
    assert index.alive[0]
    assert not is_dominated(_ops(), True, there, index, 1, _child_of_nothing(1, 1.0)[1])
    assert index.alive[0]
    assert not is_dominated(_ops(), True, there, index, 1, _child_of_nothing(0, 0.5)[1])
    assert not index.alive[0]


def test_shrinking_keeps_the_best_and_bounds_the_rest() -> None:
    """The best living states move to the front in their order; the least bound of the others is noted."""
    there, index = _layer_with([(0, 4.0), (0, 2.0), (1, 1.0), (1, 3.0)])
    index.alive[2] = False
    dropped = np.array([np.inf])
    assert shrink(4, 2, there, index, dropped) == 2
    assert there.score[:2].tolist() == [2.0, 3.0]
    assert there.device[:2, 0].tolist() == [0, 1]
    assert dropped.tolist() == [4.0]


def test_shrinking_few_states_drops_only_the_dominated() -> None:
    """Where all living states fit nothing is lost for the width."""
    there, index = _layer_with([(0, 4.0), (0, 2.0), (1, 1.0)])
    index.alive[0] = False
    dropped = np.array([np.inf])
    assert shrink(3, 2, there, index, dropped) == 2
    assert there.score[:2].tolist() == [2.0, 1.0]
    assert dropped.tolist() == [np.inf]
