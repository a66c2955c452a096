"""Buffers of runtimes, against lines that people's logs have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlinit.devices.runtimes import PassShape, RuntimeName, head_buffer_bytes, layer_buffer_bytes

MISTRAL = PassShape(512, 2048, 4096, 32, 32768, 3 * 14336, 2.0)


@pytest.mark.parametrize(
    ("logged_mib", "runtime", "shape", "flash_attention"),
    [
        (164.00, "llama.cpp", MISTRAL, False),
        (2144.00, "llama.cpp", replace(MISTRAL, kept=32768), False),
        (672.01, "llama.cpp", PassShape(512, 4096, 8192, 64, 256000, 3 * 22528, 2.0, several_gpus=True), False),
        (105.00, "llama.cpp", PassShape(512, 512, 3072, 24, 50688, 3 * 9216, 2.0), False),
        (353.00, "llama.cpp", PassShape(512, 32768, 6144, 48, 151552, 3 * 23040, 2.0), True),
        (430.01, "llama.cpp", PassShape(512, 32768, 7168, 128, 129280, 128 * (2 * 512 + 64), 2.0), True),
        (1.26 * 1024, "vllm", PassShape(8192, 8192, 4096, 32, 128256, 3 * 14336, 2.0), True),
        (1.41 * 1024, "vllm", PassShape(2048, 32768, 5120, 40, 152064, 3 * 27648, 2.0), True),
    ],
)
def test_logged_buffers(logged_mib: float, runtime: RuntimeName, shape: PassShape, flash_attention: bool) -> None:
    """A device with layers and head takes the larger of both, within 6% of what the log says."""
    layer = layer_buffer_bytes(runtime, shape, flash_attention)
    head = head_buffer_bytes(runtime, shape, flash_attention)
    assert max(layer, head) / 2**20 == pytest.approx(logged_mib, rel=0.06)


def test_no_runtime_takes_nothing() -> None:
    """``none`` leaves buffers to the reserve."""
    assert layer_buffer_bytes("none", MISTRAL) == head_buffer_bytes("none", MISTRAL) == 0.0


def test_a_head_on_the_processor_is_copied_to_the_gpu() -> None:
    """Logits and the copied matrix of six bits, as a log of a partly offloaded model of 7B has them."""
    head = 152064 * 3584 * 210 / 256
    shape = PassShape(512, 8192, 3584, 28, 152064, 3 * 18944, 2.0, copied_bytes=head)
    assert (head_buffer_bytes("llama.cpp", shape) + head) / 2**20 == pytest.approx(730.36, rel=0.06)
