"""Keras models as graphs: bytes, operations, shared layers, nested models, refusals."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit import Graph, load_graph
from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.importers.common.precision import precision_of
from rlinit.importers.keras.flops import layer_flops
from rlinit.importers.keras.reader import from_keras, import_keras


@pytest.fixture(scope="module")
def keras() -> Any:
    try:
        return import_keras()
    except BackendUnavailable as problem:
        pytest.skip(str(problem))


def row(graph: Graph, name: str) -> tuple[str, float, float, float]:
    """Return kind, parameter bytes, output bytes and operations of an op."""
    v = graph.index(name)
    return graph.kinds[v], graph.param_bytes[v], graph.out_bytes[v], graph.flops[v]


def edges(graph: Graph) -> set[tuple[str, str]]:
    """Return the edges by name."""
    return {(graph.names[u], graph.names[v]) for u, v in graph.edges}


def test_a_small_network_in_full(keras: Any) -> None:
    """Every column of a network small enough to count by hand."""
    layers = keras.layers
    x = keras.Input((8, 8, 3), name="image")
    a = layers.Conv2D(4, 3, padding="same", name="conv")(x)
    b = layers.BatchNormalization(name="norm")(a)
    c = layers.Activation("relu", name="relu")(b)
    d = layers.Add(name="sum")([a, c])
    e = layers.GlobalAveragePooling2D(name="pool")(d)
    f = layers.Dense(10, activation="softmax", name="head")(e)
    graph = from_keras(keras.Model(x, f, name="tiny"), dtype=("fp32", "fp16"))
    assert graph.name == "tiny"
    assert graph.names == ("image", "conv", "norm", "relu", "sum", "pool", "head")
    assert row(graph, "image") == ("InputLayer", 0, 2 * 192, 0)
    assert row(graph, "conv") == ("Conv2D", 4 * (27 * 4 + 4), 2 * 256, 2 * 256 * 27 + 256)
    assert row(graph, "norm") == ("BatchNormalization", 4 * 16, 2 * 256, 2 * 256)
    assert row(graph, "relu") == ("Activation", 0, 2 * 256, 256)
    assert row(graph, "sum") == ("Add", 0, 2 * 256, 256)
    assert row(graph, "pool") == ("GlobalAveragePooling2D", 0, 2 * 4, 256)
    assert row(graph, "head") == ("Dense", 4 * 50, 2 * 10, 2 * 40 + 10 + 10)
    assert edges(graph) == {
        ("image", "conv"),
        ("conv", "norm"),
        ("norm", "relu"),
        ("conv", "sum"),
        ("relu", "sum"),
        ("sum", "pool"),
        ("pool", "head"),
    }


@pytest.mark.parametrize(
    ("make", "shape", "flops"),
    [
        (lambda k: k.Conv1D(5, 3, use_bias=False), (10, 4), 2 * 8 * 5 * 3 * 4),
        (lambda k: k.Conv2D(6, 3, groups=2, use_bias=False), (5, 5, 4), 2 * 9 * 6 * 9 * 2),
        (lambda k: k.Conv2D(6, 3, strides=2, activation="relu"), (5, 5, 4), 2 * 4 * 6 * 36 + 2 * 24),
        (lambda k: k.Conv3D(2, 2, use_bias=False), (3, 3, 3, 1), 2 * 8 * 2 * 8),
        (lambda k: k.Conv2DTranspose(6, 3, use_bias=False), (5, 5, 4), 2 * 100 * 9 * 6),
        (lambda k: k.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False), (5, 5, 4), 2 * 9 * 8 * 9),
        (lambda k: k.SeparableConv2D(6, 3, use_bias=False), (5, 5, 4), 2 * 9 * 4 * 9 + 2 * 9 * 6 * 4),
        (lambda k: k.Dense(7, use_bias=False), (3, 5), 2 * 21 * 5),
        (lambda k: k.MaxPooling2D(2), (6, 6, 3), 27 * 4),
        (lambda k: k.AveragePooling1D(3), (6, 3), 6 * 3),
        (lambda k: k.GlobalMaxPooling1D(), (6, 3), 18),
        (lambda k: k.Rescaling(0.5), (6, 3), 36),
        (lambda k: k.ReLU(), (6, 3), 18),
        (lambda k: k.ZeroPadding2D(1), (6, 6, 3), 0),
        (lambda k: k.Flatten(), (6, 6, 3), 0),
        (lambda k: k.Dropout(0.5), (6, 3), 0),
        (lambda k: k.LayerNormalization(), (6, 3), 18),
    ],
)
def test_operations_of_each_sort_of_layer(keras: Any, make: Any, shape: tuple[int, ...], flops: float) -> None:
    """Operations equal a count by hand, a multiply-add being two; unknown layers count their output."""
    layer = make(keras.layers)
    x = keras.Input(shape)
    graph = from_keras(keras.Model(x, layer(x)))
    assert graph.flops.tolist() == [0, flops]
    assert graph.param_bytes[1] == 4 * layer.count_params()


def test_merges_count_their_inputs(keras: Any) -> None:
    """Merging j inputs takes j - 1 operations an element; concatenation takes none."""
    inputs = [keras.Input((4,)) for _ in range(3)]
    assert layer_flops(keras.layers.Average(), [4, 4, 4], 4) == 8
    graph = from_keras(keras.Model(inputs, keras.layers.Concatenate(name="join")(inputs)))
    assert row(graph, "join") == ("Concatenate", 0, 48, 0)


def test_a_tensor_used_twice_by_one_layer_is_one_edge(keras: Any) -> None:
    """Adding a tensor to itself gives one edge."""
    x = keras.Input((4,), name="x")
    graph = from_keras(keras.Model(x, keras.layers.Add(name="twice")([x, x])))
    assert edges(graph) == {("x", "twice")}


def test_a_shared_layer_is_one_op_a_call(keras: Any) -> None:
    """Calls of one layer become ops that share its parameters."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = keras.layers.Dense(4, name="shared")
    y = keras.layers.Concatenate(name="join")([shared(a), shared(shared(b))])
    graph = from_keras(keras.Model([a, b], y))
    calls = ["shared", "shared/call1", "shared/call2"]
    assert sorted(name for name in graph.names if name.startswith("shared")) == calls
    assert [graph.param_bytes[graph.index(name)] for name in calls] == [4 * 20] * 3
    assert [one.readers for one in graph.shared] == [tuple(sorted(map(graph.index, calls)))]
    assert graph.total_param_bytes == 4 * 20
    assert graph.groups == ()
    assert graph.flops[graph.index("shared/call2")] == graph.flops[graph.index("shared")] == 2 * 16 + 4
    assert graph.num_edges == 5


