"""Cuts of an order into parts of distinct devices, against all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlinit.kernels.placements.contiguous import best_cuts, extend_cuts, extend_cuts_in_turn, new_cuts


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_turn", [False, True])
def test_no_cut_is_better(seed: int, in_turn: bool) -> None:
    """The total is the least over all cuts and turns of devices, or of turns that rise, and is that of the devices."""
    rng = np.random.default_rng(seed)
    d, p = 3, 5
    seconds = rng.integers(1, 9, (d, p)).astype(float)
    bars, size = rng.random((d, p)) < 0.15, rng.integers(1, 4, p).astype(float)
    capacity, move = rng.integers(4, 9, d).astype(float), rng.integers(0, 4, (p + 1, d, d)).astype(float)
    work, barred, held = (np.concatenate([np.zeros((*x.shape[:-1], 1), x.dtype), x.cumsum(-1)], -1) for x in (
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

    cuts = new_cuts(1 if in_turn else 1 << d, d, p)
    if in_turn:
        extend_cuts_in_turn(cuts, 0, d, work, barred, held, capacity, move)
    else:
        extend_cuts(cuts, 1, 1 << d, work, barred, held, capacity, move)
    device, found = best_cuts(cuts)
    assert found == min(total(each) for each in itertools.product(range(d), repeat=p))
    assert found == np.inf or total(tuple(device.tolist())) == found
