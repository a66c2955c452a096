"""Checkpoints: what was saved is what is loaded, and what is damaged is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlinit.agent.network.checkpoint import FORMAT, Card, load_checkpoint, save_checkpoint, shipped
from rlinit.agent.selection import checkpoint_names
from rlinit.errors import CheckpointError

ARRAYS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(4, np.float32)}
CARD = Card("oneshot", "stages", {"hidden": 4}, {"seed": 7}, {"gap": 0.01})


def saved(folder: Path) -> Path:
    """Return the path of a checkpoint that was saved."""
    path = folder / "agent.safetensors"
    save_checkpoint(path, ARRAYS, CARD)
    return path


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """Arrays and card come back, and the same content gives the same bytes."""
    path = saved(tmp_path)
    found = load_checkpoint(path, network="oneshot", problem="stages")
    assert set(found.arrays) == set(ARRAYS)
    assert all((found.arrays[name] == array).all() for name, array in ARRAYS.items())
    assert (found.card.config, found.card.training, found.card.quality) == (CARD.config, CARD.training, CARD.quality)
    before = path.read_bytes()
    save_checkpoint(path, dict(reversed(ARRAYS.items())), CARD)
    assert path.read_bytes() == before


def test_the_card_beside_is_a_copy(tmp_path: Path) -> None:
    """The JSON file says what the weights' own card says; the weights load without it."""
    path = saved(tmp_path)
    beside = json.loads(path.with_suffix(".json").read_text())
    assert Card(**beside) == load_checkpoint(path).card
    path.with_suffix(".json").unlink()
    assert load_checkpoint(path).card.training == {"seed": 7}


def test_truncated_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    """A file that lost its end, or a byte of it, is refused, wherever the damage is."""
    path = saved(tmp_path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            load_checkpoint(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error names the file that cannot be read."""
    with pytest.raises(CheckpointError, match=r"cannot read .*agent\.safetensors"):
        load_checkpoint(tmp_path / "agent.safetensors")


def test_newer_formats_and_other_kinds_are_refused(tmp_path: Path) -> None:
    """A newer format, another network or problem, and weights of something else are errors that say so."""
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="for problem 'stages'; expected 'latency'"):
        load_checkpoint(path, problem="latency")
    with pytest.raises(CheckpointError, match="for network 'oneshot'; expected 'pointer'"):
        load_checkpoint(path, network="pointer")
    save_file(ARRAYS, path)
    with pytest.raises(CheckpointError, match="without a card"):
        load_checkpoint(path)
    card = json.loads(path.with_suffix(".json").read_text())
    for text, message in (
        (json.dumps(card | {"format": FORMAT + 1}), "newer rlinit"),
        (json.dumps(card | {"surprise": 1}), "with the keys"),
        ("[1, 2]", "names no format"),
        ("{", "not valid JSON"),
    ):
        save_file(ARRAYS, path, {"card": text})
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(path)


def test_weights_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    """NaN is refused when saving, and the last good pair stays."""
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="weight 'a' holds values that are not finite"):
        save_checkpoint(path, {**ARRAYS, "a": np.array([np.nan], np.float32)}, CARD)
    assert (load_checkpoint(path).arrays["a"] == 1.0).all()


def test_a_failed_save_leaves_the_last_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full while saving, the old checkpoint is still whole and nothing else is left behind."""
    path = saved(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(path, {"a": np.zeros(9, np.float32)}, CARD)
    assert set(load_checkpoint(path).arrays) == set(ARRAYS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agent.json", "agent.safetensors"]


@pytest.mark.parametrize("name", checkpoint_names())
def test_shipped_cards_say_how_to_train_again(name: str) -> None:
    """A shipped checkpoint is small, and its card has command, seed, machine, quality and a time below an hour."""
    path = shipped(name)
    assert path is not None
    assert path.stat().st_size < 10_000_000
    card = load_checkpoint(path).card
    training = card.training
    assert str(training["command"]).startswith("python train/run.py --task ")
    assert f"--seed {training['seed']} " in training["command"]
    assert training["steps"] > 0
    assert 0 < training["seconds"] < 3600
    assert training["machine"]["cores"] >= 1
    assert training["machine"]["cpu"]
    assert card.quality
    assert json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["weights_sha256"] == card.weights_sha256
