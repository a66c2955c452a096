"""Imitation: the network learns to choose as exact solvers did, from labels cached in shards."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from rlinit.train.config import TrainConfig, config_to_dict
from rlinit.train.curriculum import Request, batch_seed
from rlinit.train.labels import Shards, fingerprint
from rlinit.train.learner import Learner
from rlinit.train.reinforce import Lesson
from rlinit.train.tasks import AnyTask

__all__ = ["Imitation", "shard_at", "shards_of"]

_SHARD_SEEDS = 3
"""Marks seeds of labelled problems, so that no other part of a run draws the same."""


def shards_of(config: TrainConfig[Any], task: AnyTask) -> Shards:
    """Return the shards a run learns from, sizes taking turns; their folder's name says what they depend on."""
    curriculum = config.curriculum
    requests = []
    for shard in range(config.imitation.shards):
        size = curriculum.sizes[shard % len(curriculum.sizes)]
        seed = batch_seed(config.seed, _SHARD_SEEDS, shard)
        requests.append(Request(seed, size, max(1, curriculum.batch_nodes // size)))
    problem = config_to_dict(config.problem)
    about = fingerprint(config.task, config.network, problem, config.seed, curriculum.sizes, curriculum.batch_nodes)
    return Shards(config.imitation.labels / f"{config.task}-{config.network}-{about[:16]}", task, tuple(requests))


def shard_at(place: int, num_shards: int, seed: int) -> int:
    """Return the shard at a place in the endless sequence of shards: every round is a permutation of its own."""
    turn, at = divmod(place, num_shards)
    return int(np.random.default_rng(batch_seed(seed, 4, turn)).permutation(num_shards)[at])


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
