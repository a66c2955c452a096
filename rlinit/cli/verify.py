"""``rlinit verify``: check a plan, and the certificate of its bound, against the raw files."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

import rlinit
from rlinit.cli.inputs import load_hardware
from rlinit.errors import RlinitError
from rlinit.plan import Plan


@dataclass(frozen=True)
class Verify:
    """Check a plan, and the proof of its bound.

    It has to be feasible and have its value, by the definitions; with a certificate, its bound has to be proven.
    """

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|PLAN")]
    """The folder that `rlinit schedule --certify` writes, alone; or a plan, as --out writes it, with what follows."""
    graph: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[GRAPH")] = None
    """The graph it is for (.json); of a layout of `rlinit serve` its rates, alone."""
    hardware: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="HARDWARE")] = None
    """The devices it is for: a file, or the name of a preset."""
    certificate: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CERTIFICATE]]")] = None
    """The proof of its bound."""


def verify_plan(command: Verify) -> int:
    """Carry out ``rlinit verify``; return the exit code, 0 where nothing is wrong.

    Raises
    ------
    RlinitError
        A file is not named or cannot be read, or `rlinit.verify` refuses the plan.
    """
    from rlinit.certificates import check

    command = _files(command)
    if command.graph is not None and command.hardware is None:
        return _verify_serving(command.plan, command.graph)
    if command.graph is None or command.hardware is None:
        raise RlinitError("give the folder that rlinit schedule --certify writes, or plan, graph and hardware")
    plan, graph = Plan.load(command.plan), rlinit.Graph.load(command.graph)
    hardware = load_hardware(command.hardware)
    if plan.stages and plan.groups is None:
        hardware = hardware.with_stages(plan.num_stages // plan.chunks)
    rlinit.verify(plan, graph, hardware)
    form = json.dumps(hardware.to_dict())
    line = check.answer(
        lambda: (
            check.read(str(command.plan), "rlinit-plan"),
            check.read(str(command.graph), "rlinit-graph"),
            check.parse(form, "rlinit-hardware", str(command.hardware)),
            None if command.certificate is None else check.read(str(command.certificate), "rlinit-certificate"),
        )
    )
    print(line)
    return int(line.startswith("REFUTED"))


def _verify_serving(layout: Path, fleet: Path) -> int:
    """Check a layout that serves against the rates that it is for; return the exit code."""
    from rlinit.certificates import check

    line = check.answer(
        lambda: (check.read(str(layout), "rlinit-serving"), check.read(str(fleet), "rlinit-fleet"), None, None)
    )
    print(line)
    return int(line.startswith("REFUTED"))


def _files(command: Verify) -> Verify:
    """Return the command with the files of its folder, where it names one."""
    folder = command.plan
    if not folder.is_dir():
        return command
    if command.graph is not None:
        raise RlinitError(f"{folder} is a folder, whose files are taken; leave out {str(command.graph)!r}")
    proof = folder / "certificate.json"
    return replace(
        command,
        plan=folder / "plan.json",
        graph=folder / "graph.json",
        hardware=str(folder / "hardware.json"),
        certificate=proof if proof.exists() else None,
    )
