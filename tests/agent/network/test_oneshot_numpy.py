"""Inference without torch: the network's own numbers, equivariance, and the heuristic where nothing was learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.oneshot_numpy import _ROWS, GRID, OneShotWeights, _of_one, _read_sums, infer
from rlinit.agent.stages.features import featurise
from rlinit.errors import CheckpointError
from rlinit.kernels.batches import NUMBERED, disjoint_union
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from tests.draws import draws
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.agent.network.encoder import FeatureTensors
    from rlinit.agent.network.oneshot_torch import OneShot
    from tests.agent.networks import inferred, joined, random_network, some_problems


def random_features(rng: np.random.Generator, num_nodes: int, num_devices: int, edges: float = 0.3) -> GraphFeatures:
    """Return random features of a random graph, with this share of its edges, with devices."""
    u, v = np.nonzero(np.triu(rng.random((num_nodes, num_nodes)) < edges, 1))

    def csr(rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.lexsort((cols, rows))
        counts = np.bincount(rows, minlength=num_nodes)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), cols[order].astype(np.int64)

    pred_indptr, pred = csr(v, u)
    succ_indptr, succ = csr(u, v)
    return GraphFeatures(
        node=rng.standard_normal((num_nodes, 5)),
        pred_indptr=pred_indptr,
        pred=pred,
        succ_indptr=succ_indptr,
        succ=succ,
        ptr=np.array([0, num_nodes]),
        base_key=rng.standard_normal(num_nodes),
        device=rng.standard_normal((num_devices, 3)),
        device_ptr=np.array([0, num_devices]),
        pair=rng.standard_normal((num_nodes * num_devices, 2)),
    )


def latency_network(seed: int) -> OneShot:
    """Return a network with a device head, all weights drawn."""
    network = OneShot(OneShotConfig("latency", 5, 3, 2, hidden=8, layers=2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return network


@pytest.mark.parametrize("seed", range(3))
def test_inference_equals_the_network(seed: int) -> None:
    """Keys and device scores without torch are the network's, up to rounded weights, graph by graph."""
    rng = np.random.default_rng(seed)
    graphs = [random_features(rng, 1, 2), random_features(rng, 9, 4), random_features(rng, 6, 1)]
    network = latency_network(seed)
    with torch.no_grad():
        keys, scores = network(FeatureTensors.of(disjoint_union(graphs, NUMBERED)))
    found = inferred(network, graphs)
    assert np.allclose(found[0], keys.numpy(), atol=0.05)
    assert np.allclose(found[1], scores.numpy(), atol=0.05)


def test_layers_are_products() -> None:
    """A layer is the product with its weight, nearly, whatever the inputs' size, and none of no rows."""
    weights = OneShotWeights(latency_network(0).config, latency_network(0).arrays())
    x = np.random.default_rng(0).standard_normal((1_000, 8))
    arrays = {name: np.asarray(array, np.float64) for name, array in latency_network(0).arrays().items()}
    expected = x @ arrays["key_hidden.weight"].T + arrays["key_hidden.bias"]
    np.testing.assert_allclose(weights.layers["key_hidden"](x), expected, atol=0.02)
    assert weights.layers["key_hidden"](x[:0]).shape == (0, 8)
    assert (weights.layers["key_hidden"](0 * x) == weights.layers["key_hidden"](x * 1e-40)).all()


def test_nodes_read_in_blocks_of_rows() -> None:
    """A graph of more nodes than one block holds, the last one not full, is read as the network reads it."""
    features = random_features(np.random.default_rng(1), _ROWS + 3, 2)
    network = latency_network(1)
    with torch.no_grad():
        keys, scores = network(FeatureTensors.of(features))
    found = infer(OneShotWeights(network.config, network.arrays()), features)
    assert np.allclose(found[0], keys.numpy(), atol=0.05)
    assert np.allclose(found[1], scores.numpy(), atol=0.05)


@settings(deadline=None, max_examples=draws(30))
@given(st.integers(0, 10**6), st.sampled_from([1e-9, 1.0, 1e12]))
def test_sums_are_exact_in_any_order(seed: int, scale: float) -> None:
    """With inputs and weights in another order a layer's numbers are the same to the last bit, whatever their size."""
    rng = np.random.default_rng(seed)
    arrays = latency_network(seed % 5).arrays()
    arrays["key_hidden.weight"] = (arrays["key_hidden.weight"] * scale).astype(np.float32)
    order = rng.permutation(8)
    other = arrays | {"key_hidden.weight": arrays["key_hidden.weight"][:, order]}
    x = rng.standard_normal((50, 8)) * scale
    config = latency_network(0).config
    found = OneShotWeights(config, arrays).layers["key_hidden"](x)
    assert (found == OneShotWeights(config, other).layers["key_hidden"](x[:, order])).all()
    layer = OneShotWeights(config, arrays).layers["key_hidden"]
    whole, _ = layer.whole(x.astype(np.float32))
    assert (whole == np.round(whole)).all()
    assert (np.abs(whole) @ np.abs(layer.weight)).max() <= 2**24


