"""Model zoos, readers of published workloads, and graph generators.

The public modules are named here, whatever folder they live in: ``from rlinit.datasets import imagenet``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if __name__ != "rlinit.datasets":
    raise ImportError("import this package as rlinit.datasets, not as datasets")

if TYPE_CHECKING:
    from rlinit.datasets.published import (
        alwabp,
        assembly_line,
        blocking_calls,
        dnn_partitioning,
        flexible_job_shop,
        gxl,
        moirai,
        pipedream,
        stg,
    )
    from rlinit.datasets.random import randomly_wired, regal, synthetic
    from rlinit.datasets.zoo import imagenet, llm

__all__ = [
    "alwabp",
    "assembly_line",
    "blocking_calls",
    "dnn_partitioning",
    "flexible_job_shop",
    "gxl",
    "imagenet",
    "llm",
    "moirai",
    "pipedream",
    "randomly_wired",
    "regal",
    "stg",
    "synthetic",
]

_HOME = {
    "alwabp": "published",
    "assembly_line": "published",
    "blocking_calls": "published",
    "dnn_partitioning": "published",
    "flexible_job_shop": "published",
    "gxl": "published",
    "imagenet": "zoo",
    "llm": "zoo",
    "moirai": "published",
    "pipedream": "published",
    "randomly_wired": "random",
    "regal": "random",
    "stg": "published",
    "synthetic": "random",
}


def __getattr__(name: str) -> object:
    """Import modules when they are first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlinit.datasets' has no attribute {name!r}")
    return importlib.import_module(f"rlinit.datasets.{_HOME[name]}.{name}")
