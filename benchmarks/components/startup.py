"""Seconds of ``import rlinit`` in a fresh process, and of a first plan on a machine that has compiled nothing yet.

Run as ``python -m benchmarks.components.startup``. All are seconds of processor time. Imports stand against a bare
interpreter and against importing numpy; those of first plans are among their seconds.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

from benchmarks.provenance import load_solvers
from benchmarks.record import print_table, save, take_no_options

STATEMENTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "rlinit": "import rlinit",
    "schedule": "from rlinit import schedule",
}

FIRST_PLAN = """
import json, time
from numba.core import event
import rlinit
from rlinit.datasets import imagenet
found = []
def progress(entry):
    if entry.values is not None and not found:
        found.append(time.process_time())
with event.install_recorder("numba:compile") as recorder:
    rlinit.schedule(imagenet.load({model!r}), {hardware}, objective={objective!r}, time_limit_s=5, progress=progress)
kernels = sum(1 for _, one in recorder.buffer if one.is_start)
print(json.dumps({{"first schedule": found[0], "all": time.process_time(), "compiled functions": kernels}}))
"""

FIRST_PLANS = {
    "latency": {"model": "inceptionv3", "hardware": 'rlinit.Hardware.preset("cpu-t4-a100")'},
    "pipeline": {"model": "resnet50", "hardware": "rlinit.Hardware.edge_tpus(4)"},
    "memory": {"model": "resnet50", "hardware": "rlinit.Hardware.edge_tpus(4)"},
}


def process_s(statement: str) -> float:
    """Return the processor seconds of a fresh process that runs a statement."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_plan(objective: str) -> dict[str, float]:
    """Return the processor seconds of a first plan without compiled code, to its first schedule and in all."""
    program = FIRST_PLAN.format(objective=objective, **FIRST_PLANS[objective])
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", program]
        told = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(told)
    return row


def main() -> None:
    """Time each statement and each first plan in fresh processes, and write the seconds."""
    take_no_options(__doc__)
    rows = {name: statistics.median(process_s(statement) for _ in range(7)) for name, statement in STATEMENTS.items()}
    print_table("processor seconds of a fresh process", ["imports", "median s"], rows.items())
    plans = {objective: first_plan(objective) for objective in FIRST_PLANS}
    columns = ["first schedule", "all", "compiled functions"]
    cells = [[objective, *(round(row[column], 1) for column in columns)] for objective, row in plans.items()]
    print_table("processor seconds of a first plan, nothing compiled", ["objective", *columns], cells)
    load_solvers()
    save("startup", {"imports": rows, "first plans": plans})


if __name__ == "__main__":
    main()
