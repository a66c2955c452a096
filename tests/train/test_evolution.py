"""Cross-entropy search over few numbers, and what is fitted by it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit import checkpoints
from rlinit.arrays import FloatArray
from rlinit.errors import InvalidConfig
from rlinit.exact.placements.bounds.flow import FlowStart
from rlinit.train.evolution import Evolution, evolve
from rlinit.train.multipliers import PLAIN, fit, point_of, start_of

GOAL = np.array([1.0, -2.0, 0.5])


def _far(point: FloatArray, _number: int) -> float:
    return float(((point - GOAL) ** 2).sum())


def _card(mean: FloatArray) -> dict[str, Any]:
    return {"first": float(mean[0])}


def test_it_finds_a_minimum(tmp_path: Path) -> None:
    """On a bowl the mean goes most of the way to its bottom."""
    how = Evolution(generations=20, population=15)
    mean = evolve(tmp_path / "a.json", _far, np.zeros(3), np.ones(3), how, _card)
    assert _far(mean, 0) < 0.1 * _far(np.zeros(3), 0)


def test_a_broken_search_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    """Stopped after two generations and gone on with, it ends with the bits of one that was not."""
    whole = evolve(tmp_path / "a.json", _far, np.zeros(3), np.ones(3), Evolution(generations=5, population=9), _card)
    evolve(tmp_path / "b.json", _far, np.zeros(3), np.ones(3), Evolution(generations=2, population=9), _card)
    rest = evolve(tmp_path / "b.json", _far, np.zeros(3), np.ones(3), Evolution(generations=5, population=9), _card)
    assert (whole == rest).all()


def test_the_file_of_another_search_is_refused(tmp_path: Path) -> None:
    """Going on with another seed would be no search of either."""
    evolve(tmp_path / "a.json", _far, np.zeros(3), np.ones(3), Evolution(generations=1, population=5), _card)
    with pytest.raises(InvalidConfig, match="search"):
        evolve(tmp_path / "a.json", _far, np.zeros(3), np.ones(3), Evolution(seed=1, population=5), _card)


def test_multipliers_are_fitted_from_the_command(tmp_path: Path) -> None:
    """A tiny search runs, and points and starts stand for each other."""
    found = fit(tmp_path / "m.json", Evolution(generations=1, population=3, batch=2), rounds=3)
    assert start_of(point_of(found)).critical == pytest.approx(found.critical)
    assert start_of(point_of(PLAIN)).share_step == pytest.approx(PLAIN.share_step)
    assert (tmp_path / "m.json").exists()


def test_the_shipped_start_is_that_of_its_card() -> None:
    """The defaults of the ascent are what the search wrote, to three digits."""
    card = json.loads((Path(checkpoints.__file__).parent / "multipliers.json").read_text(encoding="utf-8"))
    assert asdict(FlowStart()) == pytest.approx(card["start"], rel=2e-3)
