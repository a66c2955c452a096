"""The latency agent from checkpoint to placement, without torch, and in the product."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import rlinit
from rlinit.agent.latency_selection import choose_for_latency, leaves_choice
from rlinit.agent.network.checkpoint import Card, Checkpoint, save_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.placements.agent import LatencyAgent, decode_placement
from rlinit.agent.placements.features import DEVICE_FEATURES, NODE_FEATURES, PAIR_FEATURES, observe
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.errors import CheckpointError, RlinitError
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.kernels.batches import NUMBERED, disjoint_union
from rlinit.placements.timeline import makespan, obstacle
from tests.late import late_imports
from tests.placement_cases import random_placement_problem

with late_imports():
    import torch

    from rlinit.agent.network.encoder import FeatureTensors
    from rlinit.agent.network.oneshot_torch import OneShot
    from tests.agent.networks import inferred


CONFIG = OneShotConfig("latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES, hidden=8, layers=2)


def network(weight: float) -> OneShot:
    """Return a network whose last layers are not zero, or with `weight` 0 are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = OneShot(CONFIG)
        assert made.devices is not None
        with torch.no_grad():
            for tensor in (made.key_out.weight, made.devices.out.weight, made.devices.out.bias):
                tensor.copy_(weight * torch.randn(tensor.shape))
    return made


def agent(weight: float) -> LatencyAgent:
    """Return an agent with such a network."""
    card = Card("oneshot", "latency", dataclasses.asdict(CONFIG))
    return LatencyAgent(Checkpoint(network(weight).arrays(), card))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Write such a checkpoint."""
    path = tmp_path / "some.safetensors"
    save_checkpoint(path, network(1.0).arrays(), Card("oneshot", "latency", dataclasses.asdict(CONFIG)))
    return path


def test_numpy_computes_what_torch_computes() -> None:
    """Keys, scores and factors agree within rounded weights, over problems of several sizes and numbers of devices."""
    graphs = [observe(random_placement_problem(s, 5 + 7 * s, 1 + s)).features for s in range(4)]
    made = network(1.0)
    with torch.no_grad():
        key, pair = made(FeatureTensors.of(disjoint_union(graphs, NUMBERED)))
    ours = inferred(made, graphs)
    np.testing.assert_allclose(ours[0], key.numpy(), atol=0.03)
    np.testing.assert_allclose(ours[1], pair.numpy(), atol=0.03)


def test_untrained_decoding_is_heft_or_better() -> None:
    """An agent whose last layers are zero gives HEFT's placement, unless looking ahead finds a better one."""
    better = 0
    for seed in range(5):
        problem = random_placement_problem(seed, 20, 3, forbidden_fraction=0.0)
        found, heft = decode_placement(agent(0.0), problem), PLACEMENT_HEURISTICS["heft"](problem, seed=0)
        assert found is not None
        assert heft is not None
        assert makespan(problem, found) <= makespan(problem, heft)
        better += makespan(problem, found) < makespan(problem, heft)
    assert better > 0


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_decoding_is_feasible_and_repeatable(transfers: str) -> None:
    """The value is the placement's makespan under the problem's rules; the same problem gives the same placement."""
    for seed in range(4):
        problem = random_placement_problem(seed, 15, 3, transfers=transfers, group_fraction=0.2)  # type: ignore[arg-type]
        first, again = (decode_placement(agent(1.0), problem) for _ in range(2))
        assert first is not None
        assert again is not None
        assert obstacle(problem, first) == ""
        np.testing.assert_array_equal(first.sequence, again.sequence)


def test_a_single_op_and_a_single_device_work() -> None:
    """The smallest problems are decoded too."""
    for n, d in ((1, 1), (1, 3), (5, 1)):
        found = decode_placement(agent(1.0), random_placement_problem(0, n, d))
        assert found is not None


def test_refusals() -> None:
    """Split ops and checkpoints on other features are refused with what was expected."""
    with pytest.raises(RlinitError, match="whole ops"):
        decode_placement(agent(1.0), random_placement_problem(0, 4, 2, shards=2))
    other = dataclasses.replace(CONFIG, node_features=3)
    with pytest.raises(CheckpointError, match=r"'latency', 3, .*this version computes.*Train it again"):
        LatencyAgent(Checkpoint(OneShot(other).arrays(), Card("oneshot", "latency", dataclasses.asdict(other))))


def test_schedule_takes_a_checkpoint_by_its_path(checkpoint: Path) -> None:
    """The agent alone, or as the start of a search; the provenance says so."""
    graph, hardware = rwnn("er", seed=1, num_modules=1, nodes_per_module=8), rlinit.Hardware.preset("cpu-t4-a100")
    alone = rlinit.schedule(graph, hardware, objective="latency", agent=str(checkpoint), method="agent")
    assert "agent" in alone.phase_s or alone.status == "optimal"
    assert str(checkpoint) in str(alone.provenance["start"])
    searched = rlinit.schedule(graph, hardware, objective="latency", agent=str(checkpoint), method="sweep")
    assert searched.value <= alone.value


def test_where_no_agent_serves_the_heuristic_is_named(checkpoint: Path) -> None:
    """Split ops go to heuristics by default, and are an error where a checkpoint was asked for."""
    problem = random_placement_problem(0, 4, 2, shards=2)
    assert choose_for_latency(problem, "auto").agent is None
    with pytest.raises(CheckpointError, match="whole ops"):
        choose_for_latency(problem, str(checkpoint))
    with pytest.raises(CheckpointError, match="no checkpoint 'none'"):
        choose_for_latency(random_placement_problem(0, 4, 2), "none")
    graph = rwnn("er", seed=1, num_modules=1, nodes_per_module=8, batch_sizes=(1, 2, 3, 4))
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=4, method="sweep")
    assert "no agent" in str(plan.provenance["start"])
    with pytest.raises(RlinitError, match="unknown agent"):
        rlinit.schedule(graph, hardware, objective="latency", agent="nobody")


def test_choices_that_are_worth_a_question() -> None:
    """Where nothing is moved the agent is asked in a hurry only if devices differ and most are open to most ops."""
    cases = ((False, 0.0, True), (False, 0.6, False), (True, 0.0, False))
    for identical, forbidden, asked in cases:
        problem = random_placement_problem(0, 12, 5, forbidden_fraction=forbidden, identical=identical, zero_fraction=0)
        unmoved = dataclasses.replace(problem, tensor_bytes=np.zeros(12), delay_s=np.zeros((5, 5)))
        assert leaves_choice(problem)
        assert leaves_choice(unmoved) == asked
