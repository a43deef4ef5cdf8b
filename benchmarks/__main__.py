"""All benchmarks that compare with what a user would have instead, in at most half an hour: `make benchmark`.

    python -m benchmarks [name ...]

What each prints replaces its part of docs/benchmarks.md: a line with the commit and the machine, and the figures below it. With
names, only those run, and the other parts stay with their own lines.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.tables import put_into_page

RUNS = {
    "startup": ("2",),
    "throughput": ("3",),
    "waiting": ("5",),
    "short_texts": ("5",),
    "tokenization": ("3",),
    "features": ("3",),
    "save_stall": ("3",),
    "resume_time": (),
}
"""The arguments of each benchmark."""


def main() -> None:
    start = time.monotonic()
    if unknown := {*sys.argv[1:]} - {*RUNS}:
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))} here; there are {', '.join(RUNS)}")
    for name in sys.argv[1:] or RUNS:
        print(f"## {name}", file=sys.stderr)
        command = [sys.executable, "-m", f"benchmarks.{name}", *RUNS[name]]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed, flush=True)
        put_into_page(name, printed)
    print(f"done in {(time.monotonic() - start) / 60:.0f} min, see docs/benchmarks.md", file=sys.stderr)


if __name__ == "__main__":
    main()
