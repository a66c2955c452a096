"""The command line: ``rlinit schedule``, `bound`, `inspect`, `bench`, `sweep`, `llm`, `run` and the others.

Exit codes: 0 a schedule (or figures) was printed, 2 the input is wrong, 3 proven infeasible, 4 the budget ended
without a schedule, 130 interrupted by Ctrl-C or SIGTERM (the incumbent is printed and saved if there is one).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import rlinit
from rlinit.cli.compare import Bench, compare_methods
from rlinit.cli.doctor import Doctor, examine_machine
from rlinit.cli.export import Export, export_plan
from rlinit.cli.inspect import Inspect, inspect_model
from rlinit.cli.language_models import Llm, plan_language_model
from rlinit.cli.output import EXIT_CODES, escape_markup
from rlinit.cli.run import Calibrate, Measure, Run, calibrate_costs, measure_model, run_plan
from rlinit.cli.schedule import Bound, Schedule, prove_bound, schedule_model
from rlinit.cli.sweep import Sweep, sweep_hardware
from rlinit.cli.verify import Verify, verify_plan
from rlinit.errors import RlinitError
from rlinit.limits import closest

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Compile:
    """Compile every kernel now, once on a machine, rather than within the time of the first schedules."""


_COMMANDS: dict[str, type] = {
    "schedule": Schedule,
    "bound": Bound,
    "inspect": Inspect,
    "bench": Bench,
    "sweep": Sweep,
    "run": Run,
    "measure": Measure,
    "calibrate": Calibrate,
    "export": Export,
    "verify": Verify,
    "llm": Llm,
    "compile": Compile,
    "doctor": Doctor,
}

Command = (
    Annotated[Schedule, tyro.conf.subcommand("schedule")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Measure, tyro.conf.subcommand("measure")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Llm, tyro.conf.subcommand("llm")]
    | Annotated[Compile, tyro.conf.subcommand("compile")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process if None.
    """
    try:
        from rich.console import Console

        _take_termination_for_ctrl_c()
        return _run_telling(sys.argv[1:] if argv is None else argv, Console(stderr=True))
    except KeyboardInterrupt:
        print("rlinit: interrupted", file=sys.stderr)
        return EXIT_CODES["interrupted"]


def _run_telling(arguments: list[str], notes: Console) -> int:
    """Carry out the command; whatever ends it is told in a line, not in a traceback."""
    try:
        return _run(arguments, notes)
    except BrokenPipeError:  # whoever reads the output has seen enough; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CODES["interrupted"]
    except SystemExit as ended:  # tyro has printed what is wrong with the flags, or the help
        return ended.code if isinstance(ended.code, int) else EXIT_CODES["input"]
    except (RlinitError, OSError) as problem:
        notes.print(f"[bold red]rlinit:[/] {escape_markup(str(problem))}", highlight=False)
        return EXIT_CODES["input"]


def _take_termination_for_ctrl_c() -> None:
    """Let SIGTERM do what Ctrl-C does at that moment: the incumbent is printed and saved."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def _run(arguments: list[str], notes: Console) -> int:
    """Parse the arguments and carry out the command."""
    if arguments == ["--version"]:
        print(f"rlinit {rlinit.__version__}")
        return 0
    _refuse_unknown_command(arguments)
    arguments = _to_language_models(arguments, notes)
    command: Any = tyro.cli(
        Command,
        prog="rlinit",
        args=arguments,
        description="Split neural networks over devices, with proof. `rlinit --version` says which version this is.",
    )
    own = isinstance(command, (Bench, Sweep, Run, Measure, Calibrate, Compile))
    if own and threading.current_thread() is threading.main_thread():  # they have processes of their own to end
        signal.signal(signal.SIGINT, signal.default_int_handler)
    carry_out: dict[type, Callable[[], int]] = {
        Schedule: lambda: schedule_model(command, notes),
        Bound: lambda: prove_bound(command),
        Inspect: lambda: inspect_model(command),
        Bench: lambda: compare_methods(command, notes),
        Sweep: lambda: sweep_hardware(command, notes),
        Run: lambda: run_plan(command, arguments),
        Measure: lambda: measure_model(command),
        Calibrate: lambda: calibrate_costs(command),
        Export: lambda: export_plan(command),
        Verify: lambda: verify_plan(command),
        Llm: lambda: plan_language_model(command),
        Compile: lambda: _compile(notes),
        Doctor: lambda: examine_machine(command, notes),
    }
    return carry_out[type(command)]()


def _to_language_models(arguments: list[str], notes: Console) -> list[str]:
    """Return ``llm`` in place of ``schedule`` where the model is a configuration or GGUF file, which has no graph."""
    read = [text for text in arguments[1:] if Path(text).suffix.lower() in (".json", ".gguf")]
    if arguments[:1] != ["schedule"] or not read:
        return arguments
    from rlinit.importers import is_language_model

    if not any(map(is_language_model, read)):
        return arguments
    notes.print("rlinit: a language model; as for rlinit llm", highlight=False)
    return ["llm", *arguments[1:]]


def _refuse_unknown_command(arguments: list[str]) -> None:
    """Name the command that a misspelt one may stand for."""
    if not arguments or arguments[0].startswith("-") or arguments[0] in _COMMANDS:
        return
    hint = closest(arguments[0], _COMMANDS) or f"; expected {', '.join(_COMMANDS)}"
    raise RlinitError(f"there is no command {arguments[0]!r}{hint}")


def _compile(notes: Console) -> int:
    from rlinit.cli.warm_up import compile_kernels

    with notes.status("compiling") as status:
        seconds = compile_kernels(lambda step: status.update(f"compiling; done: {step}"))
    notes.print(f"compiled in {seconds:.0f} s; schedules find the kernels on disk" if seconds else "compiled already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
