"""Names of a package that are imported when they are first used: importing the package costs next to nothing."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def late_names(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the ``__getattr__`` and the ``__all__`` of a package whose ``if TYPE_CHECKING:`` imports what it has.

    So a name and the module that has it stand in one line, which type checkers read as well.

    Parameters
    ----------
    package
        Its own name; what it has are modules below it, and names ``from module import name as name``.
    """
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_bytes())
    blocks = [block.body for block in tree.body if isinstance(block, ast.If)]
    homes = {
        alias.name: node.module or ""
        for block in blocks
        for node in block
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            value: Any = importlib.import_module(f"{package}.{name}")
        else:
            value = getattr(__import__(homes[name], fromlist=[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, sorted(homes)
