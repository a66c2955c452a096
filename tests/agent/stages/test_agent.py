"""The one-shot stage agent: what it proposes, what is decoded from it, and what a checkpoint of it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlinit.agent.network.checkpoint import Card, save_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.selection import StageChoice, choose_for_stages, find_checkpoint, load_stage_agent
from rlinit.agent.stages.decoding import decode_stages
from rlinit.errors import CheckpointError
from rlinit.heuristics.stages.slicing.orders import natural
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.stages.problem import StageProblem, evaluate
from tests.late import late_imports
from tests.stage_cases import random_problem

with late_imports():
    from rlinit.agent.network.oneshot_torch import OneShot
    from tests.agent.networks import agent_of, random_agent, random_network, some_problems


SAMPLES = 10
"""Orders."""


def is_topological(problem: StageProblem, order: np.ndarray) -> bool:
    """Return whether every node comes after its predecessors."""
    position = np.empty(problem.num_nodes, np.int64)
    position[order] = np.arange(problem.num_nodes)
    source = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    return sorted(order) == list(range(problem.num_nodes)) and bool((position[source] < position[problem.succ]).all())


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
@pytest.mark.parametrize("width", [1, 2, SAMPLES])
def test_every_proposed_order_is_topological(objective: str, width: int) -> None:
    """However many, orders respect precedence, the greedy one comes first, and doubt lies in [0, 1]."""
    agent = random_agent(0)
    for problem in some_problems(6, objective):  # type: ignore[arg-type]
        proposal = agent.propose(problem, width, 3)
        assert all(is_topological(problem, order) for order in proposal.orders)
        assert len(proposal.orders) == width
        assert (proposal.orders[0] == agent.propose(problem, 1, 9).orders[0]).all()
        assert ((proposal.entropy >= 0.0) & (proposal.entropy <= 1.0 + 1e-12)).all()


def test_more_samples_are_never_worse() -> None:
    """The best of greedy and draws is at most the greedy value, and the value is that of the assignment."""
    agent = random_agent(1)
    for problem in some_problems(8):
        greedy = decode_stages(agent, problem)
        best = decode_stages(agent, problem, SAMPLES, seed=1)
        assert greedy is not None
        assert best is not None
        assert best.value <= greedy.value
        assert evaluate(problem, best.assignment) == pytest.approx(best.value)


def test_the_same_seed_gives_the_same_orders() -> None:
    """Draws depend on the seed and on nothing else."""
    problem = random_problem(4, 12)
    first, again, other = (random_agent(2).propose(problem, SAMPLES, seed).orders for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_an_untrained_agent_is_the_natural_order(objective: str) -> None:
    """With nothing learned, greedy decoding gives exactly the sliced natural order."""
    network = OneShot(OneShotConfig("stages", NUM_STAGE_FEATURES, hidden=16, layers=1))
    agent = agent_of(network)
    for problem in some_problems(8, objective):  # type: ignore[arg-type]
        found, expected = decode_stages(agent, problem), natural(problem)
        assert found is not None
        assert expected is not None
        assert (found.order == problem.order).all()
        assert found.value == expected[1]


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e12])
def test_extreme_costs_are_decoded(scale: float) -> None:
    """Zero, tiny and huge costs, several stage classes and nothing to transfer give schedules all the same."""
    for classes in (1, 2):
        problem = random_problem(3, 9, 3, scale=scale, num_classes=classes)
        found = decode_stages(random_agent(0), problem, SAMPLES)
        assert found is not None
        assert np.isfinite(found.value[0])


def saved(folder: Path, features: int = NUM_STAGE_FEATURES) -> Path:
    """Return the path of a checkpoint of a random agent."""
    network = random_network(0)
    config = {"problem": "stages", "node_features": features, "hidden": 16, "layers": 2}
    save_checkpoint(folder / "mine.safetensors", network.arrays(), Card("oneshot", "stages", config))
    return folder / "mine.safetensors"


def test_a_checkpoint_decodes_like_its_network(tmp_path: Path) -> None:
    """Saving and loading changes no order, and a file that has changed is read again."""
    path, problem = saved(tmp_path), random_problem(6, 14)
    agent = load_stage_agent(path)
    assert (agent.propose(problem, SAMPLES, 1).orders == random_agent(0).propose(problem, SAMPLES, 1).orders).all()
    assert load_stage_agent(path) is agent
    path.touch()
    assert load_stage_agent(path) is not agent


def test_checkpoints_of_other_features_or_names_are_refused(tmp_path: Path) -> None:
    """What this version cannot run is refused before anything runs, with the names that would do."""
    with pytest.raises(CheckpointError, match=r"'stages', 3, 0, 0.*Train it again|has shape"):
        load_stage_agent(saved(tmp_path, 3))
    with pytest.raises(CheckpointError, match="there is no checkpoint 'nonsense'"):
        choose_for_stages(random_problem(0), "nonsense")
    with pytest.raises(CheckpointError, match="cannot read"):
        choose_for_stages(random_problem(0), str(tmp_path / "none.safetensors"))


def test_the_choice_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named checkpoint is taken; `auto` takes the shipped one, or says why there is no agent."""
    path = saved(tmp_path)
    named = choose_for_stages(random_problem(0), str(path))
    assert named.agent is not None
    assert str(path) in named.reason
    monkeypatch.setattr("rlinit.agent.selection.shipped", lambda _name: path)
    assert choose_for_stages(random_problem(0), "auto").agent is not None
    chains = random_problem(0, 12, density=0.0)
    assert choose_for_stages(chains, "auto").reason == "a wide graph (12 ops on 1 levels)"
    monkeypatch.setattr("rlinit.agent.selection._MOST_NODES", 3)
    assert choose_for_stages(random_problem(0), "auto") == StageChoice(None, 16, "more than 3 ops")
    monkeypatch.undo()
    monkeypatch.setattr("rlinit.agent.selection.shipped", lambda _name: None)
    assert "no checkpoint for stages" in choose_for_stages(random_problem(0), "auto").reason
    assert find_checkpoint("natural") is None
