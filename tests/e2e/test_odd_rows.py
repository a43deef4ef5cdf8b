"""Odd rows of the kinds that people have: each trains to a release, or is refused with the words and the command that help.

The rows and small models are in the folder `odd` of the public data; EXPECTED.txt beside each file says what is right.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.project import Project
from tests.support.sample_data import needs_public_data, public_folder


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
    then: str = ""
    """Flags for those rows."""


ODD = [
    Odd(
        "silent-causal-lm/cats.jsonl",
        "roberta-34-positions",
        says="records",
        learns="sequence_classification",
        then="--label urgent",
    ),
    Odd("silent-causal-lm/cats.jsonl", "llama-use-cache", says="--objective causal_lm"),
    Odd("silent-causal-lm/jsonstring.jsonl", "qwenlike", says="JSON as text", learns="sft"),
    Odd("silent-causal-lm/kto.jsonl", "qwenlike", says="how good the answers are", learns="sft"),
    Odd("silent-causal-lm/kto.jsonl", "clf3", says="how good the answers are"),
    Odd("alpaca-input/rows.jsonl", "llama-use-cache", "", "sft", r"\{instruction\}.*\{input\}"),
    Odd("new-indexerror/intans.csv", "llama-use-cache", says="--objective: .* is not clear: sft"),
    Odd("new-indexerror/think.jsonl", "thinker", says=r"renders the messages before message"),
    Odd("repeated-question/rows.jsonl", "llama-use-cache", "", "sft", r"\{question\}.*\{context\}"),
    Odd("repeated-question/rows.jsonl", "llama-use-cache", "--prompt question --completion answer", "sft"),
    Odd("base-reviews/rows.csv", "sentiment-positive-first", "", "sequence_classification"),
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
    Odd("tool-content-null/rows.jsonl", "qwenlike", "", "sft"),
    Odd("tool-arguments-null/rows.jsonl", "qwenlike", "", "sft"),
    Odd("missing-spans/rows.jsonl", "clf3", "", "token_classification"),
    Odd("misleading-fixes/index.csv", "clf3", says="index"),
    Odd("misleading-fixes/row_id.jsonl", "clf3", "", "sequence_classification"),
    Odd("misleading-fixes/partsmixed.jsonl", "qwenlike", "", "sft"),
    Odd("misleading-fixes/toolstypes.jsonl", "qwenlike", "", "sft"),
    Odd("misleading-fixes/utf16-no-bom.csv", "clf3", says="UTF-16"),
]


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
        runs(project, odd.objective)
    if odd.learns:
        command = re.search(r"evergreen (convert \S+ \S+) writes", said)
        assert command, said
        arguments = shlex.split(command[1])
        project.run("python", "-m", "flows.cli", *arguments)
        status, said = new(project, arguments[2], odd.model, odd.then)
        assert status == 0, said
        runs(project, odd.learns)


def new(project: Project, data: str, model: str, flags: str) -> tuple[int, str]:
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
