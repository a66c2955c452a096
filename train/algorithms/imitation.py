"""Imitation: the network learns to choose as exact solvers did, from labels cached in shards."""

from __future__ import annotations

from torch import nn

from rlinit.train.algorithms.reinforce import Minibatch
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask


class Imitation:
    """Takes one step down the task's imitation loss from each labelled batch."""

    def __init__(self, task: AnyTask, learner: Learner) -> None:
        self.task = task
        self.learner = learner

    def learn(self, minibatches: list[Minibatch]) -> dict[str, float]:
        """Take one step from one labelled batch; return what to plot.

        Raises
        ------
        TypeError
            The batch has no labels.
        """
        (minibatch,) = minibatches
        learner = self.learner
        with learner.autocast():
            outputs = self.task.forward(learner.network, minibatch.batch, learner.group.device)
        if minibatch.labels is None:
            raise TypeError("imitation needs labelled batches")
        loss = self.task.imitation_loss(learner.network, minibatch.batch, outputs, minibatch.labels)
        norm = learner.update(loss, minibatch.step, minibatch.seed)
        return {"train/loss": float(loss.detach()), "train/gradient_norm": norm}

    @property
    def num_minibatches(self) -> int:
        """Batches that `learn` takes at a time."""
        return 1

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks besides the trained one that the full state must hold: none."""
        return {}
