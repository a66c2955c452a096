"""What several commands read from their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware

__all__ = [
    "SharingChoice",
    "check_folders",
    "chosen_sharing",
    "device_places",
    "dimension_sizes",
    "load_hardware",
    "load_model",
]

SharingChoice = Literal["auto", "colocate", "copy"]
"""What to do with parameters that several ops read; ``auto`` goes by the objective, see `chosen_sharing`."""

_SHARING = (".onnx", ".pt2", ".tflite")
"""Files whose shared parameters leave a choice."""


def chosen_sharing(choice: SharingChoice, objective: str) -> Literal["colocate", "copy"]:
    """Return how parameters are shared for an objective.

    Stages take copies: colocation would put all that lies between two readers in one stage as well, which for tied
    embeddings is the whole model. Copies are sound, since no stage holds fewer bytes than it has to. Placements
    keep readers together, where each device then holds one.
    """
    if choice != "auto":
        return choice
    return "copy" if objective in ("pipeline", "memory") else "colocate"


def load_model(
    model: str,
    *,
    objective: str,
    batch: int | None,
    dims: Sequence[str],
    sharing: SharingChoice,
    costs: Path | None,
    dtype: str | None = None,
) -> Graph:
    """Return the graph of a model file, or of a network of the zoo where the name starts with ``zoo:``.

    Parameters
    ----------
    model
        The file, or zoo:NAME.
    objective
        What ``auto`` sharing goes by.
    batch, dims, sharing
        As for `load_graph`, with `dims` as NAME=SIZE.
    costs
        A cost table to apply.
    dtype
        As for `load_graph`; a pair is written WEIGHTS/ACTIVATIONS.
    """
    weights, _, activations = (dtype or "").partition("/")
    kept: Any = (weights, activations) if activations else dtype
    if model.startswith("zoo:"):
        from rlinit.datasets.zoo import imagenet

        graph = imagenet.load(model.removeprefix("zoo:"), dtype=kept)
    else:
        from rlinit.importers import load_graph

        how = "colocate" if sharing == "auto" and not model.lower().endswith(_SHARING) else sharing
        sizes = dimension_sizes(dims)
        graph = load_graph(model, batch=batch, dims=sizes, sharing=chosen_sharing(how, objective), dtype=kept)
    if costs is None:
        return graph
    from rlinit.costs.table import CostTable

    return CostTable.load(costs).apply(graph)


def load_hardware(name: str, stages: int | None = None) -> Hardware:
    """Return the hardware of a file (.toml, .json) or preset, with k stage slots where that is asked for.

    Raises
    ------
    InvalidHardware
        An unknown preset, a malformed file, or devices of which k cannot be chosen.
    """
    hardware = Hardware.load(name) if Path(name).suffix in (".toml", ".json") else Hardware.preset(name)
    return hardware if stages is None else hardware.with_stages(stages)


def dimension_sizes(entries: Sequence[str]) -> dict[str, int]:
    """Return sizes by dimension, from NAME=SIZE.

    Raises
    ------
    RlinitError
        An entry of another form.
    """
    sizes = {}
    for entry in entries:
        name, _, size = entry.partition("=")
        if not name or not size.isdecimal():
            raise RlinitError(f"--dims {entry!r}: expected NAME=SIZE")
        sizes[name] = int(size)
    return sizes


def device_places(entries: Sequence[str]) -> dict[str, str]:
    """Return what the plan's devices are called elsewhere, from NAME=DEVICE.

    Raises
    ------
    RlinitError
        An entry of another form.
    """
    places = {}
    for entry in entries:
        name, _, device = entry.partition("=")
        if not name or not device:
            raise RlinitError(f"--devices {entry!r}: expected NAME=DEVICE, such as gpu0=cuda:0")
        places[name] = device
    return places


def check_folders(*targets: Path | None) -> None:
    """Refuse to start what could not be written in the end.

    Raises
    ------
    RlinitError
        The folder of a file does not exist.
    """
    for target in targets:
        if target is not None and not target.parent.is_dir():
            raise RlinitError(f"cannot write {target}: the folder {target.parent} does not exist")
