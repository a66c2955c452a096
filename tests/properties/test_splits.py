"""Pipelines with chunks or loose ops on random small problems, held against brute force."""

from __future__ import annotations

import numpy as np
import pytest

import rlinit
from rlinit.solving.splits import SPLIT_BOUNDS, SPLIT_METHODS
from tests.properties import fuzz
from tests.properties.brute_force import best_split

SPLITS = [("interleaved", 2, True), ("free", 2, True), ("interleaved", 1, False)]


@pytest.mark.filterwarnings("ignore:.*give no out_bytes")
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_splits_agree_with_brute_force(first: int) -> None:
    """No false bound, no value that cannot be had, and the optimum where it is claimed."""
    for number in range(first, first + 50):
        case = fuzz.draw(number, seed=3)
        graph, hardware = case.graph, case.hardware
        if case.options["objective"] != "pipeline" or case.large or graph.num_ops > 5:
            continue
        rng = np.random.default_rng([number, 11])
        order, chunks, contiguous = SPLITS[int(rng.integers(3))]
        if hardware.num_devices > 2 and order == "free":
            order = "interleaved"
        best = best_split(graph, hardware, chunks, order, contiguous)
        split = {"chunks": chunks, "chunk_order": order, "contiguous": contiguous}
        method = str(rng.choice(list(SPLIT_METHODS)))
        plan = rlinit.schedule(graph, hardware, method=method, time_limit_s=5.0, **split)  # type: ignore[arg-type]
        assert fuzz.judge(plan, best) == "", (number, method, split)
        if best is not None:
            name = str(rng.choice(list(SPLIT_BOUNDS)))
            proven = rlinit.bound(graph, hardware, method=name, **split)  # type: ignore[arg-type]
            assert fuzz.judge_bounds(proven.bounds, best, name) == "", (number, name, split)
