"""The pages can be followed: links lead somewhere, hardware files read, commands and names exist, Python runs."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import tyro

from rlinit.cli.main import Command
from rlinit.hardware import Hardware

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> Sequence[object]:
    """Return the blocks of a kind on all pages, named by page and position."""
    found = []
    for page in PAGES:
        for at, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if language == kind:
                found.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{at}"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository."""
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("text", blocks("toml"))
def test_hardware_files_read(text: str, tmp_path: Path) -> None:
    """What is shown as a hardware file is one."""
    if "[[device]]" not in text:
        pytest.skip("not a hardware file")
    (tmp_path / "hw.toml").write_text(text)
    assert len(Hardware.load(tmp_path / "hw.toml")) > 0


@pytest.mark.parametrize("text", blocks("python"))
def test_python_imports_what_there_is(text: str) -> None:
    """Python blocks parse, and what they import from this package exists."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rlinit":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rlinit":
            package = importlib.import_module("rlinit")
            assert hasattr(package, node.attr) or importlib.import_module(f"rlinit.{node.attr}")


def commands() -> list[str]:
    """Return the command lines of rlinit on all pages, comments cut off."""
    found = []
    for page in PAGES:
        for _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in text.splitlines():
                match = re.match(r"(?:\$ )?(?:\.venv/bin/)?rlinit (.*)", line)
                if match:
                    found.append(match[1].partition("  #")[0].strip())
    return found


@pytest.mark.parametrize("line", [line for line in commands() if "..." not in line and "|" not in line])
def test_commands_have_these_options(line: str) -> None:
    """Every command shown is taken by the command line as it is written, up to reading its files."""
    assert tyro.cli(Command, args=shlex.split(line)) is not None
