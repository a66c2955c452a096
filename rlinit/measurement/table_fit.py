"""Efficiencies of a family of devices that fit measured tables, and how far off they are; as TOML.

The shares are of data sheet rates, and the launch is that of a kernel inside a running stream, which is what tables of
runtimes measure (CUDA graphs). A runtime that launches kernels one by one from the host takes longer for small ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.tables import MeasuredTables, type_of
from rlinit.devices.efficiency import Efficiency
from rlinit.devices.presets import kinds
from rlinit.errors import InvalidHardware
from rlinit.measurement.roofline_fit import LAUNCH_S, Samples, fit_class
from rlinit.units import BITS, parse_quantity, rate_for

__all__ = ["efficiency_toml", "fit_tables", "predicted_over_measured", "table_samples"]

_CLASSES = {"products": "matmul", "prompts": "attention", "generation": "generation", "experts": "experts"}
"""Kind of table -> class of ops."""

_BITS = BITS["fp16"]
"""Of the types of numbers that are fitted: kernels for narrower ones differ from runtime to runtime."""

_MOST = 4000
"""Samples of a table that a fit takes, drawn at random: so that each table counts alike."""

_QUANTILES, _NEAR = (0.1, 0.5, 0.9), 0.25
"""Of predicted over measured: quantiles that are shown, and the relative error that counts as near."""


def table_samples(tables: MeasuredTables, kind: str) -> Samples | None:
    """Return what tables measured of a kind (``products``, ``prompts``, ``generation``); None where nothing is.

    Parameters
    ----------
    tables
        Of a device that there is a preset of; those in 16-bit numbers count.
    kind
        Kind of table.

    Raises
    ------
    InvalidHardware
        There is no preset of the device.
    """
    figures = kinds().get(tables.device)
    if figures is None:
        raise InvalidHardware(f"there is no preset {tables.device!r}, whose rates efficiencies are shares of")
    rows = []
    for labels, table in tables.tables(kind).items():
        own = table.samples
        if any(BITS.get(type_of(label), _BITS) != _BITS for label in labels):
            continue
        rate = rate_for(figures["flops_per_s"], type_of(labels[0]))
        if rate is None:
            continue
        moved_s = own.moved / parse_quantity(figures["bytes_per_s"], "bytes/s")
        depth = own.sizes.get("k", np.zeros_like(own.seconds))
        rows.append((own.flops, own.moved, own.flops / rate, moved_s, own.seconds, depth))
    return Samples(*(np.concatenate(column) for column in zip(*rows, strict=True))) if rows else None


def fit_tables(tables: Sequence[MeasuredTables]) -> dict[str, Efficiency]:
    """Return efficiencies by class of ops, fitted to the tables of one device or of several of a family.

    Parameters
    ----------
    tables
        At least one.
    """
    found, draw = {}, np.random.default_rng(0)
    for kind, name in _CLASSES.items():
        parts = [part for one in tables if (part := table_samples(one, kind)) is not None]
        if not parts:
            continue
        drawn = [draw.permutation(len(part.seconds))[:_MOST] for part in parts]
        joined = zip(*([column[at] for column in part] for part, at in zip(parts, drawn, strict=True)), strict=True)
        found[name] = fit_class(Samples(*(np.concatenate(column) for column in joined)), LAUNCH_S)
    return found


def predicted_over_measured(one: Efficiency, samples: Samples) -> FloatArray:
    """Return (q,) ratios of what an efficiency predicts and what was measured.

    Parameters
    ----------
    one
        The efficiency.
    samples
        Measured ops.
    """
    flops, moved, flops_s, moved_s, seconds, depth = samples
    f, b = flops_s * one.counted_flops(flops) / flops, moved_s * one.counted_bytes(moved) / moved
    return np.asarray((np.maximum(np.maximum(f, b), one.depth_s * depth) + (one.launch_s or 0.0)) / seconds)


def efficiency_toml(families: Mapping[str, Sequence[MeasuredTables]]) -> str:
    """Return efficiencies of families of devices as TOML, with quantiles of predicted over measured beside each.

    Parameters
    ----------
    families
        Family -> tables of its devices. The family ``gpu``, which others go back to, is fitted to all.
    """
    everything = [one for tables in families.values() for one in tables]
    lines = [
        "# Made by `rlinit calibrate --tables`: shares of data sheet rates that kernels in 16-bit numbers reach, and",
        "# their launch inside a running stream. Beside each: 10%, 50% and 90% of predicted over measured, and how",
        "# many of the measured shapes are within 25%.",
    ]
    for family, tables in {**families, "gpu": everything}.items():
        fitted = fit_tables(tables)
        for kind, name in _CLASSES.items():
            if name not in fitted:
                continue
            one, lines = fitted[name], [*lines, "", f"[{family}.{name}]"]
            for table in tables:
                if (samples := table_samples(table, kind)) is not None:
                    ratio = predicted_over_measured(one, samples)
                    shown = " ".join(f"{float(q):.2f}" for q in np.quantile(ratio, _QUANTILES))
                    near = float(np.mean(np.abs(ratio - 1) <= _NEAR))
                    lines.append(f"# {table.name}: {shown}, {near:.0%} of {len(ratio):,}")
            lines += [f"{what} = {_points(getattr(one, what))}" for what in ("flops", "bytes") if getattr(one, what)]
            figures = {"launch_s": one.launch_s, "depth_s": one.depth_s or None, "error": one.error}
            lines += [f"{what} = {value:.3g}" for what, value in figures.items() if value is not None]
    return "\n".join(lines) + "\n"


def _points(points: Iterable[tuple[float, float]]) -> str:
    """Return points in three digits, shares rounded down so far that no larger op is faster."""
    shown, taken = [], 0.0
    for size, share in points:
        size = float(f"{size:.3g}")
        share = min(share, size / taken) if taken else share
        step = 10.0 ** (math.floor(math.log10(share)) - 2)
        share = float(f"{math.floor(share / step) * step:.3g}")
        shown.append(f"[{size:g}, {share:g}]")
        taken = size / share
    return f"[{', '.join(shown)}]"
