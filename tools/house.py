"""The state of the source tree in figures: ``python tools/house.py`` prints them and fails where one got worse.

The figures to hold are in ``tools/house.json``. ``--update`` writes the ones that got better, ``--list FIGURE`` prints
what a figure counts, and ``--accept FIGURE`` takes a worse one, which a commit message then has to explain.

Standard library and networkx only; nothing of the package is imported here.

*Hops* and *climbs* are those of real calls; see `tools.walk`, which runs the package in a process of its own.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tools" / "house.json"
LINKED = ("exact", "datasets", "train", "checkpoints")
"""Folders of the repository's top level that are packages of rlinit."""

STRANGERS = ROOT / "rlinit" / "certificates" / "check.py"
"""What others read to check certificates: one file by intent, which is no part of the library to them."""

LATE_IMPORTS = {"rlinit.graph", "rlinit.plan"}
"""Modules whose methods may import late: what users call on a graph or a plan lives above them."""

FUNCTION_LINES, LONG_FUNCTION_LINES, MAX_PARAMETERS = 60, 100, 12

Definition = ast.FunctionDef | ast.AsyncFunctionDef

_OF_NUMBERS = (
    ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Load, ast.Call, ast.Name,
    ast.Attribute,
)  # fmt: skip
"""What numbers are written with: signs, powers, tuples and casts."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the library, parsed once."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The package the module stands in; a module of the root stands for itself."""
        if self.path.name == "__init__.py":
            return self.name
        parent = self.name.rpartition(".")[0]
        return self.name if parent == "rlinit" else parent


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, with the class around it where there is one."""

    module: str
    name: str
    node: Definition
    owner: ast.ClassDef | None

    @property
    def is_public(self) -> bool:
        """Whether neither it, nor its class, nor a function around it has a leading underscore."""
        return not any(part.startswith("_") for part in self.name.split("."))

    @property
    def lines(self) -> int:
        """Lines from ``def`` to the end without the docstring."""
        end = self.node.end_lineno or self.node.lineno
        return end - self.node.lineno + 1 - docstring_lines(self.node)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, ``self`` and ``cls`` aside."""
        spec = self.node.args
        names = [arg.arg for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
        names += [arg.arg for arg in (spec.vararg, spec.kwarg) if arg]
        static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in self.node.decorator_list)
        return names[1:] if self.owner is not None and not static else names


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    goal: str
    found: tuple[str, ...] = ()
    more_is_better: bool = False
    room: float = 0.0

    def is_worse_than(self, recorded: float) -> bool:
        """Return whether the tree got worse than what is recorded, by more than the part of it that is its room."""
        if self.more_is_better:
            return self.value < recorded * (1.0 - self.room)
        return self.value > recorded * (1.0 + self.room)

    def betters(self, recorded: float | None) -> bool:
        """Return whether the tree got better than what is recorded, or nothing is."""
        return recorded is None or (self.value > recorded if self.more_is_better else self.value < recorded)


@functools.cache
def library() -> dict[str, Module]:
    """Return every module of the library by its dotted name, parsed once a process."""
    found = {}
    for top in ("rlinit", *LINKED):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path == STRANGERS or (top == "rlinit" and len(parts) > 2 and parts[1] in LINKED):
                continue
            name = ".".join(parts if top == "rlinit" else ("rlinit", *parts)).removesuffix(".__init__")
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name, path, text, ast.parse(text))
    return found


def docstring_lines(node: ast.AST) -> int:
    """Return the lines of a docstring, 0 where there is none."""
    body = getattr(node, "body", [])
    if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
        return 0
    if not isinstance(body[0].value.value, str):
        return 0
    return (body[0].end_lineno or body[0].lineno) - body[0].lineno + 1


def functions(module: Module) -> Iterator[Function]:
    """Yield every function and method of a module, nested ones as well; an overload is none of its own."""

    def walk(node: ast.AST, prefix: str, owner: ast.ClassDef | None, inside: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition) and any(ast.unparse(one) == "overload" for one in child.decorator_list):
                continue
            if isinstance(child, Definition):
                name = f"{prefix}_local.{child.name}" if inside else f"{prefix}{child.name}"
                yield Function(module.name, name, child, owner)
                yield from walk(child, f"{name}.", None, True)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", child, inside)
            else:
                yield from walk(child, prefix, owner, inside)

    return walk(module.tree, "", None, False)


