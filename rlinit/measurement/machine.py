"""The machine at hand as hardware: its processor and GPUs, with memory and rates as they are measured now.

Rates are those of large matrix products by type of numbers, bandwidth that of one addition over a tensor far larger
than any cache, launch the time of an op on one number, each the best of several runs, as other work only slows them.
What ops of all classes and sizes reach of them is fitted to a probe (`rlinit.measurement.probe`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinit.errors import InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.importers.torch.export import import_torch
from rlinit.measurement.ops import Measuring, device_versions, torch_threads
from rlinit.measurement.probe import probed_device
from rlinit.measurement.transfers import MeasuredTransfers, measure_transfers

if TYPE_CHECKING:
    import torch

_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_SIZES = {"cpu": (1024, 16 << 20), "cuda": (8192, 256 << 20)}
"""Rows of the matrices, and numbers of the tensor that is added to, by type of device."""
_LAUNCHES = 200


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found and measured.

    Parameters
    ----------
    devices
        With the rates of those types of numbers that torch multiplies there.
    links
        Transfers between them; None with one device.
    notes
        Device name -> processor or GPU, threads and versions.
    spreads
        (device name, figure) -> interquartile range over median of what was measured.
    """

    devices: tuple[Device, ...]
    links: MeasuredTransfers | None
    notes: Mapping[str, str] = field(default_factory=dict)
    spreads: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def hardware(self, name: str = "this machine") -> Hardware:
        """Return it as hardware; links that were not measured do not occur."""
        mesh = Hardware.mesh(self.devices, name=name)
        return mesh if self.links is None else self.links.apply(mesh)


def measure_machine(seconds: float = 0.3, *, probe: bool = True, threads: int | None = None) -> Machine:
    """Measure the processor and every CUDA GPU that torch sees.

    Parameters
    ----------
    seconds
        For each figure, above 0; there are some six a device.
    probe
        Also fit efficiencies to a probe, which takes some ten seconds a device.
    threads
        CPU threads of an op; None: as many as torch uses now.

    Raises
    ------
    InvalidHardware
        `seconds` is not above 0.
    BackendUnavailable
        torch is not installed.
    """
    torch = import_torch()
    if not seconds > 0:
        raise InvalidHardware(f"seconds is {seconds}; expected a number > 0")
    places = {"cpu": torch.device("cpu")}
    places |= {f"cuda:{at}": torch.device("cuda", at) for at in range(torch.cuda.device_count())}
    spreads: dict[tuple[str, str], float] = {}
    with torch_threads(threads):
        devices = tuple(_device(name, place, seconds, spreads) for name, place in places.items())
        if probe:
            devices = tuple(
                probed_device(one, places[one.name], probe_settings(places[one.name], threads)) for one in devices
            )
        links = measure_transfers(list(places)) if len(places) > 1 else None
        notes = {name: device_versions(place) for name, place in places.items()}
    return Machine(devices, links, notes, spreads)


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


def _device(name: str, place: torch.device, seconds: float, spreads: dict[tuple[str, str], float]) -> Device:
    """Return a device with its memory, and its rates as measured."""
    import torch

    rows, count = _SIZES[place.type]
    rates = {}
    for dtype, stored in _TYPES.items():
        if dtype == "tf32" and (place.type == "cpu" or torch.cuda.get_device_capability(place) < (8, 0)):
            continue
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            rates[dtype], spreads[name, dtype] = _product_rate(getattr(torch, stored), place, rows, seconds)
        finally:
            torch.set_float32_matmul_precision(before)
    x = torch.zeros(count, device=place)
    y = torch.empty_like(x)
    add_s, spreads[name, "bandwidth"] = _timed(lambda: torch.add(x, 1.0, out=y), place, seconds)
    one = torch.zeros(1, device=place)
    launches_s, spreads[name, "launch"] = _timed(lambda: [one.neg() for _ in range(_LAUNCHES)], place, seconds)
    return Device(
        name,
        "cpu" if place.type == "cpu" else torch.cuda.get_device_name(place),
        _memory_bytes(place),
        flops_per_s=rates,
        bytes_per_s=2.0 * x.numel() * x.element_size() / add_s,
        launch_s=launches_s / _LAUNCHES,
    )


def _product_rate(dtype: torch.dtype, place: torch.device, most_rows: int, seconds: float) -> tuple[float, float]:
    """Return operations a second of the largest matrix product that some three fit the time, and their spread."""
    import torch

    rows = 128
    while True:
        a = torch.ones(rows, rows, dtype=dtype, device=place)
        product_s, spread = _timed(partial(torch.matmul, a, a), place, 0.0 if rows < most_rows else seconds)
        if rows >= most_rows or 3 * 8 * product_s > seconds:
            return 2.0 * rows**3 / product_s, spread
        rows *= 2


def _timed(work: Callable[[], Any], place: torch.device, seconds: float) -> tuple[float, float]:
    """Return the least seconds of some work, and its relative interquartile range; at least 3 times after a first."""
    import torch

    def once() -> float:
        started = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        return time.perf_counter() - started

    once()
    samples: list[float] = []
    while len(samples) < 3 or sum(samples) < seconds:
        samples.append(once())
    low, middle, high = np.percentile(samples, [25.0, 50.0, 75.0]).tolist()
    return min(samples), (high - low) / middle


def _memory_bytes(place: torch.device) -> float:
    """Return the bytes of a GPU, or of the machine's memory; inf where the system does not tell."""
    import torch

    if place.type == "cuda":
        return float(torch.cuda.get_device_properties(place).total_memory)
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return float("inf")
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
