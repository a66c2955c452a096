"""The shape of the package: what importing costs, one-way imports, declared packages, guarded folders."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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


def test_declared_packages_are_the_ones_on_disk() -> None:
    """Pyproject declares every package folder and no other, and maps the linked ones."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    linked = {"exact", "datasets", "train", "checkpoints"}
    on_disk = {"rlinit"}
    for init in (ROOT / "rlinit").rglob("__init__.py"):
        if not linked & set(init.relative_to(ROOT).parts):
            on_disk.add(".".join(init.parent.relative_to(ROOT).parts))
    for name in linked:
        assert (ROOT / "rlinit" / name).resolve() == ROOT / name
        assert config["package-dir"][f"rlinit.{name}"] == name
        for init in (ROOT / name).rglob("__init__.py"):
            on_disk.add(".".join(("rlinit", *init.parent.relative_to(ROOT).parts)))
    assert set(config["packages"]) - {"rlinit.schemas"} == on_disk


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
