"""What several commands read from their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinit.errors import RlinitError
from rlinit.hardware import Hardware

__all__ = ["dimension_sizes", "load_hardware"]


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
