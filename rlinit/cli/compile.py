"""``rlinit compile``: kernels compiled ahead of the first schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Compile:
    """Compile all kernels now, once on a machine.

    What is not compiled is compiled when it is first used, and that call takes so much longer.
    """


def compile_ahead(_command: Compile, notes: Console) -> int:
    """Carry out ``rlinit compile``; return the exit code.

    Parameters
    ----------
    notes
        Where progress is shown.
    """
    from rlinit.cli.warm_up import compile_kernels

    with notes.status("compiling") as status:
        seconds = compile_kernels(lambda step: status.update(f"compiling; done: {step}"))
    notes.print(f"compiled in {seconds:.0f} s; schedules find the kernels on disk" if seconds else "compiled already")
    return 0
