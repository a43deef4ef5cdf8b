"""What people retrain, from file to verdict by the defaults of `evergreen new`, beside the reference trainers at theirs.

    python -m benchmarks.objectives DATA MODEL [--seeds 17 18] [--tasks sick-nli] [--at-once 5] [--results FILE]

DATA is a folder with the folders sick, goemotions, trec-qa and cranfield; MODEL a small encoder with a folder for sentence-transformers,
such as all-MiniLM-L6-v2. The table has, of each task, the mean metric on the test rows with its standard error over the seeds,
and training rows per second as a ratio to the reference, the median over the seeds. `--at-once` trains several seeds
together: read no speed from that. `--results` keeps each training's result in a file of JSON lines, and does not train again what stands in it.

The references are those of `benchmarks.reference_trainers`. Validation rows choose the best checkpoint here; the references keep their
last weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import reference_trainers
from benchmarks.reference_trainers import Result, Rows, Splits


def read(path: Path) -> Rows:
    """Return the rows of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


class Task(NamedTuple):
    """A dataset, what `new` is told of it beside where it is, the metric, and the reference."""

    folder: str
    flags: tuple[str, ...]
    metric: str
    reference: Callable[[Splits, str, int, str], Result]


TASKS = {
    "sick-nli": Task("sick", ("--label", "entailment"), "macro_f1", reference_trainers.classes),
    "sick-score": Task("sick", ("--score", "relatedness"), "pearson", reference_trainers.score),
    "goemotions": Task("goemotions", (), "micro_f1", reference_trainers.labels),
    "trec-qa": Task("trec-qa", (), "ndcg_at_10", reference_trainers.ranking),
    "cranfield": Task("cranfield", ("--corpus", "documents.jsonl"), "ndcg_at_10", reference_trainers.embedding),
}


def write_cranfield(source: Path, folder: Path) -> None:
    """Write pairs of queries and relevant documents, in splits by query, and all documents."""
    folder.mkdir(parents=True)
    texts = {row["document_id"]: row["text"] for row in read(source / "documents.jsonl") if row["text"].strip()}
    queries = {row["query_id"]: row["query"] for row in read(source / "queries.jsonl")}
    ids = sorted(queries, key=int)
    random.Random(17).shuffle(ids)
    relevant = [row for row in read(source / "relevance.jsonl") if row["document_id"] in texts]
    for split, part in {"train": ids[:125], "validation": ids[125:155], "test": ids[155:]}.items():
        pairs = [(queries[row["query_id"]], texts[row["document_id"]]) for row in relevant if row["query_id"] in part]
        _write(folder / f"{split}.jsonl", [{"query": query, "document": text} for query, text in pairs])
    _write(folder / "documents.jsonl", [{"document": text} for text in texts.values()])


def _write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _run(project: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(project), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def write_recipes(project: Path, data: Path, model: str, task: str, seeds: Sequence[int]) -> None:
    """Let `new` write the recipe, and copy it for each seed; nothing else of it is changed."""
    chosen = TASKS[task]
    flags = [str(data / chosen.folder / flag) if flag.endswith(".jsonl") else flag for flag in chosen.flags]
    rows = data / chosen.folder
    splits = ["--validation", str(rows / "validation.jsonl"), "--test", str(rows / "test.jsonl")]
    _run(project, "tasks", "new", task, "--data", str(rows / "train.jsonl"), *splits, "--model", model, *flags, "--yes")
    text = (project / f"params/{task}.yaml").read_text("utf-8")
    for seed in seeds:
        named = re.sub(r"^seed: \d+", f"seed: {seed}", text, flags=re.MULTILINE)
        (project / f"params/{task}-{seed}.yaml").write_text(named, encoding="utf-8")


def ours(project: Path, task: str, seed: int) -> Result:
    """Run all stages but publish."""
    name = f"{task}-{seed}"
    for stage in ("resolve", "ingest", "validate", "tokenize", "train", "evaluate"):
        _run(project, "tasks", stage, name)
    metrics = json.loads((project / f"runs/{name}/evaluation/metrics.json").read_text("utf-8"))
    [finished] = (project / f".scratch/{name}").glob("*/*/finished.json")
    took = json.loads(finished.read_text("utf-8"))
    epochs = max(row["epoch"] for row in took["history"])
    print(f"{name}: {metrics['verdict']}, untrained {metrics['untrained'][metrics['metric']]:.4f}", flush=True)
    return Result(metrics["model"][TASKS[task].metric], took["seconds"], epochs)


def reference(data: Path, model: str, task: str, seed: int) -> Result:
    """Train as the reference does, in a process of its own."""
    out = _run(Path.cwd(), "benchmarks.objectives", str(data), model, "--reference", task, str(seed))
    return Result(*json.loads(out.splitlines()[-1]))


def _once(kept: Path | None, name: str, train: Callable[[], Result]) -> Result:
    """Return the result that the file has under a name, or train and keep it there."""
    done = {row["name"]: Result(*row["result"]) for row in (read(kept) if kept else [])}
    if name in done:
        return done[name]
    result = train()
    print(f"{name}: {result}", flush=True)
    if kept:
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "result": result}) + "\n")
    return result


