"""The pages tell the truth: links lead somewhere, and every snippet and command is run as it is written.

The blocks of a page run in order, in one folder and one namespace. Comments in a page, which readers do not see, say
what a reader has and a test has not::

    <!-- given                  Python that runs at this place: a model, a file
    ... -->
    <!-- file: NAME -->         the block below is a file of that name; it is there from the start
    <!-- not run: REASON -->    the block below is not run, only read

In a ``python`` block, ``expression  # -> value`` holds the expression against the value. In a ``console`` block, lines
without ``$`` are what the command above prints, where ``...`` stands for anything.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import math
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import RESULTS
from rlinit.cli.main import main, parse

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not page.is_relative_to(ROOT / "docs" / "_generated")),
]
PIECE = re.compile(
    r"^<!-- (given|file:|not run:)\s*(.*?)-->\n|^```(\w*|\{[\w-]+\})[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PROSE = ("", "text", "{eval-rst}", "{image}", "{include}", "{math}", "{toctree}")
"""Kinds of blocks that are neither code nor commands: drawings, and what Sphinx puts there."""


@dataclass(frozen=True)
class Piece:
    """A block of a page, or a comment that says what comes before one."""

    kind: str
    text: str
    line: int
    skipped: str | None = None
    file: str | None = None


def pieces(page: Path) -> Iterator[Piece]:
    """Yield what a page shows and gives, in order."""
    text = page.read_text(encoding="utf-8")
    skipped = file = None
    for found in PIECE.finditer(text):
        mark, content, kind, block = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        if mark == "given":
            yield Piece("given", content, line)
        elif mark == "file:":
            file = content.strip()
        elif mark == "not run:":
            skipped = content.strip()
        else:
            yield Piece(kind, block, line, skipped, file)
            skipped = file = None


def name(page: Path) -> str:
    """Return a page's path in the repository."""
    return str(page.relative_to(ROOT))


BLOCKS = [pytest.param(piece, id=f"{name(page)}-{piece.line}") for page in PAGES for piece in pieces(page)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        made = "_generated/benchmarks/" in target and (RESULTS / Path(target).with_suffix(".json").name).exists()
        assert "://" in target or made or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "papers").glob("*.md")), ids=name)
def test_files_of_papers_are_there(page: Path) -> None:
    """The pages on papers name files of the repository."""
    named = re.findall(r"`([\w/]+/[\w./]+\.(?:py|toml))`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_files_of_the_architecture_are_in_the_tree() -> None:
    """Every file that the page names is there, and it names every folder."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"[\w/]+\.py", text)):
        assert (ROOT / "rlinit" / name).is_file() if "/" in name else [*(ROOT / "rlinit").rglob(name)], name
    folders = {path.name for path in (ROOT / "rlinit").iterdir() if (path / "__init__.py").is_file()}
    assert [name for name in sorted(folders) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_of_a_kind_that_can_be_run(page: Path) -> None:
    """Code stands in blocks that say what they are, and what is not run says why."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^    (\$ |python |rlinit |make |pip )", text, re.MULTILINE), "an indented command"
    for piece in pieces(page):
        assert piece.kind in ("given", "python", "console", "toml", *PROSE), f"line {piece.line}: {piece.kind}"
        assert piece.skipped is None or len(piece.skipped.split()) >= 3, f"line {piece.line} says no reason"
        if piece.kind == "":
            assert "rlinit " not in piece.text, f"line {piece.line}: a command in a block without a kind"


