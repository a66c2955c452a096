"""Cross-entropy search: a few numbers that steer a compiled search, fitted to what the search reaches with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.errors import InvalidConfig
from rlinit.files import write_json
from rlinit.train.core.machine_info import machine

_LEAST_SPREAD = 0.02
"""Below this share of its first value no coordinate's spread falls, so that the search goes on."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """How to search.

    Parameters
    ----------
    seed
        Of the draws and of the problems.
    generations
        How many, each on problems of its own.
    population, batch
        Draws and problems of a generation; a quarter of the draws counts as the elite.
    """

    seed: int = 0
    generations: int = 20
    population: int = 25
    batch: int = 20


def evolve(
    path: Path,
    loss: Callable[[FloatArray, int], float],
    mean: FloatArray,
    spread: FloatArray,
    how: Evolution,
    card: Callable[[FloatArray], dict[str, Any]],
) -> FloatArray:
    """Return the mean after all generations; each moves it halfway to the mean of the elite, and so the spread.

    Draws come in pairs mirrored at the mean, and the mean itself is the first of them. The file is written after every
    generation; where it is there already, the search goes on from it and ends as an unbroken one does.

    Parameters
    ----------
    path
        The file.
    loss
        Called with a draw (p,) and the number of the generation, which names its problems: equal for all its draws.
    mean, spread
        (p,) to begin with.
    how
        Seed, generations and sizes.
    card
        What the file says of a mean beside how it was found.

    Raises
    ------
    InvalidConfig
        The file is of a search with another seed or other sizes.
    """
    least = _LEAST_SPREAD * spread
    history: list[dict[str, float]] = []
    spent_s = 0.0
    if path.exists():
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["search"] | {"generations": 0} != asdict(how) | {"generations": 0}:
            raise InvalidConfig(f"{path} is of the search {state['search']}, not of {asdict(how)}")
        mean, spread = np.array(state["mean"]), np.array(state["spread"])
        history, spent_s = state["history"], state["seconds"]
    for number in range(len(history), how.generations):
        began = time.process_time()
        rng = np.random.default_rng([how.seed, number])
        half = rng.standard_normal(((how.population - 1) // 2, len(mean)))
        draws = mean + spread * np.concatenate([np.zeros((1, len(mean))), half, -half])
        losses = np.array([loss(draw, number) for draw in draws])
        chosen = draws[np.argsort(losses, kind="stable")[: max(2, how.population // 4)]]
        mean = 0.5 * (mean + chosen.mean(axis=0))
        spread = np.maximum(least, 0.5 * (spread + chosen.std(axis=0)))
        spent_s += time.process_time() - began
        history.append({"mean": float(losses[0]), "best": float(losses.min()), "median": float(np.median(losses))})
        print(number + 1, {key: round(value, 5) for key, value in history[-1].items()}, flush=True)
        state = {"mean": mean.tolist(), "spread": spread.tolist(), "history": history, "seconds": spent_s}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, card(mean) | {"search": asdict(how), "machine": machine()} | state)
    return mean
