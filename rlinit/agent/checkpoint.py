"""Checkpoints: a safetensors file of weights and, beside it, a JSON card that says what they are. Never pickle.

``NAME.safetensors`` holds float32 arrays; ``NAME.json`` the card. The weights' file repeats the card's fingerprint
of architecture, so that a card and weights of different trainings are not taken for a pair.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import CheckpointError
from rlinit.files import write_atomically

__all__ = ["FORMAT", "Card", "Checkpoint", "load_checkpoint", "save_checkpoint", "shipped"]

FORMAT = 1
"""Version of the checkpoint format; newer ones are refused."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a checkpoint's weights are, how they came about and how good they are.

    Parameters
    ----------
    network
        ``oneshot``, ``pointer`` or ``autoregressive``.
    problem
        ``stages`` or ``latency``.
    config
        The network's configuration, as its class takes it.
    training
        Command, seed, data, algorithm, steps, seconds, machine and versions.
    quality
        Measured quality by name.
    weights_sha256
        Of the weights' file; filled in when saved.
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
    """Write weights and card, each atomically, so that a full disk or a kill leaves the last good pair.

    The weights are written under their own digest first and the card, which names it, is renamed last; see
    `load_checkpoint` for what happens to a pair that does not match.

    Parameters
    ----------
    path
        ``NAME.safetensors``; the card goes to ``NAME.json``.
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
    data = save(ordered)
    card = dataclasses.replace(card, weights_sha256=hashlib.sha256(data).hexdigest())
    text = json.dumps(dataclasses.asdict(card), indent=1, allow_nan=False) + "\n"
    write_atomically(target, data)
    write_atomically(target.with_suffix(".json"), text)


def load_checkpoint(path: str | Path, *, network: str | None = None, problem: str | None = None) -> Checkpoint:
    """Read weights and card, and check that they are whole, belong together and are of the kind expected.

    Raises
    ------
    CheckpointError
        A file is missing, truncated or malformed, of a newer format, of another network or problem than asked for,
        or a weight is not finite.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    target = Path(path)
    card = _read_card(target.with_suffix(".json"))
    for what, wanted, found in (("network", network, card.network), ("problem", problem, card.problem)):
        if wanted is not None and wanted != found:
            raise CheckpointError(f"{target} is for {what} {found!r}; expected {wanted!r}")
    try:
        data = target.read_bytes()
    except OSError as failure:
        raise CheckpointError(f"cannot read {target}: {failure}") from failure
    if hashlib.sha256(data).hexdigest() != card.weights_sha256:
        raise CheckpointError(f"{target} is not the file its card describes: truncated, damaged or of another training")
    try:
        arrays = load(data)
    except (SafetensorError, ValueError) as failure:
        raise CheckpointError(f"{target} is not a safetensors file: {failure}") from failure
    check_finite(arrays, str(target))
    return Checkpoint(arrays, card)


def _read_card(path: Path) -> Card:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise CheckpointError(f"cannot read the checkpoint's card {path}: {failure}") from failure
    except ValueError as failure:
        raise CheckpointError(f"{path} is not valid JSON (truncated?): {failure}") from failure
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise CheckpointError(f"{path} is not a checkpoint's card: it names no format")
    if data["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has format {data['format']}; this version reads up to {FORMAT}. Install a newer rlinit."
        )
    known = {f.name for f in dataclasses.fields(Card)}
    if set(data) != known:
        raise CheckpointError(f"{path} is not a checkpoint's card: expected the keys {', '.join(sorted(known))}")
    return Card(**data)


def check_finite(arrays: Mapping[str, NDArray[Any]], source: str) -> None:
    """Raise CheckpointError where a weight is NaN or infinite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"{source}: weight {name!r} holds values that are not finite")


def shipped(name: str) -> Path | None:
    """Return the weights' path of a checkpoint that comes with the package, None if there is none of that name."""
    path = Path(str(resources.files("rlinit.checkpoints"))) / f"{name}.safetensors"
    return path if path.exists() else None
