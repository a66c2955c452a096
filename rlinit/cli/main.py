"""The command line: ``rlinit schedule``, `bound`, `inspect`, `bench`, `sweep`, `llm`, `run` and the others.

Exit codes: 0 a schedule (or figures) was printed, 2 the input is wrong, 3 proven infeasible, 4 the budget ended
without a schedule, 130 interrupted by Ctrl-C or SIGTERM (the incumbent is printed and saved if there is one).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import rlinit
from rlinit.cli import EXIT_CODES
from rlinit.errors import RlinitError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class _Command:
    """Where a command is: nothing of it is imported before it is named.

    Parameters
    ----------
    home, options, carry_out
        Module of `rlinit.cli`, the class of its flags, and the function that carries it out. Beside the flags it may
        take ``notes``, where progress is shown, and the ``arguments``.
    line
        What it does, as the list of commands says; the class says the same at its beginning.
    ends_by_itself
        Whether Ctrl-C raises in it: it has processes of its own to end, or loops that no incumbent comes of.
    """

    home: str
    options: str
    carry_out: str
    line: str
    ends_by_itself: bool = False

    def find(self, name: str) -> Any:
        """Return the class or function of this name."""
        return getattr(importlib.import_module(f"rlinit.cli.{self.home}"), name)


COMMANDS: Mapping[str, _Command] = {
    "schedule": _Command(
        "schedule", "Schedule", "schedule_model", "Split a model over devices and prove how good the split is."
    ),
    "bound": _Command("schedule", "Bound", "prove_bound", "Prove what no schedule of a model can be better than."),
    "inspect": _Command(
        "inspect", "Inspect", "inspect_model", "Show what a model's graph holds and what its ops cost."
    ),
    "bench": _Command(
        "compare", "Bench", "compare_methods", "Compare several methods on one model, side by side.", True
    ),
    "sweep": _Command("sweep", "Sweep", "sweep_hardware", "Compare models on many kinds of hardware.", True),
    "run": _Command("run", "Run", "run_plan", "Run a plan on its model; compare times and outputs.", True),
    "measure": _Command("run", "Measure", "measure_model", "Measure every op of a model on this machine.", True),
    "calibrate": _Command(
        "run",
        "Calibrate",
        "calibrate_costs",
        "Put measured times into a cost table, or fit efficiencies.",
        True,
    ),
    "export": _Command("export", "Export", "export_plan", "Write a plan in the formats of other tools."),
    "verify": _Command("verify", "Verify", "verify_plan", "Check a plan, and the proof of its bound."),
    "llm": _Command(
        "language_models", "Llm", "plan_language_model", "Split a language model over devices, layer by layer."
    ),
    "serve": _Command(
        "language_models", "Serve", "serve_model", "Lay a model out on unlike machines, to serve most tokens."
    ),
    "compile": _Command("compile", "Compile", "compile_ahead", "Compile all kernels now, once on a machine.", True),
    "doctor": _Command("doctor", "Doctor", "examine_machine", "Measure this machine and say what is installed."),
}
"""What there is, in the order of the help."""


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
        from rich.markup import escape

        notes.print(f"[bold red]rlinit:[/] {escape(str(problem))}", highlight=False)
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
    command = parse(arguments)
    if hasattr(command, "reading"):
        command.reading.check()
    entry = COMMANDS[arguments[0]]
    if entry.ends_by_itself and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    carry_out, given = entry.find(entry.carry_out), {"notes": notes, "arguments": arguments}
    taken = [name for name in given if name in inspect.signature(carry_out).parameters]
    code: int = carry_out(command, **{name: given[name] for name in taken})
    return code


def parse(arguments: list[str]) -> Any:
    """Return the flags of a command line as the class of its command.

    Without a command, or with one that does not exist, the list of commands is printed.

    Parameters
    ----------
    arguments
        Arguments without the program's name.

    Raises
    ------
    SystemExit
        tyro printed help, or what is wrong with the flags.
    """
    if arguments and arguments[0] in COMMANDS:
        entry = COMMANDS[arguments[0]]
        return tyro.cli(entry.find(entry.options), prog=f"rlinit {arguments[0]}", args=arguments[1:])
    listed: list[Any] = [
        Annotated[make_dataclass(entry.options, ()), tyro.conf.subcommand(name, description=entry.line)]
        for name, entry in COMMANDS.items()
    ]
    kinds: Any = functools.reduce(operator.or_, listed)
    about = "Split neural networks over devices, with proof. `rlinit --version` says which version this is."
    return tyro.cli(kinds, prog="rlinit", args=arguments or ["--help"], description=about)


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
    if not arguments or arguments[0].startswith("-") or arguments[0] in COMMANDS:
        return
    from rlinit.limits import closest  # which imports NumPy

    hint = closest(arguments[0], COMMANDS) or f"; expected {', '.join(COMMANDS)}"
    raise RlinitError(f"there is no command {arguments[0]!r}{hint}")


if __name__ == "__main__":
    sys.exit(main())
