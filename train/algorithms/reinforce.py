"""REINFORCE with a shared or a greedy-rollout baseline.

References
----------
Kwon et al., POMO, 2020 (shared baseline); Kool et al., Attention, learn to solve routing problems, 2019 (greedy).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlinit.arrays import FloatArray
from rlinit.train.core.config import ReinforceConfig
from rlinit.train.core.curriculum import batch_seed
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask, Batch, Choices, Labels

_SIGNIFICANCE = 0.05
"""A challenger takes the greedy baseline's place if a one-sided paired t-test is this sure that it is better."""


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """One batch of problems to learn from.

    Parameters
    ----------
    step
        Of training, from 0.
    seed
        The batch's seed; what is drawn in rollouts derives from it.
    batch
        The problems.
    labels
        For imitation.
    """

    step: int
    seed: int
    batch: Batch
    labels: Labels | None = None


def shared_advantage(reward: FloatArray) -> FloatArray:
    """Return (B, S) each reward less the mean of the *other* trajectories of its problem, which is unbiased."""
    samples = reward.shape[1]
    return np.asarray((reward - reward.mean(axis=1, keepdims=True)) * (samples / (samples - 1)))


def standardised(advantage: FloatArray) -> FloatArray:
    """Return advantages over their root mean square; zeros stay zeros."""
    spread = float(np.sqrt(np.mean(advantage**2)))
    return advantage / spread if spread > 1e-12 else np.zeros_like(advantage)


def mean_entropy(choices: Choices) -> Tensor:
    """Return the mean entropy of choices, 0 where there was none to make."""
    return choices.entropy.sum() / max(1, len(choices.entropy))


def choice_weights(choices: Choices, advantage: FloatArray, *, credited: bool, normalise: bool) -> Tensor:
    """Return (C,) how much each choice is to be reinforced: its own credit where the task tells and `credited` holds.

    Otherwise every choice has its trajectory's `advantage` (B, S). With `normalise`, credits have unit size on average.

    Parameters
    ----------
    choices
        C choices of B * S trajectories.
    advantage
        (B, S) of trajectories.
    credited
        Whether credits count where there are any.
    normalise
        Whether credits are divided by their root mean square.
    """
    if choices.credit is None or not credited:
        return torch.from_numpy(advantage.ravel()).to(choices.log_prob.detach())[choices.trajectory]
    credit = choices.credit.to(choices.log_prob.detach())
    return credit / credit.square().mean().sqrt().clamp(min=1e-12) if normalise else credit


class Reinforce:
    """Makes trajectories that came out better than the baseline more probable.

    The loss is ``-mean over trajectories of advantage * log-probability``, over the mean number of choices of a
    trajectory, so that it does not grow with the size of problems. Where a task tells the credit of each choice, that
    takes the place of the advantage (with the shared baseline).
    """

    def __init__(self, task: AnyTask, learner: Learner, config: ReinforceConfig, samples: int) -> None:
        self.task = task
        self.learner = learner
        self.config = config
        self.samples = samples
        self.rival: nn.Module | None = copy.deepcopy(learner.bare) if config.baseline == "greedy" else None

    def learn(self, minibatches: list[Minibatch]) -> dict[str, float]:
        """Take one step from one batch; return what to plot."""
        (minibatch,) = minibatches
        task, learner, batch = self.task, self.learner, minibatch.batch
        if self.rival is not None and minibatch.step and minibatch.step % self.config.challenge_every == 0:
            self._challenge(minibatch)
        with learner.autocast():
            outputs = task.forward(learner.network, batch, learner.group.device)
        played = task.rollout(learner.network, batch, outputs, samples=self.samples, seed=batch_seed(minibatch.seed, 1))
        if self.rival is None:
            advantage = shared_advantage(played.reward)
        else:
            advantage = played.reward - self._greedy(self.rival, batch)
        if self.config.normalise:
            advantage = standardised(advantage)
        choices = task.choices(learner.network, batch, outputs, played)
        weight = choice_weights(choices, advantage, credited=self.rival is None, normalise=self.config.normalise)
        entropy = mean_entropy(choices)
        loss = -(weight * choices.log_prob).sum() / max(1, len(weight)) - self.config.entropy_weight * entropy
        norm = learner.update(loss, minibatch.step, minibatch.seed)
        return {
            "reward/mean": float(played.reward.mean()),
            "reward/best": float(played.reward.max(axis=1).mean()),
            "train/loss": float(loss.detach()),
            "train/entropy": float(entropy.detach()),
            "train/gradient_norm": norm,
        }

    def _greedy(self, network: nn.Module, batch: Batch) -> FloatArray:
        """Return (B, 1) rewards of the network's greedy schedules."""
        with torch.no_grad(), self.learner.autocast():
            outputs = self.task.forward(network, batch, self.learner.group.device)
            played = self.task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
        return np.asarray(played.reward)

    def _challenge(self, minibatch: Minibatch) -> None:
        """Let the current network take the baseline's place if it is significantly better on this unseen batch."""
        from scipy.stats import ttest_rel

        assert self.rival is not None
        ours = self._greedy(self.learner.bare, minibatch.batch)[:, 0]
        theirs = self._greedy(self.rival, minibatch.batch)[:, 0]
        better = False
        if ours.mean() > theirs.mean():
            # Every difference equal: the test has no variance to go by, and there is no doubt.
            certain = np.ptp(ours - theirs) == 0.0
            better = bool(certain or ttest_rel(ours, theirs, alternative="greater").pvalue < _SIGNIFICANCE)
        if self.learner.group.from_leader(better):
            self.rival.load_state_dict(self.learner.bare.state_dict())

    @property
    def num_minibatches(self) -> int:
        """Batches that `learn` takes at a time."""
        return 1

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks besides the trained one that the full state must hold."""
        return {} if self.rival is None else {"rival": self.rival}
