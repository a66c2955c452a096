"""The machine at hand as hardware: its processor and GPUs, with memory and rates as they are measured now.

Rates are those of large matrix products by type of numbers, bandwidth that of one addition over a tensor far larger
than any cache, launch the time of an op on one number, each the best of several runs, as other work only slows them.
A figure that its runs do not agree on, or that was far better before, is withheld: the machine is at other work.
What ops of all classes and sizes reach of them is fitted to a probe (`rlinit.measurement.probe`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinit.errors import InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.importers.torch.export import import_torch
from rlinit.measurement.cache import Figure, MeasuredCache
from rlinit.measurement.ops import Measuring, device_versions, torch_threads
from rlinit.measurement.probe import probed_device
from rlinit.measurement.transfers import MeasuredTransfers, measure_transfers

if TYPE_CHECKING:
    import torch

_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_SIZES = {"cpu": (1024, 16 << 20), "cuda": (8192, 256 << 20)}
"""Rows of the matrices, and numbers of the tensor that is added to, by type of device."""
_LAUNCHES = 200
"""Kernels in one run: the cost of the clock is spread over them."""

_NEAR = 0.25
"""How far above the least of all runs a quarter of them may lie, and that one above the seconds of it that this process
is at work on the processor; else others are at work, and the least is not what the machine can do."""

_PATIENCE_S = 3.0
"""Most seconds that runs are repeated for because of either."""

_OFF = 2.0
"""How many times as slow as before a figure may be, and of the rate of matrix products what ops of a class may reach:
caches make some faster, but not by so much."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found and measured.

    Parameters
    ----------
    devices
        With the rates of those types of numbers that torch multiplies there, except for figures that are withheld.
    links
        Transfers between them; None with one device.
    notes
        Device name -> processor or GPU, threads and versions.
    spreads
        (device name, figure) -> interquartile range over median of what was measured.
    withheld
        (device name, figure) -> why what was measured is not what the device can do.
    """

    devices: tuple[Device, ...]
    links: MeasuredTransfers | None
    notes: Mapping[str, str] = field(default_factory=dict)
    spreads: Mapping[tuple[str, str], float] = field(default_factory=dict)
    withheld: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def hardware(self, name: str = "this machine") -> Hardware:
        """Return it as hardware; links that were not measured do not occur.

        Raises
        ------
        InvalidHardware
            A figure is withheld.
        """
        for (device, figure), reason in self.withheld.items():
            raise InvalidHardware(f"{device}: no {figure}, {reason}; measure again when nothing else runs here")
        mesh = Hardware.mesh(self.devices, name=name)
        return mesh if self.links is None else self.links.apply(mesh)


def measure_machine(
    seconds: float = 0.3, *, probe: bool = True, threads: int | None = None, cache: Path | None = None
) -> Machine:
    """Measure the processor and every CUDA GPU that torch sees.

    Parameters
    ----------
    seconds
        For each figure, above 0; there are some six a device.
    probe
        Also fit efficiencies to a probe, which takes some ten seconds a device.
    threads
        CPU threads of an op; None: as many as torch uses now.
    cache
        Folder that keeps the best figures of this machine, which those of now are compared with; None: they are not.

    Raises
    ------
    InvalidHardware
        `seconds` is not above 0.
    InvalidCostTable
        What is kept in `cache` cannot be read or written.
    BackendUnavailable
        torch is not installed.
    """
    torch = import_torch()
    if not seconds > 0:
        raise InvalidHardware(f"seconds is {seconds}; expected a number > 0")
    places = {"cpu": torch.device("cpu")}
    places |= {f"cuda:{at}": torch.device("cuda", at) for at in range(torch.cuda.device_count())}
    with torch_threads(threads):
        notes = {name: device_versions(place) for name, place in places.items()}
        found = [_Figures(name, None if cache is None else MeasuredCache(cache, notes[name])) for name in places]
        devices = [_device(figures, places[figures.name], seconds) for figures in found]
        if probe:
            devices = [
                _probed(one, figures, places[one.name], threads) for one, figures in zip(devices, found, strict=True)
            ]
        links = measure_transfers(list(places)) if len(places) > 1 else None
    spreads = {(one.name, figure): spread for one in found for figure, spread in one.spreads.items()}
    withheld = {(one.name, figure): reason for one in found for figure, reason in one.withheld.items()}
    return Machine(tuple(devices), links, notes, spreads, withheld)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Seconds of the quickest run and the part of them that this process was at work, and how far runs spread.

    A quarter of all runs lie within `near` above the quickest one; `spread` is the relative interquartile range.
    """

    least_s: float
    at_work: float
    near: float
    spread: float

    @property
    def disturbed(self) -> str:
        """Why the quickest run is not what the machine can do; nothing where it is."""
        if self.at_work * (1.0 + _NEAR) < 1.0:
            return f"this process had the processor for {self.at_work:.0%} of its best run, and others the rest"
        return f"three of four runs take {self.near:.0%} or more longer than the best" if self.near > _NEAR else ""


