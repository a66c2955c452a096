"""Learners and algorithms: what a step does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlinit.errors import TrainingFailure
from rlinit.train.core.config import OptimiserConfig, PPOConfig, ReinforceConfig
from rlinit.train.tasks.protocol import Choices
from tests.late import late_imports
from tests.train.tiny_task import TinyParams, TinyTask

with late_imports():
    import torch
    from torch import nn

    from rlinit.train.algorithms.imitation import Imitation
    from rlinit.train.algorithms.ppo import PPO
    from rlinit.train.algorithms.reinforce import Minibatch, Reinforce, choice_weights, shared_advantage, standardised
    from rlinit.train.core.learner import Learner, rate_share
    from tests.train.runs import alone


TASK = TinyTask(TinyParams())


def learner_of(seed: int = 0, **changes: float) -> Learner:
    """Return a learner of a fresh tiny network."""
    return Learner(TASK.network(seed), OptimiserConfig(**{"learning_rate": 3e-2, **changes}), "float32", alone())


def lesson_at(step: int, *, labelled: bool = False) -> Minibatch:
    """Return the batch of a step."""
    batch = TASK.generate(step, 6, 32)
    return Minibatch(step, step, batch, TASK.label(batch) if labelled else None)


def gap_of(learner: Learner) -> float:
    """Return the mean gap to the optimum of greedy schedules of unseen problems."""
    batch = TASK.generate(10**6, 6, 200)
    with torch.no_grad():
        played = TASK.rollout(
            learner.bare, batch, TASK.forward(learner.bare, batch, "cpu"), samples=1, seed=0, greedy=True
        )
    return float(np.mean(played.value[:, 0] / batch.optimum - 1.0))


@given(arrays(np.float64, (3, 5), elements=st.floats(-10, 10)))
def test_shared_advantages_hold_each_against_the_others(reward: np.ndarray) -> None:
    """An advantage is the reward less the mean of the problem's other trajectories."""
    found = shared_advantage(reward)
    for sample in range(5):
        others = np.delete(reward, sample, axis=1).mean(axis=1)
        assert np.allclose(found[:, sample], reward[:, sample] - others, atol=1e-9)


@given(arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6)))
def test_standardised_advantages_have_unit_size(advantage: np.ndarray) -> None:
    """The root mean square is 1, or everything is 0."""
    found = standardised(advantage)
    assert np.isfinite(found).all()
    size = np.sqrt(np.mean(found**2))
    assert abs(size - 1) < 1e-6 or not found.any()


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
    before = copy.deepcopy(learner.bare.state_dict())
    loss = next(learner.bare.parameters()).sum() * value
    with pytest.raises(TrainingFailure, match=r"at step 7, on the batch of seed 42"):
        learner.update(loss, 7, 42)
    assert all(torch.equal(before[name], weight) for name, weight in learner.bare.state_dict().items())
    assert not learner.optimiser.state


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    """A finite loss with an infinite gradient stops training too."""
    learner = learner_of()
    weight = next(learner.bare.parameters())
    loss = torch.sqrt((weight * 0.0).sum())
    with pytest.raises(TrainingFailure, match="gradient's norm"):
        learner.update(loss, 0, 0)


@pytest.mark.parametrize("baseline", ["shared", "greedy"])
def test_reinforce_learns(baseline: str) -> None:
    """Both baselines bring the gap to the optimum from far away to nearly nothing."""
    learner = learner_of()
    config = ReinforceConfig(baseline=baseline, challenge_every=5)  # type: ignore[arg-type]
    algorithm = Reinforce(TASK, learner, config, 8)
    before = gap_of(learner)
    for step in range(60):
        algorithm.learn([lesson_at(step)])
    assert before > 0.4
    assert gap_of(learner) < 0.02


def test_ppo_learns() -> None:
    """Clipped updates learn from few batches."""
    learner = learner_of()
    algorithm = PPO(TASK, learner, PPOConfig(batches=2, epochs=3), 8)
    for step in range(25):
        algorithm.learn([lesson_at(2 * step), lesson_at(2 * step + 1)])
    assert gap_of(learner) < 0.02


