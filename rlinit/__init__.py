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
    from rlinit.checker import verify as verify
    from rlinit.executors import run as run
    from rlinit.graph import Graph as Graph
    from rlinit.hardware import Device as Device
    from rlinit.hardware import Hardware as Hardware
    from rlinit.importers import load_graph as load_graph
    from rlinit.plan import Plan as Plan
    from rlinit.solving.api import ProvenBound as ProvenBound
    from rlinit.solving.api import bound as bound
    from rlinit.solving.api import schedule as schedule
    from rlinit.sweeping.runs import sweep as sweep

__version__ = "0.2.0"

__getattr__, __all__ = late_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
