"""Rows per second of the tokenize stage, of `datasets.map(batched=True)` and of the tokenizer's own batch call, by turns.

    python -m benchmarks.tokenization [rounds] [folder of the classifier's tokenizer]

The rows are pieces of Python's documentation, once and ten times; the tokenizer is a byte-level BPE trained on them. Each way works
on the same rows, in this process, on all cores that the tokenizer takes. The stage reads Parquet, finds out what is
truncated and which tokens have a loss, and writes Arrow. `datasets.map` gets the functions of the libraries' own examples,
and reads and writes Arrow. Of conversations it learns all tokens in one case, and in the other the assistant's, as the stage
always does; there, the template marks them. The tokenizer's call reads and writes nothing.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars

from benchmarks.tables import environment, print_table, spread
from params.foundation.artifacts import Artifacts
from params.python_documentation import documentation
from params.schema import Launch, ObjectiveChoice
from params.sections.data import Data
from params.sections.rows import TrainTokenizer
from tasks.ingestion.stage import ingest
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.encoding import RowEncoder, encode_and_write_splits
from tasks.tokenization.tokenizers import load_tokenizer, train_tokenizer
from trainer import objectives
from trainer.runtime.memory import reduce_garbage_collection

ROWS = 20_000
REPEATS = (1, 10)
"""How often a table repeats the rows of each work."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Work:
    """One kind of rows, and two other ways to tokenize them."""

    name: str
    tokenizer: Any
    rows: list[dict[str, Any]]
    objective: ObjectiveChoice
    max_length: int
    map: Callable[[Dataset], Dataset]
    """By `datasets.map`."""
    call: Callable[[list[Any]], Any]
    """By the tokenizer's own call on a batch of texts or conversations."""


def works(tokenizer: Any, of_classifier: Any, texts: list[str]) -> list[Work]:
    """Return a classifier on short texts, a packed causal language model, and conversations."""
    words = [word for text in texts for word in text.split()]
    short = [{"text": " ".join(words[8 * i : 8 * i + 5 + i % 9]), "label": f"label {i % 50}"} for i in range(ROWS)]
    long = [{"text": text} for text in texts]
    chats = [{"messages": messages} for messages in conversations(texts)]

    def truncate(texts: list[str]) -> Any:
        return of_classifier(texts, truncation=True, max_length=128)

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        """As run_clm.py of transformers does it."""
        joined = {name: list(chain(*values)) for name, values in batch.items()}
        total = len(joined["input_ids"]) // 512 * 512
        blocks = {name: [ids[i : i + 512] for i in range(0, total, 512)] for name, ids in joined.items()}
        return blocks | {"labels": blocks["input_ids"].copy()}

    def map_and_group(rows: Dataset) -> Dataset:
        tokenized = rows.map(lambda batch: tokenizer(batch["text"]), batched=True, remove_columns=rows.column_names)
        return tokenized.map(group, batched=True)

    def of_chats(name: str, template: str, **options: Any) -> Work:
        """Return the work on conversations; the two other ways render them with these options."""
        own = copy.deepcopy(tokenizer)
        own.chat_template = template

        def render(batch: list[Any]) -> Any:
            return own.apply_chat_template(batch, return_dict=True, **options)

        objective = ObjectiveChoice(name="sft", messages_column="messages", chat_template=template)
        by_map = partial(Dataset.map, function=lambda batch: render(batch["messages"]), batched=True)
        return Work(name, own, chats, objective, 4096, by_map, render)

    return [
        Work(
            "classifier, short texts",
            of_classifier,
            short,
            ObjectiveChoice(name="sequence_classification"),
            128,
            lambda rows: rows.map(lambda batch: truncate(batch["text"]), batched=True),
            truncate,
        ),
        Work(
            "causal language model, packed",
            tokenizer,
            long,
            ObjectiveChoice(name="causal_lm"),
            512,
            map_and_group,
            tokenizer,
        ),
        of_chats("conversations", TEMPLATE),
        of_chats("conversations, the assistant's tokens", MARKED, return_assistant_tokens_mask=True),
    ]


def conversations(texts: list[str]) -> list[list[dict[str, str]]]:
    """Return conversations of two, four and six turns, each of at most 400 characters."""
    found, start = list[list[dict[str, str]]](), 0
    while start + 6 < len(texts):
        turns = texts[start : start + 2 + 2 * (len(found) % 3)]
        start += len(turns)
        found.append([{"role": ("user", "assistant")[i % 2], "content": text[:400]} for i, text in enumerate(turns)])
    return found


def times(work: Work, folder: Path, turn: int) -> dict[str, tuple[float, float]]:
    """Return the seconds and the CPU seconds that each way takes; the one that begins changes with `turn`."""
    artifacts, file = Artifacts("benchmark", folder), folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in work.rows), encoding="utf-8")
    source = {"kind": "files", "train": str(file), "validation": str(file), "test": str(file)}
    ingest(artifacts, data=Data.model_validate({"source": source}), seed=0, launch=Launch(micro_batch_size=1))
    rows = SplitRows(artifacts.raw / "train")
    dataset = Dataset.from_list([*rows.rows()])
    column = [row.get("text") or row["messages"] for row in work.rows]
    method = objectives.build_objective(work.objective)
    encoder = RowEncoder(method, work.tokenizer, work.max_length, method.collect_state(rows.rows()))

    def here() -> None:
        with ShardWorkers(artifacts, "tokenize", Launch(micro_batch_size=1, data_workers=1)) as workers:
            encode_and_write_splits({"train": rows}, folder, encoder, workers)

    ways: dict[str, Callable[[], object]] = {
        "here": here,
        "datasets.map": lambda: work.map(dataset),
        "the tokenizer's call": lambda: [work.call(column[i : i + 1000]) for i in range(0, len(column), 1000)],
    }
    found = {}
    thresholds = gc.get_threshold()
    for name in [*ways][turn % 3 :] + [*ways][: turn % 3]:
        gc.collect()
        if name == "here":
            reduce_garbage_collection()  # as the stage's process does
        start = time.perf_counter(), time.process_time()
        ways[name]()
        found[name] = time.perf_counter() - start[0], time.process_time() - start[1]
        gc.set_threshold(*thresholds)
    return found


def row(work: Work, rounds: int) -> list[str]:
    """Return the row of the table for one kind of rows."""
    measured = []
    for turn in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(times(work, Path(folder), turn))

    def ratio(other: str, clock: int) -> str:
        return spread(found[other][clock] / found["here"][clock] for found in measured)

    rates = spread((len(work.rows) / found["here"][0] for found in measured), 0)
    ratios = ratio("datasets.map", 0), ratio("datasets.map", 1), ratio("the tokenizer's call", 0)
    return [work.name, f"{len(work.rows):,}", rates, *ratios]


def main() -> None:
    """Run the benchmark from the project's root."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    disable_progress_bars()
    texts = [row["text"] for row in documentation() if row["text"]]
    tokenizer = train_tokenizer(texts, TrainTokenizer(kind="train", vocab_size=8192))
    of_classifier = load_tokenizer(sys.argv[2], None) if len(sys.argv) > 2 else tokenizer
    print(environment(rounds), flush=True)
    columns = ("rows", "", "rows per second here", "ratio to datasets.map", "by CPU time", "ratio to the call alone")
    print_table(
        columns,
        (
            row(replace(once, rows=once.rows * repeats), rounds)
            for once, repeats in product(works(tokenizer, of_classifier, texts), REPEATS)
        ),
    )


if __name__ == "__main__":
    main()
