"""Odd rows of the kinds that people have: each trains to a release, or is refused with the words and the command that help.

The rows and small models are in the folder `odd` of the public data; EXPECTED.txt beside each file says what is right. What it demands of
a run, a function here looks at: it is the `holds` of the row.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tasks.shards.split_rows import SplitRows
from tests.support.project import Project
from tests.support.sample_data import needs_public_data, public_folder
from tests.unit.tasks.scaffold.test_odd_files import READ, REFUSED
from trainer.data.tokens import Sequences


class Odd(NamedTuple):
    """What `evergreen new --yes` and `evergreen run` make of the rows in a file or folder."""

    path: str
    model: str
    flags: str = ""
    objective: str = ""
    """The objective of the recipe, which then runs to its end; empty if `new` refuses the rows."""
    says: str = ""
    """A pattern of what the error says; with an objective, of what `new` says."""
    learns: str = ""
    """The objective of the rows that the command in the error writes, which then run to their end; empty if it names no command."""
    edit: tuple[str, str] = ("", "")
    """What a person changes in the recipe before it runs."""
    refused: str = ""
    """What `check` says of the changed recipe, which is then not run."""
    holds: Callable[[Project], object] = lambda project: None
    """Looks at what the run left."""


def learns_labels(*names: str, aside: int) -> Callable[[Project], None]:
    """The trained model has these labels, and so many rows are set aside; whether it is good enough is the gate's to say."""

    def holds(project: Project) -> None:
        assert set(project.json("runs/odd/model/config.json")["label2id"]) == set(names)
        assert project.json("runs/odd/validated/validation.json")["quarantined"] == aside

    return holds


def sets_aside(rows: int) -> Callable[[Project], None]:
    """So many rows are set aside; the others are learned."""

    def holds(project: Project) -> None:
        assert project.json("runs/odd/validated/validation.json")["quarantined"] == rows

    return holds


def only_assistants_are_learned(project: Project) -> None:
    """What has a loss is what the assistant says, with an end token each; the first token of a text follows from nothing.

    Packing joins rows in another order, so the letters are compared.
    """
    tokenizer = tokenizer_of(project)
    learned, said = Counter[str](), Counter[str]()
    for example in sequences(project):
        pairs = zip(example["input_ids"], example["labels"], strict=True)
        learned.update("".join(tokenizer.decode([token]) for token, label in pairs if label != -100))
    for row in rows_of(project, "train"):
        for place, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                said.update("<e>" if place == 0 else f"{message['content']}<e>")
    for letters in (learned, said):
        for space in " \n":
            letters.pop(space, None)
    assert said
    assert learned == said


def texts_begin_and_end_once(project: Project) -> None:
    """Each text of a sequence has one token of its begin and one of its end, also if the row writes them."""
    tokenizer = tokenizer_of(project)
    texts = 0
    for example in sequences(project):
        for name in ("input_ids", "rejected_input_ids"):
            ids = example.get(name) or []
            begins = [place for place, token in enumerate(ids) if token == tokenizer.bos_token_id]
            ends = [place + 1 for place, token in enumerate(ids) if token == tokenizer.eos_token_id]
            assert begins == [0, *ends[:-1]] if ids else not begins
            assert not ids or ends[-1] == len(ids)
            texts += len(begins)
    assert texts >= len(list(rows_of(project, "train")))


def rows_without_a_group_are_on_their_own(project: Project) -> None:
    """They are spread over the splits like others, and each is one observation of the gate."""
    rows = list(rows_of(project, "test"))
    alone = sum(row["customer"] is None for row in rows)
    assert 24 <= len(rows) <= 72  # of 240, at a share of a fifth
    assert alone
    compared = project.json("runs/odd/evaluation/details.json")["comparisons"]
    groups = alone + len({row["customer"] for row in rows} - {None})
    assert {(one["rows"], one["groups"]) for one in compared} == {(len(rows), groups)}


def untrained_scores(least: float) -> Callable[[Project], None]:
    """The base knows the labels, in its own order, and scores at least so much; a model that is not better is not published."""

    def holds(project: Project) -> None:
        found = project.json("runs/odd/evaluation/metrics.json")
        assert found["untrained"]["accuracy"] >= least
        is_better = found["model"]["accuracy"] > found["untrained"]["accuracy"]
        assert is_better or project.json("runs/odd/evaluation/blessing.json")["verdict"] == "refuse"

    return holds


def every_learned_label_has_a_row(project: Project) -> None:
    """Rare labels, which have one row each, are learned: `new` stratifies, and no row is set aside."""
    learned = {row["label"] for row in rows_of(project, "train")}
    held_out = {row["label"] for split in ("validation", "test") for row in rows_of(project, split)}
    assert held_out <= learned
    assert len(learned) == 11
    learns_labels(*learned, aside=0)(project)


