"""Imitation: the network learns to choose as exact solvers did, from labels cached in shards."""

from __future__ import annotations

from torch import nn

from rlinit.train.algorithms.reinforce import Lesson
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask

__all__ = ["Imitation"]


class Imitation:
    """Takes one step down the task's imitation loss from each labelled batch."""

    def __init__(self, task: AnyTask, learner: Learner) -> None:
        self.task = task
        self.learner = learner

    def learn(self, lessons: list[Lesson]) -> dict[str, float]:
        """Take one step from one labelled batch; return what to plot."""
        (lesson,) = lessons
        learner = self.learner
        with learner.autocast():
            outputs = self.task.forward(learner.network, lesson.batch, learner.group.device)
        if lesson.labels is None:
            raise TypeError("imitation needs labelled batches")
        loss = self.task.imitation_loss(learner.network, lesson.batch, outputs, lesson.labels)
        norm = learner.update(loss, lesson.step, lesson.seed)
        return {"train/loss": float(loss.detach()), "train/gradient_norm": norm}

    @property
    def num_lessons(self) -> int:
        """Batches that `learn` takes at a time."""
        return 1

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks besides the trained one that the full state must hold: none."""
        return {}
