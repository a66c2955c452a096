"""Run benchmarks, each in a process of its own: ``python -m benchmarks [--headline | --stale]``.

Those of all stored results, or with ``--headline`` of what README quotes. What was measured on the code of today is not
measured again, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys

from benchmarks.provenance import commits_behind, is_shown, is_stale
from benchmarks.record import RESULTS

HEADLINE = (
    ("components.startup",),
    ("components.slicing",),
    ("papers.inc_ilp",),
    ("components.agent_stages", "--parts", "imagenet"),
    ("papers.mtpp", "--dataset", "zoo", "--graphs", "20", "--only-schedule"),
    ("papers.mtpp", "--dataset", "regal", "--graphs", "1", "--time-limit-s", "30", "--only-schedule"),
    ("papers.dnn_partitioning", "--loose-seconds", "10"),
    ("papers.diviml", "--part", "table1", "--seconds", "3", "--peer-seconds", "0"),
    ("papers.diviml", "--part", "table4", "--seconds", "2", "--peer-seconds", "0"),
    ("papers.moirai", "--part", "instances", "--seconds", "20"),
    ("families.task_graphs", "communication", "--time-limit-s", "10"),
    ("families.task_graphs", "stg", "--time-limit-s", "5"),
    ("families.task_graphs", "flexible-job-shop", "--time-limit-s", "10"),
    ("components.executors", "models"),
    ("components.time_limits", "--sample", "20", "--processor-time"),
)
"""What README and the first page of benchmarks quote."""


def headline() -> list[str]:
    """Return the commands of `HEADLINE`."""
    return [shlex.join(["python", "-m", f"benchmarks.{name}", *arguments]) for name, *arguments in HEADLINE]


def stored() -> list[str]:
    """Return the commands of all stored results, the quickest first."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    return [row["command"] for row in sorted(rows, key=lambda row: row["seconds"])]


def stale() -> dict[str, str]:
    """Return why files of results are no figures of today's code, by their names."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if not is_shown(data):
            found[path.stem] = "does not say which commit made it"
        elif is_stale(data):
            behind = commits_behind(data)
            found[path.stem] = f"{'?' if behind is None else behind} commits of its code behind {data['commit'][:7]}"
    return found


def measured() -> set[str]:
    """Return the commands whose results were made with the code of today."""
    outdated = stale()
    paths = [path for path in RESULTS.glob("*.json") if path.stem not in outdated]
    return {json.loads(path.read_text(encoding="utf-8"))["command"] for path in paths}


def main() -> int:
    """Run them in turn; return the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--headline", action="store_true", help="what README and the first page of benchmarks quote")
    only.add_argument("--stale", action="store_true", help="list the results whose code has changed, and run nothing")
    chosen = parser.parse_args()
    if chosen.stale:
        for name, why in stale().items():
            print(f"{name}: {why}")
        return 0
    done, failed = measured(), 0
    for command in headline() if chosen.headline else dict.fromkeys((*headline(), *stored())):
        if command in done:
            print(f"=== {command}: measured on this code already", flush=True)
            continue
        print(f"\n=== {command}", flush=True)
        failed += subprocess.run([sys.executable, *shlex.split(command)[1:]], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
