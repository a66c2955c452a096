"""``python -m rlinit`` and ``rlinit``: the command line, which Ctrl-C may end from its first moment."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Carry out the command of this process's arguments and return its exit code."""
    signal.signal(signal.SIGINT, _leave)
    from rlinit.cli.main import main as carry_out

    return carry_out()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End at once, where nothing is at stake: an exception can be lost in the callbacks that imports leave behind."""
    os.write(2, b"rlinit: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
