"""What a figure was made with: commit, loaded sources, command, machine, its load, seconds.

Sources are compared as code: comments, docstrings, reasons of phases and layout do not count, data files beside the
modules do.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlinit import solving
from rlinit.train.core.machine_info import machine

__all__ = ["COMMIT", "commits_behind", "is_shown", "is_stale", "load_solvers", "provenance"]

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent
_CLOCK, _WORK = time.perf_counter, time.process_time  # `record.count_processor_time` exchanges what `time` holds
_STARTED_S = _CLOCK()
_LOAD = os.getloadavg()
_FIELDS = (
    "command",
    "commit",
    "clean",
    "machine",
    "load",
    "seeds",
    "seconds",
    "processor_s",
    "sources",
    "sources_hash",
)


def _git(*arguments: str) -> str | None:
    """Return what git answers in the project, None where there is no git, no repository or no such commit."""
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _state() -> tuple[str | None, bool]:
    """Return the commit, and whether the tree is that commit's but for results and pages that quote them."""
    changes = _git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs")
    return _git("rev-parse", "HEAD"), changes == ""


_STATE = _state()
COMMIT = (_STATE[0] or "none")[:7]
"""The commit of the tree when this process began, in short."""


def provenance(seeds: tuple[int, ...]) -> dict[str, Any]:
    """Return what the figures of this process were made with.

    Parameters
    ----------
    seeds
        The seeds it drew with.
    """
    spec = sys.modules["__main__"].__spec__
    module = Path(sys.argv[0]).name if spec is None else spec.name.removesuffix(".__main__")
    loaded = _loaded_sources()
    return {
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "commit": _STATE[0],
        "clean": _STATE[1] and _state() == _STATE,
        "machine": machine(),
        "load": [round(load, 2) for load in (_LOAD[0], os.getloadavg()[0])],
        "seeds": list(seeds),
        "seconds": round(_CLOCK() - _STARTED_S, 1),
        "processor_s": round(_WORK(), 1),
        "sources": loaded,
        "sources_hash": _digest(loaded),
    }


def is_shown(data: Mapping[str, Any]) -> bool:
    """Return whether a file of results says all of what it was made with, and was made by a commit.

    Parameters
    ----------
    data
        What the file holds.
    """
    return all(field in data for field in _FIELDS) and data["commit"] is not None and data["clean"]


def is_stale(data: Mapping[str, Any]) -> bool:
    """Return whether sources that a file of results was made with are others today.

    Parameters
    ----------
    data
        What the file holds; `is_shown` is true of it.
    """
    return bool(_digest(data["sources"]) != data["sources_hash"])


def commits_behind(data: Mapping[str, Any]) -> int | None:
    """Return how many commits since have changed sources of a file of results.

    Parameters
    ----------
    data
        What the file holds; `is_shown` is true of it.

    Returns
    -------
    count
        0 where the code is the same, whatever was done to comments; None where the history does not reach back.
    """
    if not is_stale(data):
        return 0
    count = _git("rev-list", "--count", f"{data['commit']}..HEAD", "--", *map(str, _paths(data["sources"])))
    return None if count is None else max(1, int(count))  # changes that are not committed yet are one


def load_solvers() -> None:
    """Load all that solves, so that its sources are recorded where other processes did the solving."""
    for name in solving.__all__:
        getattr(solving, name)


def _loaded_sources() -> dict[str, str]:
    """Return the modules of the project that this process has loaded: folder -> names without suffix."""
    folders: dict[str, set[str]] = defaultdict(set)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if file else None
        inside = path and path.suffix == ".py" and path.is_relative_to(_ROOT) and ".venv" not in path.parts
        if path and inside and path.parent != _HERE:  # what only writes figures down does not change them
            folders[path.parent.relative_to(_ROOT).as_posix()].add(path.stem)
    return {folder: " ".join(sorted(names)) for folder, names in sorted(folders.items())}


def _paths(sources: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that stand behind recorded sources: the modules, and the data beside them."""
    for folder, names in sources.items():
        for name in names.split():
            yield _ROOT / folder / f"{name}.py"
        beside = (_ROOT / folder).iterdir() if (_ROOT / folder).is_dir() else ()
        yield from sorted(path for path in beside if path.suffix in (".toml", ".json", ".safetensors", ".csv"))


def _digest(sources: Mapping[str, str]) -> str:
    """Return the hash of the code in recorded sources; a file that is no more changes it."""
    total = hashlib.sha256()
    for path in _paths(sources):
        total.update(path.relative_to(_ROOT).as_posix().encode())
        total.update(_hash_of_file(path))
    return total.hexdigest()[:16]


@functools.cache
def _hash_of_file(path: Path) -> bytes:
    if not path.exists():
        return b"none"
    content = path.read_bytes()
    if path.suffix == ".py":
        content = ast.unparse(_without_prose(ast.parse(content))).encode()
    return hashlib.sha256(content).digest()


def _without_prose(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
        elif isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "because"]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
