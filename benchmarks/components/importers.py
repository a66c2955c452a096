"""Which models `torch.export` imports, how many ops they have, and how long it takes; plus GPT-3 and a large ONNX file.

Run as ``python -m benchmarks.components.importers`` (needs ``rlinit[torch,onnx]``, pytorchcv and transformers). Every
model runs in a process of its own, with random weights on the meta device; one that fails is listed with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import multiprocessing
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.record import print_table, save

IMAGE_MODELS = (
    *("alexnet", "vgg16", "resnet50", "resnet152", "preresnet50", "resnext50_32x4d", "seresnet50", "wrn50_2"),
    *("densenet121", "bninception", "inceptionv3", "inceptionv4", "inceptionresnetv2", "xception", "nasnet_6a4032"),
    *("pnasnet5large", "mobilenetv2_w1", "mobilenetv3_large_w1", "efficientnet_b0", "shufflenetv2_w1"),
    *("squeezenet_v1_1", "darknet53", "dpn68", "hrnet_w18_small_v1"),
)
"""Names in pytorchcv."""

TEXT_MODELS = (
    *("GPT2", "Bert", "Roberta", "DistilBert", "Electra", "Albert", "MPNet", "OPT", "GPTNeoX", "Llama", "Mistral"),
    *("Qwen2", "Gemma", "T5", "Bart"),
)
VISION_MODELS = (
    *("ViT", "DeiT", "Swin", "Swin-B", "Beit", "ConvNext", "ConvNextV2", "ResNet", "MobileViT", "Segformer"),
)
OTHER_MODELS = ("Wav2Vec2", "CLIP", "Mixtral", "Mamba", "Whisper", "Qwen2Moe", "Longformer", "Rwkv")
"""Classes of transformers, each ``<name>Model`` with the default ``<name>Config``."""

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Swin-B": ("Swin", {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}),
    "Qwen2Moe": ("Qwen2Moe", {"num_hidden_layers": 4, "num_experts": 8}),
}
"""Models whose configuration is not the default: class and changes."""

SECONDS = 600.0
DOCS = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
TITLES = {
    "pytorchcv": "Image models of pytorchcv",
    "transformers": "Models of transformers",
    "gpt3": "A model too large for the machine",
    "onnx": "A large ONNX file, by its nodes",
}
HEADER = """# Models that import

A torch module is traced by `torch.export`. What that cannot take (a branch on data, NumPy, packed weights of quantised
layers, compiled modules) is refused with the line of the model: branches on tensor values need `torch.cond` or
`torch.where`. `Graph.from_torch(..., method="strict")` traces by the module's bytecode, which gets through some models
that the default does not.

An ONNX file gives about the ops that the module it was exported from gives: what exporters take apart (attention with
its scale and mask, layer and group norms, GELU, SiLU, Mish, linear layers with a bias) is one op again, which stands
for all its nodes in exports and runs, and a Transpose, a Slice or a Reshape that copies nothing is a view, as in torch.
`rlinit/coarsening/whole_ops.toml` lists the expressions. A norm or an activation that a model writes out op by op (the
RMS norm and the rotary positions of Llama) stays so in both.

Written by `python -m benchmarks.components.importers`; the machine and the versions are in
`benchmarks/results/importers.json`. Every PyTorch model is built with random weights on the meta device, exported by
`torch.export` and read by `rlinit.importers.torch.export`, one image or one sequence of 128 tokens at a time. *Ops*
counts one for each ATen call that depends on an input, inputs included; *ops by module* one for each call of a module
without submodules. A multiply-add is two operations; elementwise ops count none. *Seconds* are those of one processor
core for exporting and reading (what they take on an idle machine)."""


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives and the seconds of processor time it takes, whatever else the machine does."""
    started = time.process_time()
    return call(), time.process_time() - started


