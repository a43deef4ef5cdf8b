"""What the parts around the work cost: flow, server, DVC and processes, beside `import torch` and beside the bare stages.

    python -m benchmarks.startup [rounds]

It works in a clone of this project's last commit, with a training of four steps. `The bare stages` are the same six stages in
one process, without Prefect and DVC; the training has a process of its own in both.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.tables import environment, print_table, spread

FLOW = ("-m", "flows.evergreen", "run", "default")
BARE = """
from tasks.commands import main
for stage in ("ingest", "validate", "tokenize", "train", "evaluate", "publish"):
    assert main([stage, "default"]) == 0
"""
SHORTER = {"max_steps: 40": "max_steps: 4", "warmup_steps: 10": "warmup_steps: 2"}
SHORTER |= {"eval_steps: 20": "eval_steps: 4", "save_steps: 20": "save_steps: 4"}


class Clone:
    """A clone of the project with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        subprocess.run(["git", "clone", "-q", str(Path.cwd()), str(self.root)], check=True)
        recipe = self.root / "params" / "default.yaml"
        text = recipe.read_text(encoding="utf-8")
        for old, new in SHORTER.items():
            assert old in text, old
            text = text.replace(old, new)
        recipe.write_text(text, encoding="utf-8")
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "DVC_", "HF_"))}
        self._environment |= {"PREFECT_HOME": str(folder / "prefect"), "HF_HOME": str(folder / "hf")}

    def seconds(self, *arguments: str, **variables: str) -> float:
        """Run Python with these arguments; return how long it took."""
        start = time.perf_counter()
        command = [sys.executable, *arguments]
        settings = self._environment | variables
        done = subprocess.run(command, cwd=self.root, env=settings, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)[:80]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return time.perf_counter() - start

    def forget(self) -> None:
        """Delete all that a run left, DVC's cache included."""
        for name in ("runs/default", ".scratch", ".hub", ".dvc/cache", ".dvc/tmp"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / "dvc.lock").unlink(missing_ok=True)

    @contextmanager
    def server(self) -> Iterator[Mapping[str, str]]:
        """Run a Prefect server; the variable that names it."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", port]
        process = subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}/api"
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"{url}/health", timeout=5):
                        break
                except OSError:
                    time.sleep(0.1)
            yield {"PREFECT_API_URL": url}
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(environment(rounds), flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clone = Clone(Path(folder))
        clone.seconds(*FLOW)  # compiles the code, and prepares Prefect's database
        imports = [clone.seconds("-c", "import torch") for _ in range(rounds)]

        def repeat(*arguments: str, **variables: str) -> list[float]:
            return [clone.seconds(*arguments, **variables) for _ in range(rounds)]

        found = {"`import torch`": imports, "`dvc repro`, nothing to do": repeat("-m", "dvc", "repro")}
        found["`evergreen run`, nothing to do, with a server of its own"] = repeat(*FLOW)
        with clone.server() as variables:
            clone.seconds(*FLOW, **variables)
            found["`evergreen run`, nothing to do, with a server that runs"] = repeat(*FLOW, **variables)
        found["`evergreen check`"] = repeat("-m", "flows.evergreen", "check", "default")
        bare, flow = [], []
        for _ in range(max(1, rounds // 2)):
            clone.forget()
            bare.append(clone.seconds("-c", BARE))
            clone.forget()
            flow.append(clone.seconds(*FLOW))
        found["six stages by the flow, a training of four steps"] = flow
        found["of which more than the bare stages"] = [a - b for a, b in zip(flow, bare, strict=True)]
        torch = statistics.median(imports)
        rows = ((name, spread(s, 1), spread((one / torch for one in s), 1)) for name, s in found.items())
        print_table(("", "seconds", "of `import torch`"), rows)


if __name__ == "__main__":
    main()
