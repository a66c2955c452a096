"""Efficiencies that fit measured tables, and the file that presets read them from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from rlinit.cli.run import Calibrate, calibrate_costs
from rlinit.costs.tables import load
from rlinit.devices.efficiency import efficiencies_of
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.measurement.table_fit import fit_tables, predicted_over_measured, table_samples
from tests.costs.tables_case import write_tables


def test_a_law_is_found(tmp_path: Path) -> None:
    """Tables made by a roofline are predicted by what is fitted to them."""
    tables = load(write_tables(tmp_path))
    found = fit_tables([tables])
    for kind, name in (("products", "matmul"), ("prompts", "attention"), ("generation", "generation")):
        samples = table_samples(tables, kind)
        assert samples is not None
        ratio = predicted_over_measured(found[name], samples)
        assert np.mean(np.abs(ratio - 1) <= 0.1) > 0.9, name
        error = found[name].error
        assert error is not None
        assert error < 0.1
    assert found["matmul"].launch_s == pytest.approx(3e-6, rel=0.2)


def test_the_command_writes_what_presets_read(tmp_path: Path) -> None:
    """The file has the family and the pooled one; its numbers are those that a device takes."""
    folder = write_tables(tmp_path / "tables")
    out = tmp_path / "measured.toml"
    assert calibrate_costs(Calibrate((), out, tables=(f"hopper={folder}",))) == 0
    data = tomllib.loads(out.read_text(encoding="utf-8"))
    assert set(data) == {"hopper", "gpu"}
    assert set(efficiencies_of(data["hopper"])) == {"matmul", "attention", "generation"}
    for wrong in ("hopper", f"={folder}", "hopper="):
        with pytest.raises(RlinitError, match="expected FAMILY=FOLDER"):
            calibrate_costs(Calibrate((), out, tables=(wrong,)))


@pytest.mark.parametrize("name", ["a100", "h100", "l40s", "b200", "rtx5090", "mi325x"])
def test_presets_know_products_and_attention(name: str) -> None:
    """Measured or alike: every GPU has efficiencies of products and attention with an error beside them."""
    efficiency = Hardware.preset(name).devices[0].efficiency
    for one in ("matmul", "attention", "generation", "experts"):
        error = efficiency[one].error
        assert error is not None
        assert 0 < error < 0.6
