"""The shape of the source tree: which folder imports which, and how much a folder holds."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("exact", "datasets", "train", "checkpoints")
FACADES = {"rlinit.graph", "rlinit.plan"}
"""Modules whose methods may import late: what users call on a graph or a plan lives above them."""
MAX_MODULES = 14


def modules() -> dict[str, Path]:
    """Return every module of the installed package by dotted name."""
    found = {}
    for top in ("rlinit", *LINKED):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if top == "rlinit" and len(parts) > 2 and parts[1] in LINKED:
                continue
            name = ".".join(parts if top == "rlinit" else ("rlinit", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


def folder_of(name: str, path: Path) -> str:
    """Return the folder a module stands in; a module of the root stands for itself."""
    if path.name == "__init__.py":
        return name
    parent = name.rpartition(".")[0]
    return name if parent == "rlinit" else parent


def is_for_types(node: ast.stmt) -> bool:
    """Return whether a statement is an ``if TYPE_CHECKING`` block."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(name: str, tree: ast.Module, known: dict[str, Path]) -> set[str]:
    """Return the modules of this project that a module imports when it runs, inside functions as well."""
    skipped = {id(inner) for node in tree.body if is_for_types(node) for inner in ast.walk(node)}
    if name in FACADES:
        defined = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        skipped |= {id(inner) for node in defined for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import) and id(node) not in skipped:
            found |= {alias.name for alias in node.names}
    return found & set(known)


def folder_graph() -> nx.DiGraph[str]:
    """Return the graph of folders, an edge from the importing to the imported one, with an example on each."""
    known = modules()
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, path in known.items():
        for target in imported(name, ast.parse(path.read_text(encoding="utf-8")), known):
            source, goal = folder_of(name, path), folder_of(target, known[target])
            if source != goal:
                graph.add_edge(source, goal, example=f"{name} imports {target}")
    return graph


def test_folders_import_one_way() -> None:
    """No folder imports another that imports it, directly or by way of others."""
    graph = folder_graph()
    for knot in nx.strongly_connected_components(graph):
        edges = [graph.edges[edge]["example"] for edge in graph.subgraph(knot).edges]
        assert len(knot) == 1, "\n".join(("folders import each other:", *sorted(edges)))


def test_wiring_is_imported_by_nobody() -> None:
    """`solving` and `cli` stand at the top: only the package's own lazy boundary and the command line reach them."""
    graph = folder_graph()
    assert set(graph.predecessors("rlinit.solving")) <= {"rlinit.cli", "rlinit.train"}
    assert "rlinit.cli" not in graph or not set(graph.predecessors("rlinit.cli"))


def test_ground_imports_only_ground() -> None:
    """Arrays, errors, graph, hardware and plan import nothing of rlinit but each other and what is as plain."""
    ground = {
        f"rlinit.{name}" for name in ("arrays", "errors", "files", "units", "budget", "graph", "hardware", "plan")
    }
    graph = folder_graph()
    for name in ground & set(graph):
        assert set(graph.successors(name)) <= ground, f"{name} imports {sorted(set(graph.successors(name)) - ground)}"


def test_a_folder_fits_on_a_screen() -> None:
    """No folder holds more than 14 modules, its ``__init__`` aside, and the root at most 12."""
    held: dict[Path, int] = defaultdict(int)
    for path in modules().values():
        held[path.parent] += path.name != "__init__.py"
    assert {folder: count for folder, count in held.items() if count > MAX_MODULES} == {}
    assert held[ROOT / "rlinit"] <= 12
