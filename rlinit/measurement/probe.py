"""A model of ops of all classes and many sizes, from which a device's efficiencies are fitted.

It is measured and fitted as any model is (`measure_ops`, `fitted_device`): by the executor that runs plans, each op
after another one whose output it reads, so that launches, caches and libraries are those of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.hardware import Device
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.ops import Measuring, measure_ops
from rlinit.measurement.roofline_fit import fitted_device

if TYPE_CHECKING:
    import torch

_LINEAR = (
    (1, 256, 256),
    (1, 1024, 4096),
    (8, 512, 512),
    (32, 64, 64),
    (64, 256, 1024),
    (64, 768, 768),
    (196, 384, 1536),
)
"""Rows, inputs and outputs of products with weights."""

_CONVOLUTIONS = (
    (3, 32, 7, 112, 1),
    (32, 32, 3, 56, 1),
    (64, 64, 1, 56, 1),
    (64, 128, 3, 28, 1),
    (128, 512, 1, 28, 1),
    (256, 256, 3, 14, 1),
    (256, 512, 3, 7, 1),
    (512, 512, 3, 7, 1),
    (512, 2048, 1, 7, 1),
    (64, 64, 3, 56, 64),
    (256, 256, 3, 14, 256),
    (512, 512, 3, 7, 512),
)
"""Channels in and out, kernel, height and width, groups."""

_ATTENTION = ((2, 16, 32), (4, 64, 32), (8, 128, 64), (12, 197, 64), (4, 512, 64))
"""Heads, tokens, width of a head."""

_ROWS = ((16, 64), (64, 256), (128, 768), (256, 1024), (2048, 1024))
"""Rows and width of what ops work on number by number."""

_WIDER = {"cpu": 1, "cuda": 8}
"""Factor on rows and tokens, by type of device: a GPU shows nothing of its rates on what takes it a microsecond."""


def probed_device(device: Device, place: torch.device, settings: Measuring | None = None) -> Device:
    """Return a device with the rates, launch and efficiencies that fit ops of all classes in FP32, as measured.

    Its rates for other types of numbers stay, and so do the efficiencies as shares of them.

    Parameters
    ----------
    device
        Name, memory and whatever is not fitted.
    place
        Where to measure.
    settings
        Warm-up, repeats, threads.

    Raises
    ------
    ExecutionFailure
        An op failed, such as for lack of memory.
    """
    import torch

    before = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        model, inputs = _model(_WIDER[place.type])
    finally:
        torch.set_rng_state(before)
    program = export_program(model, inputs)
    graph = from_program(program, name="probe")
    table = measure_ops(program, inputs, graph, devices={device.name: str(place)}, settings=settings)
    return fitted_device(graph, table, device, rates=False)


def _model(wider: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and its inputs, with so many times as many rows."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.ModuleList(nn.Linear(i, o) for _, i, o in _LINEAR)
            self.convolutions = nn.ModuleList(
                nn.Conv2d(i, o, k, padding=k // 2, groups=g) for i, o, k, _, g in _CONVOLUTIONS
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _, _ in _CONVOLUTIONS)
            self.layers = nn.ModuleList(nn.LayerNorm(width) for _, width in _ROWS)
            self.words = nn.ModuleList(nn.Embedding(4096, width) for _, width in _ROWS)

        def forward(self, *given: torch.Tensor) -> list[torch.Tensor]:
            left, out = list(given), []
            for layer in self.linear:
                out.append(layer(left.pop(0).neg()).relu())
            for layer, norm in zip(self.convolutions, self.norms, strict=True):
                out.append(functional.max_pool2d(norm(layer(left.pop(0).neg())).relu(), 2))
            for _ in _ATTENTION:
                x = left.pop(0).neg()
                out.append(functional.scaled_dot_product_attention(x, x, x) + x)
                out.append((x @ x.transpose(-1, -2)).softmax(-1))
            for layer, word in zip(self.layers, self.words, strict=True):
                x = word(left.pop(0))
                y = layer(functional.gelu(x)) * x
                out.append(torch.cat([y.tanh(), functional.silu(y)]) * 2 + y.mean(0))
            return out

    inputs = [torch.randn(wider * rows, i) for rows, i, _ in _LINEAR]
    inputs += [torch.randn(wider, i, size, size) for i, _, _, size, _ in _CONVOLUTIONS]
    inputs += [torch.randn(wider, heads, tokens, width) for heads, tokens, width in _ATTENTION]
    inputs += [torch.randint(4096, (wider * rows,)) for rows, _ in _ROWS]
    return Probe().eval(), tuple(inputs)