def test_imitation_learns() -> None:
    """Imitating the optimum finds it on unseen problems; batches without labels are refused."""
    learner = learner_of()
    algorithm = Imitation(TASK, learner)
    for step in range(60):
        algorithm.learn([lesson_at(step, labelled=True)])
    assert gap_of(learner) < 0.02
    with pytest.raises(TypeError, match="labelled"):
        algorithm.learn([lesson_at(0)])


def test_first_update_of_ppo_is_that_of_reinforce() -> None:
    """Before any update all ratios are 1, so the clipped loss has REINFORCE's gradient, and so the same step."""
    one, other = learner_of(), learner_of()
    Reinforce(TASK, one, ReinforceConfig(), 8).learn([lesson_at(0)])
    PPO(TASK, other, PPOConfig(batches=1, epochs=1), 8).learn([lesson_at(0)])
    for ours, theirs in zip(one.bare.parameters(), other.bare.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_greedy_baseline_changes_hands_only_for_the_better() -> None:
    """A worse network does not become the baseline, and a better one does."""
    learner = learner_of()
    for step in range(30):
        Reinforce(TASK, learner, ReinforceConfig(), 8).learn([lesson_at(step)])
    algorithm = Reinforce(TASK, learner, ReinforceConfig(challenge_every=1, baseline="greedy"), 8)
    rival = algorithm.rival
    assert rival is not None
    good = copy.deepcopy(rival.state_dict())
    turned = {name: -weight if name.startswith("2.") else weight for name, weight in good.items()}
    learner.bare.load_state_dict(turned)
    algorithm.learn([lesson_at(100)])
    assert all(torch.equal(good[name], weight) for name, weight in rival.state_dict().items())
    learner.bare.load_state_dict(good)
    rival.load_state_dict(turned)
    algorithm.learn([lesson_at(101)])
    assert all(torch.equal(good[name], weight) for name, weight in rival.state_dict().items())


def test_bfloat16_learns_too() -> None:
    """Under autocast in bfloat16 the weights stay float32 and the gap closes."""
    learner = Learner(TASK.network(0), OptimiserConfig(learning_rate=3e-2), "bfloat16", alone())
    algorithm = Reinforce(TASK, learner, ReinforceConfig(), 8)
    for step in range(60):
        algorithm.learn([lesson_at(step)])
    assert all(weight.dtype == torch.float32 for weight in learner.bare.parameters())
    assert gap_of(learner) < 0.05


def test_no_gradient_goes_through_a_wrapped_network_alone() -> None:
    """The bare network of a process on its own is the network itself."""
    network = nn.Linear(1, 1)
    assert Learner(network, OptimiserConfig(), "float32", alone()).bare is network


def test_average_follows_the_weights() -> None:
    """After an update the average is the weights; then it moves by less and less; without decay there is none."""
    learner = learner_of(average=0.9)
    algorithm = Reinforce(TASK, learner, ReinforceConfig(), 8)
    assert learner.evaluated is learner.bare
    algorithm.learn([lesson_at(0)])
    first = copy.deepcopy(learner.bare.state_dict())
    algorithm.learn([lesson_at(1)])
    for name, weight in learner.evaluated.state_dict().items():
        assert torch.allclose(weight, (2 * first[name] + 9 * learner.bare.state_dict()[name]) / 11, atol=1e-6)
    plain = learner_of(average=0.0)
    Reinforce(TASK, plain, ReinforceConfig(), 8).learn([lesson_at(0)])
    assert plain.evaluated is plain.bare


def test_credit_of_choices_takes_the_advantages_place() -> None:
    """Where a task tells each choice's credit it is the weight, of unit size; for a frozen baseline it is not."""
    choices = Choices(torch.zeros(4), torch.zeros(4), torch.tensor([0, 0, 1, 1]), torch.tensor([3.0, 0.0, -4.0, 0.0]))
    advantage = np.array([[2.0, -2.0]])
    assert choice_weights(choices, advantage, credited=False, normalise=True).tolist() == [2.0, 2.0, -2.0, -2.0]
    assert choice_weights(choices, advantage, credited=True, normalise=False).tolist() == [3.0, 0.0, -4.0, 0.0]
    scaled = choice_weights(choices, advantage, credited=True, normalise=True)
    assert torch.allclose(scaled, torch.tensor([1.2, 0.0, -1.6, 0.0]))
