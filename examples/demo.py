"""The main job on a real network: cut PP-OCRv4's text detector for this machine's cores and run it.

Writes `build/demo/`: profile.json, plan.json, report.json, report.txt, trace.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from partitioner import Machine, Trace, auto_partition, zoo
from partitioner.cli import show_progress
from partitioner.files import write_json, write_text
from partitioner.report.explain import explain

NETWORK = "ppocr_det"
FOLDER = Path("build/demo")


def main() -> int:
    began = time.perf_counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    machine = Machine.detect()
    # Two equal cores tempt every solver to run the whole model twice; `strategy="pipeline"` insists
    # on stages, and the alternatives run beside it.
    strategy = "pipeline" if sum(device.threads for device in machine.devices) > 1 else "best"
    with show_progress() as progress:
        part = auto_partition(
            f"zoo:{NETWORK}",
            machine,
            strategy=strategy,
            progress=progress,
        )
        part.profile.save(FOLDER / "profile.json")
        items = zoo.inputs(NETWORK, 16)
        trace = Trace()
        with part.pipeline(trace=trace) as pipe:
            for _ in pipe.map(items):
                pass
        trace.write_chrome(FOLDER / "trace.json")
        report = part.measure(items, baselines=True, rounds=3, seconds=1.0, progress=progress)
    part.plan.save(FOLDER / "plan.json")
    write_json(FOLDER / "report.json", report.to_data())
    write_text(FOLDER / "report.txt", f"{report}\n\n{explain(part.plan)}\n")
    print(report)
    print()
    print(explain(part.plan))
    print(f"\n{time.perf_counter() - began:.0f} s; written to {FOLDER}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
