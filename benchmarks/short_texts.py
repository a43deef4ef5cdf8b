"""A classifier of short texts, trained here and by plain transformers.Trainer, each with its defaults: speed and accuracy.

    python -m benchmarks.short_texts [seeds]

Here, batches are grouped by length, as in docs/banking77.yaml; plain Trainer takes them in random order. Each text has words of
its topic, which is its label, among common words; one label in ten is wrong, so that the best accuracy is about 0.91. Runs
alternate, each in a process of its own.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from benchmarks.tables import environment, print_table, spread
from benchmarks.workload import VOCABULARY, Kind, StepClock, classifier, in_own_processes, set_up, trainer

TOPICS, WORDS, COMMON = 8, 5, 1000
"""How many topics, words of one topic, and common words there are."""
TOPICAL, WRONG = 0.3, 0.1
"""Share of a text's words that are of its topic, and of the labels that are drawn at random."""
TRAIN, TEST, EPOCHS, BATCH = 960, 800, 2, 32


def rows() -> tuple[Dataset, Dataset]:
    """Return rows to train on and rows to test with: `row_id`, `input_ids` and `labels`."""
    chance = random.Random(0)
    words = chance.sample(range(VOCABULARY), TOPICS * WORDS + COMMON)
    topics, common = [words[i * WORDS : (i + 1) * WORDS] for i in range(TOPICS)], words[-COMMON:]
    by_rank = [1 / rank for rank in range(1, COMMON + 1)]
    texts, labels = [], []
    for _ in range(TRAIN + TEST):
        topic = chance.randrange(TOPICS)
        length = max(3, round(chance.lognormvariate(2.3, 0.6)))
        is_topical = [chance.random() < TOPICAL for _ in range(length)]
        is_topical[chance.randrange(length)] = True
        texts.append([chance.choice(topics[topic]) if t else chance.choices(common, by_rank)[0] for t in is_topical])
        labels.append(chance.randrange(TOPICS) if chance.random() < WRONG else topic)
    whole = Dataset.from_dict({"row_id": list(range(len(texts))), "input_ids": texts, "labels": labels})
    return whole.select(range(TRAIN)), whole.select(range(TRAIN, TRAIN + TEST))


def measure(kind: Kind, seed: int) -> dict[str, float]:
    """Train once; return rows per second and accuracy."""
    train, test = rows()
    set_up(kind)
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            kind,
            Path(folder) / "run",
            train,
            classifier(384, 6, seed),
            group_by_length=True,
            seed=seed,
            learning_rate=5e-4,
            num_train_epochs=EPOCHS,
            save_steps=10**9,
            per_device_train_batch_size=BATCH,
        )
        made.add_callback(clock)
        made.train()
    rate = BATCH * (len(clock.wall_s) - 1) / (clock.wall_s[-1] - clock.wall_s[0])
    return {"rows_per_second": rate, "accuracy": accuracy(made.model, test)}


def accuracy(model: Any, test: Dataset) -> float:
    """Share of the rows whose label has the largest logit, one row at a time."""
    model.eval()
    with torch.inference_mode():
        found: list[bool] = [
            model(torch.tensor([row["input_ids"]])).logits.argmax().item() == row["labels"] for row in test
        ]
    return sum(found) / len(found)


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(environment(seeds), flush=True)
    found: dict[Kind, list[dict[str, float]]] = {"plain": [], "ours": []}
    for seed in range(seeds):
        kinds: tuple[Kind, ...] = ("plain", "ours") if seed % 2 else ("ours", "plain")
        for kind in kinds:
            found[kind].append(in_own_processes("benchmarks.short_texts", kind, str(seed)))
    rows = []
    for kind, name in (("ours", "here"), ("plain", "plain Trainer")):
        values = [run["accuracy"] for run in found[kind]]
        error = statistics.stdev(values) / len(values) ** 0.5
        rates = spread((run["rows_per_second"] for run in found[kind]), 0)
        rows.append((name, rates, f"{statistics.mean(values):.3f}, standard error {error:.3f}"))
    ratio = spread(
        a["rows_per_second"] / b["rows_per_second"] for a, b in zip(found["ours"], found["plain"], strict=True)
    )
    print_table(("defaults, short texts", "rows per second", "mean accuracy"), [*rows, ("ratio", ratio, "")])


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["plain"]):
        print(json.dumps(measure("ours" if sys.argv[1] == "ours" else "plain", int(sys.argv[2]))))
    else:
        main()
