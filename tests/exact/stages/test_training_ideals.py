"""The dynamic program for training pipelines against brute force from the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.errors import InvalidGraph
from rlinit.exact.stages.ideals.training import slice_training_order, solve_training_ideals
from rlinit.importers.common.blocks import blocks_of
from rlinit.stages.training.lowering import lower_training
from rlinit.stages.training.problem import training_value
from rlinit.stages.training.rules import TrainingRules
from tests.training_cases import brute_force, random_graph, random_hardware, random_layers, random_workload

SCHEDULES = ("gpipe", "1f1b", "zero-bubble")


def compare(seed: int) -> float:
    """Solve one random case both ways; return how the optimum compares with that without a limit on memory."""
    rng = np.random.default_rng(seed)
    scale = float(rng.choice([1e-9, 1.0, 1.0, 1e12]))
    n, k = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    kind = int(rng.integers(0, 3))
    if kind == 0:
        graph = random_workload(seed, n, scale=scale)
    else:
        graph = random_graph(seed, n + 1, scale=scale) if kind == 1 else random_layers(seed, 3, scale=scale)
    schedule = str(rng.choice(SCHEDULES))
    recompute = str(rng.choice(["none", "auto", "auto", "auto", "all"]))
    m = int(rng.integers(k, k + 6))
    factor = float(rng.choice([1.0, 1.0, 4.0]))
    total = factor * np.nansum(graph.param_bytes) + m * np.nansum(graph.out_bytes)
    room = max(float(np.ceil(total / scale * rng.uniform(0.5, 1.2))), 1.0) * scale
    hardware = random_hardware(seed, k, room, alike=bool(rng.random() < 0.5), scale=scale)
    rules = TrainingRules(schedule, m, recompute, factor)  # type: ignore[arg-type]
    try:
        lowered = lower_training(graph, hardware, rules)
    except InvalidGraph:
        return 1.0  # gradients that contradict the forward edges
    names = blocks_of(graph)
    blocks = {b: [v for v, name in enumerate(names) if name == b] for b in lowered.training.blocks.names}
    best = brute_force(graph, hardware, blocks, schedule, m, factor, recompute)
    found = solve_training_ideals(lowered.training, 10_000, lower=0.0, upper=np.inf, budget=Budget())
    assert found is not None
    if not np.isfinite(best):
        assert found.status == "infeasible", seed
        return np.inf
    assert not lowered.stages.infeasible, seed
    assert found.status == "optimal", seed
    assert found.value is not None
    assert found.value[0] == pytest.approx(best, rel=1e-9, abs=0.0), seed
    assert found.bound[0] <= best * (1 + 1e-9)
    again = solve_training_ideals(lowered.training, 10_000, lower=best * (1 - 1e-9), upper=best, budget=Budget())
    assert again is not None
    assert again.status == "infeasible"
    assert again.bound[0] <= best * (1 + 1e-9)
    order = lowered.training.problem.order
    cut = slice_training_order(lowered.training, order, lower=0.0, upper=np.inf, budget=Budget())
    if cut is not None:
        assert training_value(lowered.training, cut)[0] >= best * (1 - 1e-9)
    free = brute_force(graph, hardware, {}, schedule, 0, 0.0, "none") if seed % 4 == 0 else best
    return best / free if free else 1.0


@pytest.mark.parametrize("start", range(0, 240, 60))
def test_the_optimum_is_that_of_brute_force(start: int) -> None:
    """Value, bound and infeasibility agree on random models and workloads, with memories that bind."""
    for seed in range(start, start + 60):
        compare(seed)