def imported(module: Module, known: dict[str, Module]) -> set[str]:
    """Return the modules of the library that a module imports when it runs, inside functions as well."""
    skipped: set[int] = set()
    for node in module.tree.body:
        for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        late = module.name in LATE_IMPORTS and isinstance(node, (ast.ClassDef, ast.FunctionDef))
        if for_types or late:
            skipped |= {id(inner) for inner in ast.walk(node)}
    found = set()
    for inner in ast.walk(module.tree):
        if id(inner) in skipped:
            continue
        if isinstance(inner, ast.ImportFrom) and inner.module:
            for alias in inner.names:
                full = f"{inner.module}.{alias.name}"
                found.add(full if full in known else inner.module)
        elif isinstance(inner, ast.Import):
            found |= {alias.name for alias in inner.names}
    return found & set(known)


def folder_graph(known: dict[str, Module]) -> nx.DiGraph[str]:
    """Return the graph of folders, an edge from the importing to the imported one, with an example on each."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module in known.values():
        for target in imported(module, known):
            source, goal = module.folder, known[target].folder
            if source != goal:
                graph.add_edge(source, goal, example=f"{module.name} imports {target}")
    return graph


def code_lines(module: Module) -> int:
    """Return the lines that hold code, comments and docstrings aside."""
    lines: set[int] = set()
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):  # type: ignore[attr-defined]
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return len(lines)


def _counts_up(value: ast.expr) -> bool:
    """Return whether names number places or kinds (``0, 1, 2`` or ``range(3)``), which have no unit to say."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "range" and len(value.args) == 1
    return isinstance(value, ast.Tuple) and [getattr(one, "value", None) for one in value.elts] == [
        *range(len(value.elts))
    ]


def numbers(module: Module) -> Iterator[tuple[str, int, bool]]:
    """Yield the statements that name numbers: where, how many names, and whether a unit or reason stands by them."""
    lines = module.text.splitlines()
    for node, after in pairwise([*module.tree.body, ast.Pass()]):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        parts = [part for part in ast.walk(node.value) if not isinstance(part, _OF_NUMBERS)]
        found = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
        if parts or not found or any(type(part.value) not in (int, float) for part in found) or _counts_up(node.value):
            continue
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        said |= any("#" in line for line in lines[max(0, node.lineno - 2) : node.end_lineno])
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        yield f"{module.name}:{node.lineno}", len(getattr(target, "elts", [target])), said


def has_section(node: ast.AST, section: str) -> bool:
    """Return whether a docstring has a section of numpydoc."""
    text = ast.get_docstring(node) if isinstance(node, Definition | ast.ClassDef | ast.Module) else None
    lines = [line.strip() for line in (text or "").splitlines()]
    return any(a == section and b and set(b) == {"-"} for a, b in pairwise(lines))


def listed_parameters(node: Definition) -> set[str]:
    """Return the names that the Parameters section of a docstring lists, none without such a section."""
    names: set[str] = set()
    inside = False
    for line, below in pairwise([*(ast.get_docstring(node) or "").splitlines(), ""]):
        if below and set(below) == {"-"}:
            inside = line == "Parameters"
        elif inside and line and not line.startswith((" ", "-")):
            names.update(part.strip(" *") for part in line.split(","))
    return names


def documents(function: Function, known: dict[str, list[Function]]) -> bool:
    """Return whether a docstring says what the parameters are: in a section, or where ``see `name``` sends the reader.

    The function it names, found by the end of its dotted name, must have a section that lists every parameter that
    this one has.
    """
    if has_section(function.node, "Parameters"):
        return True
    text = ast.get_docstring(function.node) or ""
    for name in re.findall(r"[Ss]ee `([\w.]+)`", text):
        for other in known.get(name.rpartition(".")[2], []):
            full = f"{other.module}.{other.name}"
            if f".{full}".endswith(f".{name}") and listed_parameters(other.node).issuperset(function.parameters):
                return True
    return False


def raises(node: Definition) -> bool:
    """Return whether the body itself raises something new, nested functions aside."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            return True
        if not isinstance(inner, Definition | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(inner)
    return False


def walked() -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return the way of real calls to each target of `tools.walk`, and all calls between functions of the library.

    Raises
    ------
    LookupError
        The walk failed, or did not come by a target.
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tools.walk"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise LookupError(f"tools/walk.py failed: {ended.stderr.strip().splitlines()[-1]}")
    found = json.loads(ended.stdout)
    return found["ways"], [(caller, callee) for caller, callee in found["pairs"]]


def climbs(pairs: list[tuple[str, str]], known: dict[str, Module], folders: nx.DiGraph[str]) -> list[str]:
    """Return the calls into a folder that the caller's does not import, directly or by way of others."""
    found = []
    for caller, callee in pairs:
        above, below = (known[_module_of(full, known)].folder for full in (caller, callee))
        if above != below and not (folders.has_node(below) and below in nx.descendants(folders, above)):
            found.append(f"{caller} -> {callee}")
    return found


def _module_of(full: str, known: dict[str, Module]) -> str:
    while full not in known:
        full = full.rpartition(".")[0]
    return full


