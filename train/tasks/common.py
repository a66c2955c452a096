"""What tasks of training share."""

from __future__ import annotations

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlinit.arrays import FloatArray


def unwrap(network: nn.Module) -> nn.Module:
    """Return the network inside a wrapped one."""
    inner: nn.Module = network.module if isinstance(network, DistributedDataParallel) else network
    return inner


def excess(value: FloatArray, least: FloatArray) -> FloatArray:
    """Return value / least - 1 elementwise: 0 where they are equal, infinite where only `least` is 0.

    Parameters
    ----------
    value, least
        Equally shaped, at least 0; seconds or bytes.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value == least, 0.0, value / least - 1.0)
