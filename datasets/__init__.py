"""Model zoos, readers of published workloads, and graph generators.

The public modules are named here, whatever folder they live in: ``from rlinit.datasets import imagenet``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if __name__ != "rlinit.datasets":
    raise ImportError("import this package as rlinit.datasets, not as datasets")

if TYPE_CHECKING:
    from rlinit.datasets.published import (
        alwabp,
        assembly_line,
        dnn_partitioning,
        flexible_job_shop,
        gxl,
        moirai,
        pipedream,
        piper,
        stg,
    )
    from rlinit.datasets.random import randomly_wired, regal, synthetic
    from rlinit.datasets.zoo import imagenet, llm

__all__ = [
    "alwabp",
    "assembly_line",
    "dnn_partitioning",
    "flexible_job_shop",
    "gxl",
    "imagenet",
    "llm",
    "moirai",
    "pipedream",
    "piper",
    "randomly_wired",
    "regal",
    "stg",
    "synthetic",
]

__getattr__ = late_names(
    __name__,
    {
        "alwabp": "rlinit.datasets.published.alwabp",
        "assembly_line": "rlinit.datasets.published.assembly_line",
        "dnn_partitioning": "rlinit.datasets.published.dnn_partitioning",
        "flexible_job_shop": "rlinit.datasets.published.flexible_job_shop",
        "gxl": "rlinit.datasets.published.gxl",
        "imagenet": "rlinit.datasets.zoo.imagenet",
        "llm": "rlinit.datasets.zoo.llm",
        "moirai": "rlinit.datasets.published.moirai",
        "pipedream": "rlinit.datasets.published.pipedream",
        "piper": "rlinit.datasets.published.piper",
        "randomly_wired": "rlinit.datasets.random.randomly_wired",
        "regal": "rlinit.datasets.random.regal",
        "stg": "rlinit.datasets.published.stg",
        "synthetic": "rlinit.datasets.random.synthetic",
    },
)
