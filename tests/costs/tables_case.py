"""Small measured tables, made up by a law: what tests read where there are no published ones."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

PEAK, BANDWIDTH, FLOOR_MS = 9e14, 3e12, 0.003
"""Operations and bytes a second, and the milliseconds of a launch, of the device of the tables."""


def milliseconds(flops: float, moved: float) -> float:
    """Return what the law says."""
    return FLOOR_MS + 1e3 * max(flops / PEAK, moved / BANDWIDTH)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def products() -> list[dict[str, object]]:
    """Return rows of products."""
    sizes = (64, 256, 1024, 4096)
    return [
        {
            "device": "NVIDIA H100 80GB HBM3",
            "kernel_source": "k",
            "gemm_dtype": "bfloat16",
            "m": m,
            "n": n,
            "k": k,
            "latency": milliseconds(2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)),
        }
        for m, n, k in product((1, 16, 64, 256, 1024, 4096), sizes, sizes)
    ]


def attention(kind: str) -> list[dict[str, object]]:
    """Return rows of ``context`` or ``generation`` attention."""
    rows = []
    for batch, length, heads, kv in product((1, 4, 16), (64, 256, 1024), (8, 32), (4, 8)):
        prompt = kind == "context"
        pairs = batch * (length * (length + 1) / 2 if prompt else length)
        moved = 4.0 * batch * length * kv * 128 + 4.0 * batch * (length if prompt else 1) * heads * 128
        rows.append(
            {
                "device": "NVIDIA H100 80GB HBM3",
                "batch_size": batch,
                "isl": length if prompt else 1,
                "num_heads": heads,
                "num_key_value_heads": kv,
                "head_dim": 128,
                "attn_dtype": "bfloat16",
                "kv_cache_dtype": "bfloat16",
                "step": 0 if prompt else length - 1,
                "latency": milliseconds(4.0 * heads * 128 * pairs, moved),
            }
        )
    return rows


def collectives() -> list[dict[str, object]]:
    """Return rows of NCCL's collectives; messages are counted in numbers of two bytes."""
    return [
        {
            "device": "NVIDIA H100 80GB HBM3",
            "op_name": name,
            "nccl_dtype": "half",
            "num_gpus": devices,
            "message_size": size,
            "latency": 0.01 + 1e3 * 2 * size * (1 - 1 / devices) / 2e11,
        }
        for name, devices, size in product(("all_reduce", "all_gather"), (2, 4, 8), (2**10, 2**15, 2**20, 2**25))
    ]


def write_tables(folder: Path) -> Path:
    """Write tables of an H100 into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "gemm_perf.csv", products())
    write(folder / "context_attention_perf.csv", attention("context"))
    write(folder / "generation_attention_perf.csv", attention("generation"))
    write(folder / "nccl_perf.csv", collectives())
    return folder
