"""The compiled search over one block, on a problem that is solved by hand."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.exact.placements.split.search_kernel import BlockBounds, sweep
from rlinit.exact.placements.split.state_layers import BlockMemory, BlockOps, Frontier


def _sweep(cutoff: float = np.inf, width: int = 16, capacity: float = 9.0) -> tuple[Frontier, FloatArray, int]:
    """Run two independent ops of 2 s and 3 s, on two devices, the second half as fast, without transfers."""
    none, false = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    time_s = np.array([[2.0, 4.0], [3.0, 6.0]])
    ops = BlockOps(0, time_s, np.zeros((2, 2, 2)), np.zeros(3, np.int64), none[:0], none, none, false)
    memory = BlockMemory(np.ones(2), np.full(2, capacity), capacity < 2, np.arange(2), none, false)
    bounds = BlockBounds(
        tail=np.zeros((1, 2, 2)),
        local_tail=np.zeros((0, 2)),
        multiplier=np.full((1, 2), 0.5),
        device_tail=np.zeros((1, 2)),
        after=np.zeros(1),
        scale=np.ones(1),
        cutoff=np.array([cutoff]),
    )
    free, held = np.zeros((1, 2)), np.zeros((1, 2))
    device, end = np.full((1, 2), -1, np.int8), np.zeros((1, 2))
    start = Frontier(free, end, device, held, np.zeros((1, 2), np.int8), np.zeros(1, np.int64))
    return sweep(width, 1000, ops, memory, bounds, start)


def test_the_best_schedule_is_among_the_final_states() -> None:
    """The long op on the fast device and the short one on the slow device end after 4 s; nothing was dropped."""
    (free, end, device, held, _, root), dropped, expanded = _sweep()
    best = int(free.max(axis=1).argmin())
    assert free[best].tolist() == [3.0, 4.0]
    assert end[best].tolist() == [4.0, 3.0]
    assert device[best].tolist() == [1, 0]
    assert held[best].tolist() == [1.0, 1.0]
    assert root[best] == 0
    assert dropped.tolist() == [np.inf]
    assert expanded > 0


def test_nothing_at_or_above_the_cutoff_is_kept() -> None:
    """The optimum is 4: below it there is no schedule, and that is proved."""
    assert len(_sweep(cutoff=4.0)[0].free_s) == 0
    assert _sweep(cutoff=4.0)[1].tolist() == [np.inf]
    assert _sweep(cutoff=4.5)[0].free_s.max(axis=1).tolist() == [4.0]


def test_a_narrow_search_leaves_a_bound_on_what_it_dropped() -> None:
    """With one state a layer, what is found or the least bound of what was dropped is at most the optimum."""
    found, dropped, _ = _sweep(width=1)
    assert len(found.free_s) == 1
    assert min(dropped[0], found.free_s.max()) <= 4.0


def test_capacity_binds() -> None:
    """Where a device holds one op each runs one."""
    assert (np.sort(_sweep(capacity=1.0)[0].device, axis=1) == [[0, 1]]).all()
