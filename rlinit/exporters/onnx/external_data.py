"""ONNX files whose weights may lie beside them: read without the weights, written with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.files import write_atomically
from rlinit.importers.onnx.reader import import_onnx, load_values, read_onnx, stored_tensors

_MAX_INLINE_BYTES = 1 << 30
"""Weights of a file beyond which they go into a file beside it; a protobuf message ends at 2 GiB."""

_LEAST_APART_BYTES = 1024
"""Weights below this stay in the file."""


def open_onnx(model: Any) -> tuple[Any, Path | None]:
    """Return a model, and the file beside which the data of its large weights lies; None where it has it all.

    Parameters
    ----------
    model
        An ``.onnx`` file, or an `onnx.ModelProto` whose weights are loaded.

    Raises
    ------
    InvalidGraph
        The file cannot be read, is no ONNX model, or has data outside its folder; or the ModelProto has data
        elsewhere.
    BackendUnavailable
        onnx is not installed.
    """
    if not isinstance(model, (str, Path)):
        external = import_onnx().TensorProto.EXTERNAL
        apart = next((t.name for t in stored_tensors(model.graph) if t.data_location == external), None)
        if apart is not None:
            raise InvalidGraph(f"tensor {apart!r} of the model lies in another file; give the path of the model")
        return model, None
    proto, left = read_onnx(Path(model))
    if not proto.HasField("graph"):
        raise InvalidGraph(f"{model} has no graph; is this an ONNX model?")
    return proto, Path(model) if left else None


def loaded(tensor: Any, source: Path | None) -> Any:
    """Return a stored tensor that holds its values itself: a copy where they are beside the model at `source`.

    Parameters
    ----------
    tensor
        A `TensorProto` of an initializer.
    source
        The file its model came from; None for a model in memory, whose tensors are returned as they are.

    Raises
    ------
    InvalidGraph
        The file with the values cannot be read.
    """
    onnx = import_onnx()
    if source is None or tensor.data_location != onnx.TensorProto.EXTERNAL:
        return tensor
    copied = onnx.TensorProto()
    copied.CopyFrom(tensor)
    load_values(copied, source)
    return copied


def save_onnx(model: Any, path: Path) -> None:
    """Write a model that holds its weights, atomically; beyond 1 GiB they go into ``<stem>.data`` beside it.

    The model is changed then: its weights refer to that file.

    Parameters
    ----------
    model
        A `ModelProto` whose initializers hold their values.
    path
        The file to write; one that exists is replaced, and so is the one for its weights.
    """
    from onnx import external_data_helper

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if size > _MAX_INLINE_BYTES:
        beside = path.with_suffix(".data")
        beside.unlink(missing_ok=True)
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= _LEAST_APART_BYTES:
                external_data_helper.set_external_data(tensor, beside.name)
        external_data_helper.write_external_data_tensors(model, str(path.parent))
    write_atomically(path, model.SerializeToString())
