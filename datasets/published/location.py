"""Where the published instances are: data of other authors, read where it is and not part of this project."""

from __future__ import annotations

import os
from pathlib import Path

from rlinit.errors import RlinitError

__all__ = ["instances_root"]

_VARIABLE = "RLINIT_INSTANCES"


def instances_root() -> Path | None:
    """Return the folder of published instances, None where there is none.

    It is the one the environment variable ``RLINIT_INSTANCES`` names, else ``../shared/instances`` relative to the
    repository's root.

    Raises
    ------
    RlinitError
        ``RLINIT_INSTANCES`` names something that is not a folder.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        root = Path(named)
        if not root.is_dir():
            raise RlinitError(f"{_VARIABLE} is {named!r}, which is not a folder; unset it or correct it")
        return root
    root = Path(__file__).resolve().parents[3] / "shared" / "instances"
    return root if root.is_dir() else None
