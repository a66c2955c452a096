"""Train an agent: ``python train/run.py --task stages``. See docs/guides/training.md.

Exit codes: 0 training ended, 2 the input is wrong, 3 training failed (the state saved last is whole), 130 stopped by a
signal (resume to go on).
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # Started as a file: the folder beside the package, not the package's own folder, is where imports start.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rlinit.errors import CheckpointError, InvalidConfig, RlinitError
from rlinit.train.core.config import parse
from rlinit.train.tasks.protocol import task_class

EXIT_CODES = {"input": 2, "failed": 3, "interrupted": 130}
"""Of input that is refused, of what failed otherwise, and of Ctrl-C as in shells."""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, train, and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        command = parse(given)
        from rlinit.train.loop import train

        config = command.training
        task = task_class(config.task, config.network)(config.problem)
        typed = f"python train/run.py {shlex.join(given)}"
        progress = train(config, task, resume=command.resume is not None, command=typed)
    except RlinitError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_CODES["input" if isinstance(problem, InvalidConfig | CheckpointError) else "failed"]
    return 0 if progress.done else EXIT_CODES["interrupted"]


if __name__ == "__main__":
    sys.exit(main())
