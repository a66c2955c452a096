"""A row of a sweep, and the file that rows are streamed to and read back from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rlinit.comparison.baselines import BEST_DEVICE
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.solving.common.options import SolveOptions


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What one hardware gives.

    Parameters
    ----------
    key
        Hash of graph, hardware and options: a row of another problem is not taken for this one.
    graph, hardware
        Their names.
    devices
        Devices that the hardware has.
    objective, status
        As the plan's; or ``refused``, where model and hardware do not go together.
    value, bound
        On the first level; None without a schedule, or without a bound.
    single
        The value of the best single device, None where no device holds the model.
    cost_per_hour
        Sum over all devices; None where one gives no cost.
    seconds
        What solving took.
    message
        Why the pair is refused.
    """

    key: str
    graph: str
    hardware: str
    devices: int
    objective: str
    status: str
    value: float | None
    bound: float | None
    single: float | None
    cost_per_hour: float | None
    seconds: float
    message: str = ""

    @property
    def speed_up(self) -> float | None:
        """Value of the best single device of this hardware over the plan's; None without either."""
        return self.single / self.value if self.single is not None and self.value else None

    def over(self, other: SweepRow) -> float | None:
        """Return the value of another row over this one's; None without either."""
        return other.value / self.value if other.value is not None and self.value else None


def key_of(graph: Graph, hardware: Hardware, options: SolveOptions) -> str:
    """Return a hash of a problem and of how it is solved.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    options
        How it is solved.
    """
    text = json.dumps([graph.fingerprint(), hardware.fingerprint(), dataclasses.asdict(options)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def row_of(
    key: str, graph: Graph, hardware: Hardware, objective: str, plan: Plan | None, message: str = ""
) -> SweepRow:
    """Return the row of a plan, or of a pair that does not go together.

    Parameters
    ----------
    key
        What `key_of` says.
    graph, hardware, objective
        The pair, and what was asked for.
    plan
        The plan; None where there is none.
    message
        Why.
    """
    return SweepRow(
        key=key,
        graph=graph.name,
        hardware=hardware.name,
        devices=hardware.num_devices,
        objective=objective,
        status="refused" if plan is None else plan.status,
        value=plan.values[0] if plan and plan.values else None,
        bound=plan.bounds[0] if plan and plan.bounds else None,
        single=plan.baselines.get(BEST_DEVICE) if plan else None,
        cost_per_hour=_price(hardware),
        seconds=sum(plan.phase_s.values()) if plan else 0.0,
        message=message,
    )


def _price(hardware: Hardware) -> float | None:
    costs = [device.cost_per_hour for device in hardware.devices]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def read_rows(path: Path) -> dict[str, SweepRow]:
    """Return the rows of a file by key; none where there is no file. A last line without an end is cut off the file.

    Raises
    ------
    RlinitError
        A line that is no row: the file is not of a sweep.
    """
    if not path.exists():
        return {}
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    rows = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = SweepRow(**json.loads(line))
        except (TypeError, ValueError) as problem:
            raise RlinitError(f"{path}, line {number}, is no row of a sweep: {problem}") from None
        rows[row.key] = row
    if len(whole) < len(text):  # whoever wrote it was killed on the way
        os.truncate(path, len(whole))
    return rows


def append_row(path: Path, row: SweepRow) -> None:
    """Write a row to the end of a file, at once and to the disk.

    Parameters
    ----------
    path
        The file; made where there is none.
    row
        The row.
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(row), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
