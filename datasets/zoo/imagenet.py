"""Image classifiers of `keras.applications` as graphs: the inputs of Inc-ILP (Table II), and some more.

The graphs are kept as small files beside this module, so that reading one needs neither Keras nor a weight.
``python -m rlinit.datasets.zoo.imagenet`` builds them again.

References
----------
Inc-ILP: RL-initialised incremental ILP scheduling of DNN graphs on pipelined Edge TPUs, Table II.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

from rlinit.errors import InvalidGraph
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.importers import load_graph
from rlinit.importers.common.precision import Dtype, rescaled
from rlinit.limits import closest

__all__ = ["NAMES", "TABLE_II", "build", "load"]

TABLE_II: tuple[str, ...] = (
    "Xception",
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "DenseNet121",
    "ResNet101V2",
    "ResNet152V2",
    "DenseNet169",
    "DenseNet201",
    "InceptionResNetV2",
)
"""The ten networks of Inc-ILP, in its order."""

NAMES: tuple[str, ...] = (
    *TABLE_II,
    "InceptionV3",
    *(f"EfficientNetB{i}" for i in range(8)),
    "MobileNetV2",
)
"""Every network that can be loaded."""


def load(name: str, *, dtype: Dtype = "int8") -> Graph:
    """Return a network's graph from its file, for batch 1.

    Parameters
    ----------
    name
        One of `NAMES`, in whatever case.
    dtype
        What its numbers are counted in; see `rlinit.load_graph`. By default and for None one byte each, as on the Edge
        TPUs of Inc-ILP; choose "fp32" or another for devices that compute in it.

    Raises
    ------
    InvalidGraph
        A name that is not in `NAMES`, in whatever case.
    """
    name = _canonical(name)
    with resources.as_file(resources.files("rlinit.datasets").joinpath("graphs", f"{name}.json.gz")) as path:
        return rescaled(load_graph(path), dtype or "int8", bits=8)


def build(name: str) -> Graph:
    """Build a network with Keras, at its default input size and without trained weights, and return its graph.

    Clears Keras's session first, so that layer names do not depend on what was built before.

    Raises
    ------
    InvalidGraph
        A name that is not in `NAMES`, in whatever case.
    BackendUnavailable
        Keras is not installed.
    """
    from rlinit.importers.keras.reader import from_keras, import_keras

    name = _canonical(name)
    keras = import_keras()
    keras.backend.clear_session()
    graph = from_keras(getattr(keras.applications, name)(weights=None), name=name, dtype="int8")
    return rescaled(replace(graph, extras={}), "int8", bits=8)  # ops bear their layers' names; files say nothing twice


def _canonical(name: str) -> str:
    """Return the network's name as Keras spells it, whatever the case it was given in."""
    for known in NAMES:
        if known.lower() == name.lower():
            return known
    near = closest(name.lower(), map(str.lower, NAMES))
    raise InvalidGraph(f"there is no network {name!r}{near} (expected one of {', '.join(NAMES)})")


def _write_all() -> None:
    """Build every network and write its file; equal graphs give equal bytes."""
    folder = Path(__file__).resolve().parent.parent / "graphs"
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        graph = replace(build(name), extras={})
        text = json.dumps(graph.to_dict(), separators=(",", ":"), allow_nan=False)
        content = gzip.compress(text.encode(), 9, mtime=0)
        write_atomically(folder / f"{name}.json.gz", content)
        print(f"{name:18} {graph.num_ops:4} ops  depth {graph.depth:4}  {len(content):6} bytes")


if __name__ == "__main__":
    _write_all()
