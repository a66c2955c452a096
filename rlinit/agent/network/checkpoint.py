"""Checkpoints: a safetensors file of weights and the card that says what they are. Never pickle.

``NAME.safetensors`` holds float32 arrays and, in its metadata, the card; being one file, they change together or not
at all. ``NAME.json`` beside it is a copy of the card for people and tools.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import CheckpointError
from rlinit.files import write_atomically

FORMAT = 1
"""Version of the checkpoint format; newer ones are refused."""

_CARD_KEY = "card"

AgentT = TypeVar("AgentT")


@dataclass(frozen=True, slots=True)
class Card:
    """What a checkpoint's weights are, how they came about and how good they are.

    Parameters
    ----------
    network
        ``oneshot`` or ``pointer``.
    problem
        ``stages`` or ``latency``.
    config
        The network's configuration, as its class takes it.
    training
        Command, seed, data, algorithm, steps, seconds, machine and versions.
    quality
        Measured quality by name.
    weights_sha256
        Of the weights' names, shapes and bytes; filled in when saved.
    """

    network: str
    problem: str
    config: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    weights_sha256: str = ""
    format: int = FORMAT


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Weights by name, and their card."""

    arrays: Mapping[str, NDArray[np.float32]]
    card: Card


def save_checkpoint(path: str | Path, arrays: Mapping[str, NDArray[np.float32]], card: Card) -> None:
    """Write a checkpoint atomically: a full disk or a kill leaves the last good one.

    Parameters
    ----------
    path
        ``NAME.safetensors``; a copy of the card goes to ``NAME.json``.
    arrays
        Weights by name.
    card
        The card.

    Raises
    ------
    CheckpointError
        A weight is not finite.
    """
    from safetensors.numpy import save

    target = Path(path)
    check_finite(arrays, str(target))
    ordered = {name: np.ascontiguousarray(arrays[name], np.float32) for name in sorted(arrays)}
    card = dataclasses.replace(card, weights_sha256=_digest(ordered))
    text = json.dumps(dataclasses.asdict(card), indent=1, allow_nan=False) + "\n"
    write_atomically(target, save(ordered, {_CARD_KEY: text}))
    write_atomically(target.with_suffix(".json"), text)


def load_checkpoint(path: str | Path, *, network: str | None = None, problem: str | None = None) -> Checkpoint:
    """Read weights and card, and check that they are whole, belong together and are of the kind expected.

    Parameters
    ----------
    path
        Of the ``.safetensors`` file; its card is inside.
    network, problem
        The network (``oneshot``, ``pointer``) and the kind of problem (``stages``, ``latency``) that it must be for;
        None: any.

    Raises
    ------
    CheckpointError
        The file is missing, truncated or malformed, of a newer format, of another network or problem than asked for,
        or a weight is not finite.
    """
    from safetensors import SafetensorError, safe_open

    target = Path(path)
    try:
        with safe_open(target, framework="numpy") as file:
            text = (file.metadata() or {}).get(_CARD_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as failure:
        raise CheckpointError(f"cannot read {target}: {failure}") from failure
    except (SafetensorError, ValueError) as failure:
        raise CheckpointError(f"{target} is not a whole safetensors file (truncated?): {failure}") from failure
    if text is None:
        raise CheckpointError(f"{target} holds weights without a card: rlinit did not write it")
    card = _parse_card(text, target)
    for what, wanted, found in (("network", network, card.network), ("problem", problem, card.problem)):
        if wanted is not None and wanted != found:
            raise CheckpointError(f"{target} is for {what} {found!r}; expected {wanted!r}")
    if _digest(arrays) != card.weights_sha256:
        raise CheckpointError(f"{target} is damaged: its weights are not those its card describes")
    check_finite(arrays, str(target))
    return Checkpoint(arrays, card)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _parse_card(text: str, source: Path) -> Card:
    try:
        data = json.loads(text)
    except ValueError as failure:
        raise CheckpointError(f"{source}: the card is not valid JSON: {failure}") from failure
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise CheckpointError(f"{source}: the card names no format")
    if data["format"] > FORMAT:
        raise CheckpointError(
            f"{source} has format {data['format']}; this version reads up to {FORMAT}. Install a newer rlinit."
        )
    known = {f.name for f in dataclasses.fields(Card)}
    if set(data) != known:
        raise CheckpointError(f"{source}: expected a card with the keys {', '.join(sorted(known))}")
    return Card(**data)


def check_finite(arrays: Mapping[str, NDArray[Any]], source: str) -> None:
    """Raise CheckpointError where a weight is NaN or infinite.

    Parameters
    ----------
    arrays
        Weights by name, of any shape.
    source
        What the message calls them: a path, as a rule.

    Raises
    ------
    CheckpointError
        There is one; the message names its array.
    """
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"{source}: weight {name!r} holds values that are not finite")


def shipped(name: str) -> Path | None:
    """Return the weights' path of a checkpoint that comes with the package, None if there is none of that name."""
    path = Path(str(resources.files("rlinit.checkpoints"))) / f"{name}.safetensors"
    return path if path.exists() else None


def read_once(read: Callable[[Path], AgentT]) -> Callable[[Path], AgentT]:
    """Wrap a function that makes an agent of a checkpoint, so that it reads each version of a file once.

    The agents of the last eight files are kept. What is returned raises CheckpointError where there is no such file.
    """

    @functools.lru_cache(maxsize=8)
    def read_version(path: Path, _stamp: int) -> AgentT:
        return read(path)

    @functools.wraps(read)
    def read_latest(path: Path) -> AgentT:
        try:
            stamp = path.stat().st_mtime_ns
        except OSError as failure:
            raise CheckpointError(f"cannot read {path}: {failure}") from failure
        return read_version(path.resolve(), stamp)

    return read_latest
