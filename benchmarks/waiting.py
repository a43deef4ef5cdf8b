"""How fast a step is when its threads wait in different ways, on an idle machine and beside other programs.

    python -m benchmarks.waiting [rounds]

A step of a BERT or Llama by plain torch, with torch's own threads. A process of each way to wait is started once, and takes its
steps when it is asked to, so that rounds alternate. Ratios above 1 are faster than what GNU OpenMP does by default.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import trainer
from benchmarks.load import busy_programs

WAYS = {"ours": trainer.OPENMP_SPINS, "at once": "0", "default": "300000"}
"""How often a thread looks for work before it sleeps."""
LOADS = {"short": (0, 2, 8), "long": (0, 2)}
"""Other programs; beside eight, a long step by default takes minutes."""
STEPS = {"short": 20, "long": 4}
"""Steps of a round on an idle machine; fewer beside other programs."""


def answer(kind: str) -> None:
    """Take as many steps as each line of the standard input says, and print the mean milliseconds of one."""
    import torch

    from benchmarks.throughput import LONG, SHORT
    from benchmarks.workload import LABELS, VOCABULARY, set_up

    set_up("ours")
    work = SHORT if kind == "short" else LONG
    model = work.model()
    ids = torch.randint(VOCABULARY, (work.batch, work.length))
    labels = torch.randint(LABELS, (work.batch,)) if kind == "short" else ids
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(1000 * (time.perf_counter() - start) / int(line), flush=True)


def start(kind: str, way: str) -> subprocess.Popen[str]:
    """Start a process that answers."""
    environment = {**os.environ, "GOMP_SPINCOUNT": WAYS[way]}
    command = [sys.executable, "-m", "benchmarks.waiting", "answer", kind]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], steps: int) -> float:
    """Let a process take steps; return the mean milliseconds of one."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def rows(rounds: int) -> Iterator[list[str]]:
    """Yield a row of the table for each kind of steps and each load."""
    from benchmarks.tables import spread

    for kind, steps in STEPS.items():
        processes = {way: start(kind, way) for way in WAYS}
        try:
            for process in processes.values():
                assert process.stdout
                process.stdout.readline()
            for load in LOADS[kind]:
                found: dict[str, list[float]] = {way: [] for way in WAYS}
                with busy_programs(load):
                    for turn in range(rounds):
                        for way in [*WAYS][turn % len(WAYS) :] + [*WAYS][: turn % len(WAYS)]:
                            found[way].append(ask(processes[way], max(1, steps // (1 + 2 * load))))
                ratios = [
                    spread(a / b for a, b in zip(found["default"], found[way], strict=True))
                    for way in ("ours", "at once")
                ]
                yield [f"{kind}, {load} other programs", f"{statistics.median(found['ours']):.0f} ms", *ratios]
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def main() -> None:
    """Print the table."""
    from benchmarks.tables import environment, print_table

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(environment(rounds), flush=True)
    looks = f"{int(WAYS['ours']):,} looks, as here"
    print_table(
        ["steps", "here", f"{looks}: ratio to the default", "sleep at once: ratio to the default"], rows(rounds)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["answer"]:
        answer(sys.argv[2])
    else:
        main()