def test_calls_outside_the_model_do_not_count(keras: Any) -> None:
    """A layer that other models use too has one op for its one call in this model."""
    layer = keras.layers.Dense(2, name="dense")
    models = []
    for _ in range(2):
        x = keras.Input((3,), name="x")
        models.append(keras.Model(x, layer(x)))
    for model in models:
        assert from_keras(model).names == ("x", "dense")


def test_nested_models_are_opened(keras: Any) -> None:
    """Functional and sequential models used as layers give their inner ops, prefixed, at every depth and call."""
    u = keras.Input((4,), name="u")
    inner = keras.Model(u, keras.layers.Dense(4, name="dense")(u), name="inner")
    stack = keras.Sequential([keras.Input((4,)), inner, keras.layers.ReLU(name="relu")], name="stack")
    x = keras.Input((4,), name="x")
    graph = from_keras(keras.Model(x, keras.layers.Add(name="sum")([x, stack(stack(x))])))
    assert edges(graph) == {
        ("x", "stack/inner/dense"),
        ("stack/inner/dense", "stack/relu"),
        ("stack/relu", "stack/call1/inner/dense"),
        ("stack/call1/inner/dense", "stack/call1/relu"),
        ("stack/call1/relu", "sum"),
        ("x", "sum"),
    }
    assert graph.total_param_bytes == 4 * 20
    calls = (graph.index("stack/inner/dense"), graph.index("stack/call1/inner/dense"))
    assert [one.readers for one in graph.shared] == [calls]


