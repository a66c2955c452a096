"""Run every benchmark, each in a process of its own: ``python -m benchmarks``."""

from __future__ import annotations

import subprocess
import sys

COMMANDS = (
    ("startup",),
    ("slicing",),
    ("dnn_partitioning",),
    ("inc_ilp",),
    ("mtpp", "--dataset", "zoo", "--graphs", "20", "--only-schedule"),
    ("mtpp", "--dataset", "regal", "--graphs", "5", "--only-schedule"),
    ("mtpp", "--dataset", "regal", "--graphs", "3", "--time-limit-s", "5"),
    ("diviml", "--part", "table1"),
    ("diviml", "--part", "table3"),
    ("diviml", "--part", "table4", "--seconds", "5", "--peer-seconds", "0"),
    ("diviml", "--part", "table4", "--seconds", "2", "--peer-seconds", "0", "--inputs", "128"),
    ("diviml", "--part", "small", "--seeds", "10", "--peer-seconds", "0"),
    ("diviml", "--part", "zoo"),
    ("diviml", "--part", "memory"),
    ("agent_placement", "--seeds", "1"),
    ("gpt3",),
    ("moirai", "--part", "instances"),
    ("moirai", "--part", "models"),
    ("importers",),
    *(("executors", part) for part in ("overhead", "gain", "pipeline", "models")),
    ("measured_costs",),
    ("activations",),
    ("agent_stages", "--graphs", "100", "--limit-s", "10", "--proofs", "4"),
)


def main() -> int:
    """Run them in turn; return the number that failed."""
    failed = 0
    for name, *arguments in COMMANDS:
        print(f"\n=== {name} {' '.join(arguments)}", flush=True)
        failed += subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
