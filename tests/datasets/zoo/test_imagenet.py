"""The image classifiers: Table II of Inc-ILP to the digit, and files that equal what Keras builds."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest

from rlinit.datasets.zoo import imagenet
from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.importers.keras.reader import import_keras

# |V|, largest in-degree and depth (edges on a longest path) as printed in Table II.
PRINTED = {
    "Xception": (134, 2, 125),
    "ResNet50": (177, 2, 168),
    "ResNet101": (347, 2, 338),
    "ResNet152": (517, 2, 508),
    "DenseNet121": (429, 2, 428),
    "ResNet101V2": (379, 2, 371),
    "ResNet152V2": (566, 2, 558),
    "DenseNet169": (597, 2, 596),
    "DenseNet201": (709, 2, 708),
    "InceptionResNetV2": (782, 4, 571),
}


def test_names() -> None:
    """Table II comes first, in order, and every file belongs to a name."""
    assert tuple(PRINTED) == imagenet.TABLE_II == imagenet.NAMES[:10]
    folder = Path(imagenet.__file__).resolve().parents[1] / "graphs"
    assert {path.name for path in folder.iterdir()} == {f"{name}.json.gz" for name in imagenet.NAMES}


@pytest.mark.parametrize("name", imagenet.TABLE_II)
def test_table_ii(name: str) -> None:
    """Nodes, largest in-degree and depth are those printed."""
    graph = imagenet.load(name)
    assert (graph.num_ops, int(np.diff(graph.pred_indptr).max()), graph.depth - 1) == PRINTED[name]


@pytest.mark.parametrize("name", imagenet.NAMES)
def test_every_network_is_complete(name: str) -> None:
    """Every op has a kind and all costs, one input and one output enclose the network, and reading is quick."""
    start = time.perf_counter()
    graph = imagenet.load(name)
    assert time.perf_counter() - start < 10.0  # some 5 ms; the margin is for a machine that is busy
    assert graph.name == name
    assert all(graph.kinds)
    for column in (graph.param_bytes, graph.out_bytes, graph.flops):
        assert np.isfinite(column).all()
    assert (graph.out_bytes > 0).all()
    assert graph.kinds[np.flatnonzero(np.diff(graph.pred_indptr) == 0)[0]] == "InputLayer"
    assert (np.diff(graph.pred_indptr) == 0).sum() == (np.diff(graph.succ_indptr) == 0).sum() == 1


@pytest.mark.parametrize(
    ("name", "params", "giga_multiply_adds"),
    [
        # Parameters and operations as published with the networks (keras.applications; their papers).
        ("ResNet50", 25_636_712, 3.87),
        ("InceptionV3", 23_851_784, 5.72),
        ("MobileNetV2", 3_538_984, 0.30),
        ("EfficientNetB0", 5_330_571, 0.39),
        ("DenseNet201", 20_242_984, 4.29),
    ],
)
def test_totals_are_the_published_ones(name: str, params: int, giga_multiply_adds: float) -> None:
    """Parameters are exact, and half the operations are the published multiply-adds within 5%."""
    graph = imagenet.load(name)
    assert graph.param_bytes.sum() == params
    assert graph.flops.sum() / 2e9 == pytest.approx(giga_multiply_adds, rel=0.05)


def test_an_unknown_name_lists_the_known_ones() -> None:
    """Both functions refuse an unknown name and say which there are."""
    for function in (imagenet.load, imagenet.build):
        with pytest.raises(InvalidGraph, match=r"'VGG16'.*ResNet50"):
            function("VGG16")


@pytest.mark.parametrize(
    "name",
    [
        "MobileNetV2",
        "ResNet50",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("Xception", "EfficientNetB0", "InceptionResNetV2")),
    ],
)
def test_files_equal_what_keras_builds(name: str) -> None:
    """Building a network anew gives its file's graph, whatever was built before."""
    try:
        keras = import_keras()
    except BackendUnavailable as problem:
        pytest.skip(str(problem))
    keras.layers.Conv2D(1, 1)
    assert imagenet.build(name) == imagenet.load(name)


def test_files_bear_no_date() -> None:
    """The gzip header's time is zero, so that equal graphs give equal files."""
    for path in (Path(imagenet.__file__).resolve().parents[1] / "graphs").iterdir():
        assert path.read_bytes()[4:8] == bytes(4)
        assert gzip.decompress(path.read_bytes()).startswith(b'{"format":"rlinit-graph"')
