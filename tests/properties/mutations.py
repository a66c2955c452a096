"""Damaged files of every format that is read: each is refused in one line, and soon, or gives something usable."""

from __future__ import annotations

import importlib
import io
import json
import resource
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import process_time
from traceback import format_exc
from typing import Any

import numpy as np

import rlinit
from rlinit import llm
from rlinit.costs.table import CostTable
from rlinit.datasets import (
    alwabp,
    assembly_line,
    dnn_partitioning,
    flexible_job_shop,
    gxl,
    pipedream,
    stg,
)
from rlinit.errors import RlinitError

__all__ = ["JUNK", "Format", "attack", "formats", "read", "texts"]

JUNK = (
    b"",
    b"0",
    b"-1",
    b"1e308",
    b"-",
    b"9" * 400,
    b"null",
    b'"',
    b"{}",
    b"\\u0000",
    b"\\ud800",
    b"NaN",
    b"[",
    b"\xff",
)
"""What a damaged file has in place of a few bytes."""

SECONDS = 5.0
"""Processor seconds that reading a small file may take."""

MEMORY_BYTES = 2_000_000_000
"""Address space that reading a small file may take."""

HARDWARE = """
name = "three"
[[device]]
name = "host"
kind = "cpu"
flops_per_s = "1 TFLOPS"
memory_bytes = "16GB"
[[device]]
name = "acc"
count = 2
cache_bytes = 4e7
io_bandwidth = "unlimited"
[[link]]
from = "host"
to = "acc0"
bandwidth = "16 GB/s"
latency_s = 1e-5
"""

CONFIG = {
    "model_type": "mixtral", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip

PROFILE = "op,after,seconds,bytes\na,,1e-3,100\nb,a,2e-3,8\nc,a;b,0,0\n"
COSTS = "# machine: none\nop,device,batch,seconds,spread_s,repeats\na,cpu,1,1e-3,1e-5,10\nb,cpu,1,2e-3,,\n"
STG = "  2\n 0 0 0\n 1 5 1 0\n 2 3 1 0\n 3 0 2 1 2\n# Parallelism : 1.6\n"
GXL = (
    '<?xml version="1.0" encoding="UTF-8"?><gxl><graph id="small">'
    '<attr name="Number of processors"><int>2</int></attr><attr name="Total schedule length"><int>8</int></attr>'
    '<node id="1"><attr name="Weight"><int>2</int></attr></node>'
    '<node id="2"><attr name="Weight"><int>5</int></attr></node>'
    '<edge from="1" to="2"><attr name="Weight"><int>7</int></attr></edge></graph></gxl>'
)
WORKERS = "3\n5 Inf\n7 2\n1 1\n1 3\n2 3\n-1 -1\n"
LINE = "<number of tasks>\n3\n\n<task times>\n1 5\n2 7.5\n3 1\n\n<precedence relations>\n1,3\n2,3\n\n<end>\n"
SHOP = "2 2 1.5\n2 2 1 5 2 3 1 1 4\n1 1 2 6\n"
LAYERS = (
    "node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0\n"
    "node2 -- Conv2d(3, 8) -- forward_compute_time=1.0, backward_compute_time=0.5, activation_size=[6.0; 1.5], "
    "parameter_size=216.0\n\tnode1 -- node2\n"
)
WORKLOAD = {
    "maxSizePerFPGA": 400.0, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 100.0, "isBackwardNode": False}
        for i in range(3)
    ],
    "edges": [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in ((0, 1), (1, 2))],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: a whole one, and what reads it."""

    name: str
    data: bytes
    read: Callable[[Path], Any]


def texts() -> list[Format]:
    """Return every format that is text, with a small whole file of it."""
    load = rlinit.load_graph
    found: list[tuple[str, str, Callable[[Path], Any]]] = [
        ("hw.toml", HARDWARE, rlinit.Hardware.load),
        ("profile.csv", PROFILE, load),
        ("costs.csv", COSTS, CostTable.load),
        ("config.json", json.dumps(CONFIG), llm.load),
        ("small.stg", STG, partial(stg.load, processors=2)),
        ("small.gxl", GXL, gxl.load),
        ("workers", WORKERS, alwabp.load),
        ("line.alb", LINE, assembly_line.load),
        ("shop.txt", SHOP, flexible_job_shop.load),
        ("profile.txt", LAYERS, pipedream.load),
        ("workload.json", json.dumps(WORKLOAD), dnn_partitioning.load),
    ]
    return [Format(name, text.encode(), read) for name, text, read in found]


@cache
def formats() -> tuple[Format, ...]:
    """Return every format whose reader is installed, with a small whole file of it."""
    load, found = rlinit.load_graph, texts()
    for name, make, read in (
        ("net.pt2", _pt2, load),
        ("net.onnx", _onnx, load),
        ("net.tflite", _tflite, load),
        ("net.keras", _keras, load),
        ("net.gguf", _gguf, llm.load),
    ):
        try:
            found.append(Format(name, make(), read))
        except ImportError as missing:
            print(f"{name} is left out: {missing}")
    return tuple(found)


def _pt2() -> bytes:
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 4))
    out = io.BytesIO()
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(net.eval(), (torch.ones(2, 3, 8, 8),), dynamic_shapes=dynamic), out)
    return out.getvalue()


def _onnx() -> bytes:
    from onnx import TensorProto, helper

    shape: list[str | int | None] = ["batch", 8]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Reshape", ["h", "size"], ["r"], "shaped"),
        helper.make_node("Relu", ["r"], ["y"], "bent"),
    ]
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.0] * 64),
        helper.make_tensor("size", TensorProto.INT64, [2], [-1, 8]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        constants,
    )
    whole: bytes = helper.make_model(graph).SerializeToString()
    return whole


def _tflite() -> bytes:
    importlib.import_module("tflite")
    data = Path(__file__).parents[1] / "importers" / "tflite" / "data" / "conv_net.tflite"
    return data.read_bytes()


def _keras() -> bytes:
    from rlinit.errors import BackendUnavailable
    from rlinit.importers.keras.reader import import_keras

    try:
        keras = import_keras()
    except BackendUnavailable as problem:
        raise ImportError(str(problem)) from None
    x = keras.Input((8, 8, 3))
    h = keras.layers.Conv2D(4, 3)(x)
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Flatten()(keras.layers.ReLU()(h))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("config.json", json.dumps(keras.saving.serialize_keras_object(model)))
        archive.writestr("metadata.json", "{}")
    return out.getvalue()


def _gguf() -> bytes:
    import tempfile

    import gguf

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_embedding_length(16)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_context_length(128)
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (64, 16), "output": (64, 16), "output_norm": (16,)}
        shapes |= {f"blk.0.attn_{x}": (16, 16) if x in ("q", "output") else (8, 16) for x in ("q", "k", "v", "output")}
        shapes |= {"blk.0.ffn_gate": (40, 16), "blk.0.ffn_up": (40, 16), "blk.0.ffn_down": (16, 40)}
        shapes |= {"blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,)}
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with a few places overwritten; of an archive, half of the time inside one of its members."""
    if data[:2] == b"PK" and rng.random() < 0.7:
        return _in_archive(data, rng)
    text = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(text) + 1))
        kind = rng.random()
        if kind < 0.2:
            text[at : at + 1] = bytes(rng.integers(0, 256, 1, dtype=np.uint8))
        elif kind < 0.3:
            del text[at:]
        elif kind < 0.4:
            start = int(rng.integers(len(text) + 1))
            text[at:at] = text[start : start + int(rng.integers(1, 60))]
        else:
            text[at : at + int(rng.integers(0, 4))] = JUNK[int(rng.integers(len(JUNK)))]
    return bytes(text)


