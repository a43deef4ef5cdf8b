"""A year of retraining on rows that drift, by several strategies side by side.

    python -m benchmarks.continual DATA MODEL [--seeds 17 18 19] [--layers 1] [--months 12] [--at-once 1] [--results FILE]

DATA is the folder of Banking77, MODEL a small encoder such as all-MiniLM-L6-v2, of which the first `--layers` are used, and the tokens that
the rows have. Each month brings some 75 rows to learn from and as many to hold out, and January twice as many, of the 12 intents with
the most rows:

- three intents are frequent until June and rare from July on, and three others the other way round: a label shift;
- a new intent comes in April; another one fades from January on and is gone in October.

Every month, a recipe runs through all stages and meets the gate, with all rows that were held out until then; those of an intent that it
has no rows to learn from are left out there, and counted in the table. The table has the accuracy of the model that is published after
each month on the held-out rows of the next month (`next`), of this one (`new`) and of all before (`known`), as means over the year.
What stands behind ± is the larger one of the standard errors over the seeds, which draw other rows and train with other orders, and
over the rows. `--results` keeps the months in a file of JSON lines, and does not live again through those that stand in it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from benchmarks.tables import environment, print_table
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.stage_run import run_stage
from trainer.runtime import fork_server

MONTHS, INTENTS = 12, 12
NEW_INTENT, FADING_INTENT, NEW_FROM, SHIFT_FROM = 0, 1, 4, 7
_IMPORTED = (
    "numpy",
    "pyarrow.parquet",
    "transformers",
    "torch",
    "accelerate",
    "transformers.models.auto.modeling_auto",
)
_LEARNABLE = 4
"""Rows to learn from that an intent needs for its held-out rows to be judged by the gate: validate refuses labels that no train row has."""
_FADES = (24, 20, 16, 12, 8, 6, 4, 2, 1)
_RECIPE: dict[str, Any] = {
    "data": {
        "source": {"kind": "files", "train": "data/train.csv", "test": "data/test.csv"},
        "split": {"validation": 0.2},
    },
    "validation": {"max_quarantined": 0.9},  # a window may have no row of a label that is held out
    "tokenization": {"tokenizer": {"kind": "pretrained", "path": "model"}, "max_length": 64},
    "objective": {"name": "sequence_classification", "text_column": "text", "label_column": "category"},
    "model": {"pretrained": "model"},
    "training": {
        "epochs": 5,
        "global_batch_size": 16,
        "learning_rate": 1e-3,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "group_by_length": True,
        "eval_steps": 0.25,
        "save_steps": 100_000,
        "best_metric": "loss",
    },
    "launch": {"micro_batch_size": 16, "eval_batch_size": 64},
    "evaluation": {"compare_untrained": False},
    "publish": {"repo_id": "benchmarks/year"},
}


class Row(NamedTuple):
    """A text of a month."""

    text: str
    intent: str


class Strategy(NamedTuple):
    """How a month's model is trained."""

    name: str
    changes: dict[str, dict[str, Any]]
    """Keys of the recipe."""
    window: int | None = None
    """Months of rows that it reads; 0 for those since the last release, None for all."""


_REPLAY = {"replay": {"known": 0.5}}
STRATEGIES = (
    Strategy("`base`, all rows", {}),
    Strategy("`base`, the rows of three months", {}, 3),
    Strategy("`champion`, new rows alone", {"model": {"start": "champion"}}, 0),
    Strategy("`champion`, `replay: {known: 0.5}`", {"model": {"start": "champion"}, "training": _REPLAY}),
    Strategy(
        "the same, `stay_close: 0.01`", {"model": {"start": "champion"}, "training": {**_REPLAY, "stay_close": 0.01}}
    ),
    Strategy("`best`, `replay: {known: 0.5}`", {"model": {"start": "best"}, "training": _REPLAY}),
)


def rows_of_intent(number: int, month: int) -> int:
    """Return how many rows an intent has in a month, counted from 1."""
    times, kind = 2 if month == 1 else 1, (number - 2) // 3
    if number == NEW_INTENT:
        return 20 if month >= NEW_FROM else 0
    if number == FADING_INTENT:
        return _FADES[month - 1] if month <= len(_FADES) else 0
    if kind < 2:
        return times * (20 if (kind == 0) == (month < SHIFT_FROM) else 6)
    return times * 14


