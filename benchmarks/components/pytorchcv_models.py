"""Image classifiers of pytorchcv, with random weights."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["image_network"]

SIDES = {
    **{"inceptionv3": 299, "inceptionv4": 299, "inceptionresnetv2": 299, "xception": 299},
    **{"pnasnet5large": 331, "nasnet_6a4032": 331},
}
"""Height and width of images, where they are not 224."""


def image_network(name: str, *, batch: int = 1) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a network in eval mode and random images for it.

    pytorchcv imports torchvision for one model that is not used here; where torchvision is not installed, a class that
    nobody calls stands in for what it imports.

    Raises
    ------
    ImportError
        pytorchcv is not installed.
    """
    import torch

    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        stand_in, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
        ops.DeformConv2d = type("DeformConv2d", (), {})  # type: ignore[attr-defined]
        sys.modules |= {"torchvision": stand_in, "torchvision.ops": ops}
    from pytorchcv.model_provider import get_model

    side = SIDES.get(name, 224)
    return get_model(name, pretrained=False).eval(), (torch.randn(batch, 3, side, side),)
