"""``rlinit verify``: check a plan, and the certificate of its bound, against the raw files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import rlinit
from rlinit.cli.inputs import load_hardware
from rlinit.plan import Plan


@dataclass(frozen=True)
class Verify:
    """Check a plan, and the proof of its bound.

    It has to be feasible and have its value, by the definitions; with a certificate, its bound has to be proven.
    """

    plan: Annotated[Path, tyro.conf.Positional]
    """The plan, as `rlinit schedule --out` writes it."""
    graph: Annotated[Path, tyro.conf.Positional]
    """The graph it is for, as JSON."""
    hardware: Annotated[str, tyro.conf.Positional]
    """The devices it is for: a file, or the name of a preset."""
    certificate: Annotated[Path | None, tyro.conf.Positional] = None
    """The proof of its bound, as `rlinit schedule --certify` writes it."""


def verify_plan(command: Verify) -> int:
    """Carry out ``rlinit verify``; return the exit code, 0 where nothing is wrong.

    Raises
    ------
    RlinitError
        A file cannot be read, or `rlinit.verify` refuses the plan.
    """
    from rlinit.certificates import check

    plan, graph = Plan.load(command.plan), rlinit.Graph.load(command.graph)
    hardware = load_hardware(command.hardware)
    if plan.stages:
        hardware = hardware.with_stages(plan.num_stages // plan.chunks)
    rlinit.verify(plan, graph, hardware)
    form = json.dumps(hardware.to_dict())
    line = check.answer(
        lambda: (
            check.read(str(command.plan), "rlinit-plan"),
            check.read(str(command.graph), "rlinit-graph"),
            check.parse(form, "rlinit-hardware", command.hardware),
            None if command.certificate is None else check.read(str(command.certificate), "rlinit-certificate"),
        )
    )
    print(line)
    return int(line.startswith("REFUTED"))
