"""Gymnasium's spaces of the environments: dictionaries of padded arrays, and one number for an action."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rlinit.env.state import MOST, Episodes, PlacementEpisodes


def action_space(episodes: Episodes[Any]) -> spaces.Discrete:
    """Return the space of one row's actions."""
    return spaces.Discrete(episodes.limits.nodes * max(episodes.limits.devices, 1))


def observation_space(episodes: Episodes[Any]) -> spaces.Dict:
    """Return the space of one row's observations.

    ==============  ==============  =================================================================================
    key             shape           meaning
    ==============  ==============  =================================================================================
    `nodes`         (N, f)          the agent's features of each node; then 1 if it is ready, 1 if it is taken, and
                                    its place in the order over n
    `edges`         (E, 2)          producer and consumer of each edge; -1 pads
    `action_mask`   (A,)            1 for the actions that are allowed
    `num_stages`    (1,)            k (stages)
    `devices`       (D, f_d)        the agent's features of each device (placements)
    `pairs`         (N, D, f_p)     the agent's features of each node on each device (placements)
    `finish`        (N, D)          when a ready op would end on each device, over the reference's makespan; 0 where
                                    it is not ready or may not run (placements)
    ==============  ==============  =================================================================================
    """
    limits = episodes.limits
    n, d = limits.nodes, limits.devices

    def numbers(*shape: int, low: float = -MOST) -> spaces.Box:
        return spaces.Box(low, MOST, shape, np.float32)

    widths = episodes.widths
    parts: dict[str, spaces.Space[Any]] = {
        "nodes": numbers(n, widths["nodes"]),
        "edges": spaces.Box(-1, max(n - 1, 0), (limits.edges, 2), np.int64),
        "action_mask": spaces.MultiBinary(n * max(d, 1)),
    }
    if isinstance(episodes, PlacementEpisodes):
        parts["devices"] = numbers(d, widths["devices"])
        parts["pairs"] = numbers(n, d, widths["pairs"])
        parts["finish"] = numbers(n, d, low=0.0)
    else:
        parts["num_stages"] = numbers(1, low=0.0)
    return spaces.Dict(parts)