def test_nested_model_with_several_inputs_and_outputs(keras: Any) -> None:
    """Inputs and outputs of an opened model meet the right ops, also where an input is an output."""
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    inner = keras.Model([a, b], [keras.layers.Dense(5, name="d")(b), a], name="inner")
    p, q = keras.Input((2,), name="p"), keras.Input((3,), name="q")
    left, right = inner([p, q])
    outputs = [keras.layers.ReLU(name="left")(left), keras.layers.ReLU(name="right")(right)]
    graph = from_keras(keras.Model([p, q], outputs))
    assert edges(graph) == {("q", "inner/d"), ("inner/d", "left"), ("p", "right")}


def test_numbers_of_other_types(keras: Any, tmp_path: Path) -> None:
    """Bytes follow the type, for weights and activations apart; what moves nothing is a view."""
    model = keras.Sequential([keras.Input((4, 4, 2)), keras.layers.Flatten(), keras.layers.Dense(3, name="dense")])
    model.save(tmp_path / "net.keras")
    usual, wide = from_keras(model), load_graph(tmp_path / "net.keras", dtype=("fp32", "fp16"))
    assert np.array_equal(wide.param_bytes, usual.param_bytes)
    assert np.array_equal(2 * wide.out_bytes, usual.out_bytes)
    assert precision_of(usual) == "weights fp32, activations fp32"
    half = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16", name="dense")])
    assert (from_keras(half).param_bytes[1], from_keras(half).out_bytes[1]) == (4 * 15, 2 * 3)
    assert [row.get("view", False) for row in wide.extras.values()] == [False, True, False]


def test_a_layer_with_several_outputs_has_one_tensor(keras: Any) -> None:
    """The output of an op is as large as all its outputs, and each consumer depends on it."""
    x = keras.Input((5, 3), name="x")
    y, h, c = keras.layers.LSTM(4, return_sequences=True, return_state=True, name="lstm")(x)
    graph = from_keras(keras.Model(x, [y, keras.layers.Add(name="sum")([h, c])]))
    assert graph.out_bytes[graph.index("lstm")] == 4 * (5 * 4 + 4 + 4)
    assert edges(graph) == {("x", "lstm"), ("lstm", "sum")}


def test_keras_operations_are_ops(keras: Any) -> None:
    """Arithmetic on symbolic tensors is an op without parameters."""
    x = keras.Input((4,), name="x")
    graph = from_keras(keras.Model(x, keras.ops.add(x, 1.0)))
    assert graph.kinds == ("InputLayer", "Add")
    assert graph.param_bytes.tolist() == [0, 0]


def test_sequential_model(keras: Any) -> None:
    """A built sequential model is a chain with its input."""
    model = keras.Sequential([keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")], name="chain")
    with pytest.raises(InvalidGraph, match=r"'chain'.*model\.build"):
        from_keras(model)
    model.build((None, 4))
    graph = from_keras(model, name="other")
    assert graph.name == "other"
    assert graph.kinds == ("InputLayer", "Dense", "Dense")
    assert edges(graph) == {(graph.names[0], "a"), ("a", "b")}


def test_refusals_say_what_to_do(keras: Any) -> None:
    """A subclassed model, a thing that is no model, and open shapes are InvalidGraph with advice."""

    class Mine(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(InvalidGraph, match="Mine"):
        from_keras(Mine(name="mine"))
    x = keras.Input((None, 4), name="words")
    with pytest.raises(InvalidGraph, match=r"'words'.*fixed input shape"):
        from_keras(keras.Model(x, keras.layers.Dense(2)(x)))


def test_file_round_trip(keras: Any, tmp_path: Path) -> None:
    """A saved model gives the graph of the model, with or without its compile state."""
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, name="d")(x), name="m")
    model.compile("sgd", "mse")
    model.save(tmp_path / "m.keras")
    assert load_graph(tmp_path / "m.keras") == from_keras(model)


def test_weights_of_a_file_are_not_allocated(keras: Any, tmp_path: Path) -> None:
    """A file whose configuration asks for 400 GB of weights is read without them; its weights may be damaged too."""
    if keras.config.backend() != "torch":
        pytest.skip("only the torch backend has tensors without storage")
    with keras.device("meta"):
        x = keras.Input((10**3,), name="x")
        model = keras.Model(x, keras.layers.Dense(10**8, name="huge")(x), name="m")
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(keras.saving.serialize_keras_object(model)))
        archive.writestr("model.weights.h5", b"junk")
    graph = load_graph(tmp_path / "m.keras")
    assert graph.param_bytes.tolist() == [0, 4 * (1e11 + 1e8)]
    assert graph.extras[1]["node"] == "huge"


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"class_name": "os.system", "config": {}}'])
def test_a_malformed_configuration(keras: Any, tmp_path: Path, text: str) -> None:
    """A configuration that is no model is refused by the file's name."""
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("config.json", text)
    with pytest.raises(InvalidGraph, match=r"m\.keras|'m'|dict"):
        load_graph(tmp_path / "m.keras")


