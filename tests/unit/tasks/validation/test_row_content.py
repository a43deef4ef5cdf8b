"""A row is what the objective reads and learns: in equal rows across splits, ages, drift and near duplicates, of every objective."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from params.foundation.artifacts import KNOWN_ROWS, PROFILE
from params.schema import ObjectiveChoice
from params.sections.rows import Drift
from tasks.evaluation.copies import group_with_copies
from tasks.known_rows.hashes import (
    KnownHashes,
    find_known_rows,
    find_known_rows_of_shards,
    read_hashes,
    shorten_hashes,
    write_hashes,
)
from tasks.known_rows.profile import DataProfile
from tasks.known_rows.rows import READ_FORM, WRITTEN_FORM, ComparedColumns, hash_rows
from tasks.lineage.learned_rows import HeldOutRows, rows_of_release
from tasks.measurements.drift.new_rows import write_profile_and_measure_drift
from tasks.shards.split_rows import SplitRows
from tasks.validation.check_results import check_rows_across_splits
from tasks.validation.near_duplicates import RowTexts, hash_shingles
from tasks.validation.raw_rows import NOTHING, open_raw_rows
from tests.support.validation import sampled, scanned, workers, write_raw
from trainer import objectives


@dataclass(frozen=True)
class Case:
    """A row, and changes of its values that leave it the row that it is, or make another one of it."""

    row: dict[str, Any]
    equal: list[dict[str, Any]]
    other: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


TEXT = [{"text": "  The lease ends in May.\n"}]
OTHER_TEXT = [{"text": "the lease ends in May."}, {"text": "The lease  ends in May."}]
REWARDS = {"rewards": ["trainer.rewards:numeric_answer"]}
MESSAGES = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4 "}]
PARTS = [
    {"role": "user", "content": [{"text": "2 + "}, {"text": "2?"}]},
    {"role": "assistant", "content": [{"text": "4"}]},
]
SPANS = [{"label": "to", "start": 0, "end": 4}, {"label": "day", "start": 8, "end": 14}]
CASES = {
    "causal_lm": Case({"text": "The lease ends in May."}, [], [*TEXT, *OTHER_TEXT]),
    "masked_lm": Case({"text": "The lease ends in May."}, [], [*TEXT, *OTHER_TEXT]),
    "sequence_classification": Case(
        {"text": "The lease ends in May.", "label": "yes"},
        [*TEXT, {"label": " yes"}, {"text": "The lease ends in May. ", "label": "yes\n"}],
        [*OTHER_TEXT, {"label": "Yes"}, {"label": "no"}],
    ),
    "sequence_classification of numbers": Case({"text": "a", "label": 1}, [{"text": "a "}], [{"label": 2}]),
    "multi_label_classification": Case(
        {"text": "The lease ends in May.", "labels": ["a", "b"]},
        [*TEXT, {"labels": ["b", "a"]}, {"labels": ["a ", "b", "a"]}],
        [*OTHER_TEXT, {"labels": ["a"]}, {"labels": []}, {"labels": ["A", "b"]}],
    ),
    "multi_label_classification of records": Case(
        {"text": "a", "labels": {"a": 1.0, "b": 0.0}},
        [{"labels": {"a": 0.6}}, {"text": "a ", "labels": {"b": None, "a": 1.0}}],
        [{"labels": {"a": 0.4, "b": 0.0}}, {"labels": {"a": 1.0, "b": 1.0}}],
    ),
    "multi_label_classification of columns": Case(
        {"text": "a", "red": "yes", "blue": "0"},
        [{"red": "1", "blue": "no"}, {"blue": None}],
        [{"red": "no"}, {"red": "no", "blue": "1"}],
        {"labels_column": "{red} {blue}"},
    ),
    "token_classification": Case(
        {"text": "Rome on Friday", "spans": SPANS},
        [
            {"spans": SPANS[::-1]},
            {"text": " Rome on Friday\n", "spans": [{**one, "start": one["start"] + 1, "end": one["end"] + 1} for one in SPANS]},
            {"spans": [{**SPANS[0], "label": "to ", "end": 5}, SPANS[1]]},
        ],
        [{"spans": SPANS[:1]}, {"spans": [{**SPANS[0], "label": "day"}, SPANS[1]]}, {"spans": [{**SPANS[0], "end": 3}, SPANS[1]]}],
    ),
    "question_answering": Case(
        {"question": "who?", "context": "Ada or Bob", "answers": {"text": ["Ada", "Bob", "or"], "answer_start": [0, 7, 4]}},
        [
            {"question": " who?\n"},
            {"context": "\nAda or Bob ", "answers": {"text": ["Ada", "or", "Bob"], "answer_start": [1, 5, 8]}},
            {"answers": {"text": ["Ada"], "answer_start": [0]}},  # the others are not learned
            {"answers": {"text": ["Ada", "Ada"], "answer_start": [0, 0]}},
        ],
        [
            {"question": "Who?"},
            {"answers": {"text": ["Bob", "Ada", "or"], "answer_start": [7, 0, 4]}},
            {"answers": {"text": ["or"], "answer_start": [4]}},
        ],
        {"no_answer": False},
    ),
    "multiple_choice": Case(
        {"context": "It rains.", "choices": ["dry", "wet"], "label": "1"},
        [
            {"label": "B"},
            {"label": "wet "},
            {"context": "It rains.\n", "choices": ["dry ", "wet"]},
            {"choices": ["wet", "dry"], "label": "A"},
            {"choices": ["wet", "hot", "dry"], "label": "0"},
            {"choices": ["hot", "wet"]},
        ],
        [{"label": "0"}, {"choices": ["wet", "dry"]}, {"context": "It snows."}],
    ),
    "multiple_choice of columns": Case(
        {"context": "It rains.", "question": "It is", "one": "dry", "two": "wet", "label": "1"},
        [{"one": "wet", "two": "dry", "label": "0"}, {"one": "hot"}, {"question": " It is"}],
        [{"question": "It is not"}, {"label": "0"}],
        {"choices_column": "{one} {two}", "question_column": "question"},
    ),
    "regression": Case({"text": "good", "label": 1.5}, [{"text": "good\n"}], [{"label": 1.25}, {"text": "Good"}]),
    "regression of texts": Case({"text": "good", "label": "1.5"}, [{"label": " 1.50"}], [{"label": "1.25"}]),
    "ranking": Case(
        {"query": "rain", "document": "it rains", "relevance": 1},
        [{"query": "rain ", "document": "\tit rains"}],
        [{"relevance": 2}, {"query": "it rains", "document": "rain"}],
    ),
    "embedding": Case(
        {"anchor": "sky", "positive": "blue"},
        [{"anchor": "sky "}, {"positive": "\nblue"}, {"anchor": "blue", "positive": "sky"}],
        [{"positive": "Blue"}, {"anchor": "sky blue", "positive": "blue"}],
    ),
    "embedding in both directions": Case(
        {"anchor": "sky", "positive": "blue"},
        [{"anchor": "blue ", "positive": "sky"}],
        [{"positive": "sky"}],
        {"both_directions": True},
    ),
    "embedding with grades and negatives": Case(
        {"anchor": "sky", "positive": "blue", "negative": "red", "grade": 1},
        [{"negative": "green"}, {"grade": 2}, {"anchor": "blue", "positive": "sky", "negative": "green"}],
        [{"positive": "red", "negative": "blue"}],
        {"negative_columns": ["negative"], "grade_column": "grade"},
    ),
    "embedding of lists": Case(
        {"anchor": "sky", "positive": "blue", "negatives": ["red", "green"]},
        [{"negatives": ["red ", "green", "never read"]}, {"negatives": ["red"]}, {"negatives": ["green", "red"]}],
        [{"positive": "red", "negatives": ["blue", "green"]}],
        {"negative_columns": "negatives", "listed_negatives": 2},
    ),
    "embedding of scored pairs": Case(
        {"anchor": "sky", "positive": "blue", "score": 0.5},
        [{"anchor": "blue", "positive": "sky "}],
        [{"score": 0.25}, {"positive": "red"}],
        {"positive_column": "positive", "label_column": "score"},
    ),
    "embedding of classes": Case(
        {"anchor": "sky", "label": "blue"}, [{"label": "blue "}], [{"label": "Blue"}], {"label_column": "label"}
    ),
    "seq2seq": Case({"input": "one", "target": "eins"}, [{"target": "eins\n"}, {"input": " one"}], [{"target": "Eins"}]),
    "sft": Case(
        {"prompt": "Add 3 and 4.", "completion": "It is 7."},
        [{"prompt": "Add 3 and 4.\n"}, {"completion": " It is 7."}],
        [{"completion": "It is  7."}, {"prompt": "Add 3 and 4. It", "completion": "is 7."}],
    ),
    "sft of several columns": Case(
        {"ask": "Add 3\n\nand 4.", "more": None, "completion": "It is 7."},
        [{"more": ""}, {"more": " \n"}, {"ask": "Add 3", "more": "and 4."}],
        [{"more": "and 5."}],
        {"prompt_column": "{ask}\n\n{more}"},
    ),
    "sft of messages": Case(
        {"messages": MESSAGES},
        [{"messages": SHAREGPT}, {"messages": [MESSAGES[0], {"role": "assistant", "content": "4\n"}]}],
        [{"messages": MESSAGES * 2}, {"messages": [MESSAGES[0], {**MESSAGES[1], "weight": 0}, *MESSAGES]}],
        {"messages_column": "messages"},
    ),
    "sft of parts of messages": Case(
        {"messages": PARTS},
        [{"messages": [{"role": "user", "content": [{"text": "2 + 2?"}]}, PARTS[1]]}],
        [{"messages": [*PARTS[:1], {"role": "assistant", "content": [{"text": "5"}]}]}],
        {"messages_column": "messages"},
    ),
    "dpo": Case(
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
        [{"chosen": " 4"}, {"prompt": "2 + 2 =\n"}, {"rejected": "6"}],
        [{"chosen": "5", "rejected": "4"}, {"prompt": "2+2 ="}],
    ),
    "dpo of messages": Case(
        {"prompt": MESSAGES[:1], "chosen": MESSAGES[1:], "rejected": [{"role": "assistant", "content": "5"}]},
        [{"chosen": MESSAGES, "rejected": [MESSAGES[0], {"role": "assistant", "content": "5 "}]}],
        [{"chosen": [{"role": "assistant", "content": "four"}]}],
        {"chat": True},
    ),
    "dpo of whole texts": Case(
        {"chosen": "\n\nHuman: 2 + 2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 5"},
        [{"rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 6"}],
        [{"chosen": "\n\nHuman: 2 + 2?\n\nAssistant: four"}],
        {"prompt_column": None},
    ),
    "reward": Case(
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
        [{"rejected": "5\n"}, {"rejected": "6"}],
        [{"chosen": "5", "rejected": "4"}],
    ),
    "reward with margins": Case(
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5", "margin": 1.0},
        [{"rejected": "5 "}, {"margin": 2.0}],
        [{"chosen": "four"}],
        {"margin_column": "margin"},
    ),
    "kto": Case(
        {"prompt": "2 + 2 =", "completion": "4", "liked": "true"},
        [{"liked": "Yes"}, {"completion": "4 ", "liked": "1"}],
        [{"liked": "no"}, {"completion": "5"}],
    ),
    "grpo": Case({"prompt": "3 + 4?", "answer": "7"}, [{"answer": " 7"}, {"prompt": "3 + 4?\n"}], [{"answer": "8"}], REWARDS),
    "iterative_sft": Case({"prompt": "3 + 4?", "answer": "7"}, [{"answer": "7 "}], [{"prompt": "3+4?"}], REWARDS),
}  # fmt: skip


TARGETS = {
    "sequence_classification": {"label"},
    "sequence_classification of numbers": {"label"},
    "multi_label_classification": {"labels"},
    "multi_label_classification of records": {"labels"},
    "multi_label_classification of columns": {"red", "blue"},
    "token_classification": {"spans"},
    "question_answering": {"answers"},
    "multiple_choice": {"choices", "label"},
    "multiple_choice of columns": {"label"},
    "regression": {"label"},
    "regression of texts": {"label"},
    "ranking": {"relevance"},
    "embedding of lists": {"negatives"},
    "embedding of classes": {"label"},
    "embedding of scored pairs": {"score"},
    "dpo": {"chosen", "rejected"},
    "reward": {"chosen", "rejected"},
    "reward with margins": {"margin"},
    "kto": {"liked"},
    "grpo": {"answer"},
}
"""The columns whose changes leave a row's input as it is; of an answer, a change of which one is the better."""


