"""Measuring what it takes to hand a tensor from one device of a plan to another.

A chain of cheap ops whose ends lie on the two devices in turn is run by the local executor. What passes between the
end of one op and the start of the next is what a plan pays: the copy, and waking up whoever waits for it. Names that
share a physical device hand on references, so that only the waking is left and the size does not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinit.errors import InvalidHardware, InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.measurement.ops import Measuring, device_versions, figure_of, physical_device, placed_plan, torch_threads
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch

__all__ = ["MeasuredTransfers", "TransferRow", "measure_transfers"]

HOPS = 8
"""Transfers each way in one run."""

SIZES = (4 << 10, 256 << 10, 4 << 20, 16 << 20)
"""Bytes: small ones give the delay, large ones the bandwidth."""


@dataclass(frozen=True, slots=True)
class TransferRow:
    """Seconds of one transfer.

    Parameters
    ----------
    source, target
        Names of the devices.
    size_bytes
        Bytes of the tensor.
    seconds, spread_s, repeats
        Median and interquartile range of so many transfers.
    """

    source: str
    target: str
    size_bytes: int
    seconds: float
    spread_s: float
    repeats: int


@dataclass(frozen=True, slots=True)
class MeasuredTransfers:
    """Transfers between devices of this machine.

    Parameters
    ----------
    rows
        One for each ordered pair of devices and size; a pair that shares a physical device has one size.
    notes
        Device name -> what it is.
    """

    rows: tuple[TransferRow, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Ordered pairs that were measured."""
        return tuple(dict.fromkeys((row.source, row.target) for row in self.rows))

    def link(self, source: str, target: str) -> tuple[float, float]:
        """Return the (latency in seconds, bandwidth in bytes a second) that fit a pair's rows best.

        Seconds = latency + bytes / bandwidth, both not negative, by least squares of the relative errors. The
        bandwidth is inf where larger tensors take no longer, or only one size was measured.

        Parameters
        ----------
        source, target
            Names of the devices of a measured pair, in the direction of the transfer.

        Raises
        ------
        InvalidHardware
            The pair was not measured.
        """
        from scipy.optimize import nnls

        rows = [row for row in self.rows if (row.source, row.target) == (source, target)]
        if not rows:
            raise InvalidHardware(f"the link from {source!r} to {target!r} was not measured; there are {self.pairs}")
        if len(rows) == 1:
            return rows[0].seconds, math.inf
        seconds = np.array([row.seconds for row in rows])
        sizes = np.array([float(row.size_bytes) for row in rows])
        weight = 1.0 / np.maximum(seconds, 1e-7)
        scale = sizes.max()  # keeps both columns of one magnitude
        (latency_s, largest_s), _ = nnls(np.column_stack([weight, weight * sizes / scale]), weight * seconds)
        return float(latency_s), float(scale / largest_s) if largest_s > 0 else math.inf

    def apply(self, hardware: Hardware) -> Hardware:
        """Return the hardware with the links of every measured pair replaced by what was measured.

        Raises
        ------
        InvalidHardware
            It lacks a device that was measured.
        """
        index = {device.name: i for i, device in enumerate(hardware.devices)}
        bandwidth, latency_s = hardware.bandwidth.copy(), hardware.latency_s.copy()
        for source, target in self.pairs:
            for name in (source, target):
                if name not in index:
                    raise InvalidHardware(f"transfers of {name!r} were measured; {hardware.name!r} has {list(index)}")
            at = index[source], index[target]
            latency_s[at], bandwidth[at] = self.link(source, target)
        return dataclasses.replace(hardware, bandwidth=bandwidth, latency_s=latency_s)

    def __str__(self) -> str:
        lines = []
        for source, target in self.pairs:
            latency_s, bandwidth = self.link(source, target)
            rate = "any size" if math.isinf(bandwidth) else f"{format_bytes(bandwidth)}/s"
            rows = [row for row in self.rows if (row.source, row.target) == (source, target)]
            spread = max((row.spread_s / row.seconds for row in rows if row.seconds > 0), default=0.0)
            lines.append(f"{source} -> {target}: {format_seconds(latency_s)} + {rate}, spread at most {spread:.0%}")
        return "\n".join(lines)


def measure_transfers(
    devices: Mapping[str, str] | Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    settings: Measuring | None = None,
) -> MeasuredTransfers:
    """Measure transfers between each ordered pair of devices of this machine, one pair at a time.

    Parameters
    ----------
    devices
        Device name of a plan -> physical device ("cpu", "cuda:0"), or just physical devices; two at least.
    sizes
        Bytes of the tensors; rounded up to multiples of 4.
    settings
        Warm-up, repeats and threads; each repeat gives several transfers.

    Raises
    ------
    InvalidPlan
        Fewer than two devices, one that is not there, or no positive size.
    ExecutionFailure
        A transfer failed, such as for lack of memory.
    BackendUnavailable
        torch is not installed.
    """
    settings = settings or Measuring()
    named = dict(devices) if isinstance(devices, Mapping) else {device: device for device in devices}
    physical = {name: physical_device(device) for name, device in named.items()}
    if len(physical) < 2 or not sizes or min(sizes) < 1:
        raise InvalidPlan(f"devices are {list(named)} and sizes {list(sizes)}; expected two or more, and sizes >= 1")
    rows: list[TransferRow] = []
    names = list(physical)
    with torch_threads(settings.threads):
        notes = {name: device_versions(device) for name, device in physical.items()}
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                shared = physical[a] == physical[b]
                for size in [min(sizes)] if shared else sorted(set(sizes)):
                    rows += _pair(a, b, physical, size, settings)
    return MeasuredTransfers(tuple(rows), notes)


def _pair(
    a: str, b: str, physical: Mapping[str, torch.device], size_bytes: int, settings: Measuring
) -> list[TransferRow]:
    """Measure both directions of one pair at one size."""
    import torch

    from rlinit.executors.local import LocalExecutor
    from rlinit.importers.torch.export import export_program, from_program

    value = torch.zeros(-(-size_bytes // 4))
    exported = export_program(_chain(2 * HOPS + 1), (value,))
    graph = from_program(exported, name="transfers")
    where = {op: (a, b)[at % 2] for at, op in enumerate(graph.names)}
    found: dict[tuple[str, str], list[float]] = {(a, b): [], (b, a): []}
    used = {name: str(physical[name]) for name in (a, b)}
    with LocalExecutor(measure=True).load(
        placed_plan(graph, where), exported, (value,), graph=graph, devices=used
    ) as run:
        for at in range(settings.warmup + settings.repeats):
            batches = {batch.op: batch for batch in run.run(value).batches}
            if at >= settings.warmup:
                for before, after in _hops(graph):
                    gap_s = batches[after].start_s - batches[before].end_s
                    found[where[before], where[after]].append(max(0.0, gap_s))
    rows = []
    for (source, target), samples in found.items():
        one = figure_of(samples)
        rows.append(TransferRow(source, target, value.numel() * 4, one.seconds, one.spread_s, one.repeats))
    return rows


def _hops(graph: Graph) -> list[tuple[str, str]]:
    """Return the pairs of ops that follow each other, but for the input, which no lane computes."""
    return list(zip(graph.names[1:-1], graph.names[2:], strict=True))


def _chain(length: int) -> Any:
    """Return a module that negates so many times."""
    import torch

    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(length):
                x = x.neg()
            return x

    return Chain()
