"""The shape of the source tree: which folder imports which, and how much a folder holds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import networkx as nx

from tools.house import ROOT, folder_graph, library

MAX_MODULES = 14


def test_folders_import_one_way() -> None:
    """No folder imports another that imports it, directly or by way of others."""
    graph = folder_graph(library())
    for knot in nx.strongly_connected_components(graph):
        edges = [graph.edges[edge]["example"] for edge in graph.subgraph(knot).edges]
        assert len(knot) == 1, "\n".join(("folders import each other:", *sorted(edges)))


def test_wiring_is_imported_by_nobody() -> None:
    """`solving` and `cli` stand at the top: only the package's own lazy boundary and the command line reach them."""
    graph = folder_graph(library())
    assert set(graph.predecessors("rlinit.solving")) <= {"rlinit.cli", "rlinit.sweeping", "rlinit.train"}
    assert set(graph.predecessors("rlinit.cli")) <= {"rlinit.__main__"}


def test_ground_imports_only_ground() -> None:
    """Arrays, errors, graph, hardware and plan import nothing of rlinit but each other and what is as plain."""
    ground = {
        f"rlinit.{name}"
        for name in ("arrays", "errors", "limits", "files", "units", "budget", "tensors", "graph", "hardware", "plan")
        + ("devices", "menu")
    }
    graph = folder_graph(library())
    for name in ground & set(graph):
        assert set(graph.successors(name)) <= ground, f"{name} imports {sorted(set(graph.successors(name)) - ground)}"


def test_a_folder_fits_on_a_screen() -> None:
    """No folder holds more than 14 modules, its ``__init__`` aside, and the root at most 13."""
    held: dict[Path, int] = defaultdict(int)
    for module in library().values():
        held[module.path.parent] += module.path.name != "__init__.py"
    assert {folder: count for folder, count in held.items() if count > MAX_MODULES} == {}
    assert held[ROOT / "rlinit"] <= 13
