"""The checker of placements catches every way a plan can be untrue."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.plan import Batch, Plan, PlannedTransfer, Transfers

SIZES = (1, 2, 3, 4)


def model() -> rlinit.Graph:
    """Return six ops in two branches, two of them colocated, one kept off device b."""
    ops = []
    for at, name in enumerate("abcdef"):
        seconds = {
            kind: {c: (1.0 + at) * factor * (0.4 + 0.6 * c) for c in SIZES} for kind, factor in (("x", 1), ("y", 2))
        }
        ops.append((name, {"time_s": seconds, "param_bytes": 8.0, "out_bytes": 4.0}))
    ops[1][1]["colocate"] = ops[2][1]["colocate"] = "pair"
    ops[3][1]["forbidden"] = ["b"]
    return rlinit.Graph.build(ops, [("a", "b"), ("b", "c"), ("a", "d"), ("d", "e"), ("c", "f"), ("e", "f")])


def hardware(memory: float = 400.0) -> Hardware:
    """Return three devices over slow links, with some memory."""
    devices = [Device("a", "x", memory, batch_sizes=SIZES), Device("b", "y", memory, batch_sizes=SIZES)]
    return Hardware.mesh([*devices, Device("c", "x", memory, batch_sizes=SIZES)], 8.0, latency_s=0.5)


def solved(transfers: Transfers = "exclusive", inputs: int = 4) -> Plan:
    """Return a good plan with transfers."""
    if inputs == 1:
        return rlinit.schedule(model(), hardware(), objective="latency", transfers=transfers, method="sweep")
    return rlinit.schedule(
        model(), hardware(), objective="throughput", inputs=inputs, transfers=transfers, method="sweep"
    )


def check(plan: Plan, message: str, on: Hardware | None = None) -> None:
    """Check that a plan is refused with a message."""
    where = on or hardware()
    with pytest.raises(InvalidPlan, match=message):
        rlinit.verify(dataclasses.replace(plan, hardware_fingerprint=where.fingerprint()), model(), where)


def shifted(batch: Batch, by: float) -> Batch:
    """Return a batch moved in time."""
    return dataclasses.replace(batch, start_s=batch.start_s + by, end_s=batch.end_s + by)


def with_batch(plan: Plan, at: int, change: Callable[[Batch], Batch]) -> Plan:
    """Return a plan with one batch changed, and starts that agree with it."""
    batches = list(plan.batches)
    batches[at] = change(batches[at])
    start_s: dict[str, float] = {}
    for batch in batches:
        start_s[batch.op] = min(batch.start_s, start_s.get(batch.op, batch.start_s))
    return dataclasses.replace(plan, batches=tuple(batches), start_s=start_s)


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
@pytest.mark.parametrize("inputs", [1, 4])
def test_true_plans_pass(transfers: Transfers, inputs: int) -> None:
    """What schedule returns is accepted, whatever the transfers."""
    rlinit.verify(solved(transfers, inputs), model(), hardware())


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_every_early_start_is_caught(transfers: Transfers) -> None:
    """No batch of a tight plan can start earlier: something overlaps, or data is not there yet."""
    plan = solved(transfers)
    tried = 0
    for at, batch in enumerate(plan.batches):
        if batch.start_s > 0:
            tried += 1
            check(with_batch(plan, at, lambda b: shifted(b, -0.2)), "at once|starts on|used twice|leaves")
    assert tried > 3


def test_wrong_lengths_and_sizes_are_caught() -> None:
    """A batch takes the time its size takes, and a device offers only its sizes."""
    plan = solved()
    check(with_batch(plan, 0, lambda b: dataclasses.replace(b, end_s=b.end_s * 0.9)), "it takes|where it takes")
    few = [dataclasses.replace(device, batch_sizes=(3,)) for device in hardware().devices]
    check(plan, "does not support batch size", Hardware.mesh(few, 8.0, latency_s=0.5))


def test_shards_are_dealt_once() -> None:
    """No shard is missing, doubled or unknown."""
    plan = solved()
    check(with_batch(plan, 0, lambda b: dataclasses.replace(b, shards=(*b.shards, 9))), "shard|has shards")
    check(dataclasses.replace(plan, batches=plan.batches[1:]), "has shards")
    check(dataclasses.replace(plan, batches=(*plan.batches, plan.batches[0])), "two batches")
    check(dataclasses.replace(plan, shard_inputs=3), "make shards of 1")


def test_devices_and_groups_are_kept() -> None:
    """Unknown devices, forbidden ones and split groups are refused."""
    plan = solved(inputs=1)
    at = {batch.op: i for i, batch in enumerate(plan.batches)}
    check(with_batch(plan, 0, lambda b: dataclasses.replace(b, device="z")), "does not have")
    check(with_batch(plan, at["d"], lambda b: dataclasses.replace(b, device="b")), "forbidden")
    other = "c" if plan.batches[at["b"]].device == "a" else "a"
    late = with_batch(plan, at["b"], lambda b: shifted(dataclasses.replace(b, device=other), 1000.0))
    check(late, "colocated|takes")


def test_overfull_memory_is_caught() -> None:
    """A device may not hold more than its memory."""
    plan = solved()
    check(plan, "its memory has", hardware(max(use.held_bytes for use in plan.devices) * 0.99))


def test_transfers_are_checked() -> None:
    """Transfers that are missing, too short, too early or overlapping are refused, and so are doubled ones."""
    plan = solved()
    assert len(plan.transfers) > 1

    def changed(change: Callable[[PlannedTransfer], PlannedTransfer]) -> Plan:
        return dataclasses.replace(plan, transfers=(change(plan.transfers[0]), *plan.transfers[1:]))

    check(dataclasses.replace(plan, transfers=plan.transfers[1:]), "missing or not needed")
    check(changed(lambda t: dataclasses.replace(t, end_s=t.end_s - 0.1)), "too short")
    check(changed(lambda t: dataclasses.replace(t, start_s=t.start_s / 2)), "before it is made")
    check(dataclasses.replace(plan, transfers=(*plan.transfers, plan.transfers[0])), "twice")
    check(dataclasses.replace(plan, transfer_rule="parallel"), "parallel transfers")


def test_transfers_may_not_overlap_on_a_link() -> None:
    """Two transfers of one link at once are refused under congestion."""
    fan = rlinit.Graph.build(
        [(n, {"time_s": 1.0, "out_bytes": 8.0, "forbidden": ["b" if n in "pq" else "a"]}) for n in ("p", "q", "r")],
        [("p", "r"), ("q", "r")],
    )
    pair = Hardware.mesh([Device("a"), Device("b")], 1.0)
    plan = rlinit.schedule(fan, pair, objective="latency", transfers="exclusive")
    assert plan.value == pytest.approx(1.0 + 8.0 + 8.0 + 1.0)
    first, second = plan.transfers
    together = dataclasses.replace(second, start_s=2.0, end_s=10.0)
    wrong = dataclasses.replace(plan, transfers=(first, together))
    with pytest.raises(InvalidPlan, match="used twice at once"):
        rlinit.verify(wrong, fan, pair)


def test_transfers_that_never_end_are_refused() -> None:
    """Against an endless transfer no start is late; links with infinite latency are none."""
    chain = rlinit.Graph.build([("p", {"time_s": 1.0, "out_bytes": 8.0}), ("q", {"time_s": 1.0})], [("p", "q")])
    pair = Hardware.mesh([Device("a"), Device("b")], 1.0)
    for transfers in ("parallel", "exclusive"):
        plan = rlinit.schedule(chain, pair, objective="latency", transfers=transfers)
        first, second = plan.batches
        moved = dataclasses.replace(second, device="b" if first.device == "a" else "a")
        assert plan.assignment is not None
        uses = tuple(dataclasses.replace(use, num_batches=1, busy_s=1.0, held_bytes=0.0) for use in plan.devices)
        apart = dataclasses.replace(
            plan, batches=(first, moved), assignment={**plan.assignment, "q": moved.device}, devices=uses
        )
        endless = dataclasses.replace(pair, latency_s=np.array([[0.0, np.inf], [np.inf, 0.0]]))
        if transfers == "exclusive":
            sent = PlannedTransfer("p", first.device, moved.device, 1.0, 1.5)
            apart = dataclasses.replace(apart, transfers=(sent,))
        with pytest.raises(InvalidPlan, match="takes for ever"):
            rlinit.verify(dataclasses.replace(apart, hardware_fingerprint=endless.fingerprint()), chain, endless)


def test_ops_that_several_devices_run_name_all_of_them(tmp_path: Path) -> None:
    """An op whose inputs are split has a tuple of devices; one of them, another order or a stranger is no plan."""
    graph = rlinit.Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [])
    pair = Hardware.mesh([Device("p", batch_sizes=(1,)), Device("q", batch_sizes=(1,))], 1.0)
    batches = [Batch(op, device, (at,), 0.0, 1.0) for op in ("a", "b") for at, device in enumerate(("p", "q"))]
    starts = {"a": 0.0, "b": 1.0}
    batches = [dataclasses.replace(one, start_s=starts[one.op], end_s=starts[one.op] + 1.0) for one in batches]
    plan = rlinit.schedule(graph, pair, objective="throughput", inputs=2)
    uses = tuple(dataclasses.replace(use, num_batches=2, busy_s=2.0) for use in plan.devices)
    split = dataclasses.replace(
        plan, batches=tuple(batches), assignment=dict.fromkeys("ab", ("p", "q")), start_s=starts, devices=uses
    )
    assert split.value == 2.0
    rlinit.verify(split, graph, pair)
    split.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").assignment == split.assignment
    for said in ("p", "q", ("q", "p"), ("p",), ("p", "z")):
        with pytest.raises(InvalidPlan, match="op 'b' is assigned to"):
            rlinit.verify(dataclasses.replace(split, assignment={"a": ("p", "q"), "b": said}), graph, pair)
    alone = rlinit.Graph.build([("a", {"time_s": 1.0})], [])
    assert rlinit.schedule(alone, pair, objective="throughput", inputs=2).assignment == {"a": ("p", "q")}


def test_figures_are_checked() -> None:
    """Values, bounds, status, devices' figures and the summary must be true."""
    plan = solved()
    better = (plan.value * 0.9,)
    for wrong, message in (
        (dataclasses.replace(plan, values=better), "value"),
        (dataclasses.replace(plan, bounds=(plan.value * 1.1,)), "exceeds"),
        (
            dataclasses.replace(plan, devices=(*plan.devices[:2], dataclasses.replace(plan.devices[2], busy_s=0.1))),
            "busy_s",
        ),
        (dataclasses.replace(plan, start_s={**(plan.start_s or {}), "f": 0.0}), "start_s"),
        (dataclasses.replace(plan, assignment={**(plan.assignment or {}), "f": "nowhere"}), "is assigned to"),
    ):
        check(wrong, message)


def test_large_plans_are_checked_soon() -> None:
    """A plan of 10,000 ops takes little processor time to check; it took 2 s when ops were gone through one by one."""
    ops = [(f"op{v}", {"time_s": 1.0 + v % 3, "param_bytes": 8.0, "out_bytes": 4.0}) for v in range(10_000)]
    graph = rlinit.Graph.build(ops, [(f"op{v - back}", f"op{v}") for v in range(9, 10_000) for back in (1, 9)])
    plan = rlinit.schedule(graph, hardware(1e6), objective="latency", method="heft")
    began = time.process_time()
    rlinit.verify(plan, graph, hardware(1e6))
    assert time.process_time() - began < 7.0