class _Figures:
    """The figures of a device as they are measured, in seconds of a unit of work; those not to be trusted apart."""

    def __init__(self, name: str, cache: MeasuredCache | None) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self.spreads: dict[str, float] = {}
        self.withheld: dict[str, str] = {}
        self._cache = cache
        self._former = {} if cache is None else cache.read()

    def take(self, figure: str, runs: _Runs, units: float) -> None:
        """Take runs of so many units of work each."""
        seconds, former = runs.least_s / units, self._former.get(f"machine {figure}")
        self.spreads[figure] = runs.spread
        if runs.disturbed:
            self.withheld[figure] = runs.disturbed
        elif former is not None and self._cache is not None and seconds > _OFF * former.seconds:
            slower = seconds / former.seconds
            self.withheld[figure] = f"{slower:.3g} times as slow as before (which {self._cache.path} keeps)"
        else:
            self.seconds[figure] = seconds
            if self._cache is not None and (former is None or seconds < former.seconds):
                self._cache.add({f"machine {figure}": Figure(seconds, runs.spread * seconds, 1)})

    def rate(self, figure: str) -> float | None:
        """Return units a second; None where the figure is withheld."""
        return 1.0 / self.seconds[figure] if figure in self.seconds else None


def _probed(device: Device, figures: _Figures, place: torch.device, threads: int | None) -> Device:
    """Return a device with the efficiencies of ops, where all else was measured and they are not beyond all bounds."""
    if figures.withheld:
        return device
    probed = probed_device(device, place, probe_settings(place, threads))
    most = {name: max((share for _, share in one.flops), default=0.0) for name, one in probed.efficiency.items()}
    name = max(most, key=most.__getitem__)
    if most[name] <= _OFF:
        return probed
    figures.withheld["efficiency"] = f"{name} seems to reach {most[name]:.0%} of the rate of matrix products"
    return device


def probe_settings(place: torch.device, threads: int | None) -> Measuring:
    """Return how to run the probe: by the time that its thread is at work, where it is a single one on a CPU.

    Parameters
    ----------
    place
        The device.
    threads
        CPU threads of an op; None: as many as torch uses now.
    """
    alone = threads == 1 and place.type == "cpu"
    return Measuring(repeats=20, threads=threads, clock="processor" if alone else "wall")


def _device(figures: _Figures, place: torch.device, seconds: float) -> Device:
    """Return a device with its memory, and its rates as measured."""
    import torch

    rows, count = _SIZES[place.type]
    for dtype, stored in _TYPES.items():
        if dtype == "tf32" and (place.type == "cpu" or torch.cuda.get_device_capability(place) < (8, 0)):
            continue
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            figures.take(dtype, *_product(getattr(torch, stored), place, rows, seconds))
        finally:
            torch.set_float32_matmul_precision(before)
    x = torch.zeros(count, device=place)
    y = torch.empty_like(x)
    moved_bytes = 2.0 * x.numel() * x.element_size()
    figures.take("bandwidth", _timed(lambda: torch.add(x, 1.0, out=y), place, seconds), moved_bytes)
    one = torch.zeros(1, device=place)
    figures.take("launch", _timed(lambda: [one.neg() for _ in range(_LAUNCHES)], place, seconds), _LAUNCHES)
    return Device(
        figures.name,
        "cpu" if place.type == "cpu" else torch.cuda.get_device_name(place),
        _memory_bytes(place),
        flops_per_s={dtype: rate for dtype in _TYPES if (rate := figures.rate(dtype)) is not None} or None,
        bytes_per_s=figures.rate("bandwidth"),
        launch_s=figures.seconds.get("launch", 0.0),
    )


def _product(dtype: torch.dtype, place: torch.device, most_rows: int, seconds: float) -> tuple[_Runs, float]:
    """Return runs of the largest matrix product of which some three fit the time, and its operations."""
    import torch

    rows = 128
    while True:
        a = torch.ones(rows, rows, dtype=dtype, device=place)
        runs = _timed(partial(torch.matmul, a, a), place, 0.0 if rows < most_rows else seconds)
        if rows >= most_rows or 3 * 8 * runs.least_s > seconds:
            return runs, 2.0 * rows**3
        rows *= 2


def _timed(work: Callable[[], Any], place: torch.device, seconds: float) -> _Runs:
    """Run some work 4 times or more after a first time, until the least is reached again or patience ends."""
    import torch

    def once() -> tuple[float, float]:
        started, worked = time.perf_counter(), time.process_time()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        taken_s = time.perf_counter() - started
        return taken_s, time.process_time() - worked if place.type == "cpu" else taken_s

    once()
    samples = [once() for _ in range(4)]
    while True:
        (least_s, worked_s), taken = min(samples), [each for each, _ in samples]
        low, middle, high = np.percentile(taken, [25.0, 50.0, 75.0]).tolist()
        runs = _Runs(least_s, worked_s / least_s, low / least_s - 1.0, (high - low) / middle)
        if sum(taken) >= seconds and (not runs.disturbed or sum(taken) >= _PATIENCE_S):
            return runs
        samples.append(once())


def _memory_bytes(place: torch.device) -> float:
    """Return the bytes of a GPU, or of the machine's memory; inf where the system does not tell."""
    import torch

    if place.type == "cuda":
        return float(torch.cuda.get_device_properties(place).total_memory)
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return float("inf")
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
