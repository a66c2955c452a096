"""The shape of the package: what importing costs, one-way imports, declared packages, guarded folders."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import setuptools

import rlinit

ROOT = Path(__file__).resolve().parent.parent


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process at the repository's root."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_importing_rlinit_loads_nothing_heavy() -> None:
    """`import rlinit`, graphs and hardware load neither torch nor SCIP nor numba nor networkx."""
    heavy = "('torch', 'pyscipopt', 'numba', 'networkx', 'keras', 'matplotlib', 'scipy')"
    code = f"import sys, rlinit; rlinit.Graph, rlinit.Hardware; print([m for m in {heavy} if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_solving_loads_no_torch() -> None:
    """The solvers are loaded with `rlinit.schedule`; torch is for training, execution and learned agents of its own."""
    heavy = "('torch', 'networkx', 'keras', 'matplotlib')"
    code = f"import sys, rlinit; rlinit.schedule, rlinit.bound; print([m for m in {heavy} if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_the_command_line_starts_without_solvers() -> None:
    """Help, versions and wrong flags wait for no solver to be imported."""
    heavy = "('torch', 'pyscipopt', 'numba', 'networkx', 'keras', 'matplotlib', 'scipy')"
    code = f"import sys, rlinit.cli.main; print([m for m in {heavy} if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_public_names_exist() -> None:
    """Every name in __all__ can be had, and an unknown one is an AttributeError."""
    for name in rlinit.__all__:
        assert getattr(rlinit, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        rlinit.nonsense  # noqa: B018


def test_packages_are_found_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every package folder is packaged once, the top level's by their own folders and not by the links to them."""
    said: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: said.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    folders = {top.replace(".", "/"): folder for top, folder in said["package_dir"].items()}
    linked = {name: folder for name, folder in folders.items() if name != folder}
    on_disk = set()
    for folder in folders.values():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if "/".join(parts[:2]) not in linked:
                on_disk.add(".".join(parts if folder == "rlinit" else ("rlinit", *parts)))
    assert all((ROOT / name).resolve() == ROOT / folder for name, folder in linked.items())
    assert set(said["packages"]) == on_disk
    assert len(said["packages"]) == len(on_disk) > len(linked)


@pytest.mark.parametrize("name", ["exact", "datasets", "train", "checkpoints"])
def test_linked_packages_refuse_their_bare_names(name: str) -> None:
    """`import exact` from the repository's root is refused with the right name."""
    result = run(f"import {name}")
    assert result.returncode != 0
    assert f"import this package as rlinit.{name}" in result.stderr


def imports_of(path: Path) -> set[str]:
    """Return the modules of this project that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rlinit"):
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("rlinit")}
    return found


@pytest.mark.parametrize(
    ("objective", "other"),
    [("memory", "rlinit.exact.placements.split.solve"), ("latency", "rlinit.exact.stages.ideals.solve")],
)
def test_a_problem_loads_the_strategies_of_its_own_kind(objective: str, other: str) -> None:
    """Pipelines wait for no kernel of placements, nor placements for those of pipelines; neither for joblib."""
    code = (
        "import sys, rlinit\n"
        "graph = rlinit.Graph.build([('a', {'time_s': 1.0}), ('b', {'time_s': 1.0})], [('a', 'b')])\n"
        f"plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), objective={objective!r})\n"
        f"print(plan.status, [m for m in ({other!r}, 'joblib') if m in sys.modules])"
    )
    assert run(code).stdout.strip() == "optimal []"
