"""What the commands read: models, hardware, and where they may write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware

__all__ = ["check_folders", "load_hardware", "load_model", "read_sizes"]


def load_model(model: str, *, batch: int | None, dims: Sequence[str], sharing: Literal["colocate", "copy"]) -> Graph:
    """Return the graph of a model file, or of a network of the zoo where the name starts with ``zoo:``."""
    if model.startswith("zoo:"):
        from rlinit.datasets import imagenet

        return imagenet.load(model.removeprefix("zoo:"))
    from rlinit.importers import load_graph

    return load_graph(model, batch=batch, dims=read_sizes(dims), sharing=sharing)


def load_hardware(name: str, stages: int | None) -> Hardware:
    """Return the hardware of a file or preset, with a number of stages where one is given."""
    hardware = Hardware.load(name) if Path(name).suffix in (".toml", ".json") else Hardware.preset(name)
    return hardware if stages is None else hardware.with_stages(stages)


def read_sizes(entries: Sequence[str]) -> dict[str, int]:
    """Return sizes by dimension, from NAME=SIZE.

    Raises
    ------
    RlinitError
        An entry that reads otherwise.
    """
    sizes = {}
    for entry in entries:
        name, _, size = entry.partition("=")
        if not name or not size.isdigit():
            raise RlinitError(f"--dims {entry!r}: expected NAME=SIZE")
        sizes[name] = int(size)
    return sizes


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
