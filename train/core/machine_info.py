"""What measured numbers depend on besides the code: the processor and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from rlinit.measurement.ops import cpu_name

_PACKAGES = ("rlinit", "numpy", "numba", "scipy", "pyscipopt", "keras", "torch")


def machine() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}
