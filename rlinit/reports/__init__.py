"""Plans as pictures and pages: Gantt charts, figures, an HTML report, a log folder of TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if TYPE_CHECKING:
    from rlinit.reports.html import to_report
    from rlinit.reports.tensorboard import to_tensorboard

__all__ = ["to_report", "to_tensorboard"]

__getattr__ = late_names(__name__, {"to_report": "rlinit.reports.html", "to_tensorboard": "rlinit.reports.tensorboard"})
