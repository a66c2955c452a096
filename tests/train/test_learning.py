"""Learners and algorithms: what a step does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlinit.errors import TrainingFailure
from rlinit.train.core.config import OptimiserConfig, ReinforceConfig
from rlinit.train.tasks.protocol import Choices
from tests.late import late_imports
from tests.train.tiny_task import TinyParams, TinyTask

with late_imports():
    import torch

    from rlinit.train.core.learner import Learner, rate_share
    from rlinit.train.core.reinforce import Reinforce, choice_weights, shared_advantage


TASK = TinyTask(TinyParams())


def learner_of(seed: int = 0, **changes: float) -> Learner:
    """Return a learner of a fresh tiny network."""
    return Learner(TASK.network(seed), OptimiserConfig(**{"learning_rate": 3e-2, **changes}), "float32", "cpu")


def lesson(algorithm: Reinforce, step: int) -> None:
    """Learn from the batch of a step."""
    algorithm.learn(TASK.generate(step, 6, 32), step, step)


def gap_of(learner: Learner) -> float:
    """Return the mean gap to the optimum of greedy schedules of unseen problems."""
    batch = TASK.generate(10**6, 6, 200)
    with torch.no_grad():
        played = TASK.rollout(
            learner.network, batch, TASK.forward(learner.network, batch, "cpu"), samples=1, seed=0, greedy=True
        )
    return float(np.mean(played.value[:, 0] / batch.optimum - 1.0))


@given(arrays(np.float64, (3, 5), elements=st.floats(-10, 10)))
def test_shared_advantages_hold_each_against_the_others(reward: np.ndarray) -> None:
    """An advantage is the reward less the mean of the problem's other trajectories."""
    found = shared_advantage(reward)
    for sample in range(5):
        others = np.delete(reward, sample, axis=1).mean(axis=1)
        assert np.allclose(found[:, sample], reward[:, sample] - others, atol=1e-9)


def test_learning_rate_rises_and_falls() -> None:
    """The rate rises to its highest at the end of the warm-up and falls to its final share."""
    config = OptimiserConfig(warmup=0.1, final_share=0.05)
    shares = [rate_share(config, progress) for progress in np.linspace(0, 1, 101)]
    assert 0 < shares[0] < 0.05
    assert max(shares) == pytest.approx(1.0)
    assert shares.index(max(shares)) == 10
    assert shares[-1] == pytest.approx(0.05)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(value: float) -> None:
    """The error names step and seed, and weights and optimiser stay as they were."""
    learner = learner_of()
    before = copy.deepcopy(learner.network.state_dict())
    loss = next(learner.network.parameters()).sum() * value
    with pytest.raises(TrainingFailure, match=r"at step 7, on the batch of seed 42"):
        learner.update(loss, 7, 42)
    assert all(torch.equal(before[name], weight) for name, weight in learner.network.state_dict().items())
    assert not learner.optimiser.state


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    """A finite loss with an infinite gradient stops training too."""
    learner = learner_of()
    weight = next(learner.network.parameters())
    loss = torch.sqrt((weight * 0.0).sum())
    with pytest.raises(TrainingFailure, match="gradient's norm"):
        learner.update(loss, 0, 0)


def test_reinforce_learns() -> None:
    """The gap to the optimum falls from far away to nearly nothing."""
    learner = learner_of()
    algorithm = Reinforce(TASK, learner, ReinforceConfig(), 8)
    before = gap_of(learner)
    for step in range(60):
        lesson(algorithm, step)
    assert before > 0.4
    assert gap_of(learner) < 0.02


def test_bfloat16_learns_too() -> None:
    """Under autocast in bfloat16 the weights stay float32 and the gap closes."""
    learner = Learner(TASK.network(0), OptimiserConfig(learning_rate=3e-2), "bfloat16", "cpu")
    algorithm = Reinforce(TASK, learner, ReinforceConfig(), 8)
    for step in range(60):
        lesson(algorithm, step)
    assert all(weight.dtype == torch.float32 for weight in learner.network.parameters())
    assert gap_of(learner) < 0.05


def test_average_follows_the_weights() -> None:
    """After an update the average is the weights; then it moves by less and less; without decay there is none."""
    learner = learner_of(average=0.9)
    algorithm = Reinforce(TASK, learner, ReinforceConfig(), 8)
    assert learner.evaluated is learner.network
    lesson(algorithm, 0)
    first = copy.deepcopy(learner.network.state_dict())
    lesson(algorithm, 1)
    for name, weight in learner.evaluated.state_dict().items():
        assert torch.allclose(weight, (2 * first[name] + 9 * learner.network.state_dict()[name]) / 11, atol=1e-6)
    plain = learner_of(average=0.0)
    lesson(Reinforce(TASK, plain, ReinforceConfig(), 8), 0)
    assert plain.evaluated is plain.network


def test_credit_of_choices_takes_the_advantages_place() -> None:
    """Where a task tells each choice's credit it is the weight, of unit size; else the advantage of its trajectory."""
    of = torch.tensor([0, 0, 1, 1])
    plain = Choices(torch.zeros(4), torch.zeros(4), of)
    told = Choices(torch.zeros(4), torch.zeros(4), of, torch.tensor([3.0, 0.0, -4.0, 0.0]))
    advantage = np.array([[2.0, -2.0]])
    assert choice_weights(plain, advantage).tolist() == [1.0, 1.0, -1.0, -1.0]
    assert choice_weights(plain, 0.0 * advantage).tolist() == [0.0] * 4
    assert torch.allclose(choice_weights(told, advantage), torch.tensor([1.2, 0.0, -1.6, 0.0]))
