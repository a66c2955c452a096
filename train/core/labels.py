"""Exact labels for many problems: made in parallel, cached in shards with checksums, resumable.

A shard is the labels of one batch: ``shard-000012.npz`` (arrays, no pickle) and ``shard-000012.json`` (seed, size,
count, checksums of the file and of the problems). Problems are not stored: they come from the seed again,
and the checksum makes sure that they are the ones that were labelled. A shard counts once its .json is there and its
checksum holds, so a kill at any time costs the shards under way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from rlinit.errors import TrainingFailure
from rlinit.files import write_atomically, write_json
from rlinit.train.core.config import TrainConfig, config_to_dict
from rlinit.train.core.curriculum import Request, batch_seed
from rlinit.train.tasks.protocol import AnyTask, Batch, Labels

_SHARD_SEEDS = 3
"""Marks seeds of labelled problems, so that no other part of a run draws the same."""


def fingerprint(*parts: Any) -> str:
    """Return a SHA-256 over arrays, numbers, strings, and dataclasses, mappings and sequences of them."""
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, part: Any) -> None:
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    elif dataclasses.is_dataclass(part):
        digest.update(type(part).__name__.encode())
        for entry in dataclasses.fields(part):
            _feed(digest, getattr(part, entry.name))
    elif isinstance(part, dict):
        for key, value in part.items():
            _feed(digest, key)
            _feed(digest, value)
    elif isinstance(part, (tuple, list)):
        digest.update(f"({len(part)}".encode())
        for entry in part:
            _feed(digest, entry)
    elif part is None or isinstance(part, (bool, int, float, str, np.generic, Path)):
        digest.update(f"{part!r};".encode())
    else:
        raise TypeError(f"cannot take the fingerprint of a {type(part).__name__}")


@dataclass(frozen=True, slots=True)
class Shards:
    """A folder of labelled batches.

    Parameters
    ----------
    folder
        Where the shards are.
    task
        Makes the problems and the labels.
    requests
        What each shard's problems are made from.
    """

    folder: Path
    task: AnyTask
    requests: tuple[Request, ...]

    def __len__(self) -> int:
        return len(self.requests)

    def _paths(self, shard: int) -> tuple[Path, Path]:
        stem = self.folder / f"shard-{shard:06d}"
        return stem.with_suffix(".npz"), stem.with_suffix(".json")

    def is_whole(self, shard: int) -> bool:
        """Return whether a shard is there, undamaged, and of the problems asked for."""
        data, about = self._paths(shard)
        try:
            card = json.loads(about.read_text(encoding="utf-8"))
            content = data.read_bytes()
        except (OSError, ValueError):
            return False
        asked = dataclasses.asdict(self.requests[shard])
        return bool(card.get("sha256") == hashlib.sha256(content).hexdigest() and card.get("request") == asked)

    def make(self, jobs: int) -> int:
        """Make the shards that are missing or damaged, in `jobs` processes; return how many that were."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = [shard for shard in range(len(self)) if not self.is_whole(shard)]
        work = (delayed(self.make_one)(shard) for shard in missing)
        Parallel(n_jobs=min(jobs, max(1, len(missing))))(work)
        return len(missing)

    def make_one(self, shard: int) -> None:
        """Label one shard's problems and write it."""
        asked = self.requests[shard]
        batch = self.task.generate(asked.seed, asked.size, asked.count)
        labels = self.task.label(batch)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **dict(labels))
        content = buffer.getvalue()
        data, about = self._paths(shard)
        about.unlink(missing_ok=True)
        write_atomically(data, content)
        card = {
            "request": dataclasses.asdict(asked),
            "problems": fingerprint(batch),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_json(about, card)

    def load(self, shard: int) -> tuple[Batch, Labels]:
        """Return a shard's problems and labels.

        Raises
        ------
        TrainingFailure
            The shard is missing or damaged, or its problems are no longer what they were when they were labelled.
        """
        data, about = self._paths(shard)
        if not self.is_whole(shard):
            raise TrainingFailure(f"{data} is missing or damaged; start the run again, which labels it anew")
        card = json.loads(about.read_text(encoding="utf-8"))
        asked = self.requests[shard]
        batch = self.task.generate(asked.seed, asked.size, asked.count)
        if fingerprint(batch) != card["problems"]:
            raise TrainingFailure(
                f"the problems of {data} are not those that were labelled: their generator has changed. "
                f"Delete {self.folder} and start again"
            )
        with np.load(data, allow_pickle=False) as arrays:
            labels = {name: arrays[name] for name in arrays.files}
        return batch, labels


def shards_of(config: TrainConfig[Any], task: AnyTask) -> Shards:
    """Return the shards a run learns from, sizes taking turns; their folder's name says what they depend on.

    Parameters
    ----------
    config
        Of the run: its sizes, seed and folder of labels.
    task
        Makes the problems, and labels them.
    """
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
    """Return the shard at a place in the endless sequence of shards: every round is a permutation of its own.

    Parameters
    ----------
    place
        At least 0: how many shards came before.
    num_shards
        Number of shards, at least 1.
    seed
        Of the run; draws the permutations.
    """
    turn, at = divmod(place, num_shards)
    return int(np.random.default_rng(batch_seed(seed, 4, turn)).permutation(num_shards)[at])