def targets_end_with_the_language(project: Project) -> None:
    """As transformers has them: words, end of text, language; the decoder begins with the language."""
    from transformers import AutoModelForSeq2SeqLM

    tokenizer = tokenizer_of(project)
    first = sequences(project)[0]["labels"]
    assert tokenizer.convert_ids_to_tokens(first)[-2:] == ["</s>", "fr_XX"]
    assert tokenizer.decode(first, skip_special_tokens=True).startswith("la lampe est rouge")
    network = AutoModelForSeq2SeqLM.from_pretrained(project.root / "runs/odd/model")
    assert network.generation_config.decoder_start_token_id == first[-1]
    inputs = network.prepare_decoder_input_ids_from_labels(torch.tensor([first]))
    assert inputs.tolist() == [[first[-1], *first[:-1]]]


def trace_explains_the_first_row(project: Project) -> None:
    said = project.run("python", "-m", "flows.cli", "trace", "odd", "--row", "0")
    assert "gives no sequence" in said
    assert "24" in said


def rows_of(project: Project, split: str) -> Iterator[dict[str, Any]]:
    """The rows of a split that passed validation."""
    return (dict(row) for row in SplitRows(project.root / "runs/odd/validated/rows" / split).rows())


def sequences(project: Project) -> list[dict[str, Any]]:
    """The tokens of the training rows."""
    return list(Sequences(project.root / "runs/odd/tokens/train"))


def tokenizer_of(project: Project) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(project.root / "runs/odd/tokens/tokenizer")


ODD = [
    Odd("silent-causal-lm/cats.jsonl", "roberta-34-positions", "", "multi_label_classification"),
    Odd("silent-causal-lm/cats.jsonl", "llama-use-cache", "", "multi_label_classification"),
    Odd("silent-causal-lm/jsonstring.jsonl", "qwenlike", says="JSON as text", learns="sft"),
    Odd("silent-causal-lm/kto.jsonl", "qwenlike", "", "kto"),
    Odd("silent-causal-lm/kto.jsonl", "clf3", says="how good the answers are"),
    Odd("alpaca-input/rows.jsonl", "llama-use-cache", "", "sft", r"\{instruction\}.*\{input\}"),
    Odd("new-indexerror/intans.csv", "llama-use-cache", says="--objective: .* is not clear: sft"),
    Odd("new-indexerror/think.jsonl", "thinker", "", "sft"),
    Odd("repeated-question/rows.jsonl", "llama-use-cache", "", "sft", r"\{question\}.*\{context\}"),
    Odd("repeated-question/rows.jsonl", "llama-use-cache", "--prompt question --completion answer", "sft"),
    Odd(
        "base-reviews/rows.csv",
        "sentiment-positive-first",
        "",
        "sequence_classification",
        holds=untrained_scores(0.95),
    ),
    Odd("chat-qa/rows.jsonl", "qwenlike", says="is not clear: sft"),
    Odd("chat-qa/rows.jsonl", "qwenlike", "--objective sft", "sft"),
    Odd("head-label-count/rows.csv", "sentiment-positive-first", "", "sequence_classification"),
    # What the readers of rows, conversations and labels make of their forms.
    Odd("silent-causal-lm/inttext.csv", "clf3", "", "sequence_classification"),
    Odd("csv-numeric-text/intans/rows.csv", "llama-use-cache", "--objective sft", "sft"),
    Odd("csv-numeric-text/numans/rows.csv", "llama-use-cache", "", "sft"),
    Odd("csv-numeric-text/shards2", "clf3", "", "sequence_classification"),
    Odd("dpo-conversations/hh-like.jsonl", "llama-use-cache", "", "dpo"),
    Odd("dpo-conversations/messages.jsonl", "qwenlike", "", "dpo"),
    Odd("tool-content-null/rows.jsonl", "qwenlike", "", "sft", holds=sets_aside(0)),
    Odd("tool-arguments-null/rows.jsonl", "qwenlike", "", "sft"),
    Odd("missing-spans/rows.jsonl", "clf3", "", "token_classification", holds=sets_aside(0)),
    Odd("misleading-fixes/index.csv", "clf3", says="index"),
    Odd("misleading-fixes/row_id.jsonl", "clf3", "", "sequence_classification"),
    Odd("misleading-fixes/partsmixed.jsonl", "qwenlike", "", "sft"),
    Odd("misleading-fixes/toolstypes.jsonl", "qwenlike", "", "sft"),
    Odd("misleading-fixes/utf16-no-bom.csv", "clf3", says="UTF-16"),
    # What validation, tokenization and the gate make of rows that are read.
    Odd("assistant-mask/maskws.jsonl", "genws", "", "sft", holds=only_assistants_are_learned),
    Odd("assistant-mask/maskzero.jsonl", "genzero", "", "sft", holds=only_assistants_are_learned),
    Odd("double-bos-eos/sft.jsonl", "mistrallike", "", "sft", holds=texts_begin_and_end_once),
    Odd("double-bos-eos/dpo.jsonl", "mistrallike", "", "dpo", holds=texts_begin_and_end_once),
    Odd(
        "empty-label/rows.csv",
        "clf3",
        "",
        "sequence_classification",
        "20 of 400 rows will be set aside: an empty `label`",
        holds=learns_labels("negative", "positive", aside=20),
    ),
    Odd("positions/rows.csv", "roberta-34-positions", "", "sequence_classification"),
    Odd(
        "positions/rows.csv",
        "roberta-34-positions",
        "",
        "sequence_classification",
        edit=("max_length: 32", "max_length: 33"),
        refused="33 tokens exceed the model's 32 positions; use at most 32",
    ),
    Odd(
        "group-by-null/rows.jsonl",
        "clf3",
        "",
        "sequence_classification",
        edit=("  split:\n    val", "  group_by: [customer]\n  split:\n    val"),
        holds=rows_without_a_group_are_on_their_own,
    ),
    Odd("head-label-order/rows.csv", "clf3", "", "sequence_classification", holds=untrained_scores(1.0)),
    Odd("mbart-target/rows.jsonl", "mbart", says="language of the inputs, one of .*en_XX"),
    Odd(
        "mbart-target/rows.jsonl",
        "mbart",
        "--source-language en_XX --target-language fr_XX",
        "seq2seq",
        holds=targets_end_with_the_language,
    ),
    Odd(
        "rare-label/rows.csv",
        "clf3",
        "",
        "sequence_classification",
        "labels with fewer than 5 rows: 8",
        holds=every_learned_label_has_a_row,
    ),
    Odd("roles-bad-rows/rows.jsonl", "mistrallike", "", "sft", "5 of 200 rows will be set aside", holds=sets_aside(5)),
    Odd(
        "trace-unused-row/rows.jsonl",
        "qwenlike",
        "",
        "sft",
        edit=("max_length: 408", "max_length: 24"),
        holds=trace_explains_the_first_row,
    ),
    Odd(
        "whitespace-labels/rows.csv",
        "clf3",
        "",
        "sequence_classification",
        "look alike",
        holds=learns_labels("broken", "praise", "question", aside=0),
    ),
]


