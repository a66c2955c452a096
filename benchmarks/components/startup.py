"""Seconds of ``import rlinit`` in a fresh process, against a bare interpreter and against importing numpy.

Run as ``python -m benchmarks.components.startup``.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.record import median_seconds, print_table, save

STATEMENTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "rlinit": "import rlinit",
    "schedule": "from rlinit import schedule",
}


def main() -> None:
    """Time each statement in fresh processes and write the medians."""
    rows = {
        name: median_seconds(partial(subprocess.run, [sys.executable, "-c", statement], check=True), 7)
        for name, statement in STATEMENTS.items()
    }
    print_table("seconds of a fresh process", ["imports", "median s"], rows.items())
    save("startup", rows)


if __name__ == "__main__":
    main()
