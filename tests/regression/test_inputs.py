"""Graphs and hardware that were accepted, hung or raised a raw error, though nothing can be done with them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import rlinit
from rlinit.errors import InvalidGraph, InvalidHardware, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.llm.families import architecture_of

HUGE = 10**400


def one(**attributes: Any) -> rlinit.Graph:
    """Return a graph of one op."""
    return rlinit.Graph.build([("a", attributes)], [])


@pytest.mark.parametrize(
    "number", [1e308, HUGE, -HUGE, 1e31, float("inf"), float("nan"), 10**5000], ids=lambda _: "number"
)
@pytest.mark.parametrize("what", ["time_s", "param_bytes", "out_bytes", "flops"])
def test_costs_beyond_computing_are_refused_by_name(what: str, number: float) -> None:
    """Sums of 1e308 overflowed and were called infeasible; integers beyond floats raised OverflowError."""
    with pytest.raises(InvalidGraph, match=f"op 'a': {what} is"):
        one(**{what: number})


def test_times_by_device_and_batch_are_checked_too() -> None:
    """The message names device and batch size; a batch size is a whole number that fits an array."""
    with pytest.raises(InvalidGraph, match="on 'cpu' at batch 2 is too large"):
        one(time_s={"cpu": {2: HUGE}})
    for size in (HUGE, 10**5000, 0, -1, 1.5, "x", "٣", "9" * 5000, None, True):
        with pytest.raises(InvalidGraph, match="batch size"):
            one(time_s={"cpu": {size: 1.0}})


@pytest.mark.parametrize("number", [1e308, HUGE, -1.0, 0.0, float("nan"), 1e-310, "16GB", True])
def test_devices_beyond_computing_are_refused_by_name(number: Any) -> None:
    """Capacities and rates are numbers that can be added, and divided by."""
    for what in ("memory_bytes", "flops_per_s", "bytes_per_s", "io_bandwidth"):
        with pytest.raises(InvalidHardware, match=f"device 'a': {what}"):
            Device("a", **{what: number})
    if number not in (0.0, 1e-310):
        for what in ("cache_bytes", "launch_s"):
            with pytest.raises(InvalidHardware, match=f"device 'a': {what}"):
                Device("a", **{what: number})
        with pytest.raises(InvalidHardware, match="bandwidth"):
            Hardware.mesh([Device("a"), Device("b")], number)
    with pytest.raises(InvalidHardware, match="batch_sizes"):
        Device("a", batch_sizes=(HUGE,))


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "a\x1b[0m", "\uffff", 3, None])
def test_names_that_files_cannot_hold_are_refused(name: Any) -> None:
    """A lone surrogate crashed `schedule`, a NUL broke pictures and made fingerprints collide."""
    with pytest.raises(InvalidGraph, match="name of op number 1"):
        rlinit.Graph.build([("x", {}), (name, {})], [])
    with pytest.raises(InvalidHardware, match="name of a device"):
        Device(name)
    if name and isinstance(name, str):
        with pytest.raises(InvalidGraph, match="kind of op 'a'"):
            one(op=name)
        with pytest.raises(InvalidGraph, match="device"):
            one(time_s={name: 1.0})
        with pytest.raises(InvalidGraph, match="device"):
            one(forbidden=[name])
        with pytest.raises(InvalidGraph, match="graph's name"):
            rlinit.Graph.build([("a", {})], [], name=name)
        with pytest.raises(InvalidHardware, match="node"):
            Device("d", node=name)
        with pytest.raises(InvalidHardware, match="hardware's name"):
            Hardware.mesh([Device("d")], name=name)


def test_unknown_attributes_are_refused_with_the_nearest_known() -> None:
    """`parm_bytes` was carried along, and the op held no bytes."""
    with pytest.raises(InvalidGraph, match=r"'parm_bytes'; did you mean 'param_bytes'\?"):
        one(parm_bytes=3)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node("a", weight=3)
    with pytest.raises(InvalidGraph, match="your own go under 'note'"):
        rlinit.Graph.from_networkx(graph)
    assert one(note={"weight": 3}).extras == {0: {"note": {"weight": 3}}}


def load(tmp_path: Path, text: str) -> Hardware:
    """Read hardware from TOML."""
    (tmp_path / "hw.toml").write_text(text)
    return Hardware.load(tmp_path / "hw.toml")


def test_a_hundred_million_devices_are_refused_at_once(tmp_path: Path) -> None:
    """They were made one by one, for ever; so were the stages of a pipeline."""
    began = time.perf_counter()
    with pytest.raises(InvalidHardware, match="100,000,000 devices are too many"):
        load(tmp_path, "[[device]]\nname = 'a'\ncount = 100000000\n")
    with pytest.raises(InvalidHardware, match="too many"):
        load(tmp_path, "[[device]]\nname = 'a'\ncount = 1600\n[[device]]\nname = 'b'\ncount = 600\n")
    for make in (Hardware.pipeline, Hardware.edge_tpus, Hardware.pipeline(1).with_stages):
        with pytest.raises(InvalidHardware, match="too many"):
            make(10**8)
    with pytest.raises(InvalidHardware):
        Hardware.preset("edge-tpu-" + "9" * 5000)
    assert time.perf_counter() - began < 20.0


def test_files_take_sizes_as_people_write_them(tmp_path: Path) -> None:
    """Units of bytes, rates, operations and seconds are understood; KB is 1000 and KiB 1024 bytes, b is a bit."""
    hardware = load(
        tmp_path,
        """
        bandwidth = "25 GB/s"
        latency_s = "5us"
        [[device]]
        name = "gpu"
        count = 2
        memory_bytes = "16GB"
        cache_bytes = "8 MiB"
        flops_per_s = "8.1 TFLOPS"
        bytes_per_s = "320GB/s"
        launch_s = "5 us"
        io_bandwidth = "100 Gb/s"
        """,
    )
    gpu = hardware.devices[0]
    assert (gpu.memory_bytes, gpu.cache_bytes, gpu.flops_per_s, gpu.bytes_per_s) == (16e9, 8 * 2**20, 8.1e12, 320e9)
    assert (gpu.io_bandwidth, hardware.bandwidth[0, 1]) == (12.5e9, 25e9)
    assert gpu.launch_s == hardware.latency_s[0, 1] == pytest.approx(5e-6)
    link = "[[device]]\nname='a'\n[[device]]\nname='b'\n[[link]]\nfrom='a'\nto='b'\nbandwidth='1 GiB/s'\n"
    assert load(tmp_path, link).bandwidth[1, 0] == 2.0**30
    again = tmp_path / "hw.json"
    hardware.save(again)
    assert Hardware.load(again) == hardware


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("memory_bytes = '16 apples'", "device 'a': memory_bytes: expected bytes as a number or such as '16GB'"),
        ("memory_bytes = '16Gb'", "expected bytes"),
        ("memory_bytes = 'unlimited'", "expected bytes"),
        ("memory_bytes = '1e999GB'", "expected bytes"),
        ("flops_per_s = '8 TB'", "such as '8.1 TFLOPS'"),
        (
            "memory = 3",
            r"unknown key 'memory'; did you mean 'memory_bytes'\? \(expected name, kind",
        ),
        ("memory_bytes = 1e308", "too large to compute with"),
        ("name2 = 'x'", "unknown key 'name2'; did you mean 'name'"),
    ],
)
def test_messages_say_what_there_is(tmp_path: Path, line: str, message: str) -> None:
    """A wrong size is answered by an example, an unknown key by the nearest and all known ones."""
    with pytest.raises(InvalidHardware, match=message):
        load(tmp_path, f"[[device]]\nname = 'a'\n{line}\n")


def test_json_numbers_beyond_floats_are_refused(tmp_path: Path) -> None:
    """Python reads integers of any size from JSON."""
    (tmp_path / "hw.json").write_text('{"device": [{"name": "a", "memory_bytes": 1' + "0" * 400 + "}]}")
    with pytest.raises(InvalidHardware, match="has 401 digits, too large to compute with"):
        Hardware.load(tmp_path / "hw.json")
    text = json.dumps(one(time_s=1.0).to_dict()).replace("1}", "1" + "0" * 400 + "}")
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(InvalidGraph, match="has 401 digits, too large to compute with"):
        rlinit.Graph.load(tmp_path / "g.json")


def graph_file(tmp_path: Path, attributes: str) -> Path:
    """Write a graph of one op with attributes as JSON text."""
    path = tmp_path / "g.json"
    ops = '{"name": "a", ' + attributes + "}"
    path.write_text('{"format": "rlinit-graph", "version": 1, "name": "g", "ops": [' + ops + '], "edges": []}')
    return path


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('"time_s": {"cpu": {"1": 1.0, "01": 2.0}}', "has batch size '01'"),
        ('"time_s": {"cpu": {"1": 1.0, "1": 2.0}}', "the key '1' stands twice"),
        ('"time_s": 1.0, "time_s": 2.0', "the key 'time_s' stands twice"),
        ('"outputs": [null]', r"at ops\[0\].outputs\[0\]"),
        ('"outputs": [[]]', r"at ops\[0\].outputs\[0\]"),
        ('"outputs": "float32"', r"at ops\[0\].outputs"),
        ('"precision": ["fp17", null]', r"at ops\[0\].precision\[0\]"),
        ('"view": "no"', r"at ops\[0\].view"),
        ('"scopes": [[]]', r"at ops\[0\].scopes\[0\]"),
        ('"nodes": []', r"at ops\[0\].nodes"),
    ],
)
def test_files_say_one_thing_in_the_form_that_is_read(tmp_path: Path, attributes: str, message: str) -> None:
    """Of a key that stood twice the last won in silence; notes of another form were a TypeError later."""
    with pytest.raises(InvalidGraph, match=message):
        rlinit.Graph.load(graph_file(tmp_path, attributes))


def test_two_times_of_one_batch_size_are_refused() -> None:
    """In Python 1 and "1" are two keys, and one batch size."""
    with pytest.raises(InvalidGraph, match="two times at batch 1"):
        one(time_s={"cpu": {1: 1.0, "1": 2.0}})


@pytest.mark.parametrize("value", ["012", 3, {"1": 2}, [None], [1.5], [True]])
def test_layers_of_a_language_model_are_a_list_of_numbers(value: Any) -> None:
    """`mlp_only_layers` as text was a TypeError."""
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "mlp_only_layers": value}
    with pytest.raises(RlinitError, match=r"mlp_only_layers is .*; expected a list of numbers of layers"):
        architecture_of(config)
