"""A curriculum of sizes: which size of problem a training step gets, as a function of progress and a seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.datasets.random.synthetic import SEED_BITS
from rlinit.train.tasks.fields import require, require_share


@dataclass(frozen=True)
class CurriculumConfig:
    """Sizes from small to large; each joins at its time and small ones go on being played."""

    sizes: tuple[int, ...] = (30,)
    """Nodes a problem, in the order in which sizes join."""
    ramp: float = 0.5
    """Share of the training over which the sizes join, evenly: the last one joins at its end."""
    newest: float = 0.5
    """Share of batches of the newest size; the rest are drawn evenly from all that have joined."""
    batch_nodes: int = 3840
    """Nodes a batch (and process), so that batches of all sizes cost about the same."""

    def __post_init__(self) -> None:
        sizes, nodes = self.sizes, self.batch_nodes
        require(bool(sizes) and min(sizes) >= 1, "curriculum.sizes", sizes, "one or more sizes of at least 1")
        require_share("curriculum.ramp", self.ramp)
        require_share("curriculum.newest", self.newest)
        require(nodes >= 1, "curriculum.batch_nodes", nodes, "at least 1")


@dataclass(frozen=True, slots=True)
class Request:
    """What a task's `generate` is asked for: `count` problems of about `size` nodes from `seed`."""

    seed: int
    size: int
    count: int


def batch_seed(*entropy: int) -> int:
    """Return a seed below 2**62 for numbers that say what it is for, such as (run's seed, process, step)."""
    word = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    return int(word) >> (64 - SEED_BITS)


def request(config: CurriculumConfig, progress: float, seed: int) -> Request:
    """Return the request for a batch at `progress` (0 to 1) whose seed is `seed`.

    Parameters
    ----------
    config
        Sizes, and when they join.
    progress
        Share of the training that is done, from 0 to 1.
    seed
        Of the batch; draws its size, too.
    """
    joined = len(config.sizes)
    if config.ramp > 0 and joined > 1:
        joined = min(joined, 1 + int(progress / config.ramp * (joined - 1) + 1e-9))
    rng = np.random.default_rng(seed)
    at = joined - 1 if rng.random() < config.newest else int(rng.integers(joined))
    size = config.sizes[at]
    return Request(seed, size, max(1, config.batch_nodes // size))
