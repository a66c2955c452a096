"""A folder of measured figures, so that an op is measured once on a device."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinit.costs.table import InvalidCostTable
from rlinit.files import write_json


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
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != "rlinit-measured" or data["version"] != 1 or data["device"] != self.device:
                raise ValueError("it is of another format or device")
            return {str(key): _figure(entry) for key, entry in data["figures"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
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


def _figure(entry: object) -> Figure:
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError(f"{entry!r} is no figure")
    seconds, spread_s, repeats = float(entry[0]), float(entry[1]), entry[2]
    fine = 0 <= seconds < math.inf and 0 <= spread_s < math.inf
    if not fine or isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 0:
        raise ValueError(f"{entry!r} is no figure")
    return Figure(seconds, spread_s, repeats)
