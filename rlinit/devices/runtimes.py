"""What programs that run language models take of a device beside weights and cache: buffers for what they compute.

Sizes are in bytes, of a pass over T tokens (the micro-batch) with room for C tokens in all caches, width h, a heads and
V words; w is the most numbers that one part of a layer makes for a token (gate, up and their product; queries and
outputs), k the copies of inputs that llama.cpp keeps where several GPUs work in turn (GGML_SCHED_MAX_COPIES, 4) or 1.

llama.cpp, numbers of four bytes:

    layer, flash attention    T (4 (4h + w) + 2C + 4k (C + h))      the mask once more in FP16; + h only where k > 1
    layer, without            T (4 (4h + max(w, aC)) + 4k (C + h))  scores of all heads
    head                      T (4V + 8h + 2C)                      logits of all tokens; 2C with flash attention
    beside a processor        + the largest matrix that lies there, which large batches copy to the GPU

vLLM, numbers of b bytes: a layer T b (4h + w), and 40 V bytes for each of 256 sequences that its profile run samples.

Held against lines of public logs (MiB; the GitHub thread that has it):

    Mistral 7B, C = 2,048, without flash attention     164.00   164.0   fedora-copr/logdetective 106
    Mistral 7B, C = 32,768, without                   2144.00  2144.0   the same
    Command R 35B, C = 4,096, without, two GPUs        672.01   672.0   ggml-org/llama.cpp 6122
    TriLM 3.9B, C = 512, without (its head)            105.00   111.0   mozilla-ai/llamafile 552
    GLM-4 32B, C = 32,768 (its head)                   353.00   352.0   ikawrakow/ik_llama.cpp, archived discussion
    DeepSeek R1, C = 32,768                            430.01   424.0   ggml-org/llama.cpp 12227
    Qwen 2.5 7B, C = 8,192, the head on the processor  730.36   745.4   a public note on tuning Ollama
    Llama 3 8B, vLLM                                  1290     1252.5   vllm-project/vllm 10511
    Qwen 2.5 32B, vLLM                                1444     1485.0   a public note on running it
    Qwen 3 4B, vLLM, one sequence, T = 10,000          758      751.5   a public note on running it

that is within 6% of each. Later builds of llama.cpp reserve logits for fewer tokens and take less. A GPU beside a
processor that has the head makes the logits as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RuntimeName = Literal["llama.cpp", "vllm", "none"]

MICRO_BATCH: Mapping[RuntimeName, int] = {"llama.cpp": 512, "vllm": 2048, "none": 1}
"""Tokens of a pass by default: ``--ubatch-size``, and ``max_num_batched_tokens`` of vLLM's server."""

_COPIES = 4
"""Of the inputs of each device that llama.cpp's scheduler keeps where several GPUs work in turn."""
MOST_SEQUENCES = 256
"""Sequences that vLLM works on at once at most by default (``max_num_seqs``), and those of its profile run."""

_SAMPLE_BYTES = 40
"""Of a logit in vLLM's profile run: logits, their order and probabilities."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes that buffers go by.

    Parameters
    ----------
    tokens
        Of a pass.
    kept
        Tokens that all caches together have room for.
    hidden, heads, vocabulary
        Of the model.
    widest
        Most numbers that one part of a layer makes for a token.
    number_bytes
        Of an activation; llama.cpp computes in four bytes whatever it is.
    several_gpus
        Whether several GPUs work in turn.
    copied_bytes
        The largest matrix of a layer where a processor has layers too, else 0.
    """

    tokens: int
    kept: int
    hidden: int
    heads: int
    vocabulary: int
    widest: float
    number_bytes: float
    several_gpus: bool = False
    copied_bytes: float = 0.0


def layer_buffer_bytes(runtime: RuntimeName, shape: PassShape, flash_attention: bool = True) -> float:
    """Return what a device takes that computes layers.

    Parameters
    ----------
    runtime
        The program.
    shape
        Of its passes.
    flash_attention
        Whether scores are never written out; vLLM never does.
    """
    if runtime == "none":
        return 0.0
    if runtime == "vllm":
        return shape.tokens * shape.number_bytes * (4 * shape.hidden + shape.widest)
    copies = _COPIES if shape.several_gpus else 1
    inputs = copies * (shape.kept + shape.several_gpus * shape.hidden)
    widest = shape.widest if flash_attention else max(shape.widest, float(shape.heads * shape.kept))
    numbers = 4 * (4 * shape.hidden + widest + inputs)
    return shape.tokens * (numbers + 2 * shape.kept * flash_attention) + shape.copied_bytes


def head_buffer_bytes(runtime: RuntimeName, shape: PassShape, flash_attention: bool = True) -> float:
    """Return what a device takes that computes the logits, which is not on top of what layers take.

    Parameters
    ----------
    runtime, shape, flash_attention
        As for `layer_buffer_bytes`.
    """
    if runtime == "none":
        return 0.0
    if runtime == "vllm":
        return float(MOST_SEQUENCES * _SAMPLE_BYTES * shape.vocabulary)
    return float(shape.tokens * (4 * shape.vocabulary + 8 * shape.hidden + 2 * shape.kept * flash_attention))
