"""Reader of the profiles of PipeDream: layers of PyTorch models with measured times and sizes.

References
----------
Narayanan et al.: PipeDream, generalized pipeline parallelism for DNN training, SOSP 2019. Data:
github.com/msr-fiddle/pipedream (MIT license).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from rlinit.errors import InvalidGraph
from rlinit.files import read_text
from rlinit.graph import Graph
from rlinit.units import MS_PER_S

__all__ = ["load"]

_NODE = re.compile(r"(\S+) -- (.*) -- (forward_compute_time=.*?)(?: -- stage_id=\d+)?$")
_EDGE = re.compile(r"\t(\S+) -- (\S+)$")
_NUMBERED = re.compile(r"node\d+")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def load(path: str | Path, *, passes: Literal["forward", "both"] = "forward") -> Graph:
    """Read a profile as a graph.

    Parameters
    ----------
    path
        A text file. A line ``id -- description -- forward_compute_time=ms, backward_compute_time=ms,
        activation_size=bytes, parameter_size=bytes`` is an op, a line that begins with a tab, ``id -- id``, an edge.
        A bracketed list of activation sizes (an op with several outputs) is summed: an op has one tensor here.
    passes
        `time_s` is the time of the ``forward`` pass, or of ``both``, for training.

    Returns
    -------
    Graph
        Op names are the ids; ops are ordered by number where all ids are ``node`` and a number, else as in the file.
        `op` is the description's class ("Conv2d"), the description itself is carried along as ``label``. All sizes
        and times are those of the profiled batch.

    Raises
    ------
    InvalidGraph
        An unreadable file, a malformed line, which the message gives with its number, or other `passes`.
    """
    if passes not in ("forward", "both"):
        raise InvalidGraph(f"passes is {passes!r}; expected 'forward' or 'both'")
    source = Path(path)
    lines = read_text(source, InvalidGraph).splitlines()
    ops: list[tuple[str, dict[str, Any]]] = []
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        if line.startswith("\t"):
            edge = _EDGE.match(line.rstrip())
            if edge is None:
                raise InvalidGraph(f"{where}: expected a tab and 'id -- id', got {line!r:.80}")
            edges.append((edge[1], edge[2]))
        else:
            ops.append(_op(line.rstrip(), passes, where))
    if all(_NUMBERED.fullmatch(op) for op, _ in ops):
        ops.sort(key=lambda row: int(row[0].removeprefix("node")))
    return Graph.build(ops, edges, name=source.stem)


def _op(line: str, passes: str, where: str) -> tuple[str, dict[str, Any]]:
    node = _NODE.match(line)
    if node is None:
        raise InvalidGraph(f"{where}: expected 'id -- description -- forward_compute_time=..., ...', got {line!r:.80}")
    values: dict[str, float] = {}
    for part in node[3].split(", "):
        key, _, text = part.partition("=")
        values[key] = _sum(text, f"{where}: {key!r}")
    for key in _FIELDS:
        if key not in values:
            raise InvalidGraph(f"{where}: op {node[1]!r} gives no {key!r}")
    milliseconds = values["forward_compute_time"] + (values["backward_compute_time"] if passes == "both" else 0.0)
    return node[1], {
        "op": re.split(r"\W", node[2], maxsplit=1)[0],
        "time_s": milliseconds / MS_PER_S,
        "out_bytes": values["activation_size"],
        "param_bytes": values["parameter_size"],
        "label": node[2],
    }


def _sum(text: str, where: str) -> float:
    """Return a number, or the sum of ``[a; b; c]``."""
    parts = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
    try:
        return sum(float(part) for part in parts if part.strip() or len(parts) == 1)
    except ValueError:
        raise InvalidGraph(f"{where} is {text!r}; expected a number, or numbers in brackets") from None
