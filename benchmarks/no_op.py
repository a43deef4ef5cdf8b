"""Time that `dvc repro` and the flow need when nothing has changed.

    make run && python benchmarks/no_op.py

Times `dvc repro` alternately in this project and in a project of two trivial stages, and prints both medians and their
ratio. Then it times the flow `retrain` once, with its own Prefect server.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 9
TWO_STAGES = """\
stages:
  first:
    cmd: echo 1 > one
    outs: [one]
  second:
    cmd: cat one > two
    deps: [one]
    outs: [two]
"""


def main() -> None:
    """Run the benchmark from the project's root."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        (empty / "dvc.yaml").write_text(TWO_STAGES)
        _dvc(empty, "init", "-q", "--no-scm")
        for place in (here, empty):
            if "Running stage" in _dvc(place, "repro") and place == here:
                sys.exit("stages had changed and were run; run the benchmark again")
        times: dict[Path, list[float]] = {here: [], empty: []}
        for _ in range(ROUNDS):
            for place, measured in times.items():
                start = time.perf_counter()
                _dvc(place, "repro")
                measured.append(time.perf_counter() - start)
    ours, theirs = (statistics.median(measured) for measured in times.values())
    print(f"dvc repro, nothing changed: {ours:.2f} s here, {theirs:.2f} s in an empty project: {ours / theirs:.2f}x")
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "flows.cli", "run"], check=True, stdout=subprocess.DEVNULL)
    print(f"the flow, nothing changed, with its own server: {time.perf_counter() - start:.1f} s")


def _dvc(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
