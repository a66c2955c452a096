"""Times on several devices are those on each, with names, kinds and exclusions that the graph gives."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinit.costs.roofline import op_times, times_on
from rlinit.graph import Graph
from rlinit.hardware import Device


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["gpu", "cpu"]), st.sampled_from([1e12, 2e12]))),
    st.sampled_from([{}, {"a": 1e-3}, {"gpu": 2e-3, "cpu": 3e-3}, {"a": 1e-3, "gpu": 2e-3, "cpu": 3e-3}]),
    st.sampled_from([[], ["b"]]),
)
def test_alike_devices_share_only_what_they_have_in_common(
    rows: list[tuple[str, str, float]], times: dict[str, float], forbidden: list[str]
) -> None:
    row = {"flops": 1e9, "out_bytes": 4.0, "forbidden": forbidden} | ({"time_s": times} if times else {})
    graph = Graph.build([("timed", row), ("modelled", {"flops": 2e9, "out_bytes": 4.0})], [])
    devices = [Device(name, kind, flops_per_s=rate, bytes_per_s=1e9) for name, kind, rate in rows]
    for device, seconds in zip(devices, times_on(graph, devices), strict=True):
        np.testing.assert_array_equal(seconds, op_times(graph, device))
