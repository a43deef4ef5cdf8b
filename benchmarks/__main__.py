"""All benchmarks that compare with what a user would have instead, in at most half an hour: `make benchmark`."""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = (
    ("startup", "2"),
    ("throughput", "3"),
    ("short_texts", "5"),
    ("tokenization", "3"),
    ("features", "3"),
    ("save_stall", "3"),
    ("resume_time",),
)


def main() -> None:
    start = time.monotonic()
    for name, *arguments in RUNS:
        print(f"\n## {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=True)
    print(f"\ndone in {(time.monotonic() - start) / 60:.0f} min")


if __name__ == "__main__":
    main()