def test_every_objective_is_there() -> None:
    assert {name.split()[0] for name in CASES} == {*objectives.objective_names()}


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The rows as columns, each with an id that no other has, and a note that says nothing to the objective."""
    found = {name: [row[name] for row in rows] for name in rows[0]}
    return found | {"id": [*range(len(rows))], "note": ["x" * i for i in range(len(rows))]}


def write(root: Path, case: Case) -> tuple[Any, list[dict[str, Any]]]:
    """The row and its changes in train, the row itself in test, and the last change in validation."""
    made = [case.row, *({**case.row, **change} for change in (*case.equal, *case.other))]
    held_out = {"test": columns([case.row]), "validation": columns([{**case.row, **case.other[-1]}])}
    return write_raw(root, train=columns(made), **held_out), made


def choice_of(name: str) -> ObjectiveChoice:
    return ObjectiveChoice(name=name.split(maxsplit=1)[0], **CASES[name].options)


@pytest.mark.parametrize("name", CASES)
def test_equal_rows_are_one_everywhere_and_others_are_not(tmp_path: Path, name: str) -> None:
    case, objective = CASES[name], objectives.build_objective(choice_of(name))
    artifacts, made = write(tmp_path, case)
    train, test = (SplitRows(artifacts.raw / split).reading(objective.columns()) for split in ("train", "test"))
    others = [*range(1 + len(case.equal), len(made))]
    with workers(tmp_path) as own:
        rows = open_raw_rows(artifacts.raw, objective.columns(), {}, own, tmp_path / "keys")
        failing = check_rows_across_splits(objective, rows, NOTHING).failing - rows.span("train").start
    assert failing.tolist() == [*range(1 + len(case.equal)), len(made) - 1], "equal rows across splits"

    compared = ComparedColumns.of(train, objective, ())
    _, hashes = hash_rows(train, compared)
    _, held_out = hash_rows(test, compared)
    assert np.flatnonzero(hashes == held_out[0]).tolist() == [*range(1 + len(case.equal))]
    of_input = [i for i, change in enumerate(case.other, 1 + len(case.equal)) if {*change} <= TARGETS.get(name, set())]
    _, is_known = find_known_rows(train, compared, KnownHashes.of(test, compared))
    assert np.flatnonzero(is_known).tolist() == sorted([*range(1 + len(case.equal)), *of_input]), "learned by input"
    with workers(tmp_path) as own:
        _, is_known = find_known_rows_of_shards(train, compared, KnownHashes.of(test, compared), own)
    assert np.flatnonzero(is_known).tolist() == [*range(1 + len(case.equal))], "replay"
    assert len(scanned(train, compared).smallest.hashes) == 1 + len({*hashes[others].tolist()}), "drift"

    texts = RowTexts(objective, [one for one in compared.texts if one != compared.listed])
    shingles = [hash_shingles([texts.parts(row)])[0] for row in train.rows(texts.read)]
    assert all(np.array_equal(shingles[0], own) for own in shingles[1 : 1 + len(case.equal)]), "near duplicates"

    groups, copies = group_with_copies(train, objective)
    assert copies >= len(case.equal)
    assert groups is None or len({*groups.numbers[: 1 + len(case.equal)]}) == 1, "one observation of the gate"


GROUPED = [
    (
        ["a", "b", "a"],
        "; where a hash splits the rows, `data.group_by: [text]` keeps those together that are written alike",
    ),
    (
        ["a\n", "b", "c"],
        "; some are written differently in text ('a\\n' and 'a'): where a hash splits the rows, strip the ends",
    ),
]


@pytest.mark.parametrize(("texts", "said"), GROUPED)
def test_group_by_is_offered_for_what_it_keeps_together(tmp_path: Path, texts: list[str], said: str) -> None:
    """It compares what is written, in ingest."""
    objective = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    train = {"text": texts, "label": ["x", "x", "x"]}
    artifacts = write_raw(tmp_path, train=train, test={"text": ["a"], "label": ["x "]})
    with workers(tmp_path) as own:
        rows = open_raw_rows(artifacts.raw, objective.columns(), {}, own, tmp_path / "keys")
        sentence = check_rows_across_splits(objective, rows, NOTHING).sentence or ""
    assert said in sentence, sentence


TEMPLATES = {
    "sft": ("prompt_column", {"completion": "7"}, {}),
    "seq2seq": ("input_column", {"target": "7"}, {}),
    "grpo": ("prompt", {"answer": "7"}, REWARDS),
    "iterative_sft": ("prompt", {"answer": "7"}, REWARDS),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "templates", [("{ask}", "Task: {ask} Answer:"), ("{ask} {more}", "Task: {ask}\n\n{more}\nAnswer:")]
)
def test_a_row_is_known_whatever_the_prompt_says_around_it(
    tmp_path: Path, name: str, templates: tuple[str, str]
) -> None:
    """A release has learned from it with one template, and the recipe has another one now."""
    option, answer, options = TEMPLATES[name]
    rows = [{"ask": "Add 3", "more": more, **answer} for more in ("and 4.", "and 5.", None)]
    train = SplitRows(write_raw(tmp_path, train=columns(rows)).raw / "train")
    now, then = (
        ComparedColumns.of(
            train, objectives.build_objective(ObjectiveChoice(name=name, **{option: one}, **options)), ()
        )
        for one in templates
    )
    assert hash_rows(train, now)[1].tolist() == hash_rows(train, then)[1].tolist()
    assert len({*hash_rows(train, now)[1].tolist()}) == (3 if "more" in templates[0] else 1)


@pytest.mark.parametrize(
    "name", ["sequence_classification of numbers", "multi_label_classification", "sft of messages"]
)
def test_rows_of_a_release_of_an_earlier_version_are_known(tmp_path: Path, name: str) -> None:
    """It has hashes of the values as they were written, which are literals here."""
    case, objective = CASES[name], objectives.build_objective(choice_of(name))
    artifacts, _ = write(tmp_path, case)
    train = SplitRows(artifacts.raw / "train").reading(objective.columns())
    compared = ComparedColumns.of(train, objective, ())
    _, written = hash_rows(train, compared.in_form(WRITTEN_FORM))
    known = {
        "sequence_classification of numbers": 11439220326236441441,
        "multi_label_classification": 4547838771416209209,
        "sft of messages": 10449610721442994545,
    }[name]
    assert int(written[0]) == known
    of_release = KnownHashes(shorten_hashes(np.array([known], np.uint64)), is_written=True)
    row_ids, is_known = find_known_rows(train, compared, of_release)
    assert row_ids[is_known].tolist()[:1] == [0]
    assert not is_known[1 + len(case.equal) :].any()


def test_the_profile_of_an_earlier_version_knows_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header does not say a form: labels that are numbers are numbers in it."""
    name = "sequence_classification of numbers"
    objective = objectives.build_objective(choice_of(name))
    artifacts, made = write(tmp_path, CASES[name])
    shutil.copytree(artifacts.raw, artifacts.rows)
    train, test = (SplitRows(artifacts.rows / split).reading(objective.columns()) for split in ("train", "test"))
    compared = ComparedColumns.of(train, objective, ())
    written = compared.in_form(WRITTEN_FORM)
    scan = scanned(train, written)
    profile = DataProfile.of(scan, written, sampled(train, written, scan.smallest.row_ids))
    release = tmp_path / "release"
    release.mkdir()
    profile.save(release / PROFILE)
    table = pq.read_table(release / PROFILE)
    metadata = dict(table.schema.metadata)
    header = json.loads(metadata[b"evergreen.profile"])
    assert header.pop("form") == WRITTEN_FORM
    pq.write_table(
        table.replace_schema_metadata(metadata | {b"evergreen.profile": json.dumps(header)}), release / PROFILE
    )
    old = DataProfile.load((release / PROFILE).read_bytes())
    held_out = HeldOutRows(test, ComparedColumns.of(test, objective, ()))
    learned = held_out.learned_by([rows_of_release(release, "v1", held_out.columns)])
    assert learned.tolist() == [row["row_id"] for row in test.rows()]
    monkeypatch.setattr("tasks.measurements.drift.new_rows.fetch_published_profile", lambda *_, **__: (old, "v1", ""))
    hub: Any = {"objective": objective, "seed": 1, "repo_id": "tests/tiny", "endpoint": "local"}
    with workers(tmp_path) as own:
        report = write_profile_and_measure_drift(
            artifacts, artifacts.validated, own, drift=Drift(on_drift="report"), **hub
        )
    assert report is not None
    assert (report.status, report.looked_at) == ("nothing_new", len(made))
    assert DataProfile.load(artifacts.data_profile.read_bytes()).form == READ_FORM