@pytest.mark.parametrize("page", [page for page in PAGES if any(p.kind not in PROSE for p in pieces(page))], ids=name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippets and commands of a page run one after the other, and give what the page says they give."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    names: dict[str, Any] = {"__name__": "page"}
    for piece in pieces(page):
        if piece.file:
            Path(piece.file).write_text(piece.text, encoding="utf-8")
    for piece in pieces(page):
        where = f"{name(page)}:{piece.line}"
        began = time.perf_counter()
        if piece.skipped:
            print(f"{where} is not run: {piece.skipped}")
        elif piece.kind in ("given", "python"):
            run_python(piece.text, names, where)
        elif piece.kind == "console":
            run_console(piece.text, where)
        elif piece.kind == "toml":
            tomllib.loads(piece.text)
        print(f"{where}: {time.perf_counter() - began:.2f} s")


def run_python(text: str, names: dict[str, Any], where: str) -> None:
    """Run the statements of a block; hold an expression against the value behind it."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        expected = re.search(r"# -> (.*?)(?:, the .*)?$", lines[(node.end_lineno or node.lineno) - 1])
        if isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), where, "eval"), names)
            if expected:
                shown = ast.literal_eval(expected[1])
                assert is_shown_as(value, shown), f"{where}: {ast.unparse(node)} is {value!r}, not {shown!r}"
        else:
            exec(compile(ast.Module([node], []), where, "exec"), names)


def is_shown_as(value: object, shown: object) -> bool:
    """Return whether a value is what the page says, to three digits."""
    if isinstance(value, tuple) and isinstance(shown, tuple):
        return len(value) == len(shown) and all(map(is_shown_as, value, shown))
    if isinstance(value, float) and isinstance(shown, float | int):
        return math.isclose(value, shown, rel_tol=5e-3)
    return value == shown


def run_console(text: str, where: str) -> None:
    """Run the commands of a block; compare what they print with what is shown."""
    for command, shown in re.findall(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        printed = run_command(command.partition("  #")[0].strip(), where)
        wanted = "\n".join(line.strip() for line in shown.strip().splitlines())
        pattern = r"[^\n]*".join(map(re.escape, wanted.split("...")))
        plain = "\n".join(line.strip() for line in printed.splitlines())
        assert re.search(pattern, plain), f"{where}: {command} printed\n{printed}"


def run_command(command: str, where: str) -> str:
    """Run one command line in this process and return what it prints."""
    chosen: Callable[[list[str]], int]
    words = shlex.split(command.removeprefix(".venv/bin/"))
    if words[:2] == ["python", "train/run.py"]:
        from rlinit.train.run import main as train

        chosen, arguments = train, words[2:]
    else:
        assert words[0] == "rlinit", f"{where}: no way to run {command}; mark it as not run, with the reason"
        chosen, arguments = main, words[1:]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = chosen(arguments)
    assert code == 0, f"{where}: {command} ended with {code}:\n{err.getvalue()}"
    return out.getvalue()


def unrun_commands() -> list[str]:
    """Return the command lines of rlinit that no page runs, comments cut off."""
    found = []
    for page in PAGES:
        for piece in pieces(page):
            if piece.skipped and piece.kind == "console":
                found += re.findall(r"^\$ (?:\.venv/bin/)?rlinit (.*?)(?:  #.*)?$", piece.text, re.MULTILINE)
    return found


@pytest.mark.parametrize("line", unrun_commands())
def test_commands_not_run_have_these_options(line: str) -> None:
    """A command that is shown and not run is taken by the command line as it is written, up to reading its files."""
    assert parse(shlex.split(line)) is not None


def programs() -> list[str]:
    """Return the ``python -m`` command lines that pages name in running text."""
    found = set()
    for page in PAGES:
        found |= set(re.findall(r"`(?:\$ )?python -m ([^`]*)`", page.read_text(encoding="utf-8")))
    return sorted(" ".join(line.split()) for line in found)


@pytest.mark.parametrize("line", programs())
def test_programs_have_these_flags(line: str) -> None:
    """A program that a page names is there, and its source knows the flags that the page gives it."""
    module, *arguments = shlex.split(line)
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    for flag in (word for word in arguments if word.startswith("--")):
        assert f'"{flag}"' in source or f"{flag[2:].replace('-', '_')}: " in source, flag
