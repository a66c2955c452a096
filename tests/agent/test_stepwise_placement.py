"""The autoregressive agent as the product uses it for latency: decoding, doubt, checkpoints of other kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.latency_selection import load_latency_agent
from rlinit.agent.network.checkpoint import Card, load_checkpoint, save_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.placements.agent import decode_placement
from rlinit.agent.sequential.stage_agent import card_config
from rlinit.agent.sequential.stepwise_placement import StepwisePlacementAgent
from rlinit.agent.stages.decoding import Decoding
from rlinit.errors import CheckpointError, RlinitError
from rlinit.placements.timeline import makespan
from tests.agent.test_autoregressive import network
from tests.placement_cases import random_placement_problem


@given(seed=st.integers(0, 1000), n=st.integers(1, 9), d=st.integers(1, 4), memory=st.sampled_from([0.8, np.inf]))
@settings(max_examples=10, deadline=None)
def test_proposals_are_feasible_and_repeat_themselves(seed: int, n: int, d: int, memory: float) -> None:
    """Draws and beams follow the greedy placement, are as many as asked for, feasible, and equal for equal seeds."""
    problem = random_placement_problem(seed, n, d, memory_fraction=memory)
    agent = StepwisePlacementAgent(network(seed))
    for decoding in (Decoding(), Decoding("sample", 4), Decoding("beam", 4)):
        (one, doubt), (two, _) = agent.propose(problem, decoding, 7), agent.propose(problem, decoding, 7)
        assert len(one) == decoding.width
        assert ((doubt >= 0.0) & (doubt <= 1.0)).all()
        for mine, same in zip(one, two, strict=True):
            assert (mine is None) == (same is None)
            if mine is not None and same is not None:
                assert np.isfinite(makespan(problem, mine))
                assert np.array_equal(mine.sequence, same.sequence)


def test_the_best_is_kept() -> None:
    """Decoding returns the best of what is proposed, and says what the greedy one was worth."""
    problem, agent = random_placement_problem(3, 9, forbidden_fraction=0.0), StepwisePlacementAgent(network(1))
    found = decode_placement(agent, problem, samples=7, seed=2)
    proposed = agent.propose(problem, Decoding("sample", 8), 2)[0]
    values = [makespan(problem, one) for one in proposed if one is not None]
    assert found is not None
    assert found.value == min(values) == makespan(problem, found.placement)
    assert found.greedy_value == values[0]
    with pytest.raises(RlinitError, match="samples is -1"):
        decode_placement(agent, problem, samples=-1)


def test_checkpoints_of_other_kinds_are_refused(tmp_path: Path) -> None:
    """A card of another kind of network or width, and a network for stages, are clear errors."""
    net = network(0).float()
    arrays = {name: weight.detach().numpy() for name, weight in net.state_dict().items()}
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, arrays, Card("autoregressive", "latency", card_config(net)))
    assert isinstance(load_latency_agent(path), StepwisePlacementAgent)
    card = load_checkpoint(path).card
    save_checkpoint(path, arrays, replace(card, config={**card.config, "hidden": 24}))
    with pytest.raises(CheckpointError, match="another architecture"):
        StepwisePlacementAgent.load(path)
    save_checkpoint(path, arrays, replace(card, network="pointer"))
    with pytest.raises(CheckpointError, match="expected 'autoregressive'"):
        load_latency_agent(path)
    other = OneShotConfig("latency", 5, 6, 10, hidden=8, layers=1)
    with torch.random.fork_rng(), pytest.raises(CheckpointError, match="this version gives"):
        StepwisePlacementAgent(type(net)(other))
