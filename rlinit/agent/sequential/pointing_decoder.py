"""The pointing decoder: an LSTM that, step after step, points at one of the ready nodes.

Only ready nodes are scored, so a step costs what the ready nodes do, not what the graph does, and a node that is not
ready has no probability at all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlinit.agent.network.oneshot_numpy import GRID

_CLIP = 10.0
"""Scores lie within this far of 0, which keeps a fresh policy curious (Bello et al., A.2)."""


def _on_grid(score: Tensor) -> Tensor:
    """Return scores in single precision or, in double precision, rounded to a grid far coarser than rounding errors.

    So decoding in double precision takes the same choices on every machine; see `rlinit.agent.network.oneshot_numpy`.
    Rounding has no gradient, so scores that need one are left alone.
    """
    if score.dtype != torch.float64:
        return score.float()
    return score if score.requires_grad else torch.round(score / GRID) * GRID


class PointingDecoder(nn.Module):
    """An LSTM decoder with additive attention over keys.

    Parameters
    ----------
    units
        Width H of states, keys and inputs.

    References
    ----------
    Vinyals, Fortunato, Jaitly: Pointer networks, NeurIPS 2015, eq. 3. Inc-ILP, Phase 1.3: the first input is trained.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        self.first = nn.Parameter(torch.empty(units).uniform_(-0.08, 0.08))
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.key = nn.Linear(units, units, bias=False)
        self.query = nn.Linear(units, units)
        self.score = nn.Linear(units, 1, bias=False)

    @property
    def gates(self) -> list[nn.Parameter]:
        """The cell's weights (4H, H) on its input and on its state, and their biases (4H,)."""
        return self.lstm.all_weights[0]

    def project(self, inputs: Tensor) -> Tensor:
        """Return (..., 4H) what an input (..., H) adds to the gates; once for all nodes, not step by step."""
        return nn.functional.linear(inputs, self.gates[0], self.gates[2])

    def step(self, projected: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the next (h, c), (B, H) each, from the projected input (B, 4H); the same cell as in `run`.

        Parameters
        ----------
        projected
            (B, 4H) from `project`.
        state
            (h, c), (B, H) each.
        """
        _, weight, _, bias = self.gates
        keep_in, forget, candidate, out = torch.addmm(projected + bias, state[0], weight.T).chunk(4, dim=1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(keep_in) * torch.tanh(candidate)
        return torch.sigmoid(out) * torch.tanh(cell), cell

    def run(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        """Return (B, T, H) hidden states over known inputs (B, T - 1, H), of which the trained first one is missing.

        Parameters
        ----------
        inputs
            (B, T - 1, H) keys of the nodes taken so far.
        state
            (h, c), (B, H) each, before the first step.
        """
        first = self.first.expand(len(inputs), 1, -1)
        hidden, _ = self.lstm(torch.cat([first, inputs], dim=1), (state[0][None], state[1][None]))
        return torch.as_tensor(hidden)

    def point(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return (p,) scores of keys (p, H) under queries (p, H), both already projected.

        Parameters
        ----------
        keys, queries
            (p, H) pairs of what may be chosen and of who chooses.
        """
        return _on_grid(_CLIP * torch.tanh(self.score(torch.tanh(keys + queries))[:, 0]))
