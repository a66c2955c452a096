"""Plans in the formats of other tools.

=========================  ======================================================================
function                   writes
=========================  ======================================================================
`to_device_map`            a device map of accelerate
`to_dot`                   Graphviz text
`to_megatron_flags`        flags of Megatron, for stages of several devices
`to_megatron_layout`       Megatron's ``--pipeline-model-parallel-layout``
`to_onnx_stages`           an ONNX file for each stage; `run_onnx_stages` runs them
`to_openvino_map`          affinities of OpenVINO's HETERO device
`to_report`                an HTML page
`to_server_flags`          flags and environment of vLLM or SGLang, for stages of several devices
`to_split_spec`            a split specification of `torch.distributed.pipelining`
`to_torchrun_script`       a script that runs the stages by torchrun
`to_torchtitan`            sections of torchtitan's TOML, for stages of several devices
`to_trace`                 a trace for Perfetto or Chrome
=========================  ======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if TYPE_CHECKING:
    from rlinit.exporters.device_map import to_device_map
    from rlinit.exporters.graphviz import to_dot
    from rlinit.exporters.launchers import to_megatron_flags, to_server_flags, to_torchtitan
    from rlinit.exporters.megatron import to_megatron_layout
    from rlinit.exporters.onnx.stages import run_onnx_stages, to_onnx_stages
    from rlinit.exporters.openvino import to_openvino_map
    from rlinit.exporters.perfetto import to_trace
    from rlinit.exporters.split_spec import to_split_spec
    from rlinit.exporters.torchrun import to_torchrun_script
    from rlinit.reports.html import to_report

__all__ = [
    "run_onnx_stages",
    "to_device_map",
    "to_dot",
    "to_megatron_flags",
    "to_megatron_layout",
    "to_onnx_stages",
    "to_openvino_map",
    "to_report",
    "to_server_flags",
    "to_split_spec",
    "to_torchrun_script",
    "to_torchtitan",
    "to_trace",
]

__getattr__ = late_names(
    __name__,
    {
        "run_onnx_stages": "rlinit.exporters.onnx.stages",
        "to_device_map": "rlinit.exporters.device_map",
        "to_dot": "rlinit.exporters.graphviz",
        "to_megatron_flags": "rlinit.exporters.launchers",
        "to_megatron_layout": "rlinit.exporters.megatron",
        "to_onnx_stages": "rlinit.exporters.onnx.stages",
        "to_openvino_map": "rlinit.exporters.openvino",
        "to_report": "rlinit.reports.html",
        "to_server_flags": "rlinit.exporters.launchers",
        "to_split_spec": "rlinit.exporters.split_spec",
        "to_torchrun_script": "rlinit.exporters.torchrun",
        "to_torchtitan": "rlinit.exporters.launchers",
        "to_trace": "rlinit.exporters.perfetto",
    },
)
