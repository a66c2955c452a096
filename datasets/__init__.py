"""Model zoos, readers of published workloads, and graph generators.

The public modules are named here, whatever folder they live in: ``from rlinit.datasets import imagenet``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if __name__ != "rlinit.datasets":
    raise ImportError("import this package as rlinit.datasets, not as datasets")

if TYPE_CHECKING:
    from rlinit.datasets.published import alwabp as alwabp
    from rlinit.datasets.published import assembly_line as assembly_line
    from rlinit.datasets.published import dnn_partitioning as dnn_partitioning
    from rlinit.datasets.published import flexible_job_shop as flexible_job_shop
    from rlinit.datasets.published import gxl as gxl
    from rlinit.datasets.published import moirai as moirai
    from rlinit.datasets.published import pipedream as pipedream
    from rlinit.datasets.published import piper as piper
    from rlinit.datasets.published import stg as stg
    from rlinit.datasets.random import randomly_wired as randomly_wired
    from rlinit.datasets.random import regal as regal
    from rlinit.datasets.random import synthetic as synthetic
    from rlinit.datasets.zoo import imagenet as imagenet
    from rlinit.datasets.zoo import llm as llm

__getattr__, __all__ = late_names(__name__)