def test_a_base_with_other_names_of_labels_is_known_by_its_inputs(tmp_path: Path) -> None:
    """It calls the column and the labels otherwise; one that has read the texts alone has not learned what is asked for."""
    texts = ["The lease ends in May.", "The rent is due."]
    rows = [{"text": text, "label": label, "intent": label.upper()} for text, label in zip(texts, "ab", strict=True)]
    train = SplitRows(write_raw(tmp_path, train=columns(rows)).raw / "train")
    own, other, of_texts = (
        ComparedColumns.of(train, objectives.build_objective(ObjectiveChoice(**choice)), ())
        for choice in (
            {"name": "sequence_classification"},
            {"name": "sequence_classification", "label_column": "intent"},
            {"name": "causal_lm"},
        )
    )
    write_hashes({"own": KnownHashes.of(train, other)}, other, tmp_path / KNOWN_ROWS)
    assert find_known_rows(train, own, read_hashes(tmp_path, own, needs_all=True, by_input=True))[1].all()
    with pytest.raises(ValueError, match="learned from other columns: intent, text"):
        read_hashes(tmp_path, own, needs_all=True)  # to tell new rows from known ones
    write_hashes({"own": KnownHashes.of(train, of_texts)}, of_texts, tmp_path / KNOWN_ROWS)
    with pytest.raises(ValueError, match="learned from other columns: text"):
        read_hashes(tmp_path, own, needs_all=True, by_input=True)


def test_a_release_of_an_earlier_version_says_that_it_knows_rows_by_their_labels(tmp_path: Path) -> None:
    case = CASES["sequence_classification"]
    artifacts, _ = write(tmp_path, case)
    test = SplitRows(artifacts.raw / "test")
    compared = ComparedColumns.of(test, objectives.build_objective(choice_of("sequence_classification")), ())
    written = KnownHashes(shorten_hashes(hash_rows(test, compared.in_form(WRITTEN_FORM))[1]), is_written=True)
    write_hashes({"own": written}, compared, tmp_path / KNOWN_ROWS)
    metadata = {b"evergreen.content": json.dumps(compared.content).encode()}
    pq.write_table(pq.read_table(tmp_path / KNOWN_ROWS).replace_schema_metadata(metadata), tmp_path / KNOWN_ROWS)
    found = rows_of_release(tmp_path, "v1", compared)
    assert "v1: it names its rows with their labels" in found.unknown[0]
    assert HeldOutRows(test, compared).learned_by([found]).tolist() == [row["row_id"] for row in test.rows()]