def draw_year(data: Path, seed: int) -> tuple[list[str], list[list[Row]], list[list[Row]]]:
    """Return the intents by number, and the rows of each month to learn from and to hold out. No text comes twice."""
    pool, seen = defaultdict[str, list[Row]](list), set[str]()
    for name in ("train.csv", "test.csv"):
        with (data / name).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = " ".join(row["text"].lower().split())
                if key not in seen:
                    pool[row["category"]].append(Row(row["text"], row["category"]))
                seen.add(key)
    chance = random.Random(seed)
    intents = sorted(pool, key=lambda intent: (-len(pool[intent]), intent))[:INTENTS]
    chance.shuffle(intents)
    for intent in intents:
        chance.shuffle(pool[intent])
    learned, held_out = list[list[Row]](), list[list[Row]]()
    for month in range(1, MONTHS + 1):
        mine = [
            pool[intent].pop() for number, intent in enumerate(intents) for _ in range(rows_of_intent(number, month))
        ]
        chance.shuffle(mine)
        held_out.append(mine[: len(mine) // 2])
        learned.append(mine[len(mine) // 2 :])
    return intents, learned, held_out


def cut_model(model: str, layers: int, texts: Iterable[str], folder: Path) -> None:
    """Write an encoder's first layers as a model of its own, with the tokens that the texts have and the special ones."""
    import torch
    from transformers import AutoModel, AutoTokenizer, BertTokenizer

    whole, tokenizer = AutoModel.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    used = {*tokenizer.all_special_ids, *(at for ids in tokenizer([*texts])["input_ids"] for at in ids)}
    whole.encoder.layer = whole.encoder.layer[:layers]
    vectors = whole.get_input_embeddings().weight[torch.tensor(sorted(used))]
    whole.set_input_embeddings(torch.nn.Embedding(len(used), vectors.shape[1], _weight=vectors.detach().clone()))
    whole.config.update({"num_hidden_layers": len(whole.encoder.layer), "vocab_size": len(used), "pad_token_id": 0})
    whole.save_pretrained(folder)
    words = [word for word, at in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]) if at in used]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)


def answer_rows(folder: Path, rows: Sequence[Row]) -> str:
    """Return a 1 for each row whose intent the model in a folder predicts, and a 0 for the others."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    found = ""
    for first in range(0, len(rows), 64):
        batch = rows[first : first + 64]
        with torch.inference_mode():
            logits = model.eval()(**tokenizer([row.text for row in batch], padding=True, return_tensors="pt")).logits
        found += "".join(
            str(int(model.config.id2label[at] == row.intent))
            for at, row in zip(logits.argmax(-1).tolist(), batch, strict=True)
        )
    return found


def _write_rows(name: str, rows: Iterable[Row]) -> None:
    with Path("data", name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "category"), *rows])


def live(data: Path, strategy: Strategy, seed: int, months: int, kept: Path) -> None:
    """Live through a year in the current folder, which has the model, and append each month to a file."""
    artifacts, released, since = Artifacts("year"), Path("released"), 0
    recipe = {"seed": seed, **{name: {**own, **strategy.changes.get(name, {})} for name, own in _RECIPE.items()}}
    for folder in (Path("data"), artifacts.recipe_path.parent):
        folder.mkdir(exist_ok=True)
    YAML(typ="safe").dump(recipe, artifacts.recipe_path)
    _, learned, held_out = draw_year(data, seed)
    for month in range(1, months + 1):
        first = {None: 0, 0: since}.get(strategy.window, max(0, month - (strategy.window or 0)))
        train = [row for rows in learned[first:month] for row in rows]
        _write_rows("train.csv", train)
        counts = Counter(row.intent for row in train)
        _write_rows("test.csv", (row for rows in held_out[:month] for row in rows if counts[row.intent] >= _LEARNABLE))
        for stage in STAGES[:-1]:
            run_stage(stage, artifacts.recipe_path)
        verdict = json.loads(artifacts.blessing.read_bytes())["verdict"]
        finished = [json.loads(path.read_bytes())["step"] for path in artifacts.scratch.glob("*/*/finished.json")]
        if verdict == "publish":
            run_stage("publish", artifacts.recipe_path)
            shutil.rmtree(released, ignore_errors=True)
            shutil.copytree(artifacts.model, released)
            since = month
        right = [answer_rows(released, rows) if since else "0" * len(rows) for rows in held_out[: month + 1]]
        line = {"strategy": strategy.name, "seed": seed, "month": month, "verdict": verdict}
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "steps": sum(finished), "right": right}) + "\n")
        shutil.rmtree(artifacts.scratch / "checkpoints", ignore_errors=True)
        shutil.rmtree(artifacts.finished_run, ignore_errors=True)


def _live_apart(data: Path, model: Path, months: int, kept: Path, chosen: tuple[int, int]) -> None:
    """Live through a year in a process and a folder of their own, unless the file has all of its months."""
    strategy, seed = STRATEGIES[chosen[0]], chosen[1]
    done = [one for one in read_months(kept) if (one["strategy"], one["seed"]) == (strategy.name, seed)]
    if len(done) >= months:
        return
    with tempfile.TemporaryDirectory(prefix="year-") as folder:
        Path(folder, "model").symlink_to(model)
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "benchmarks.continual", str(data.absolute()), "model"]
        command += ["--year", *map(str, chosen), "--months", str(months), "--results", "months.jsonl"]
        own = {**os.environ, "PYTHONPATH": path}
        run = subprocess.run(command, cwd=folder, env=own, check=False, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}\n{run.stderr}")
        with kept.open("a", encoding="utf-8") as file:
            file.write(Path(folder, "months.jsonl").read_text("utf-8"))
    print(f"lived through {strategy.name}, seed {seed}", file=sys.stderr, flush=True)


def read_months(kept: Path) -> list[dict[str, Any]]:
    """Return the months that a file has."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


def mean_and_error(groups: Sequence[str]) -> str:
    """Return the share of ones in groups of marks, one for each seed, with its standard error over the groups or over the marks."""
    shares = [group.count("1") / len(group) for group in groups if group]
    if not shares:
        return ""
    mean, count = statistics.fmean(shares), sum(map(len, groups))
    over_seeds = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
    return f"{mean:.3f} ± {max(over_seeds, math.sqrt(mean * (1 - mean) / count)):.3f}"


def print_tables(found: Sequence[dict[str, Any]], years: dict[int, tuple[list[str], list[list[Row]]]]) -> None:
    """Print the table of the year, and that of the months; `years` has the intents and the held-out rows of each seed."""
    months = max(one["month"] for one in found)

    def marks(name: str, seed: int, choose: Callable[[dict[str, Any]], Iterable[str]]) -> str:
        mine = [one for one in found if (one["strategy"], one["seed"]) == (name, seed)]
        return "".join(part for one in mine for part in choose(one))

    def at_the_end(seed: int, intent: int, one: dict[str, Any]) -> Iterable[str]:
        intents, held_out = years[seed]
        rows = [row for month in held_out[: one["month"]] for row in month]
        right = "".join(one["right"][: one["month"]]) if one["month"] == months else ""
        return (mark for mark, row in zip(right, rows, strict=False) if row.intent == intents[intent])

    def line(name: str) -> list[str]:
        mine = [one for one in found if one["strategy"] == name]
        choices: list[Callable[[int], Callable[[dict[str, Any]], Iterable[str]]]] = [
            lambda _: lambda one: one["right"][one["month"] :],
            lambda _: lambda one: one["right"][one["month"] - 1 : one["month"]],
            lambda _: lambda one: one["right"][: one["month"] - 1],
            lambda seed: partial(at_the_end, seed, NEW_INTENT),
            lambda seed: partial(at_the_end, seed, FADING_INTENT),
        ]
        seeds = sorted({one["seed"] for one in mine})
        shares = [mean_and_error([marks(name, seed, choose(seed)) for seed in seeds]) for choose in choices]
        steps = statistics.fmean(sum(one["steps"] for one in mine if one["seed"] == seed) for seed in seeds)
        published = sum(one["verdict"] == "publish" for one in mine) / len(seeds)
        return [name, *shares, f"{steps:,.0f}", f"{published:.1f}"]

    names = [one.name for one in STRATEGIES if any(month["strategy"] == one.name for month in found)]
    columns = (
        "start and rows",
        "next month",
        "new rows",
        "known rows",
        "the new intent",
        "the faded intent",
        "steps",
        "published",
    )
    print_table(columns, map(line, names))

    def of_month(name: str, month: int) -> str:
        mine = [one for one in found if one["strategy"] == name and one["month"] == month]
        right = [mark for one in mine for part in one["right"][month:] for mark in part]
        verdicts = sum(one["verdict"] == "publish" for one in mine)
        return f"{right.count('1') / len(right):.2f} ({verdicts})"

    shown = range(1, min(months, MONTHS - 1) + 1)
    print_table(
        ("after month", *map(str, shown)), ([name, *(of_month(name, month) for month in shown)] for name in names)
    )


def main() -> None:
    """Live through all years that are asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19])
    parser.add_argument(
        "--strategies", type=int, nargs="+", default=[*range(len(STRATEGIES))], help="by number, from 0 on"
    )
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--months", type=int, default=MONTHS)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--year", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.year:
        with fork_server.running({**os.environ}, _IMPORTED):
            live(chosen.data, STRATEGIES[chosen.year[0]], chosen.year[1], chosen.months, chosen.results)
        return
    with tempfile.TemporaryDirectory(prefix="years-") as folder:
        line = environment(len(chosen.seeds)).replace("rounds", "seeds")
        kept = chosen.results or Path(folder, "months.jsonl")
        drawn = {seed: draw_year(chosen.data, seed) for seed in chosen.seeds}
        texts = {row.text: None for _, *halves in drawn.values() for half in halves for month in half for row in month}
        cut_model(chosen.model, chosen.layers, texts, Path(folder, "model"))
        apart = partial(_live_apart, chosen.data, Path(folder, "model"), chosen.months, kept)
        with ThreadPoolExecutor(chosen.at_once) as pool:
            list(pool.map(apart, [(number, seed) for seed in chosen.seeds for number in chosen.strategies]))
        names = {STRATEGIES[number].name for number in chosen.strategies}
        found = [one for one in read_months(kept) if one["seed"] in chosen.seeds and one["strategy"] in names]
        print(line)
        print_tables(found, {seed: (intents, held_out) for seed, (intents, _, held_out) in drawn.items()})


if __name__ == "__main__":
    main()
