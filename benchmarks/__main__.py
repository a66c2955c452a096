"""Run every benchmark, each in a process of its own: ``python -m benchmarks``."""

from __future__ import annotations

import subprocess
import sys

COMMANDS = (
    ("components.startup",),
    ("components.slicing",),
    ("papers.dnn_partitioning",),
    ("papers.inc_ilp",),
    ("papers.mtpp", "--dataset", "zoo", "--graphs", "20", "--only-schedule"),
    ("papers.mtpp", "--dataset", "regal", "--graphs", "5", "--only-schedule"),
    ("papers.mtpp", "--dataset", "regal", "--graphs", "3", "--time-limit-s", "5"),
    ("papers.diviml", "--part", "table1"),
    ("papers.diviml", "--part", "table3"),
    ("papers.diviml", "--part", "table4", "--seconds", "5", "--peer-seconds", "0"),
    ("papers.diviml", "--part", "table4", "--seconds", "2", "--peer-seconds", "0", "--inputs", "128"),
    ("papers.diviml", "--part", "small", "--seeds", "10", "--peer-seconds", "0"),
    ("papers.diviml", "--part", "zoo"),
    ("papers.diviml", "--part", "memory"),
    ("components.agent_latency", "--seeds", "1"),
    ("papers.diviml_gpt3",),
    ("papers.moirai", "--part", "instances"),
    ("papers.moirai", "--part", "models"),
    ("components.importers",),
    *(("components.executors", part) for part in ("overhead", "gain", "pipeline", "models")),
    ("components.measured_costs",),
    *(("families.training_pipelines", part) for part in ("plans", "published", "trained")),
    ("papers.mtpp_activations",),
    ("papers.assembly_lines", "--tasks", "100"),
    ("papers.assembly_lines", "--tasks", "1000"),
    ("papers.alwabp",),
    ("families.task_graphs", "communication"),
    ("families.task_graphs", "stg", "--every", "6"),
    ("families.task_graphs", "flexible-job-shop"),
    *(("families.placements", name) for name in ("unrelated", "randomly-wired", "imported", "large")),
    ("families.first_answers", "--time-limit-s", "5"),
    *((f"learning.{name}",) for name in ("multipliers", "costs", "branching")),
    ("learning.strategy", "flow"),
    ("learning.shares", "--seconds", "1"),
    ("components.agent_stages", "--graphs", "100", "--limit-s", "10", "--proofs", "4"),
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
