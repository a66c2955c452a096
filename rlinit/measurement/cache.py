"""A folder of measured figures, so that an op is measured once on a device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinit.costs.table import InvalidCostTable
from rlinit.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class Figure:
    """What repeated measurements of one thing gave.

    Parameters
    ----------
    seconds, spread_s
        Their median and interquartile range.
    repeats
        How many there were.
    """

    seconds: float
    spread_s: float
    repeats: int


@dataclass(frozen=True, slots=True)
class MeasuredCache:
    """Figures by what was measured; one JSON file for each device, version of torch and number of threads.

    Parameters
    ----------
    folder
        Where the files are; made when the first figure is written.
    device
        Everything that figures depend on besides what was measured: processor, threads, versions.
    """

    folder: Path
    device: str

    @property
    def path(self) -> Path:
        """The file of this device."""
        return self.folder / f"measured-{hashlib.sha256(self.device.encode()).hexdigest()[:16]}.json"

    def read(self) -> dict[str, Figure]:
        """Return all figures; none where there is no file yet.

        Raises
        ------
        InvalidCostTable
            The file cannot be read or is damaged; the message names it.
        """
        if not self.path.exists():
            return {}
        try:
            data = read_json(self.path, "measured", InvalidCostTable)
            if data["device"] != self.device:
                raise InvalidCostTable("it is of another device")
            return {key: Figure(*entry) for key, entry in data["figures"].items()}
        except InvalidCostTable as problem:
            raise InvalidCostTable(
                f"the measured figures in {self.path} cannot be read ({problem}); delete the file to measure anew"
            ) from problem

    def add(self, figures: Mapping[str, Figure]) -> None:
        """Write more figures beside those that are there; the new ones win.

        Of two processes that write at the same moment one may lose what it adds, but no file is ever damaged.

        Raises
        ------
        InvalidCostTable
            As for `read`, or the folder cannot be written to.
        """
        merged = {**self.read(), **figures}
        data = {
            "format": "rlinit-measured",
            "version": 1,
            "device": self.device,
            "figures": {key: [one.seconds, one.spread_s, one.repeats] for key, one in sorted(merged.items())},
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.path, data)
        except OSError as problem:
            raise InvalidCostTable(f"cannot write measured figures to {self.path}: {problem}") from problem
