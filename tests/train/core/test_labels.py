"""Labels in shards: resumable, checked, without pickle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rlinit.errors import TrainingFailure
from rlinit.train.core.curriculum import Request
from rlinit.train.core.labels import Shards, fingerprint, shard_at, shards_of
from tests.late import late_imports
from tests.train.tiny_task import TinyParams, TinyTask

with late_imports():
    from tests.train.runs import tiny_config


TASK = TinyTask(TinyParams())


def shards_in(folder: Path) -> Shards:
    """Return three shards."""
    return Shards(folder, TASK, tuple(Request(seed, 5, 4) for seed in range(3)))


def test_labels_belong_to_their_problems(tmp_path: Path) -> None:
    """Every problem comes back with the label made for it."""
    shards = shards_in(tmp_path)
    assert shards.make(1) == 3
    for shard in range(3):
        batch, labels = shards.load(shard)
        assert fingerprint(batch) == fingerprint(TASK.generate(shard, 5, 4))
        assert np.array_equal(labels["order"], TASK.label(TASK.generate(shard, 5, 4))["order"])


def test_only_what_is_missing_or_damaged_is_made(tmp_path: Path) -> None:
    """A second start makes nothing, and one after damage makes just that shard; until then it is refused."""
    shards = shards_in(tmp_path)
    shards.make(1)
    assert shards.make(1) == 0
    damaged = tmp_path / "shard-000001.npz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(TrainingFailure, match="missing or damaged"):
        shards.load(1)
    assert shards.make(1) == 1
    (tmp_path / "shard-000002.json").write_text("{")
    assert shards.make(1) == 1
    shards.load(2)


def test_changed_problems_are_refused(tmp_path: Path) -> None:
    """Labels of problems that the generator no longer makes are not used."""
    shards_in(tmp_path).make(1)
    other = Shards(tmp_path, TinyTask(TinyParams(spread=2.0)), shards_in(tmp_path).requests)
    with pytest.raises(TrainingFailure, match="generator has changed"):
        other.load(0)


def test_shards_of_another_configuration_are_apart(tmp_path: Path) -> None:
    """What the labels depend on is in the folder's name, and what they do not is not."""
    config = tiny_config(tmp_path)
    folder = shards_of(config, TASK).folder
    assert shards_of(dataclasses.replace(config, steps=5), TASK).folder == folder
    assert shards_of(dataclasses.replace(config, seed=1), TASK).folder != folder
    assert shards_of(dataclasses.replace(config, problem=TinyParams(spread=2.0)), TASK).folder != folder


def test_every_round_visits_every_shard() -> None:
    """Rounds are permutations, and not all the same."""
    rounds = [[shard_at(turn * 7 + at, 7, 0) for at in range(7)] for turn in range(4)]
    assert all(sorted(visited) == list(range(7)) for visited in rounds)
    assert len({tuple(visited) for visited in rounds}) > 1


def test_cards_say_what_shards_are(tmp_path: Path) -> None:
    """A shard's card holds its request."""
    shards_in(tmp_path).make(1)
    card = json.loads((tmp_path / "shard-000002.json").read_text())
    assert card["request"] == {"seed": 2, "size": 5, "count": 4}


def test_fingerprints_tell_types_and_shapes_apart() -> None:
    """Equal bytes of another type, shape or grouping have another fingerprint; what is no data is refused."""
    zeros = np.zeros(4)
    variants = [(zeros,), (zeros.reshape(2, 2),), (zeros.astype(np.int64),), ((zeros, 1),), (zeros, 1), ("0",), (0,)]
    assert len({fingerprint(*parts) for parts in variants}) == len(variants)
    with pytest.raises(TypeError, match="fingerprint"):
        fingerprint(object())
