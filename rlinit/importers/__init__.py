"""Reading computation graphs from model files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.files import MAX_BYTES, check_schema, parse_json
from rlinit.graph import Graph
from rlinit.importers.common.blocks import Blocks
from rlinit.importers.common.parameters import Sharing
from rlinit.importers.common.precision import Dtype
from rlinit.importers.profile_csv import load_profile

__all__ = ["load_graph"]


def load_graph(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    sharing: Sharing = "hold",
    dtype: Dtype = None,
    granularity: Blocks = "op",
    keep: Sequence[str] = (),
) -> Graph:
    """Read a computation graph from a file; its suffix says how.

    ==============  ==============================================================================================
    suffix          content
    ==============  ==============================================================================================
    ``.json``       what `Graph.save` writes
    ``.json.gz``    the same, compressed
    ``.onnx``       an ONNX model, its weights not read (needs ``pip install rlinit[onnx]``)
    ``.pt2``        a program saved by `torch.export.save`, its weights not read (``rlinit[torch]``)
    ``.tflite``     a TensorFlow Lite model (``rlinit[tflite]``)
    ``.csv``        a profile: ``op,after,seconds[,bytes]``, see `rlinit.importers.profile_csv`
    ``.keras``      a Keras 3 model for one sample (``rlinit[keras]``)
    ==============  ==============================================================================================

    No code in a file is run and no pickle opened.

    Parameters
    ----------
    path
        The file.
    batch
        ONNX, TFLite and ``.pt2``: value of a dynamic first dimension of the model's inputs; None: 1, or the least
        the model allows.
    dims
        ONNX, TFLite and ``.pt2``: values of other dynamic dimensions, by their name or as ``"input[axis]"``.
    sharing
        ONNX, TFLite and ``.pt2``: what to do with a parameter that several ops read: each device or stage that runs
        some of them holds it once ("hold"), all of them stay together ("colocate"), or each has a copy ("copy").
    dtype
        Model files: what floating-point numbers are counted in, "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4",
        or a pair of these for weights and activations. None: what the file says.
    granularity, keep
        What stays on one device or stage; see `Graph.group`. Layers are repeated blocks, found by the numbers in module
        paths, in the scopes of ONNX nodes and in the names of Keras layers.

    Raises
    ------
    InvalidGraph
        Another suffix, a file that cannot be read or whose content is malformed, or a graph that has no dynamic
        dimension where one was chosen; the message says where. An unknown granularity, or a pattern that fits nothing.
    BackendUnavailable
        The package that reads this kind of file is not installed.
    """
    graph = _read(path, batch, dims, sharing, dtype)
    return graph.group(granularity, keep=keep) if granularity != "op" or keep else graph


def _read(
    path: str | Path,
    batch: int | None,
    dims: Mapping[str, int] | None,
    sharing: Sharing,
    dtype: Dtype,
) -> Graph:
    """Read a graph as the file has it; see `load_graph`."""
    name = Path(path).name.lower()
    if name.endswith((".json", ".json.gz", ".csv", ".keras")) and (batch is not None or dims or sharing != "hold"):
        raise InvalidGraph(
            f"{path}: graphs of this kind have no dynamic dimensions, and what they share is fixed; leave batch, dims "
            "and sharing out"
        )
    if name.endswith((".json", ".json.gz", ".csv")) and dtype is not None:
        raise InvalidGraph(f"{path}: a graph file says bytes, not numbers; leave dtype out")
    if is_language_model(path):
        raise InvalidGraph(
            f"{path} is a language model without a graph; rlinit.llm.load reads it and rlinit.llm.plan plans it "
            "(rlinit llm CONFIG --hw HARDWARE)"
        )
    if name.endswith(".json"):
        return Graph.load(path)
    if name.endswith(".json.gz"):
        return _load_compressed(path)
    if name.endswith(".csv"):
        return load_profile(path)
    if name.endswith(".keras"):
        from rlinit.importers.keras.reader import load_keras

        return load_keras(path, dtype=dtype)
    given: dict[str, Any] = {"batch": batch, "sharing": sharing, "dtype": dtype, "name": Path(path).stem}
    if name.endswith(".pt2"):
        from rlinit.importers.torch.export import from_program
        from rlinit.importers.torch.pt2_file import load_program

        return from_program(load_program(path), dims=dims, **given)
    if name.endswith(".onnx"):
        from rlinit.importers.onnx.reader import from_onnx, read_onnx

        return from_onnx(read_onnx(Path(path))[0], dims=dims, **given)
    if name.endswith(".tflite"):
        from rlinit.importers.tflite.reader import from_tflite

        if dims:
            raise InvalidGraph(f"{path}: a TensorFlow Lite model stores the shapes of one size; leave dims out")
        return from_tflite(_content(path), **given)
    raise InvalidGraph(
        f"cannot tell what {path} is from its suffix; readable are .json, .json.gz, .csv, .onnx, .pt2, .tflite and "
        ".keras"
    )


def _content(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise InvalidGraph(f"cannot read {path}: {problem}") from problem


def is_language_model(path: str | Path) -> bool:
    """Return whether a file, whatever its name, is a configuration of transformers, or is called a GGUF file.

    Parameters
    ----------
    path
        Of the file; one that cannot be read is none.
    """
    if not str(path).lower().endswith(".json"):
        return str(path).lower().endswith(".gguf")
    try:
        said = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and "model_type" in said and "ops" not in said


def _load_compressed(path: str | Path) -> Graph:
    """Read a gzip-compressed graph file, with the checks of `Graph.load`."""
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise InvalidGraph(f"cannot read {path}: {problem}") from problem
    if len(content) > MAX_BYTES:
        raise InvalidGraph(f"{path} holds more than {MAX_BYTES:,} bytes; decompress it and check what it is")
    try:
        data = parse_json(content)
    except ValueError as problem:
        raise InvalidGraph(f"{path} is not valid JSON: {problem}") from None
    check_schema(data, "graph", InvalidGraph, str(path))
    return Graph.from_dict(data)
