"""The primitives of list scheduling in their Python form, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.kernels.placements import slots
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import shard_masks, timeline, timeline_arrays
from tests.draws import draws
from tests.placement_cases import random_placement, random_placement_problem

SEEDS = st.integers(0, 100_000)


@pytest.mark.parametrize("mask", [0, 1, 0b1011, 2**62 - 1])
def test_bit_count(mask: int) -> None:
    """As Python counts."""
    assert slots.bit_count.py_func(mask) == mask.bit_count()


def arrivals(problem: PlacementProblem, device: np.ndarray, end: np.ndarray, v: int, i: int, shards: set[int]) -> float:
    """Return when the last of the inputs of some shards of op v is on device i, by their definition."""
    latest = 0.0
    for u in problem.pred_of(v).tolist():
        for j in range(problem.num_devices):
            shared = sum(int(device[u, c]) == j for c in shards)
            if shared:
                latest = max(latest, end[u, j] + problem.transfer_s(u, j, i, shared))
    return latest


@given(seed=SEEDS, shards=st.sampled_from([1, 3]), links=st.sampled_from([0.0, 0.3]))
@settings(max_examples=draws(60), deadline=None)
def test_ready_times_follow_their_definition(seed: int, shards: int, links: float) -> None:
    """The last of all inputs, each sent when it is done, as long as its shards take over the link."""
    problem = random_placement_problem(seed, 6, 3, shards=shards, missing_links=links, density=0.6)
    rng = np.random.default_rng(seed)
    device, end = rng.integers(0, 3, (6, shards)), rng.random((6, 3))
    a, mask = timeline_arrays(problem), shard_masks(device, 3)
    for v in range(6):
        for i in range(3):
            wanted = {c for c in range(shards) if rng.random() < 0.7} or {0}
            bits = sum(1 << c for c in wanted)
            expected = arrivals(problem, device, end, v, i, wanted)
            assert slots.batch_ready_time.py_func(a, v, i, bits, mask, end) == pytest.approx(expected)
            if shards == 1:
                alone = end[np.arange(6), device[:, 0]]
                assert slots.ready_time.py_func(a, v, i, device[:, 0], alone) == pytest.approx(expected)


def test_ready_times_agree_with_the_timeline() -> None:
    """No batch of a timeline starts before its data are ready."""
    problem = random_placement_problem(4, 12, 3, shards=2, density=0.3, forbidden_fraction=0.0)
    placement = random_placement(problem, np.random.default_rng(4))
    run, mask = timeline(problem, placement), shard_masks(placement.device, 3)
    for v, i in np.argwhere(mask):
        ready = slots.batch_ready_time(timeline_arrays(problem), v, i, mask[v, i], mask, run.end_s)
        assert run.start_s[v, i] >= ready


def test_data_that_never_come() -> None:
    """NaN stands for an end that is not known, and stays whatever else is."""
    problem = random_placement_problem(1, 4, 2, density=1.0)
    mask, end = np.ones((4, 2), np.int64), np.ones((4, 2))
    mask[:, 1] = 0
    for late in range(3):
        end[:] = 1.0
        end[late, 0] = np.nan
        assert np.isnan(slots.batch_ready_time.py_func(timeline_arrays(problem), 3, 0, 1, mask, end))
    assert np.isnan(slots.append_start.py_func(np.nan, 1.0))


def test_appending() -> None:
    """The later of data and device."""
    assert slots.append_start.py_func(2.0, 3.0) == 3.0
    assert slots.append_start.py_func(3.0, 2.0) == 3.0


@given(seed=SEEDS, count=st.sampled_from([1, 12, 150]))
@settings(max_examples=draws(40), deadline=None)
def test_insertion_takes_the_first_slot(seed: int, count: int) -> None:
    """Batches never overlap, and each starts at the first moment at which its device is idle for long enough."""
    rng = np.random.default_rng(seed)
    starts, ends = np.empty(count), np.empty(count)
    widest = np.zeros(count // slots.SLOT_BLOCK + 1)
    whole = count < 100  # Beyond, the compiled form, for the skipped blocks.
    insert_start = slots.insert_start.py_func if whole else slots.insert_start
    insert_batch = slots.insert_batch.py_func if whole else slots.insert_batch
    for size in range(count):
        ready, length = float(rng.integers(0, 3 * count)), float(rng.integers(1, 4))
        busy = list(zip(starts[:size].tolist(), ends[:size].tolist(), strict=True))
        moments = [ready, *(over for _, over in busy if over >= ready)]
        first = min(t for t in moments if all(t + length <= begin or t >= over for begin, over in busy))
        at, begin = insert_start(ready, length, size, starts, ends, widest)
        assert begin == first
        insert_batch(at, begin, begin + length, size, starts, ends, widest)
        assert (starts[1 : size + 1] >= ends[:size]).all()