def _in_archive(data: bytes, rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as whole, zipfile.ZipFile(out, "w") as archive:
        names = whole.namelist()
        texts = [name for name in names if name.endswith((".json", "version", "byteorder"))]
        chosen = str(rng.choice(texts or names))
        for name in names:
            content = whole.read(name)
            archive.writestr(name, damaged(content, rng) if name == chosen else content)
    return out.getvalue()


@contextmanager
def memory_limit() -> Iterator[None]:
    """Let the process have `MEMORY_BYTES` more than it has; beyond, it gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def attack(kind: Format, rng: np.random.Generator, folder: Path) -> str:
    """Read a damaged file of a format.

    Parameters
    ----------
    kind
        The format.
    rng
        Where the damage is drawn from.
    folder
        Where the file is written.

    Returns
    -------
    What went wrong, or "": an error of another kind or of several lines, or more than `SECONDS` or `MEMORY_BYTES`.
    """
    return read(kind, damaged(kind.data, rng), folder)


def read(kind: Format, data: bytes, folder: Path) -> str:
    """Read the contents of a file of a format; return what went wrong, as `attack` does."""
    path = folder / kind.name
    path.write_bytes(data)
    began = process_time()
    try:
        with memory_limit():
            kind.read(path)
    except RlinitError as refused:
        if "\n" in str(refused).strip():
            return f"reading {kind.name}: an error of several lines: {refused}\n{data!r}"
    except Exception:
        return f"reading {kind.name}: {format_exc(limit=-3)}\n{data!r}"
    if process_time() - began > SECONDS:
        return f"reading {kind.name} took {process_time() - began:.1f} s of processor time: {data!r}"
    return ""
