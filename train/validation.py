"""Validation: how good greedy and sampled schedules are on fixed problems that training never sees."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from rlinit.arrays import SAFETY, FloatArray
from rlinit.train.core.curriculum import batch_seed
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask, Batch, excess


def validate(
    task: AnyTask, learner: Learner, sets: Mapping[str, Batch], samples: int, seed: int
) -> dict[str, dict[str, float]]:
    """Return the measures of each validation set by name.

    Greedy ones: ``reward`` (mean), ``below_reference`` (how much smaller than the heuristic's the value is, mean),
    ``gap_to_optimum`` and ``gap_to_bound`` (means over problems where known; left out where none is), ``at_optimum``
    (share of those with a known optimum), ``entropy``, ``ms`` a problem. With ``sampled_`` before: the best of the
    greedy one and `samples` draws.

    Parameters
    ----------
    samples
        Trajectories to draw for each problem; 0: greedy only.
    seed
        Of the draws.
    """
    return {name: _measure(task, learner, batch, samples, seed) for name, batch in sets.items()}


def _measure(task: AnyTask, learner: Learner, batch: Batch, samples: int, seed: int) -> dict[str, float]:
    network = learner.evaluated
    with torch.no_grad():
        started = time.perf_counter()
        with learner.autocast():
            outputs = task.forward(network, batch, learner.device)
        greedy = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
        seconds = time.perf_counter() - started
        entropy = task.choices(network, batch, outputs, greedy).entropy
        found = _compare(batch, greedy.value[:, 0], greedy.reward[:, 0])
        found["entropy"] = float(entropy.sum()) / max(1, len(entropy))
        found["ms"] = 1e3 * seconds / len(batch)
        if samples:
            drawn = task.rollout(network, batch, outputs, samples=samples, seed=batch_seed(seed, 5))
            value = np.minimum(drawn.value.min(axis=1), greedy.value[:, 0])
            reward = np.maximum(drawn.reward.max(axis=1), greedy.reward[:, 0])
            found |= {f"sampled_{name}": number for name, number in _compare(batch, value, reward).items()}
    return found


def _compare(batch: Batch, value: FloatArray, reward: FloatArray) -> dict[str, float]:
    found = {"reward": float(reward.mean()), "below_reference": -_mean(excess(value, batch.reference))}
    for name, least in (("gap_to_optimum", batch.optimum), ("gap_to_bound", batch.bound)):
        known = np.isfinite(least)
        if known.any():
            found[name] = _mean(excess(value[known], least[known]))
    known = np.isfinite(batch.optimum)
    if known.any():
        found["at_optimum"] = float((excess(value[known], batch.optimum[known]) <= SAFETY).mean())
    return found


def _mean(gap: FloatArray) -> float:
    """Return the mean; a gap over nothing (an infinite one) counts as 1, so that one problem does not hide the rest."""
    return float(np.where(np.isfinite(gap), gap, 1.0).mean())


def score(measures: Mapping[str, Mapping[str, float]], selection: tuple[str, ...]) -> float:
    """Return what the best checkpoint is chosen by, more is better: mean greedy reward over the selection's sets.

    Parameters
    ----------
    measures
        Figures by validation set and name; of each set in the selection there is ``reward``.
    selection
        Names of sets, at least one.
    """
    return float(np.mean([measures[name]["reward"] for name in selection]))
