"""REINFORCE with a shared baseline.

References
----------
Kwon et al., POMO, 2020.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlinit.arrays import FloatArray
from rlinit.train.core.config import ReinforceConfig
from rlinit.train.core.curriculum import batch_seed
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask, Batch, Choices


def shared_advantage(reward: FloatArray) -> FloatArray:
    """Return (B, S) each reward less the mean of the *other* trajectories of its problem, which is unbiased."""
    samples = reward.shape[1]
    return np.asarray((reward - reward.mean(axis=1, keepdims=True)) * (samples / (samples - 1)))


def choice_weights(choices: Choices, advantage: FloatArray) -> Tensor:
    """Return (C,) how much each choice is to be reinforced: its own credit where the task tells.

    Otherwise every choice has its trajectory's `advantage` (B, S). Their root mean square is 1; zeros stay zeros.

    Parameters
    ----------
    choices
        C choices of B * S trajectories.
    advantage
        (B, S) of trajectories.
    """
    each = torch.from_numpy(advantage.ravel()) if choices.credit is None else choices.credit
    weight = each.to(choices.log_prob.detach())
    weight = weight / weight.square().mean().sqrt().clamp(min=1e-12)
    return weight[choices.trajectory] if choices.credit is None else weight


class Reinforce:
    """Makes trajectories that came out better than the others of their problem more probable.

    The loss is ``-mean over trajectories of advantage * log-probability``, over the mean number of choices of a
    trajectory, so that it does not grow with the size of problems. Where a task tells the credit of each choice, that
    takes the place of the advantage.
    """

    def __init__(self, task: AnyTask, learner: Learner, config: ReinforceConfig, samples: int) -> None:
        self.task = task
        self.learner = learner
        self.config = config
        self.samples = samples

    def learn(self, batch: Batch, step: int, seed: int) -> dict[str, float]:
        """Take one step from one batch; return what to plot.

        Parameters
        ----------
        batch
            The problems.
        step
            Of training, from 0; for the message of a failure.
        seed
            The batch's seed; what is drawn in rollouts derives from it.
        """
        task, learner = self.task, self.learner
        with learner.autocast():
            outputs = task.forward(learner.network, batch, learner.device)
        played = task.rollout(learner.network, batch, outputs, samples=self.samples, seed=batch_seed(seed, 1))
        choices = task.choices(learner.network, batch, outputs, played)
        weight = choice_weights(choices, shared_advantage(played.reward))
        count = max(1, len(weight))
        entropy = choices.entropy.sum() / count
        loss = -(weight * choices.log_prob).sum() / count - self.config.entropy_weight * entropy
        norm = learner.update(loss, step, seed)
        return {
            "reward/mean": float(played.reward.mean()),
            "reward/best": float(played.reward.max(axis=1).mean()),
            "train/loss": float(loss.detach()),
            "train/entropy": float(entropy.detach()),
            "train/gradient_norm": norm,
        }
