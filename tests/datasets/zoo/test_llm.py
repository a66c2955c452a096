"""Large networks from shapes: numbers of ops and parameters, operations, and the parallelism of the heads."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from rlinit.costs.roofline import op_times
from rlinit.datasets.zoo import llm
from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.hardware import Hardware

# Parameters by name; ops by Moirai's table IV, which has no 175B.
PUBLISHED = {
    "gpt3-330m": (330e6, 4872),
    "gpt3-1.3b": (1.3e9, 9480),
    "gpt3-2.7b": (2.7e9, 12640),
    "gpt3-13b": (13e9, 19640),
    "gpt3-175b": (175e9, None),
    "swin-1.8b": (1.8e9, 6496),
    "swin-6.6b": (6.6e9, 14352),
    "swin-13b": (13e9, 22120),
    "alphafold2-87m": (87e6, 5136),
    "alphafold2-930m": (930e6, 12992),
    "alphafold2-2.4b": (2.4e9, 37920),
    "alphafold2-3.2b": (3.2e9, 50560),
}


def parameters(graph: Graph, size: int = 4) -> float:
    """Return the number of parameters, weights that the logits share with the embedding counted once."""
    shared = graph.param_bytes[graph.index("logits")] if "logits" in graph.names else 0.0
    return float(graph.param_bytes.sum() - shared) / size


@pytest.mark.parametrize("name", llm.NAMES)
def test_sizes_are_the_published_ones(name: str) -> None:
    """Parameters are within 10% of the name's, ops within 1% of the table's, and building takes no minute."""
    assert set(llm.NAMES) == set(PUBLISHED)
    begun = time.perf_counter()
    graph = llm.build(name)
    assert time.perf_counter() - begun < 30
    published, ops = PUBLISHED[name]
    assert parameters(graph) == pytest.approx(published, rel=0.10)
    if ops is not None:
        assert graph.num_ops == pytest.approx(ops, rel=0.01)
    for column in (graph.param_bytes, graph.out_bytes, graph.flops):
        assert np.isfinite(column).all()
        assert (column == np.floor(column)).all()
    assert (graph.out_bytes > 0).all()
    assert not graph.times
    # Ops come after their inputs, so that the natural order is that of the indices.
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()


@pytest.mark.parametrize(("name", "layers", "hidden"), [("gpt3-330m", 24, 1024), ("gpt3-175b", 96, 12288)])
def test_operations_of_gpt3_follow_the_formula(name: str, layers: int, hidden: int) -> None:
    """Two operations for each weight of a layer and token, and 4 t^2 h a layer for the scores, within 2%."""
    graph = llm.build(name, tokens=512, split_heads=False)
    expected = layers * (2 * 512 * 12 * hidden**2 + 4 * 512**2 * hidden) + 2 * 512 * hidden * 50257
    assert graph.flops.sum() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["gpt3-330m", "swin-1.8b", "alphafold2-87m"])
def test_heads_in_one_chain_change_no_totals(name: str) -> None:
    """One chain for all heads has the parameters and operations of one for each, in fewer ops."""
    split, whole = llm.build(name), llm.build(name, split_heads=False)
    assert whole.param_bytes.sum() == split.param_bytes.sum()
    assert whole.flops.sum() == split.flops.sum()
    assert whole.num_ops < split.num_ops / 4
    assert whole.depth == split.depth


def test_a_layer_of_gpt3_in_full() -> None:
    """Twelve ops for each head and twelve more, linked as attention is."""
    graph = llm.build("gpt3-330m", tokens=20, batch=3, bytes_per_number=2)
    layer = [v for v, name in enumerate(graph.names) if name.startswith("l5.")]
    assert len(layer) == 12 * 16 + 12
    links = {(graph.names[u], graph.names[v]) for u, v in graph.edges.tolist()}
    chain = ["norm1", "h7.k", "h7.k_bias", "h7.transpose", "h7.scores", "h7.scale", "h7.mask", "h7.softmax"]
    chain += ["h7.context", "concat", "projection", "projection_bias", "add1", "norm2", "up", "up_bias", "gelu"]
    chain += ["down", "down_bias", "add2"]
    for a, b in itertools.pairwise(chain):
        assert (f"l5.{a}", f"l5.{b}") in links
    for a, b in [("h7.v_bias", "h7.context"), ("h7.q_bias", "h7.scores"), ("add1", "add2")]:
        assert (f"l5.{a}", f"l5.{b}") in links
    assert ("l4.add2", "l5.norm1") in links
    assert ("l4.add2", "l5.add1") in links
    scores, up = graph.index("l5.h7.scores"), graph.index("l5.up")
    assert graph.out_bytes[scores] == 2 * 3 * 20 * 20
    assert graph.flops[scores] == 2 * 3 * 20 * 20 * 64
    assert graph.param_bytes[up] == 2 * 4 * 1024**2
    assert graph.flops[up] == 2 * 3 * 20 * 4 * 1024**2


def test_swin_halves_its_image_between_stages() -> None:
    """A quarter of the tokens and twice the width from stage to stage; scores within windows of 49."""
    graph = llm.build("swin-1.8b")
    tokens, width = 3136, 512
    for first in (0, 2, 4, 30):
        assert graph.out_bytes[graph.index(f"l{first}.add2")] == 4 * tokens * width
        assert graph.out_bytes[graph.index(f"l{first}.h3.scores")] == 4 * tokens * 49
        tokens, width = tokens // 4, 2 * width
    assert llm.build("swin-1.8b", tokens=64).out_bytes[-1] == 4 * 1 * 4096


def test_batches_scale_work_and_not_parameters() -> None:
    """Operations and outputs grow with the batch, parameters do not."""
    one, four = (llm.build("alphafold2-87m", batch=batch, split_heads=False, tokens=32) for batch in (1, 4))
    assert (four.flops == 4 * one.flops).all()
    assert (four.out_bytes == 4 * one.out_bytes).all()
    assert (four.param_bytes == one.param_bytes).all()


def test_devices_with_rates_give_times() -> None:
    """Every op has a finite, positive time on every device of the presets."""
    graph = llm.build("gpt3-330m", tokens=20, split_heads=False)
    for preset in ("moirai-inter", "moirai-intra", "gpt3-nodes", "cpu-t4-a100"):
        for device in Hardware.preset(preset).devices:
            seconds = op_times(graph, device)
            assert np.isfinite(seconds).all()
            assert (seconds > 0).all()


def test_bad_arguments_are_refused() -> None:
    """Unknown names and numbers out of range are named."""
    with pytest.raises(InvalidGraph, match=r"no network 'gpt5'.*gpt3-330m"):
        llm.build("gpt5")
    with pytest.raises(InvalidGraph, match="tokens is 2049"):
        llm.build("gpt3-330m", tokens=2049)
    with pytest.raises(InvalidGraph, match="multiple of 64"):
        llm.build("swin-1.8b", tokens=100)
    with pytest.raises(InvalidGraph, match="tokens is 0"):
        llm.build("alphafold2-87m", tokens=0)
    with pytest.raises(InvalidGraph, match="batch is 0"):
        llm.build("gpt3-330m", batch=0)
    with pytest.raises(InvalidGraph, match="bytes_per_number is 0"):
        llm.build("gpt3-330m", bytes_per_number=0)