def _share(good: int, of: int) -> float:
    return round(100.0 * good / of, 1) if of else 100.0


def _at(function: Function, note: str = "") -> str:
    return f"{function.module}.{function.name}{note}"


def figures() -> list[Figure]:
    """Return the table of the tree as it stands."""
    known = library()
    every = [function for module in known.values() for function in functions(module)]
    graph = folder_graph(known)
    knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    root = [name for name, module in known.items() if module.path.parent == ROOT / "rlinit" and name != "rlinit"]
    long = sorted((f for f in every if f.lines > FUNCTION_LINES), key=lambda f: -f.lines)
    longest = [f for f in long if f.lines > LONG_FUNCTION_LINES]
    wide = sorted((f for f in every if len(f.parameters) > MAX_PARAMETERS), key=lambda f: -len(f.parameters))
    several = [f for f in every if f.is_public and len(f.parameters) >= 2]
    named: dict[str, list[Function]] = {}
    for f in every:
        named.setdefault(f.node.name, []).append(f)
    silent = [f for f in several if not documents(f, named)]
    unsaid = [
        f
        for f in every
        if (f.is_public and raises(f.node) and not has_section(f.node, "Raises"))
        or (f.node.name == "__post_init__" and raises(f.node) and f.owner and not has_section(f.owner, "Raises"))
    ]
    constants = [constant for module in known.values() for constant in numbers(module)]
    ways, pairs = walked()
    rising = climbs(pairs, known, graph)
    loops = tuple(str(graph.edges[edge]["example"]) for knot in knots for edge in graph.subgraph(knot).edges)
    return [
        Figure(
            "most_hops_to_an_equation", max(map(len, ways.values())) - 1, "8", tuple(map(" -> ".join, ways.values()))
        ),
        Figure("climbs_in_a_walk", len(rising), "10", tuple(rising)),
        Figure("folders_in_a_cycle", sum(map(len, knots)), "0", loops),
        Figure("modules_in_the_root", len(root), "12", tuple(root)),
        Figure("functions_over_60_lines", len(long), "8", tuple(_at(f, f" {f.lines}") for f in long)),
        Figure("functions_over_100_lines", len(longest), "0", tuple(_at(f, f" {f.lines}") for f in longest)),
        Figure("functions_over_12_parameters", len(wide), "0", tuple(_at(f, f" {len(f.parameters)}") for f in wide)),
        Figure("library_code_lines", sum(map(code_lines, known.values())), "45000"),
        Figure(
            "percent_with_parameters_section",
            _share(len(several) - len(silent), len(several)),
            "100",
            tuple(_at(f) for f in silent),
            more_is_better=True,
            room=0.02,
        ),
        Figure("raise_without_raises_section", len(unsaid), "0", tuple(_at(f) for f in unsaid)),
        Figure("numeric_constants", sum(count for _, count, _ in constants), "500"),
        Figure(
            "constants_without_a_reason",
            sum(not said for *_, said in constants),
            "0",
            tuple(at for at, _, said in constants if not said),
        ),
    ]


def compare(table: list[Figure], recorded: dict[str, float]) -> list[Figure]:
    """Print the table beside what is recorded; return the figures that got worse."""
    print(f"{'figure':34s} {'now':>8s} {'recorded':>9s} {'goal':>7s}")
    worse = []
    for figure in table:
        held = recorded.get(figure.name)
        bad = held is not None and figure.is_worse_than(held)
        worse += [figure] if bad else []
        shown = "" if held is None else f"{held:g}"
        print(f"{figure.name:34s} {figure.value:8g} {shown:>9s} {figure.goal:>7s}{'  WORSE' if bad else ''}")
    return worse


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where a figure is worse than the recorded one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--update", action="store_true", help="write the figures that got better")
    parser.add_argument("--accept", action="append", default=[], metavar="FIGURE", help="write this one though worse")
    parser.add_argument("--list", metavar="FIGURE", help="print what a figure counts")
    chosen = parser.parse_args(arguments)
    table = figures()
    if chosen.list:
        known = {figure.name: figure for figure in table}
        if chosen.list not in known:
            parser.error(f"there is no figure {chosen.list!r}; expected one of {', '.join(known)}")
        print("\n".join(known[chosen.list].found))
        return 0
    recorded: dict[str, float] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    worse = [figure for figure in compare(table, recorded) if figure.name not in chosen.accept]
    if chosen.update or chosen.accept:
        taken = set(chosen.accept)
        new = {
            f.name: f.value if f.name in taken or f.betters(recorded.get(f.name)) else recorded[f.name] for f in table
        }
        RECORD.write_text(json.dumps(new, indent=1) + "\n")
    for figure in worse:
        print(f"{figure.name} got worse: {figure.value:g} instead of {recorded[figure.name]:g}", file=sys.stderr)
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
