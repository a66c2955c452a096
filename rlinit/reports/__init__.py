"""Plans as pictures and pages: Gantt charts, figures, an HTML report, a log folder of TensorBoard."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinit.reports.html import to_report
    from rlinit.reports.tensorboard import to_tensorboard

__all__ = ["to_report", "to_tensorboard"]

_HOME = {"to_report": "html", "to_tensorboard": "tensorboard"}


def __getattr__(name: str) -> object:
    """Import reports when they are first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlinit.reports' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlinit.reports.{_HOME[name]}"), name)
    globals()[name] = value
    return value
