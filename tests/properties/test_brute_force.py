"""Schedules and bounds of random small problems, held against brute force; ``make fuzz`` tries more of them."""

from __future__ import annotations

import pytest

import rlinit
from rlinit.hardware import Device, Hardware
from tests.draws import draws
from tests.properties import fuzz
from tests.properties.brute_force import best_placement, best_stages


@pytest.mark.filterwarnings("ignore:.*give no out_bytes")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nothing_is_found(first: int) -> None:
    """No false bound, no value that cannot be had, no crash, over all objectives, rules and scales."""
    assert fuzz.run(first, draws(20), seed=0) == []


def test_brute_force_knows_hand_worked_problems() -> None:
    """Two ops in a row pay the slow link once, or share a device; transfers on one link wait for each other."""
    ops = [("a", {"time_s": 1.0, "out_bytes": 4.0}), ("b", {"time_s": 2.0, "out_bytes": 8.0}), ("c", {"time_s": 3.0})]
    graph = rlinit.Graph.build(ops, [("a", "c"), ("b", "c")])
    pair = Hardware.mesh([Device("x"), Device("y")], 8.0)
    assert best_placement(graph, pair, 1, 1, "parallel", "weights") == 1.0 + 0.5 + 3.0 + 0.5
    assert best_stages(graph, Hardware.pipeline(2, bandwidth=8.0), "pipeline", False) == (3.0 + 1.5,)
    apart = rlinit.Graph.build(
        [(name, {**row, "forbidden": ["y" if name != "c" else "x"]}) for name, row in ops], [("a", "c"), ("b", "c")]
    )
    assert best_placement(apart, pair, 1, 1, "parallel", "weights") == 3.0 + 0.5 + 3.0
    thin = Hardware.mesh([Device("x"), Device("y")], 4.0)
    assert best_placement(apart, thin, 1, 1, "parallel", "weights") == 2.0 + 2.0 + 3.0
    assert best_placement(apart, thin, 1, 1, "exclusive", "weights") == 2.0 + 2.0 + 1.0 + 3.0