@pytest.mark.parametrize(("seed", "edges"), [(0, 0.0), (1, 0.02), (2, 0.1), (3, 0.5)])
def test_nodes_with_one_neighbour_read_what_the_others_would(seed: int, edges: float) -> None:
    """Sums are those of states, means and maxima by all their weights, to the last bit, few neighbours or many."""
    rng = np.random.default_rng(seed)
    features = random_features(rng, 40, 1, edges)
    neighbours = features.pred_indptr, features.pred, features.succ_indptr, features.succ
    x = rng.integers(-50, 50, (40, 8)).astype(np.float32)
    read = rng.integers(-127, 128, (40, 8)).astype(np.float32)
    several = np.flatnonzero((np.diff(features.pred_indptr) > 1) | (np.diff(features.succ_indptr) > 1))
    parts = [x]
    for indptr, index in (neighbours[:2], neighbours[2:]):
        near = [x[index[indptr[v] : indptr[v + 1]]] for v in range(40)]
        none = np.zeros(8, np.float32)
        parts.append(np.stack([np.rint(each.mean(axis=0)) if len(each) else none for each in near]))
        parts.append(np.stack([each.max(axis=0) if len(each) else none for each in near]))
    found = _read_sums(x, read, _of_one(read), neighbours, several)
    assert (found == np.concatenate(parts, axis=1) @ read).all()


def test_stage_keys_equal_the_networks() -> None:
    """The same for stage problems, and every key is on the grid."""
    features, _ = featurise(joined(some_problems(6)))
    network = random_network(1)
    with torch.no_grad():
        keys, scores = network(FeatureTensors.of(features))
    found, none = inferred(network, [featurise(joined([problem]))[0] for problem in some_problems(6)])
    assert np.allclose(found, keys.numpy(), atol=0.05)
    assert len(scores) == len(none) == 0
    assert np.allclose(found / GRID, np.round(found / GRID), atol=1e-6)


@settings(deadline=None, max_examples=draws(20))
@given(st.integers(0, 10**6))
def test_relabelling_nodes_relabels_keys(seed: int) -> None:
    """Numbering the nodes of a graph otherwise permutes keys and scores, and changes nothing else."""
    rng = np.random.default_rng(seed)
    features = random_features(rng, int(rng.integers(1, 12)), int(rng.integers(1, 4)))
    n, d = features.num_nodes, len(features.device)
    new = rng.permutation(n)  # node v becomes new[v]
    old = np.argsort(new)

    def relabelled(indptr: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = [new[index[indptr[v] : indptr[v + 1]]] for v in old]
        return np.concatenate([[0], np.cumsum([len(r) for r in rows])]), np.concatenate(rows).astype(np.int64)

    pred_indptr, pred = relabelled(features.pred_indptr, features.pred)
    succ_indptr, succ = relabelled(features.succ_indptr, features.succ)
    other = GraphFeatures(
        node=features.node[old],
        pred_indptr=pred_indptr,
        pred=pred,
        succ_indptr=succ_indptr,
        succ=succ,
        ptr=features.ptr,
        base_key=features.base_key[old],
        device=features.device,
        device_ptr=features.device_ptr,
        pair=features.pair.reshape(n, d, -1)[old].reshape(n * d, -1),
    )
    network = latency_network(seed % 5)
    weights = OneShotWeights(network.config, network.arrays())
    keys, scores = infer(weights, features)
    other_keys, other_scores = infer(weights, other)
    assert np.allclose(keys[old], other_keys, atol=2 * GRID)
    found = scores.reshape(n, d, -1)[old].reshape(other_scores.shape)
    assert np.allclose(found, other_scores, atol=2 * GRID)


def test_a_fresh_network_gives_the_heuristics_keys() -> None:
    """The last layers start at zero, so that learning starts from the heuristic."""
    graphs = [featurise(joined([problem]))[0] for problem in some_problems(6)]
    network = OneShot(OneShotConfig("stages", NUM_STAGE_FEATURES, hidden=16, layers=2))
    keys, _ = inferred(network, graphs)
    assert np.allclose(keys, np.concatenate([features.base_key for features in graphs]), atol=GRID)
    rng = np.random.default_rng(0)
    placed = random_features(rng, 7, 3)
    fresh = OneShot(OneShotConfig("latency", 5, 3, 2, hidden=8, layers=2))
    assert (infer(OneShotWeights(fresh.config, fresh.arrays()), placed)[1] == 0.0).all()


def test_gradients_of_the_compiled_aggregation_are_those_of_torch() -> None:
    """Mean and maximum over neighbours have the gradient that finite differences give."""
    from rlinit.agent.network.encoder import neighbour_mean_max

    features = random_features(np.random.default_rng(2), 8, 1)
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    indptr, index = torch.from_numpy(features.pred_indptr), torch.from_numpy(features.pred)
    assert torch.autograd.gradcheck(lambda y: neighbour_mean_max(y, indptr, index), (x,))


def test_weights_of_another_architecture_are_refused() -> None:
    """A weight that is missing, unknown or of another shape is an error that names it."""
    network = random_network(0)
    arrays = network.arrays()
    with pytest.raises(CheckpointError, match=r"key_out\.weight.*architecture"):
        OneShotWeights(network.config, {name: a for name, a in arrays.items() if name != "key_out.weight"})
    with pytest.raises(CheckpointError, match="unknown weight 'more'"):
        OneShotWeights(network.config, {**arrays, "more": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match="has shape"):
        OneShotWeights(network.config, {**arrays, "key_out.weight": np.zeros((1, 3), np.float32)})
    with pytest.raises(CheckpointError, match=r"configuration .* unexpected .* 'depth'"):
        OneShotConfig.from_dict({"problem": "stages", "node_features": 3, "depth": 2})
    with pytest.raises(CheckpointError, match=r"configuration .* missing .* 'node_features'"):
        OneShotConfig.from_dict({"problem": "stages"})
