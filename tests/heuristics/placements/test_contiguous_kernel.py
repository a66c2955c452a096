"""Cuts of an order into parts of distinct devices, against all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlinit.arrays import inverse_of
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.placements.contiguous.kernel import (
    best_cuts,
    extend_cuts,
    extend_cuts_in_turn,
    live_bytes,
    new_cuts,
)
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import placement_from_priority
from tests.executors.plans import random_graph


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_turn", [False, True])
def test_no_cut_is_better(seed: int, in_turn: bool) -> None:
    """The total is the least over all cuts and turns of devices, or of turns that rise, and is that of the devices."""
    rng = np.random.default_rng(seed)
    d, p = 3, 5
    seconds = rng.integers(1, 9, (d, p)).astype(float)
    bars, size = rng.random((d, p)) < 0.15, rng.integers(1, 4, p).astype(float)
    capacity, move = rng.integers(4, 9, d).astype(float), rng.integers(0, 4, (p + 1, d, d)).astype(float)
    work, forbidden, held = (np.concatenate([np.zeros((*x.shape[:-1], 1), x.dtype), x.cumsum(-1)], -1) for x in (
        seconds, bars.astype(np.int64), size
    ))  # fmt: skip

    def total(device: tuple[int, ...]) -> float:
        starts = [i for i in range(p) if i == 0 or device[i] != device[i - 1]]
        turn = [device[i] for i in starts]
        load = np.bincount(device, weights=size, minlength=d)
        if len(set(turn)) < len(turn) or (in_turn and turn != sorted(turn)) or (load > capacity).any():
            return np.inf
        if bars[device, range(p)].any():
            return np.inf
        moves = sum(move[i, device[i - 1], device[i]] for i in starts[1:])
        return float(seconds[device, range(p)].sum() + moves)

    need = held - held[:, None]
    cuts = new_cuts(1 if in_turn else 1 << d, d, p)
    if in_turn:
        extend_cuts_in_turn(cuts, 0, d, work, forbidden, need, capacity, move)
    else:
        extend_cuts(cuts, 1, 1 << d, work, forbidden, need, capacity, move)
    device, found = best_cuts(cuts)
    assert found == min(total(each) for each in itertools.product(range(d), repeat=p))
    assert found == np.inf or total(tuple(device.tolist())) == found


@pytest.mark.parametrize("seed", range(12))
def test_segments_hold_what_is_alive_in_them(seed: int) -> None:
    """Every segment of an order against counting tensors op by op; the whole of it against its timeline."""
    rng = np.random.default_rng(seed)
    rows = random_graph(seed, 10, density=0.4, zeros=0.0).to_dict()
    for op in rows["ops"]:
        op |= {"time_s": 1.0, "out_bytes": float(rng.integers(0, 5)), "param_bytes": float(rng.integers(0, 4))}
    hardware = Hardware.mesh([Device("one", memory_bytes=1e6)], 1.0)
    lowered = lower_placement(Graph.from_dict(rows), hardware, "latency", resident="peak")
    problem, live = lowered.problem, lowered.live
    assert live is not None
    n, order = problem.num_ops, problem.order
    held = np.concatenate([[0.0], np.cumsum(problem.weight_bytes[order])])
    cuts = np.array([0, 2, 3, 7, n])
    storages = live.storages()
    need = live_bytes(storages, order, held, cuts, np.inf, 1 << 40)
    made, read = (
        [set(flat[ends[v] : ends[v + 1]].tolist()) if v + 1 < len(ends) else set() for v in order.tolist()]
        for ends, flat in ((storages.made_indptr, storages.made), (storages.read_indptr, storages.read))
    )
    for (a, first), (b, end) in itertools.combinations(enumerate(cuts.tolist()), 2):
        peak = 0.0
        for k in range(first, end):
            own = set().union(*made[first : k + 1])
            later, ever = set().union(*read[k:end]), set().union(*read)
            before = set().union(*read[first:end]) - set().union(*made[first:])
            kept = made[k] | {t for t in own if t in later or t not in ever} | (before & later)
            peak = max(peak, sum(storages.size[t] for t in kept))
        assert need[a, b] == held[end] - held[first] + peak
    whole = placement_from_priority(problem, np.zeros((n, 1), np.int64), inverse_of(order).astype(np.float64))
    assert need[0, -1] == held[-1] + live.peak_bytes(problem, whole)[0]
