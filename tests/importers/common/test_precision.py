"""What numbers are counted in: for every importer, for weights and activations apart, and said of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlinit import Graph, Hardware
from rlinit.costs.roofline import roofline
from rlinit.datasets import imagenet
from rlinit.errors import InvalidGraph
from rlinit.importers.common.precision import Precision, precision_of
from tests.late import late_imports

with late_imports():
    import torch

    from tests.importers.common.models import Net


def net_graph(dtype: Any = None) -> Graph:
    """Return the graph of the network on two rows of three tokens."""
    return Graph.from_torch(Net().eval(), (torch.zeros(2, 3, dtype=torch.int64),), dtype=dtype)


def test_tokens_stay_integers() -> None:
    """Only floating-point tensors change; weights and activations may differ."""
    whole, mixed = net_graph(), net_graph(("int4", "fp16"))
    assert whole.param_bytes.sum() == 4 * (40 + 24)
    assert mixed.param_bytes.sum() == (40 + 24) / 2
    assert mixed.out_bytes[0] == whole.out_bytes[0] == 8 * 6
    assert (mixed.out_bytes[1:] == whole.out_bytes[1:] / 2).all()
    assert net_graph("fp32").param_bytes.tolist() == whole.param_bytes.tolist()


def test_the_graph_says_it() -> None:
    """A choice is said of the graph, and without one the usual type of its tensors."""
    assert precision_of(net_graph()) == "as in the file: mostly fp32"
    assert precision_of(net_graph(("int4", "fp16"))) == "weights int4, activations fp16"
    assert precision_of(imagenet.load("resnet50", dtype="fp16")) == "weights fp16, activations fp16"


def test_the_zoo_in_other_numbers() -> None:
    """The zoo has one byte a number; in FP32 all tensors are four times as large."""
    usual, single = imagenet.load("mobilenetv2"), imagenet.load("mobilenetv2", dtype="fp32")
    assert np.array_equal(single.param_bytes, 4 * usual.param_bytes)
    assert np.array_equal(single.out_bytes, 4 * usual.out_bytes)
    assert imagenet.load("mobilenetv2", dtype=None) == usual


@pytest.mark.parametrize("dtype", ["float", ("fp16",), ("fp16", "x"), 3.0])
def test_unknown_types_are_refused(dtype: Any) -> None:
    """The message lists what there is."""
    with pytest.raises(InvalidGraph, match="expected one of fp32"):
        Precision.of(dtype)


def test_views_take_no_time() -> None:
    """Views and dropouts that are off cost nothing on any device; a reshape that has to copy costs as any op."""
    graph = net_graph()
    seconds = dict(zip(graph.names, roofline(graph, Hardware.preset("cpu-t4-a100").devices[1]), strict=True))
    assert [seconds[op] for op in ("reshape", "dropout", "t")] == [0.0, 0.0, 0.0]
    assert all(seconds[op] > 5e-6 for op in ("linear", "reshape_1", "add"))