def image_model(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a pytorchcv model, its arguments and keyword arguments."""
    from benchmarks.components.pytorchcv_models import image_network

    return *image_network(name), {}


def hub_model(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a model of transformers, its arguments and keyword arguments."""
    import torch
    import transformers

    kind, changes = CONFIGURATIONS.get(name, (name, {}))
    config = getattr(transformers, f"{kind}Config")(**changes)
    words = torch.zeros(1, 128, dtype=torch.long)
    image = torch.zeros(1, 3, getattr(config, "image_size", 224) or 224, getattr(config, "image_size", 224) or 224)
    keywords: dict[str, Any] = {}
    if hasattr(config, "use_cache"):
        keywords["use_cache"] = False
    if name in VISION_MODELS:
        return getattr(transformers, f"{kind}Model")(config), (image,), {}
    if name == "Wav2Vec2":
        return transformers.Wav2Vec2Model(config), (torch.zeros(1, 16000),), {}
    if name == "CLIP":
        picture = torch.zeros(1, 3, config.vision_config.image_size, config.vision_config.image_size)
        return transformers.CLIPModel(config), (), {"input_ids": words[:, :77], "pixel_values": picture}
    if name == "Whisper":
        sound = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
        return transformers.WhisperModel(config), (sound,), keywords | {"decoder_input_ids": words}
    if name in ("T5", "Bart"):
        keywords |= {"decoder_input_ids": words}
    return getattr(transformers, f"{name}Model")(config), (words,), keywords


def gpt3(_: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a model of GPT-3's size: 96 layers, 96 heads, width 12288 (Brown et al., 2020, Table 2.1)."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=96, n_head=96, n_embd=12288, n_positions=2048)
    return GPT2LMHeadModel(config), (torch.zeros(1, 2048, dtype=torch.long),), {"use_cache": False}


def measure_torch(make: Callable[[str], tuple[Any, tuple[Any, ...], dict[str, Any]]], name: str) -> dict[str, Any]:
    """Return what importing one model shows."""
    import resource

    import torch

    from rlinit.importers.torch.export import export_program, from_program

    with torch.device("meta"):
        (model, args, keywords), build_s = timed(functools.partial(make, name))
    model.eval()
    program, export_s = timed(lambda: export_program(model, args, keywords))
    graph, read_s = timed(lambda: from_program(program, name=name))
    coarse = from_program(program, granularity="module", name=name)
    return {
        "ops": graph.num_ops,
        "edges": graph.num_edges,
        "depth": graph.depth,
        "modules": coarse.num_ops,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "param_bytes": float(graph.param_bytes.sum()),
        "flops": float(graph.flops.sum()),
        "build_s": round(build_s, 2),
        "export_s": round(export_s, 2),
        "graph_s": round(read_s, 2),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_onnx(name: str) -> dict[str, Any]:
    """Return what importing a generated ONNX file of a given number of nodes shows."""
    import resource

    import numpy as np
    import onnx

    from rlinit import load_graph

    node, last = onnx.helper.make_node, "x"
    nodes = []
    for i in range(int(name) // 5):
        nodes += [
            node("MatMul", [last, f"w{i % 50}"], [f"a{i}"]),
            node("Relu", [f"a{i}"], [f"b{i}"]),
            node("Sigmoid", [f"a{i}"], [f"c{i}"]),
            node("Mul", [f"b{i}", f"c{i}"], [f"d{i}"]),
            node("Add", [f"d{i}", last], [f"e{i}"]),
        ]
        last = f"e{i}"
    describe = onnx.helper.make_tensor_value_info
    stored = [onnx.numpy_helper.from_array(np.zeros((64, 64), np.float32), f"w{i}") for i in range(50)]
    graph = onnx.helper.make_graph(
        nodes, "large", [describe("x", 1, ["n", 64])], [describe(last, 1, ["n", 64])], stored
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "large.onnx")
        read, seconds = timed(lambda: load_graph(Path(folder) / "large.onnx", batch=4))
    return {
        "ops": read.num_ops,
        "edges": read.num_edges,
        "depth": read.depth,
        "flops": float(read.flops.sum()),
        "param_bytes": float(read.param_bytes.sum()),
        "graph_s": round(seconds, 2),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


MEASURES: dict[str, Callable[[str], dict[str, Any]]] = {
    "pytorchcv": functools.partial(measure_torch, image_model),
    "transformers": functools.partial(measure_torch, hub_model),
    "gpt3": functools.partial(measure_torch, gpt3),
    "onnx": measure_onnx,
}


def apart(family: str, name: str) -> dict[str, Any]:
    """Measure one model in a process of its own, forked after the slow imports; say why where it fails."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_into, args=(sender, family, name))
    process.start()
    sender.close()
    row: dict[str, Any] = {"family": family, "model": name}
    try:
        row |= receiver.recv() if receiver.poll(SECONDS) else {"failed": f"took more than {SECONDS:.0f} s"}
    except EOFError:
        process.join()
        row |= {"failed": f"the process ended with {process.exitcode}"}
    process.kill()
    process.join()
    return row


def _measure_into(sender: Connection, family: str, name: str) -> None:
    """Send what importing a model shows, or why it fails."""
    try:
        sender.send(MEASURES[family](name))
    except Exception as problem:  # whatever a package raises about one of its models
        first = next((line for line in str(problem).splitlines() if line.strip()), "")
        reason = f"{type(problem).__name__}: {first}"
        sender.send({"failed": re.sub(r"\S*site-packages/", "", reason)[:400]})


def _import_packages() -> None:
    """Import what the measuring processes share, as far as it is installed."""
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    for package in ("transformers", "onnx", "rlinit.importers.torch.program"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    with contextlib.suppress(ImportError):
        image_model("resnet10")


def main() -> None:
    """Import each model and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="of the families, measure this one and store nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    _import_packages()
    plan = [("pytorchcv", name) for name in IMAGE_MODELS]
    plan += [("transformers", name) for name in (*TEXT_MODELS, *VISION_MODELS, *OTHER_MODELS)]
    plan += [("gpt3", "GPT-3 175B"), ("onnx", "50000")]
    rows = []
    for family, name in plan:
        if options.only in (None, family):
            rows.append(apart(family, name))
            print(rows[-1], flush=True)
    columns = ["model", "ops", "edges", "modules", "export_s", "graph_s"]
    imported = [row for row in rows if "failed" not in row]
    print_table("models imported", columns, ([row.get(key, "") for key in columns] for row in imported))
    print(f"{len(imported)} of {len(rows)} models are imported")
    for row in rows:
        if "failed" in row:
            print(f"not imported: {row['model']} ({row['family']}): {row['failed']}")
    if options.only is None:
        save("importers", rows, seconds_each=SECONDS)
        write_docs(rows)


def write_docs(rows: list[dict[str, Any]]) -> None:
    """Write the list of models in the docs."""
    lines = [HEADER]
    for family, title in TITLES.items():
        lines += [f"\n## {title}\n", "| model | parameters | ops | edges | depth | ops by module | GFLOP | seconds |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
        for row in (row for row in rows if row["family"] == family):
            if "failed" in row:
                lines.append(f"| {row['model']} | not imported: {row['failed'].replace('|', '/')} | | | | | | |")
                continue
            parameters = f"{row['parameters'] / 1e6:,.1f} M" if "parameters" in row else ""
            modules = f"{row['modules']:,}" if "modules" in row else ""
            seconds = row.get("export_s", 0) + row["graph_s"]
            lines.append(
                f"| {row['model']} | {parameters} | {row['ops']:,} | {row['edges']:,} | {row['depth']:,} "
                f"| {modules} | {row['flops'] / 1e9:,.1f} | {seconds:.1f} |"
            )
    DOCS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
