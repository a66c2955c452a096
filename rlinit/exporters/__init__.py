"""Plans in the formats of other tools: traces, Graphviz, device maps, HTML reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinit.exporters.device_map import to_device_map
    from rlinit.exporters.dot import to_dot
    from rlinit.exporters.report import to_report
    from rlinit.exporters.trace import to_trace

__all__ = ["to_device_map", "to_dot", "to_report", "to_trace"]

_HOME = {"to_device_map": "device_map", "to_dot": "dot", "to_report": "report", "to_trace": "trace"}


def __getattr__(name: str) -> object:
    """Import exporters when they are first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlinit.exporters' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlinit.exporters.{_HOME[name]}"), name)
    globals()[name] = value
    return value
