"""Proximal policy optimisation with a shared baseline in place of a critic.

References
----------
Schulman et al., Proximal policy optimization algorithms, 2017, equation 7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rlinit.train.algorithms.reinforce import Minibatch, choice_weights, mean_entropy, shared_advantage, standardised
from rlinit.train.core.config import PPOConfig
from rlinit.train.core.curriculum import batch_seed
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask


class PPO:
    """Learns several times from the same trajectories, as long as choices keep about the probability they had.

    Ratios are of single choices, not of whole trajectories, whose ratios would leave the clip at once.
    """

    def __init__(self, task: AnyTask, learner: Learner, config: PPOConfig, samples: int) -> None:
        self.task = task
        self.learner = learner
        self.config = config
        self.samples = samples

    def learn(self, minibatches: list[Minibatch]) -> dict[str, float]:
        """Play every batch once, then update from each in every epoch; return what to plot."""
        played = [self._play(minibatch) for minibatch in minibatches]
        rng = np.random.default_rng(batch_seed(minibatches[0].seed, 2))
        losses, norms, entropies, clipped = [], [], [], []
        for _ in range(self.config.epochs):
            for at in rng.permutation(len(minibatches)):
                loss, entropy, share = self._loss(minibatches[at], *played[at])
                norms.append(self.learner.update(loss, minibatches[at].step, minibatches[at].seed))
                losses.append(float(loss.detach()))
                entropies.append(entropy)
                clipped.append(share)
        return {
            "reward/mean": float(np.mean([entry[0].reward.mean() for entry in played])),
            "reward/best": float(np.mean([entry[0].reward.max(axis=1).mean() for entry in played])),
            "train/loss": float(np.mean(losses)),
            "train/entropy": float(np.mean(entropies)),
            "train/clipped": float(np.mean(clipped)),
            "train/gradient_norm": float(np.mean(norms)),
        }

    def _play(self, minibatch: Minibatch) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Return trajectories, and each choice's log-probability and weight, both (C,)."""
        task, learner = self.task, self.learner
        with torch.no_grad():
            with learner.autocast():
                outputs = task.forward(learner.bare, minibatch.batch, learner.group.device)
            seed = batch_seed(minibatch.seed, 1)
            played = task.rollout(learner.bare, minibatch.batch, outputs, samples=self.samples, seed=seed)
            before = task.choices(learner.bare, minibatch.batch, outputs, played)
        advantage = standardised(shared_advantage(played.reward))
        return played, before.log_prob, choice_weights(before, advantage, credited=True, normalise=True)

    def _loss(
        self, minibatch: Minibatch, played: Any, before: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, float, float]:
        """Return the clipped loss, the mean entropy, and the share of choices whose ratio is clipped."""
        with self.learner.autocast():
            outputs = self.task.forward(self.learner.network, minibatch.batch, self.learner.group.device)
        choices = self.task.choices(self.learner.network, minibatch.batch, outputs, played)
        ratio = torch.exp(choices.log_prob - before)
        held = ratio.clamp(1.0 - self.config.clip, 1.0 + self.config.clip)
        count = max(1, len(ratio))
        entropy = mean_entropy(choices)
        loss = -torch.minimum(ratio * weight, held * weight).sum() / count - self.config.entropy_weight * entropy
        return loss, float(entropy.detach()), float((ratio != held).sum()) / count

    @property
    def num_minibatches(self) -> int:
        """Batches that `learn` takes at a time."""
        return self.config.batches

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks besides the trained one that the full state must hold: none."""
        return {}