@needs_public_data
def test_every_folder_of_odd_rows_is_in_a_table() -> None:
    """That of whole runs here, or those of files that are read or refused."""
    folders = {path.name for path in public_folder("odd").iterdir() if path.is_dir()} - {"models"}
    paths = [odd.path for odd in ODD] + [*READ, *REFUSED]
    assert folders == {path.partition("/")[0] for path in paths}


@needs_public_data
@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd.path}-{odd.model}{odd.flags and '-flags'}")
def test_odd_rows_become_a_release_or_an_error_that_helps(odd: Odd, project: Project) -> None:
    given = public_folder("odd") / odd.path
    copy = shutil.copytree if given.is_dir() else shutil.copyfile
    copy(given, project.root / "data" / given.name)
    status, said = new(project, f"data/{given.name}", odd.model, odd.flags)
    assert re.search(odd.says, said), said
    assert (status == 0) is bool(odd.objective), said
    assert "Traceback" not in said
    if odd.objective:
        if odd.edit != ("", ""):
            project.edit("params/odd.yaml", *odd.edit)
        if odd.refused:
            assert re.search(odd.refused, project.run("python", "-m", "flows.cli", "check", "odd", ok=False))
            return
        runs(project, odd.objective)
        odd.holds(project)
    if odd.learns:
        command = re.search(r"evergreen (convert \S+ \S+) writes", said)
        assert command, said
        arguments = shlex.split(command[1])
        project.run("python", "-m", "flows.cli", *arguments)
        status, said = new(project, arguments[2], odd.model)
        assert status == 0, said
        runs(project, odd.learns)


def new(project: Project, data: str, model: str, flags: str = "") -> tuple[int, str]:
    """Write the recipe odd; the exit status and what was said."""
    where = str(public_folder("odd/models") / model)
    command = ("python", "-m", "flows.cli", "new", "odd", "--data", data, "--model", where, *shlex.split(flags))
    return project.run_and_report(*command, "--yes")


def runs(project: Project, objective: str) -> None:
    """The recipe odd has this objective, sets few rows aside, and runs to a release or to a verdict of the gate."""
    text = (Path(project.root) / "params/odd.yaml").read_text(encoding="utf-8")
    assert f"name: {objective}" in text
    assert float(re.findall(r"max_quarantined: (\S+)", text)[0]) <= 0.05
    status, said = project.run_and_report("python", "-m", "flows.cli", "run", "odd", timeout_s=900)
    assert "Traceback" not in said
    assert status == 0 or "the gate" in said, said
    blessing = project.json("runs/odd/evaluation/blessing.json")
    assert blessing["verdict"] in ("publish", "refuse", "keep")
