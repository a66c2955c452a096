"""Reading computation graphs from model files."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from rlinit.errors import InvalidGraph
from rlinit.files import check_schema
from rlinit.graph import Graph

__all__ = ["load_graph"]

_MAX_BYTES = 1 << 28
"""A compressed graph may grow to this many bytes (some 2 million ops); beyond, it is taken for a bomb."""


def load_graph(path: str | Path) -> Graph:
    """Read a computation graph from a file; its suffix says how.

    ==============  ==============================================================================
    suffix          content
    ==============  ==============================================================================
    ``.json``       what `Graph.save` writes
    ``.json.gz``    the same, compressed
    ``.keras``      a Keras 3 model (needs ``pip install rlinit[keras]``); no code in it is run
    ==============  ==============================================================================

    Raises
    ------
    InvalidGraph
        Another suffix, or a file that cannot be read or whose content is malformed; the message says where.
    BackendUnavailable
        The package that reads this kind of file is not installed.
    """
    name = Path(path).name.lower()
    if name.endswith(".json"):
        return Graph.load(path)
    if name.endswith(".json.gz"):
        return _load_compressed(path)
    if name.endswith(".keras"):
        from rlinit.importers.keras_model import load_keras

        return load_keras(path)
    raise InvalidGraph(f"cannot tell what {path} is from its suffix; readable are .json, .json.gz and .keras")


def _load_compressed(path: str | Path) -> Graph:
    """Read a gzip-compressed graph file, with the checks of `Graph.load`."""
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise InvalidGraph(f"cannot read {path}: {problem}") from problem
    if len(content) > _MAX_BYTES:
        raise InvalidGraph(f"{path} holds more than {_MAX_BYTES:,} bytes; decompress it and check what it is")
    try:
        data = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise InvalidGraph(f"{path} is not valid JSON: {problem}") from None
    check_schema(data, "graph", InvalidGraph, str(path))
    return Graph.from_dict(data)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number JSON allows")