def test_code_in_a_file_is_not_run(keras: Any, tmp_path: Path) -> None:
    """A lambda layer is refused, and so is a file that is no archive."""
    x = keras.Input((4,))
    keras.Model(x, keras.layers.Lambda(lambda t: t * 2, output_shape=(4,))(x)).save(tmp_path / "lambda.keras")
    with pytest.raises(InvalidGraph, match="code in the file is never run"):
        load_graph(tmp_path / "lambda.keras")
    (tmp_path / "junk.keras").write_text("junk")
    with pytest.raises(InvalidGraph, match=r"junk\.keras"):
        load_graph(tmp_path / "junk.keras")
    with zipfile.ZipFile(tmp_path / "empty.keras", "w"):
        pass
    with pytest.raises(InvalidGraph, match=r"empty\.keras"):
        load_graph(tmp_path / "empty.keras")


def written(path: Path, config: object) -> Path:
    """Write a configuration as a model file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps(config))
    return path


@pytest.fixture(scope="module")
def network(keras: Any) -> dict[str, Any]:
    """Return the configuration of a small network with branches."""
    x = keras.Input((8, 8, 3), name="x")
    y = keras.layers.BatchNormalization(name="norm")(keras.layers.Conv2D(4, 3, name="conv")(x))
    y = keras.layers.Flatten(name="flat")(y)
    y = keras.layers.Add(name="sum")([keras.layers.Dense(3, name="a")(y), keras.layers.Dense(3, name="b")(y)])
    config: dict[str, Any] = keras.saving.serialize_keras_object(keras.Model(x, y, name="m"))
    return config


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each entry of nested lists and dictionaries."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, part in inner for found in places(part, (*place, key)))]


HOSTILE: list[Any] = [
    *(None, -1, 0, 10**9, 10**18, 10**40, 1.5, "", "x", [], {}, [1] * 50, True, [None, 10**9, 10**9]),
    {"class_name": "Lambda", "config": {}},
    {"class_name": "system", "module": "os", "config": {}},
    {"class_name": "__lambda__", "config": {"value": "x"}},
]


@pytest.mark.parametrize("kind", ["Conv2D", "SeparableConv2D", "Conv2DTranspose", "Dense"])
def test_a_layer_that_is_not_built(keras: Any, tmp_path: Path, kind: str) -> None:
    """A file without the shapes that a layer is built for is refused, by the layer's name."""
    inputs = keras.Input((8, 8, 3))
    layer = getattr(keras.layers, kind)(4, **({} if kind == "Dense" else {"kernel_size": 3}), name="bare")
    keras.Model(inputs, layer(inputs)).save(tmp_path / "net.keras")
    with zipfile.ZipFile(tmp_path / "net.keras") as archive:
        config = json.loads(archive.read("config.json"))
    for row in config["config"]["layers"]:
        row["build_config"] = "gone"
    with zipfile.ZipFile(tmp_path / "bare.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(config))
    with pytest.raises(InvalidGraph, match="bare"):
        load_graph(tmp_path / "bare.keras")


def test_mutated_configurations_never_crash(network: dict[str, Any], tmp_path: Path) -> None:
    """Random changes of a configuration give a graph or an InvalidGraph, nothing else, and never a 100 MB of memory."""
    resource = pytest.importorskip("resource")
    load_graph(written(tmp_path / "m.keras", network))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    random_state = random.Random(0)
    everywhere = places(network)[1:]
    refused = 0
    for _ in range(40):
        config = copy.deepcopy(network)
        for _ in range(random_state.randint(1, 3)):
            *path, last = random_state.choice(everywhere)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                part: Any = config
                for key in path:
                    part = part[key]
                part[last] = copy.deepcopy(random_state.choice(HOSTILE))
        try:
            load_graph(written(tmp_path / "m.keras", config))
        except InvalidGraph:
            refused += 1
    assert refused > 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_mutated_archives_never_crash(network: dict[str, Any], tmp_path: Path) -> None:
    """Random changes of bytes, and cuts, give a graph or an InvalidGraph, nothing else."""
    whole = written(tmp_path / "whole.keras", network).read_bytes()
    random_state = random.Random(0)
    refused = 0
    for trial in range(120):
        content = bytearray(whole)
        if trial % 4 == 0:
            content = content[: random_state.randrange(len(content))]
        for _ in range(random_state.randint(1, 4) if content else 0):
            # Half of the changes in the directory at the end, which says how to read the rest.
            at = random_state.randrange(max(0, len(content) - 90) if trial % 2 else 0, len(content))
            content[at] = random_state.randrange(256)
        (tmp_path / "m.keras").write_bytes(content)
        try:
            load_graph(tmp_path / "m.keras")
        except InvalidGraph:
            refused += 1
    assert refused > 60


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that grows a thousandfold is read up to the limit only."""
    monkeypatch.setattr("rlinit.importers.keras.reader.MAX_BYTES", 1 << 26)
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * ((1 << 26) + 2))
    assert (tmp_path / "m.keras").stat().st_size < 100_000
    with pytest.raises(InvalidGraph, match=r"more than 67,108,864 bytes"):
        load_graph(tmp_path / "m.keras")


@pytest.mark.parametrize(
    ("kind", "module", "settings", "message"),
    [
        ("system", "os", {}, "module 'os'"),
        ("Popen", "subprocess", {}, "module 'subprocess'"),
        ("Layer", "keras_extra.layers", {}, "'keras_extra.layers'"),
        ("TorchModuleWrapper", "keras.layers", {"module": "gASVIgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg=="}, "never run"),
        ("TFSMLayer", "keras.layers", {"filepath": "/etc"}, "names the file '/etc'"),
        ("IntegerLookup", "keras.layers", {"vocabulary": "/etc/passwd"}, "names the file '/etc/passwd'"),
        ("STFTSpectrogram", "keras.layers", {"frame_length": 10**9, "fft_length": 10**9}, "frame_length is 1000000000"),
        ("Conv2D", "keras.layers", {"filters": 10**9, "kernel_size": [10**5, 10**5]}, r"m\.keras"),
        ("eval", "builtins", {"source": "1"}, r"m\.keras"),
    ],
)
def test_hostile_layers(
    keras: Any, tmp_path: Path, kind: str, module: str, settings: dict[str, Any], message: str
) -> None:
    """Classes from elsewhere, pickles, files and weights beyond all memory are refused, and nothing is run or read."""
    layers = [
        {"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [None, 8, 8, 3], "name": "i"}},
        {"module": module, "class_name": kind, "config": {"name": "l", **settings}},
    ]
    config = {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": layers}}
    with pytest.raises(InvalidGraph, match=message):
        load_graph(written(tmp_path / "m.keras", config))


def test_without_keras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Keras is missing the error names the extra."""

    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    (tmp_path / "m.keras").write_text("")
    monkeypatch.setitem(sys.modules, "keras", sys.modules.get("keras"))
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match=r"pip install rlinit\[keras\]"):
        load_graph(tmp_path / "m.keras")
