"""Use the installed wheel from outside the repository: import, schedule, prove, save, load, verify."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import rlinit
from rlinit.datasets.zoo import imagenet


def main() -> None:
    """Schedule a network of the zoo and check the plan that comes back."""
    assert "site-packages" in str(rlinit.__file__), rlinit.__file__
    assert "torch" not in sys.modules
    graph = imagenet.load("resnet50")
    hardware = rlinit.Hardware.edge_tpus(4)
    with tempfile.TemporaryDirectory() as folder:
        for objective in ("memory", "pipeline"):
            plan = rlinit.schedule(graph, hardware, objective=objective)
            assert plan.status == "optimal", plan.status
            plan.save(Path(folder, "plan.json"))
            plan.plot(Path(folder, "plan.svg"))
            rlinit.verify(rlinit.Plan.load(Path(folder, "plan.json")), graph, hardware)
            assert plan.certify(Path(folder, "certificate.json"), graph, hardware) == ()
            print(f"{objective}: {plan.value:.6g}, optimal by {plan.bound_source}")


if __name__ == "__main__":
    main()
