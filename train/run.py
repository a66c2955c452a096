"""Train an agent: ``python train/run.py --task stages``. See docs/guides/training.md.

Exit codes: 0 training ended, 2 the input is wrong, 3 training failed (the state saved last is whole), 130 stopped by a
signal (resume to go on).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

if __name__ == "__main__" and not __package__:
    # Started as a file: the folder beside the package, not the package's own folder, is where imports start.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import tyro

from rlinit.errors import CheckpointError, InvalidConfig, RlinitError
from rlinit.train.core.config import TrainConfig, config_from_dict, read_config, smoke

P = TypeVar("P")
EXIT_INPUT, EXIT_FAILED, EXIT_STOPPED = 2, 3, 130


@dataclass(frozen=True)
class Command(Generic[P]):
    """Train an agent."""

    training: Annotated[TrainConfig[P], tyro.conf.arg(name="")]
    config: Path | None = None
    """Read the configuration from this .toml or .json file; flags override it."""
    resume: Path | None = None
    """Go on with the run in this folder, with its configuration; only steps, minutes and the like may change."""
    smoke: bool = False
    """Begin from a dozen small steps, to see that everything works; other flags override what it sets."""


@dataclass(frozen=True)
class _First:
    """The flags that the meaning of the others depends on."""

    task: str | None = None
    network: str | None = None
    config: Path | None = None
    resume: Path | None = None
    smoke: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, train, and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        command = _parse(given)
        return _train(command, f"python train/run.py {shlex.join(given)}")
    except (InvalidConfig, CheckpointError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_INPUT
    except RlinitError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_FAILED


def _parse(given: list[str]) -> Command[Any]:
    """Return the command: file or resumed run first, what `--smoke` sets over it, and all other flags over that."""
    known = [flag for flag in given if flag not in ("-h", "--help")]
    first: _First = tyro.cli(_First, args=known, return_unknown_args=True)[0]
    if first.resume is not None:
        default = replace(read_config(first.resume / "config.json"), run_dir=first.resume)
    elif first.config is not None:
        default = read_config(first.config, first.task, first.network)
    else:
        chosen = {"task": first.task, "network": first.network}
        default = config_from_dict({key: value for key, value in chosen.items() if value}, "the command line")
        default = replace(default, run_dir=Path("runs") / f"{default.task}-{default.network}")
    if first.smoke:
        default = smoke(default)
    generic: Any = Command
    found: Command[Any] = tyro.cli(
        generic[type(default.problem)], args=given, default=Command(default), prog="train/run.py"
    )
    return found


def _train(command: Command[Any], command_line: str) -> int:
    from rlinit.train.loop import train
    from rlinit.train.tasks.protocol import task_class

    config = command.training
    task = task_class(config.task, config.network)(config.problem)
    progress = train(config, task, resume=command.resume is not None, command=command_line)
    return 0 if progress.done or config.imitation.labels_only else EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
