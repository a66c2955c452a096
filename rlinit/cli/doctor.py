"""``rlinit doctor``: what this machine has, and a hardware file for it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinit.cli.inputs import check_endings, check_targets
from rlinit.cli.output import print_table
from rlinit.errors import BackendUnavailable
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from rlinit.measurement.machine import Machine

_PACKAGES = {
    "rlinit": "",
    "numpy": "",
    "scipy": "",
    "numba": "",
    "pyscipopt": "",
    "torch": "torch",
    "onnxruntime": "",
    "onnx": "onnx",
    "keras": "keras",
    "tflite": "tflite",
    "transformers": "",
    "gguf": "gguf",
    "ortools": "cp",
}
"""What is looked for, and the extra of rlinit that brings it; "": none, or always there."""


@dataclass(frozen=True)
class Doctor:
    """Measure this machine and say what is installed.

    With --out, the devices and their rates become a hardware file, for --hw of the other commands.
    """

    out: Path | None = None
    """Write this machine as hardware here (.json), for --hw."""
    seconds: float = 0.3
    """To measure each figure."""
    probe: bool = True
    """Fit what ops of all classes and sizes reach of the rates; some ten seconds a device."""
    threads: int | None = None
    """CPU threads of an op; without it, as many as torch takes."""
    json: bool = False
    """Print JSON instead of text."""


def examine_machine(command: Doctor, notes: Console) -> int:
    """Carry out ``rlinit doctor``; return the exit code.

    Parameters
    ----------
    command
        What to do.
    notes
        Where progress is shown.

    Raises
    ------
    RlinitError
        The file cannot be written, or torch, which rates are measured with, is not there and --out asks for them.
    """
    from rlinit.cli.warm_up import compiled_bytes, is_compiled
    from rlinit.kernels.compiled import cache_root
    from rlinit.measurement.machine import measure_machine

    check_targets(command.out)
    check_endings(command.out, "--out", ".json")
    machine: Machine | None = None
    problem = ""
    try:
        with notes.status("measuring"):
            machine = measure_machine(command.seconds, probe=command.probe, threads=command.threads, cache=cache_root())
    except BackendUnavailable as missing:
        if command.out is not None:
            raise
        problem = str(missing)
    usable = machine is not None and (command.out is not None or not machine.withheld)
    hardware = machine.hardware(platform.node() or "this machine") if machine is not None and usable else None
    row: dict[str, Any] = {
        "versions": _versions(),
        "system": {"platform": platform.platform(), "cores": os.cpu_count(), "load": _load()},
        "kernels_compiled": is_compiled(),
        "kernels_bytes": compiled_bytes(),
        "hardware": None if hardware is None else hardware.to_dict(),
        "devices": {} if machine is None else dict(machine.notes),
        "withheld": {} if machine is None else {": ".join(key): why for key, why in machine.withheld.items()},
    }
    if hardware is not None and command.out is not None:
        hardware.save(command.out)
    if command.json:
        print(json.dumps(row, indent=1))
    else:
        _print(row, machine, problem, command.out)
    return 0


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package, extra in _PACKAGES.items():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = f"not installed{f' (pip install rlinit[{extra}])' if extra else ''}"
    return found


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _print(row: dict[str, Any], machine: Machine | None, problem: str, out: Path | None) -> None:
    from rich.console import Console

    console = Console()
    for package, version in row["versions"].items():
        console.print(f"{package}: {version}", highlight=False, markup=False)
    console.print(f"kernels: {_kernels(row)}", highlight=False)
    load = row["system"]["load"]
    busy = "" if load is None else f", load {load:.1f}"
    console.print(f"system: {row['system']['platform']}, {row['system']['cores']} cores{busy}", highlight=False)
    if load is not None and load > 0.5:
        console.print("note: other work runs on this machine; what is measured now is less than it can do")
    if machine is None:
        console.print(f"devices: not measured; {problem}", highlight=False, markup=False)
        return
    rows = []
    for device in machine.devices:
        rates = device.flops_per_s if isinstance(device.flops_per_s, dict) else {}
        spread = max(value for (name, _), value in machine.spreads.items() if name == device.name)
        rows.append(
            (
                device.name,
                machine.notes[device.name],
                format_bytes(device.memory_bytes),
                "\n".join(f"{dtype} {rate / 1e12:.3g}" for dtype, rate in rates.items()),
                f"{format_bytes(device.bytes_per_s)}/s" if device.bytes_per_s else "-",
                format_seconds(device.launch_s) if device.launch_s else "-",
                f"{spread:.0%}",
            )
        )
    print_table(("device", "what", "memory", "TFLOPS by type", "bandwidth", "launch", "spread at most"), rows)
    for figure, why in row["withheld"].items():
        console.print(f"{figure} is not known: {why}", highlight=False, markup=False)
    if row["withheld"]:
        console.print("measure again when nothing else runs here; until then there is no hardware file (--out)")
    _print_efficiencies(machine)
    if machine.links is not None:
        console.print(str(machine.links), highlight=False)
    if out is not None:
        console.print(f"hardware: {out}", highlight=False)


def _kernels(row: dict[str, Any]) -> str:
    """Say what is compiled."""
    if row["kernels_compiled"]:
        return "compiled"
    later = "when they are first used, or all at once by rlinit compile"
    some = row["kernels_bytes"]
    return f"{format_bytes(some)} compiled so far, others {later}" if some else f"none compiled yet; they are {later}"


def _print_efficiencies(machine: Machine) -> None:
    """Print what ops of each class reach, where it was fitted."""
    rows = []
    for device in machine.devices:
        for name, one in device.efficiency.items():
            shares = [" ".join(f"{share:.0%}" for _, share in points) or "-" for points in (one.flops, one.bytes)]
            rows.append((device.name, name, *shares, format_seconds(one.launch_s or 0.0), f"{one.error or 0.0:.0%}"))
    if rows:
        print_table(("device", "ops", "of TFLOPS, by size", "of bandwidth, by size", "launch", "typical error"), rows)