def _both(seed: int, *, project: Path, data: Path, model: str, kept: Path | None, task: str) -> tuple[Result, Result]:
    return (
        _once(kept, f"{task}, seed {seed}", partial(ours, project, task, seed)),
        _once(kept, f"{task}, seed {seed}, reference", partial(reference, data, model, task, seed)),
    )


def _one_reference(data: Path, model: str, task: str, seed: int) -> None:
    from transformers import set_seed

    set_seed(seed)
    rows = data / TASKS[task].folder
    splits = Splits(read(rows / "train.jsonl"), read(rows / "test.jsonl"), read(rows / "documents.jsonl"))
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(TASKS[task].reference(splits, model, seed, folder)))


def line(task: str, rows: int, here: Sequence[Result], there: Sequence[Result]) -> str:
    """Return a row of the table."""

    def mean(results: Sequence[Result]) -> str:
        values = [result.metric for result in results]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return f"{statistics.fmean(values):.4f} ± {error:.4f}"

    def speed(result: Result) -> float:
        return rows * result.epochs / result.seconds

    ratios = [speed(ours) / speed(theirs) for ours, theirs in zip(here, there, strict=True)]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {task} | {TASKS[task].metric} | {mean(here)} | {mean(there)} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19, 20, 21])
    parser.add_argument("--tasks", nargs="+", default=[*TASKS])
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--reference", nargs=2)
    chosen = parser.parse_args()
    if chosen.reference:
        _one_reference(chosen.data, chosen.model, chosen.reference[0], int(chosen.reference[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        project, data = Path(folder) / "project", Path(folder) / "data"
        skipped = shutil.ignore_patterns(".git", ".venv", ".scratch", "runs", ".hub", "__pycache__", ".gpu")
        shutil.copytree(Path.cwd(), project, ignore=skipped)
        (project / "runs").mkdir()
        for name in {TASKS[task].folder for task in chosen.tasks} - {"cranfield"}:
            shutil.copytree(chosen.data / name, data / name)
        if "cranfield" in chosen.tasks:
            write_cranfield(chosen.data / "cranfield", data / "cranfield")
        print(
            "| task | metric | here | reference | rows/s, of the reference (range) |\n| --- | --- | ---: | ---: | ---: |"
        )
        for task in chosen.tasks:
            write_recipes(project, data, chosen.model, task, chosen.seeds)
            rows = len(read(data / TASKS[task].folder / "train.jsonl"))
            both = partial(_both, project=project, data=data, model=chosen.model, kept=chosen.results, task=task)
            with ThreadPoolExecutor(chosen.at_once) as pool:
                results = [*pool.map(both, chosen.seeds)]
            print(line(task, rows, *zip(*results, strict=True)), flush=True)


if __name__ == "__main__":
    main()
