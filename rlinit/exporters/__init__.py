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
    from rlinit.exporters.device_map import to_device_map as to_device_map
    from rlinit.exporters.graphviz import to_dot as to_dot
    from rlinit.exporters.launchers import to_megatron_flags as to_megatron_flags
    from rlinit.exporters.launchers import to_server_flags as to_server_flags
    from rlinit.exporters.launchers import to_torchtitan as to_torchtitan
    from rlinit.exporters.megatron import to_megatron_layout as to_megatron_layout
    from rlinit.exporters.onnx.stages import run_onnx_stages as run_onnx_stages
    from rlinit.exporters.onnx.stages import to_onnx_stages as to_onnx_stages
    from rlinit.exporters.openvino import to_openvino_map as to_openvino_map
    from rlinit.exporters.perfetto import to_trace as to_trace
    from rlinit.exporters.split_spec import to_split_spec as to_split_spec
    from rlinit.exporters.torchrun import to_torchrun_script as to_torchrun_script
    from rlinit.reports.html import to_report as to_report

__getattr__, __all__ = late_names(__name__)
