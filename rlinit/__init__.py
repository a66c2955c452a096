"""rlinit: schedules neural networks on hardware, and proves how good the schedule is.

>>> import rlinit
>>> graph = rlinit.Graph.build([("a", {"time_s": 2.0}), ("b", {"time_s": 1.0})], [("a", "b")])
>>> plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), objective="pipeline")
>>> plan.status, plan.value, plan.assignment
('optimal', 2.0, {'a': 0, 'b': 1})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if TYPE_CHECKING:
    from rlinit.checker import verify
    from rlinit.executors import run
    from rlinit.graph import Graph
    from rlinit.hardware import Device, Hardware
    from rlinit.importers import load_graph
    from rlinit.plan import Plan
    from rlinit.solving.api import ProvenBound, bound, schedule
    from rlinit.sweeping.runs import sweep

__all__ = [
    "Device",
    "Graph",
    "Hardware",
    "Plan",
    "ProvenBound",
    "bound",
    "load_graph",
    "run",
    "schedule",
    "sweep",
    "verify",
]

__version__ = "0.2.0"

_HOME = {
    "Device": "rlinit.hardware",
    "Graph": "rlinit.graph",
    "Hardware": "rlinit.hardware",
    "Plan": "rlinit.plan",
    "ProvenBound": "rlinit.solving.api",
    "bound": "rlinit.solving.api",
    "load_graph": "rlinit.importers",
    "run": "rlinit.executors",
    "schedule": "rlinit.solving.api",
    "sweep": "rlinit.sweeping.runs",
    "verify": "rlinit.checker",
}


__getattr__ = late_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
