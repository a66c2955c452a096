"""Keras 3 models as computation graphs: one op a layer call."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import lzma
import math
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.files import MAX_BYTES
from rlinit.graph import Graph
from rlinit.importers.common.precision import Dtype, NumberType, Precision
from rlinit.importers.keras.flops import layer_flops

_DAMAGE = (
    *(OSError, KeyError, ValueError, RuntimeError, EOFError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""What reading a damaged archive raises."""
_FILES = ("vocabulary", "filepath", "idf_weights")
"""Settings that may name a file to read."""
_VIEWS = frozenset(
    {"Reshape", "Flatten", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout"}
    | {"GaussianDropout", "GaussianNoise", "ActivityRegularization", "Identity"}
)
"""Layers that at inference hand on what they read, at most in another shape."""
_COMPUTED = ("frame_length", "fft_length")
"""Sizes of weights that layers compute when they are made, on any device."""
_MAX_COMPUTED = 1 << 13
"""Largest of these sizes, so that a file cannot ask for gigabytes."""
_POLICIES: dict[str, NumberType] = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
"""Types of numbers that dtype policies name, beside FP32."""


def import_keras() -> Any:
    """Return the keras module.

    No tensor is ever computed here, so any backend does. Where none is chosen (``KERAS_BACKEND`` unset) and
    TensorFlow, Keras's own default, is not installed, torch is chosen, which the extra brings along.

    Raises
    ------
    BackendUnavailable
        Keras, or the backend it is set to, is not installed.
    """
    if (
        "keras" not in sys.modules
        and "KERAS_BACKEND" not in os.environ
        and importlib.util.find_spec("tensorflow") is None
    ):
        os.environ["KERAS_BACKEND"] = "torch"
    try:
        return importlib.import_module("keras")
    except ImportError as problem:
        raise BackendUnavailable(
            f"reading Keras models needs Keras 3 and a backend ({problem}); pip install rlinit[keras], "
            "or set KERAS_BACKEND to a backend that is installed"
        ) from problem


def load_keras(path: str | Path, *, dtype: Dtype = None) -> Graph:
    """Read the graph of a model saved as a ``.keras`` file.

    Only the configuration in the file is read, in Keras's safe mode: a file that carries code (a lambda layer) is
    refused. That is Keras's guarantee and as good as its installed version; read files from strangers with its newest
    release. Weights are not read, and with the torch backend not allocated either.

    Parameters
    ----------
    path
        The file.
    dtype
        As for `from_keras`.

    Raises
    ------
    InvalidGraph
        A file that cannot be read, that needs code which is not part of Keras, or whose model `from_keras` refuses.
    BackendUnavailable
        Keras is not installed.
    """
    if not Path(path).is_file():
        raise InvalidGraph(f"cannot read {path}: there is no such file")
    keras = import_keras()
    config = _configuration(path) | {"compile_config": None}
    _check(config, path, keras)
    place = keras.device("meta") if keras.config.backend() == "torch" else contextlib.nullcontext()
    try:
        library = importlib.import_module("keras.src.saving.serialization_lib")
        with place, library.ObjectSharingScope():  # as keras.saving.load_model does
            model = keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as problem:  # Keras raises bare ValueError, TypeError, KeyError, ...
        reason = str(problem).strip().split("\n")[0]
        raise InvalidGraph(
            f"cannot read {path} as a Keras model (code in the file is never run): {reason}; "
            "a model that needs its own code can be built in Python and passed to from_keras"
        ) from problem
    return from_keras(model, name=Path(path).stem, dtype=dtype)


def load_model(path: str | Path) -> Any:
    """Return the Keras model of a ``.keras`` file with its weights, which has to pass the checks of `load_keras`.

    Raises
    ------
    InvalidGraph
        The file cannot be read, or needs code that is not part of Keras.
    BackendUnavailable
        Keras is not installed.
    """
    keras = import_keras()
    _check(_configuration(path), path, keras)
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as problem:  # Keras raises bare ValueError, TypeError, KeyError, ...
        reason = str(problem).strip().split("\n")[0]
        raise InvalidGraph(f"cannot read {path} with its weights: {reason}") from problem


def _configuration(path: str | Path) -> dict[str, Any]:
    """Return the configuration in a ``.keras`` archive."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
            text = file.read(MAX_BYTES + 1)
    except _DAMAGE as problem:
        raise InvalidGraph(f"cannot read {path} as a .keras archive: {problem}") from problem
    if len(text) > MAX_BYTES:
        raise InvalidGraph(f"{path}: the configuration has more than {MAX_BYTES:,} bytes; check what it is")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidGraph(f"{path}: the configuration is not valid JSON: {problem}") from None
    if not isinstance(config, dict):
        raise InvalidGraph(f"{path}: the configuration is a {type(config).__name__}; expected an object")
    return config


def _check(config: dict[str, Any], path: str | Path, keras: Any) -> None:
    """Refuse what Keras would look for outside itself, or compute at any size, before it sees the configuration.

    Raises
    ------
    InvalidGraph
        A class of another module, a setting that names a file, or a spectrogram beyond any use; the message has it.
    """
    waiting: list[Any] = [config]
    while waiting:
        value = waiting.pop()
        waiting.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        if not isinstance(value, dict):
            continue
        module, name = value.get("module"), value.get("class_name")
        registered = value.get("registered_name")
        known = isinstance(registered, str) and keras.saving.get_registered_object(registered) is not None
        own = not isinstance(module, str) or re.fullmatch(r"keras(\.\w+)*|builtins", module)
        if isinstance(name, str) and not own and not known:
            raise InvalidGraph(
                f"{path}: {name!r} is of the module {module!r}; only Keras's own and registered classes are read (code "
                "in the file is never run). Other models can be built in Python and passed to from_keras"
            )
        for key in _FILES:
            if isinstance(value.get(key), str):
                raise InvalidGraph(f"{path}: {key} names the file {value[key]!r}; files beside the model are not read")
        for key in _COMPUTED:
            size = value.get(key)
            if isinstance(size, (int, float)) and size > _MAX_COMPUTED:
                raise InvalidGraph(f"{path}: {key} is {size}; expected <= {_MAX_COMPUTED}, since it makes weights")


def from_keras(model: Any, *, name: str | None = None, dtype: Dtype = None) -> Graph:
    """Return the computation graph of a functional or sequential Keras 3 model, one op for each layer call.

    Ops are named by their layers, `op` is the layer's class, `flops` follows `keras_flops`, and everything is for
    ONE sample: the first dimension of every shape is the batch and counts as 1. Parameters are all of
    a layer's weights, moving statistics included. An op with several outputs has one tensor as large as all of them.

    A layer called several times gives several ops (``name``, ``name/call1``, ...) that share its parameters: a device
    or stage that runs several of them holds them once. A model used as a layer is opened up: its ops are named
    ``model/layer``. Keras operations on symbolic tensors are ops too. The extra ``node`` of an op is its layer's name,
    without the number of the call.

    Parameters
    ----------
    model
        A built `keras.Model`, of any backend, made by the functional API or `keras.Sequential`; its weights' values do
        not matter.
    name
        The graph's name, by default the model's.
    dtype
        What floating-point weights and activations are counted in; see `Precision`. None: as each layer's dtype policy
        says, which is FP32 unless it was set; INT8 inference, as on Edge TPUs, is "int8". `precision_of` says which.

    Raises
    ------
    InvalidGraph
        A model without a layer graph (subclassed, or sequential and not built), or an output shape that is not
        fixed; the message says what to do.
    """
    return _Rows(Precision.of(dtype)).graph(layer_calls(model)[0], name or str(model.name))


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer, which is one op.

    Parameters
    ----------
    name, label
        The op's name, and the layer's path without the number of the call.
    node
        Keras's node: what is called, and with which arguments.
    sources
        Where each of the node's input tensors comes from: name of an op, and which of its outputs.
    """

    name: str
    label: str
    node: Any
    sources: tuple[tuple[str, int], ...]


def layer_calls(model: Any) -> tuple[list[LayerCall], list[tuple[str, int]]]:
    """Return the calls of a model's layers in an order in which they can run, and which of their outputs are its own.

    Raises
    ------
    InvalidGraph
        The model has no layer graph.
    """
    walk = _Walk()
    outputs = walk.open_model(model, None, "")
    return walk.calls, outputs


def _layer_graph(model: Any, label: str) -> Any:
    """Return the functional model that holds the layer graph of `model`."""
    functional = getattr(model, "_functional", None) or model  # a Sequential keeps its layer graph in one
    if not hasattr(functional, "_nodes_by_depth") or not getattr(functional, "outputs", None):
        raise InvalidGraph(
            f"model {label!r} ({type(model).__name__}) has no layer graph; expected a functional model, or a "
            "sequential one that is built (call model.build(input_shape), or begin it with keras.Input)"
        )
    return functional


def _is_model(operation: Any) -> bool:
    return hasattr(operation, "_nodes_by_depth") or hasattr(operation, "_functional")


def _elements(tensors: Sequence[Any], label: str) -> int:
    """Return the number of elements of the tensors for one sample."""
    total = 0
    for tensor in tensors:
        sizes = tuple(tensor.shape)[1:]
        if any(size is None for size in sizes):
            raise InvalidGraph(
                f"op {label!r} has the output shape {tuple(tensor.shape)}; expected every dimension but the first to "
                "be fixed (build the model with a fixed input shape)"
            )
        total += math.prod(sizes)
    return total


def _kept_in(operation: Any, chosen: Precision) -> Precision:
    """Return the types of a layer's weights and activations: those chosen, or else those of its dtype policy."""
    weights, activations = (
        _POLICIES.get(str(getattr(operation, which, "float32")), "fp32")
        for which in ("variable_dtype", "compute_dtype")
    )
    return Precision(chosen.weights or weights, chosen.activations or activations)


@dataclass(slots=True)
class _Walk:
    """Collects calls while models are opened up."""

    calls: list[LayerCall] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def open_model(self, model: Any, sources: Sequence[tuple[str, int]] | None, prefix: str) -> list[tuple[str, int]]:
        """Add the calls of a model and return the producers of its outputs.

        `sources` are the producers of its inputs where it is used as a layer; None: its input layers are ops.
        """
        functional = _layer_graph(model, prefix or str(getattr(model, "name", "")))
        made: dict[int, tuple[str, int]] = {}  # id(symbolic tensor) -> producer
        if sources is not None:
            made = {id(tensor): op for tensor, op in zip(functional.inputs, sources, strict=True)}
        depths = functional._nodes_by_depth
        for node in (node for depth in sorted(depths, reverse=True) for node in depths[depth]):
            if node.is_input and sources is not None:
                continue
            consumed = [made[id(tensor)] for tensor in node.input_tensors]
            label = f"{prefix}/{node.operation.name}" if prefix else str(node.operation.name)
            if _is_model(node.operation):
                producers = self.open_model(node.operation, consumed, self._free_name(label))
            else:
                name = self._free_name(label)
                self.calls.append(LayerCall(name, label, node, tuple(consumed)))
                producers = [(name, at) for at in range(len(node.output_tensors))]
            made.update((id(tensor), op) for tensor, op in zip(node.output_tensors, producers, strict=True))
        return [made[id(tensor)] for tensor in functional.outputs]

    def _free_name(self, label: str) -> str:
        """Return the label, numbered where it is taken, and take it."""
        name, call = label, 0
        while name in self.taken:
            call += 1
            name = f"{label}/call{call}"
        self.taken.add(name)
        return name


@dataclass(slots=True)
class _Rows:
    """Makes calls ops with their costs."""

    precision: Precision
    ops: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    first_op: dict[int, int] = field(default_factory=dict)  # id(layer) -> index of the op of its first call

    def graph(self, calls: Sequence[LayerCall], name: str) -> Graph:
        """Return the graph of all calls."""
        for call in calls:
            self._add_op(call)
        edges = [(source, call.name) for call in calls for source, _ in call.sources]
        return Graph.build(self.ops, edges, name=name)

    def _add_op(self, call: LayerCall) -> None:
        """Add the op of one call."""
        node, name = call.node, call.name
        operation = node.operation
        elements = _elements(node.output_tensors, name)
        kept = _kept_in(operation, self.precision)
        num_params = sum(math.prod(w.shape) for w in getattr(operation, "weights", ()))
        fixed = sum(math.prod(w.shape) for w in getattr(operation, "non_trainable_weights", ()))
        constants = kept.bytes_of(fixed, 0, is_float=True, is_weight=True)
        row: dict[str, Any] = {
            "op": type(operation).__name__,
            "param_bytes": kept.bytes_of(num_params, 0, is_float=True, is_weight=True),
            "out_bytes": kept.bytes_of(elements, 0, is_float=True, is_weight=False),
            "flops": layer_flops(operation, [_elements([t], name) for t in node.input_tensors], elements),
            "node": call.label,
            **({"constant_bytes": constants} if constants else {}),
            **({"view": True} if type(operation).__name__ in _VIEWS else {}),
            **kept.noted(),
        }
        first = self.first_op.setdefault(id(operation), len(self.ops))
        if first < len(self.ops) and row["param_bytes"]:
            group, holder = self.ops[first]
            row["shared"] = holder.setdefault("shared", {group: holder["param_bytes"]})
        self.ops.append((name, row))
