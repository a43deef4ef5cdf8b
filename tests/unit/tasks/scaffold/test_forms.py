"""Forms of rows that no objective reads: `new` names each with the command that makes right rows of it, and that command is run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from params import DataError, EvergreenError
from tasks.commands import main
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.proposal import choose_objective_and_columns
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tasks.scaffold.written_values import looks_written, parse_written

Rows = list[dict[str, Any]]
CHAT = [{"role": "user", "content": "a “b”"}, {"role": "assistant", "content": "007"}]
BIO = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "O", "B-PER", "B-PER"]]
WORDS = [["Ann", "Lee", "in", "Rome"], ["hi", ",", "Bob", "Eve"]]
SPANNED = {
    "text": "Ann Lee in Rome",
    "spans": [{"label": "PER", "start": 0, "end": 7}, {"label": "LOC", "start": 11, "end": 15}],
}


def many(*rows: dict[str, Any]) -> Rows:
    return [{**rows[i % len(rows)], "id": f"{i:03}"} for i in range(60)]


def pairs(**more: list[Any]) -> Rows:
    """Prompts with answers, and a further column."""
    return [
        {"prompt": f"Pick number {i}", "completion": f"It is {i}"}
        | {name: own[i % len(own)] for name, own in more.items()}
        for i in range(60)
    ]


def texts(**more: list[Any]) -> Rows:
    return [{"text": f"a text about {i}"} | {name: own[i % len(own)] for name, own in more.items()} for i in range(60)]


NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
FORMS: dict[str, tuple[Rows, str, dict[str, Any], str, dict[str, str]]] = {
    "messages as JSON text": (many({"messages": json.dumps(CHAT)}), "JSON", {"messages": CHAT, "id": "000"}, "sft", {}),
    "messages as Python writes them": (
        many({"messages": str(CHAT)}),
        "as Python writes them",
        {"messages": CHAT, "id": "000"},
        "sft",
        {},
    ),
    "labels as numpy writes them": (
        texts(labels=["['a' 'b']", "['it is' 'b']", "[]"]),
        "as Python writes them",
        {"text": "a text about 0", "labels": ["a", "b"]},
        "multi_label_classification",
        {},
    ),
    "whether a label was accepted": (
        texts(label=["DOCS"], answer=["reject", "accept", "ignore"]),
        "says whether the label 'DOCS' is right",
        {"text": "a text about 0", "label": "not DOCS"},
        "sequence_classification",
        {},
    ),
    "lists of one label": (
        texts(label=[["007"], ["NA"]]),
        "holds lists",
        {"text": "a text about 0", "label": "007"},
        "sequence_classification",
        {},
    ),
    "labels as 1.0": (
        texts(label=[1.0, 0.0]),
        "whole numbers with decimals",
        {"text": "a text about 0", "label": "1"},
        "sequence_classification",
        {},
    ),
    "rejected annotations": (
        texts(spans=[[{"label": "n", "start": 0, "end": 1}]], answer=["accept", "reject", "ignore"]),
        "rejected or ignored",
        {"text": "a text about 0", "spans": [{"label": "n", "start": 0, "end": 1}]},
        "token_classification",
        {},
    ),
    "tags": (
        many(*({"tokens": own, "ner_tags": tags} for own, tags in zip(WORDS, BIO, strict=True))),
        "tags of the words",
        {"id": "000", **SPANNED},
        "token_classification",
        {},
    ),
    "tags that are numbers": (
        many(
            *({"tokens": own, "ner_tags": [NAMES.index(t) for t in tags]} for own, tags in zip(WORDS, BIO, strict=True))
        ),
        "tags of the words",
        {"id": "000", **SPANNED},
        "token_classification",
        {},
    ),
    "prompts and answers as messages": (
        many({"prompt": CHAT[:1], "completion": CHAT[1:]}),
        "a conversation is read from one column",
        {"id": "000", "messages": CHAT},
        "sft",
        {},
    ),
    "prompts with answers of their own, and answers as messages": (
        many({"prompt": [*CHAT, CHAT[0]], "completion": CHAT[1:]}),
        "a conversation is read from one column",
        {"id": "000", "messages": [CHAT[0], CHAT[1] | {"weight": 0}, *CHAT]},
        "sft",
        {},
    ),
    "a prompt and the messages that answer it": (
        many({"question": "a “b”", "answer": CHAT[1:]}),
        "a conversation is read from one column",
        {"id": "000", "messages": CHAT},
        "sft",
        {},
    ),
    "a prompt and the turns before it": (
        many(
            *(
                {"instruction": "a “b”", "input": more, "output": "007", "system": "Be “b”.", "history": before}
                for more, before in (("", [["a “b”", "007"]]), ("c", []))
            )
        ),
        "turns before the prompt",
        {"id": "000", "messages": [{"role": "system", "content": "Be “b”."}, *CHAT, *CHAT]},
        "sft",
        {},
    ),
    "good and bad answers as messages": (
        [
            row | {"completion": [{"role": "assistant", "content": row["completion"]}]}
            for row in pairs(label=[True, False])
        ],
        "how good",
        {"prompt": "Pick number 0", "completion": [{"role": "assistant", "content": "It is 0"}]},
        "",
        {},
    ),
    "records without a text": (
        [{"data": {"text": f"a text about {i}", "label": ["007", "NA"][i % 2]}} for i in range(60)],
        "records with 'text', 'label'",
        {"text": "a text about 0", "label": "007"},
        "sequence_classification",
        {},
    ),
    "preferences whose answers are one message each": (
        many(
            {
                "conversations": [{"from": "human", "value": "a “b”"}],
                "chosen": {"from": "gpt", "value": "007"},
                "rejected": {"from": "gpt", "value": "7"},
            }
        ),
        "one message in each row",
        {
            "id": "000",
            "prompt": [{"from": "human", "value": "a “b”"}],
            "chosen": [{"from": "gpt", "value": "007"}],
            "rejected": [{"from": "gpt", "value": "7"}],
        },
        "dpo",
        {},
    ),
    "two answers, and which one is better": (
        [
            {
                "model_a": "x",
                "model_b": "y",
                "prompt": f"Pick number {i}",
                "response_a": f"It is {i}",
                "response_b": f"I do not know {i}",
                "winner": ["model_b", "model_a", "tie (bothbad)"][i % 3],
            }
            for i in range(60)
        ],
        "says which of `response_a` and `response_b` is better",
        {"model_a": "x", "model_b": "y", "prompt": "Pick number 0", "chosen": "I do not know 0", "rejected": "It is 0"},
        "dpo",
        {},
    ),
    "spans of doccano": (
        texts(
            entities=[
                [{"id": 1, "label": "n", "start_offset": 0, "end_offset": 1}],
                [{"id": 2, "label": "m", "start_offset": 2, "end_offset": 6}],
                [],
            ]
        ),
        "spans with other keys",
        {"text": "a text about 0", "entities": [{"label": "n", "start": 0, "end": 1}]},
        "token_classification",
        {},
    ),
    "spans of Label Studio's smaller form": (
        texts(label=[[{"start": 2, "end": 6, "text": "text", "labels": ["n", "m"]}], None]),
        "spans with other keys",
        {
            "text": "a text about 0",
            "label": [{"label": name, "start": 2, "end": 6, "text": "text"} for name in ("n", "m")],
        },
        "token_classification",
        {},
    ),
    "annotations of Label Studio": (
        texts(
            annotations=[
                [{"was_cancelled": False, "result": [{"value": {"start": 2, "end": 6, "labels": ["n"]}}]}],
                [{"was_cancelled": False, "result": []}],
                [{"was_cancelled": True, "result": []}],
                [],
            ]
        ),
        "Label Studio",
        {"text": "a text about 0", "spans": [{"label": "n", "start": 2, "end": 6}]},
        "token_classification",
        {},
    ),
    "all rows in one": (
        [{"data": [{"text": f"a text about {i}", "label": ["007", "NA"][i % 2]} for i in range(60)]}],
        "all rows as one list",
        {"text": "a text about 0", "label": "007"},
        "sequence_classification",
        {},
    ),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def proposed(path: str, **columns: str) -> Any:
    request = NewRecipeRequest("x", path, columns=columns)
    found = find_source(request)
    rows, kinds = read_source_sample(found.source), ("decoder", "encoder")
    errors = list[EvergreenError]()
    for kind in kinds:
        try:
            return choose_objective_and_columns(request, rows, kind)  # type: ignore[arg-type]
        except EvergreenError as error:
            errors.append(error)
    return errors[-1]


def run_command_of(fix: str) -> list[str]:
    """Run the command that a fix names, and return the flags for the files that it writes."""
    command, _, then = fix[fix.index("evergreen convert") :].partition(" writes ")
    words = shlex.split(command.partition(" --names")[0])[1:]
    names = ["--names", ",".join(NAMES)] if "--names" in fix else []
    assert main([*words, *names]) == 0
    return shlex.split(then.partition("then give ")[2].partition(";")[0])


@pytest.mark.parametrize("form", FORMS)
def test_the_command_that_new_prints_gives_right_rows(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, what, first, objective, columns = FORMS[form]
    Path("rows's.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    error = proposed("rows's.jsonl")
    assert what in error.what
    _, written = run_command_of(error.fix)
    said = capsys.readouterr().out
    assert error.what in said
    (new_form,) = re.findall(" writes (.*?); then give", error.fix)
    assert f"wrote {new_form} into" in said
    assert "0 values of other columns changed\n" in said
    assert json.loads(Path(written).read_text(encoding="utf-8").splitlines()[0]) == first
    if objective:
        assert proposed(written, **columns).objective == objective
    else:
        assert "a conversation is read from one column" in proposed(written).what


@pytest.mark.parametrize("value", [["a", "it's", None], [{"k": [1, -2.5], "t": True}], [], {}, [1, 2], ["x\n[y], {z}"]])
def test_lists_and_records_are_read_as_json_python_and_numpy_write_them(value: Any) -> None:
    written = [json.dumps(value), str(value)]
    if isinstance(value, list):
        array = np.empty(len(value), object)
        array[:] = value
        written += [str(array), str([np.float64(one) if type(one) is int else one for one in value])]
    for text in written:
        assert looks_written(text)
        assert parse_written(text) == value


@pytest.mark.parametrize(
    "value", [("a", "it's"), ("a",), (), {"a", "b"}, {3}, set(), frozenset({"b", "a"}), frozenset()]
)
def test_tuples_and_sets_of_python_are_lists(value: Any) -> None:
    assert looks_written(str(value))
    assert parse_written(str(value)) == ([*value] if isinstance(value, tuple) else sorted(value))
    assert parse_written(str([{"k": value}])) == [{"k": parse_written(str(value))}]


@pytest.mark.parametrize("labels", [["{'a', 'b'}", "set()", "{'b'}"], ["('a', 'b')", "()", "('b',)"]], ids=str)
def test_tuples_and_sets_of_labels_are_no_classes(labels: list[str]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts(labels=labels)))
    assert "as Python writes them" in proposed("rows.jsonl").what
    assert main(["convert", "rows.jsonl", "new.jsonl"]) == 0
    found = [json.loads(line)["labels"] for line in Path("new.jsonl").read_text().splitlines()]
    assert found == [["a", "b"], [], ["b"]] * 20


@pytest.mark.parametrize("name", ["words", "sentence"])
def test_tags_may_stand_before_their_words(name: str) -> None:
    rows = [{"labels": BIO[0], name: [*WORDS[0][:3], f"Rome{i}"]} for i in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"tags of the words in `{name}`" in proposed("rows.jsonl").what
    assert main(["convert", "rows.jsonl", "new.jsonl"]) == 0
    first = json.loads(Path("new.jsonl").read_text().splitlines()[0])
    assert first == {
        "text": "Ann Lee in Rome0",
        "spans": [SPANNED["spans"][0], {"label": "LOC", "start": 11, "end": 16}],
    }


def test_sentences_are_no_words_of_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"dialog": [f"Are you {i}?", "I am here.", "Fine."], "act": [1, 2, 3]} for i in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "tags" not in proposed("rows.jsonl").what
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0
    assert "no form that has to be converted" in capsys.readouterr().err


def test_offsets_that_may_count_words_are_no_characters() -> None:
    rows = [
        {"tokenized_text": ["Ann", "Lee", f"is {i}"], "text": f"Ann Lee is {i}", "ner": [[0, 1, "PER"]]}
        for i in range(60)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "may count the words in `tokenized_text`" in proposed("rows.jsonl").what
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0


def test_missing_values_that_numpy_writes_are_null() -> None:
    for array in ([1.5, np.nan], [np.nan, -2.0], [np.nan]):
        wanted = [None if np.isnan(one) else one for one in array]
        assert parse_written(str(np.array(array))) == parse_written(str(array)) == wanted
    assert parse_written("['it is nan' nan]") == ["it is nan", None]


def test_accepted_and_rejected_rows_are_two_classes_and_ignored_ones_none(capsys: pytest.CaptureFixture[str]) -> None:
    answers = ["reject", "accept", "ignore", "reject"] * 10
    rows = [{"text": f"text {i}", "label": "DOCS", "answer": answer} for i, answer in enumerate(answers)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, written = run_command_of(proposed("rows.jsonl").fix)
    found = [json.loads(line) for line in Path(written).read_text().splitlines()]
    classes = {"reject": "not DOCS", "accept": "DOCS"}
    kept = [row for row in rows if row["answer"] in classes]
    assert found == [{"text": row["text"], "label": classes[row["answer"]]} for row in kept]
    assert "40 rows became 30" in capsys.readouterr().out


def test_what_only_looks_like_a_list_is_none_and_what_is_cut_off_is_refused() -> None:
    assert not any(map(looks_written, ["[laughs]", "{name}", "[POS]", "see [1]", "", "(1)", "(5 of 10)", "('a')"]))
    Path("rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in texts(labels=["['a' ... 'b']", "['c' ... 'd']"]))
    )
    assert "in a form that cannot be read" in proposed("rows.jsonl").what


@pytest.mark.parametrize("suffix", [".conll", ".txt"])
def test_a_word_with_its_tag_in_each_line_becomes_texts_with_spans(suffix: str) -> None:
    lines = ["-DOCSTART- -X- O O", ""]
    for words, tags in zip(WORDS * 20, BIO * 20, strict=True):
        lines += [*(f"{word}\tNN {tag}" for word, tag in zip(words, tags, strict=True)), ""]
    Path(f"rows{suffix}").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match="a word with its tag") as error:
        find_source(NewRecipeRequest("x", f"rows{suffix}"))
    written = error.value.fix.split()[-1]
    assert main(["convert", f"rows{suffix}", written]) == 0
    found = [json.loads(line) for line in Path(written).read_text(encoding="utf-8").splitlines()]
    assert (len(found), found[0]) == (40, SPANNED)
    assert proposed(written).objective == "token_classification"


def test_translations_become_a_column_for_each_language() -> None:
    rows = many(*({"translation": {"en": f"a “{i}”", "fr": f"le {i}"}} for i in range(40)))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    error = proposed("rows.jsonl")
    assert "records with 'en', 'fr'" in error.what
    _, written = run_command_of(error.fix)
    assert json.loads(Path(written).read_text().splitlines()[0]) == {"id": "000", "en": "a “0”", "fr": "le 0"}


def test_lists_of_positives_and_negatives_become_a_row_for_each(tmp_path: Path) -> None:
    rows = [{"query": f"what of {i}?", "pos": [f"about {i}"], "neg": [f"of {i + 1}", f"of {i + 2}"]} for i in range(40)]
    rows.append({"query": "what of it?", "pos": ["about it"], "neg": []})
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written, told = "rows.jsonl", set[str]()
    while isinstance(error := proposed(written), DataError):
        told.add(error.what)
        _, written = run_command_of(error.fix)
    assert told == {"holds lists, and `positive` is one text"}, "those of negatives are read as they are"
    found = [json.loads(line) for line in Path(written).read_text().splitlines()]
    assert found[0] == {"query": "what of 0?", "positive": "about 0", "neg": ["of 1", "of 2"]}
    assert found[40:] == [{"query": "what of it?", "positive": "about it", "neg": []}]
    request = NewRecipeRequest("x", written)
    proposal = choose_objective_and_columns(request, read_source_sample(find_source(request).source), "encoder")
    names = {"anchor_column": "query", "positive_column": "positive", "negative_columns": "neg"}
    assert (proposal.objective, proposal.options) == ("embedding", names | {"listed_negatives": 2})


def test_offsets_of_labels_become_spans(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"text": "Ann Lee in Rome", "entities": [[0, 7, "PER"], [11, 15, "LOC"]]}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"text": "", "entities": []}) + "\n")
    assert main(["convert", "rows.jsonl", "new.jsonl"]) == 0
    wanted = {"text": SPANNED["text"], "entities": SPANNED["spans"]}
    assert json.loads(Path("new.jsonl").read_text().splitlines()[0]) == wanted
    assert "2 rows became 2; 0 could not be converted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["B-A", "I-A", "E-A", "S-B"], [("A", 0, 5), ("B", 6, 7)]),
        (["B-A", "L-A", "U-A", "O"], [("A", 0, 3), ("A", 4, 5)]),
        (["I-A", "I-A", "I-B", "B-B"], [("A", 0, 3), ("B", 4, 5), ("B", 6, 7)]),
        (["A", "A", "O", "A"], [("A", 0, 3), ("A", 6, 7)]),
        (["O", "O", "O", "O"], []),
        (["b-a", "i-a", "o", "b-a"], [("a", 0, 3), ("a", 6, 7)]),
        (["b-a", "i-a", "O", "B-a"], [("a", 0, 3), ("a", 6, 7)]),
        (["o", "e-mail", "e-mail", "O"], [("o", 0, 1), ("e-mail", 2, 5)]),
    ],
)
def test_schemes_of_tags(tags: list[str], spans: list[tuple[str, int, int]]) -> None:
    rows = [{"words": list("abcd"), "tags": tags}, {"words": ["a"], "tags": ["o" if "b-a" in tags else "O"]}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "rows.jsonl", "new.jsonl"]) == 0
    found = json.loads(Path("new.jsonl").read_text().splitlines()[0])
    assert found["text"] == "a b c d"
    assert [(s["label"], s["start"], s["end"]) for s in found["spans"]] == spans


def test_rows_that_cannot_be_converted_are_named_and_no_file_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tokens": WORDS[0], "ner_tags": BIO[0]}] * 60 + [{"tokens": ["Ann"], "ner_tags": None}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "rows.jsonl", "new.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "left out: row 61 of rows.jsonl: `tokens` and `ner_tags` are not equally many" in said
    assert "61 rows became 60; 1 could not be converted" in said
    written = Path("new.jsonl").read_bytes()
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0
    assert Path("new.jsonl").read_bytes() == written
    assert main(["convert", "new.jsonl", "newer.jsonl"]) != 0
    assert "has no form that has to be converted" in capsys.readouterr().err


def test_comments_between_tagged_words_are_no_words() -> None:
    lines = ["# id 7\tdomain=en", "Ann _ _ B-PER", "Lee _ _ I-PER", "", "# O", "a\u00a0b O", "x\u2028y\tB-PER", ""]
    Path("rows.conll").write_text("\n".join(lines), encoding="utf-8")
    assert main(["convert", "rows.conll", "new.jsonl"]) == 0
    found = [json.loads(line) for line in Path("new.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert found == [
        {"text": "Ann Lee", "spans": [{"label": "PER", "start": 0, "end": 7}]},
        {"text": "# a\u00a0b x\u2028y", "spans": [{"label": "PER", "start": 6, "end": 9}]},
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Ann B-PER\nLee\nx O\n", "rows.conll:2: has no tag"),
        ("# text = Ann runs\n1\tAnn\tann\tNOUN\t_\n2\truns\trun\tVERB\t_\n", "do not end in tags"),
        ("Ren\udce9 B-PER\n", "not UTF-8: the byte at offset 3"),
    ],
)
def test_what_is_no_file_of_tagged_words_is_refused(text: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.conll").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert main(["convert", "rows.conll", "new.jsonl"]) != 0
    assert what in capsys.readouterr().err
    assert not Path("new.jsonl").exists()


def test_json_in_another_encoding_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text('{"text": "é", "cats": {"a": 1.0}}\n', encoding="cp1252")
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0
    assert "not UTF-8: the byte at offset" in capsys.readouterr().err


def test_numbers_of_tags_without_a_name_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": tags} for tags in ([1, -1], [1, 0], [7, 0], [-100, 0])]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "rows.jsonl", "new.jsonl", "--names", "O,B-PER,I-PER"]) == 0
    assert len(Path("new.jsonl").read_text().splitlines()) == 1
    said = capsys.readouterr().out
    assert "left out: row 1 of rows.jsonl: the tag -1 has no name" in said
    assert "left out: row 3 of rows.jsonl: the tag 7 has no name" in said


def test_files_of_one_command_become_a_folder_with_the_same_files() -> None:
    for file in ("train/a", "train/b", "test"):
        path = Path(f"rows/{file}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in texts(label=[["007"], ["NA"]])))
    error = proposed("rows")
    assert isinstance(error, DataError)
    assert run_command_of(error.fix) == ["--data", "rows-clean/train/*.jsonl", "--test", "rows-clean/test.jsonl"]
    for file in ("train/a", "train/b", "test"):
        lines = [json.loads(line) for line in Path(f"rows-clean/{file}.jsonl").read_text().splitlines()]
        assert [row["label"] for row in lines] == ["007", "NA"] * 30


@pytest.mark.parametrize(("name", "own"), [("labels", [["a"], ["a", "b"], []]), ("cats", [{"a": 1.0, "b": 0.0}])])
def test_several_labels_are_read_as_they_are(name: str, own: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts(**{name: own})))
    found = proposed("rows.jsonl")
    assert (found.objective, found.columns) == ("multi_label_classification", {"text": "text", "labels": name})
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0
    assert "give it to `evergreen new` as it is" in capsys.readouterr().err


def test_a_file_without_wanted_rows_does_not_end_the_conversion_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    for name, labels in (("bad", ["bad"]), ("good", ["good"])):
        rows = pairs(feedback=labels)
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "bad.jsonl", "good.jsonl", "new"]) == 0
    assert [path.name for path in Path("new").iterdir()] == ["good.jsonl"]
    assert "60 rows became 0" in capsys.readouterr().out
    assert main(["convert", "bad.jsonl", "new.jsonl"]) != 0
    assert "no row could be converted" in capsys.readouterr().err


def test_what_would_be_overwritten_or_misread_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/rows.jsonl", "a/rows.json", "rows.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(json.dumps({"text": "a", "label": ["a"]}))
    assert main(["convert", "rows.jsonl", "new.csv"]) != 0
    assert "name it new.jsonl" in capsys.readouterr().err
    assert main(["convert", "a/rows.jsonl", "a/rows.json", "new"]) != 0
    assert "would be written 2 times" in capsys.readouterr().err
    assert main(["convert", "rows.jsonl", "nothing.jsonl", "new"]) != 0
    assert "nothing.jsonl: there is no such file" in capsys.readouterr().err
    assert not Path("new").exists()


def test_a_few_rows_that_are_no_json_hide_no_conversations() -> None:
    rows = [*many({"messages": json.dumps(CHAT)}), {"messages": '[{"role": "user"'}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(Path(run_command_of(proposed("rows.jsonl").fix)[1]).read_text().splitlines()) == 60


@pytest.mark.parametrize(
    ("patterns", "written"),
    [
        (["../above.jsonl", "rows/own.jsonl"], ["above.jsonl", "rows/own.jsonl"]),
        (["../above.jsonl", "../more/own.jsonl"], ["above.jsonl", "more/own.jsonl"]),
        (["rows/own.jsonl", "rows/../beside.jsonl"], ["beside.jsonl", "own.jsonl"]),
        (["../*.jsonl", "rows/own.jsonl"], ["above.jsonl", "rows/own.jsonl"]),
    ],
)
def test_files_above_the_folder_are_written_into_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patterns: list[str], written: list[str]
) -> None:
    (tmp_path / "here/rows").mkdir(parents=True)
    (tmp_path / "more").mkdir()
    for name in ("above.jsonl", "more/own.jsonl", "here/rows/own.jsonl", "here/beside.jsonl"):
        lines = many({"messages": json.dumps(CHAT)})
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path / "here")
    before = {*tmp_path.rglob("*")}
    assert main(["convert", *patterns, "new/folder"]) == 0
    made = {path for path in {*tmp_path.rglob("*")} - before if path.is_file()}
    assert sorted(path.relative_to(tmp_path / "here/new/folder").as_posix() for path in made) == written


@pytest.mark.parametrize(
    ("judged", "what"),
    [
        ({"winner": ["model_a", "model_b"]}, "says which of `response_a` and `response_b` is better"),
        ({"preference": [1, 0]}, "seems to say by a number which of `response_a` and `response_b` is better"),
        ({"label": [True, False]}, "seems to say by a number which of `response_a` and `response_b` is better"),
    ],
)
@pytest.mark.parametrize("named", [{}, {"chosen": "response_a", "rejected": "response_b"}])
def test_no_answer_is_the_better_one_of_all_rows_where_a_column_says_which_is(
    judged: dict[str, list[Any]], what: str, named: dict[str, str]
) -> None:
    rows = [
        {"prompt": f"Pick number {i}", "response_a": f"It is {i}", "response_b": f"I do not know {i}"}
        | {name: own[i % 2] for name, own in judged.items()}
        for i in range(60)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = NewRecipeRequest("x", "rows.jsonl", objective="dpo", columns=named)
    with pytest.raises(DataError, match=what):
        choose_objective_and_columns(request, read_source_sample(find_source(request).source), "decoder")


def test_two_texts_that_a_label_compares_are_no_answers_to_choose_from() -> None:
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": ["1", "2"][i % 2]} for i in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert proposed("rows.jsonl").objective == "sequence_classification"
    for row in rows:
        row["label"] = int(row["label"]) - 1
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert proposed("rows.jsonl").objective == "sequence_classification"


def test_rows_with_a_better_answer_of_their_own_need_no_column_that_says_which_is() -> None:
    rows = [
        {"prompt": f"Pick {i}", "chosen": f"It is {i}", "rejected": f"No {i}", "a": "p", "b": "q", "label": i % 2}
        for i in range(60)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = NewRecipeRequest("x", "rows.jsonl", objective="dpo")
    found = choose_objective_and_columns(request, read_source_sample(find_source(request).source), "decoder")
    assert (found.columns["chosen"], found.columns["rejected"]) == ("chosen", "rejected")


def error_for(rows: Rows, **given: Any) -> EvergreenError:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = NewRecipeRequest("x", "rows.jsonl", **given)
    with pytest.raises(EvergreenError) as error:
        choose_objective_and_columns(request, read_source_sample(find_source(request).source), "encoder")
    return error.value


@pytest.mark.parametrize("mark", ["|", "; ", ","])
@pytest.mark.parametrize("given", [{"columns": {"labels": "tags"}}, {"objective": "multi_label_classification"}])
def test_labels_that_a_text_joins_become_lists(mark: str, given: dict[str, Any]) -> None:
    error = error_for(texts(tags=[f"joy{mark}love", "joy", f"love{mark}007", "007", ""]), **given)
    _, written = run_command_of(error.fix)
    found = [json.loads(line)["tags"] for line in Path(written).read_text().splitlines()[:5]]
    assert found == [["joy", "love"], ["joy"], ["love", "007"], ["007"], []]
    assert proposed(written).objective == "multi_label_classification"


def test_numbers_with_decimals_behind_a_comma_become_numbers() -> None:
    error = error_for(texts(bewertung=["1,5", "-2,25", "3", ""]), columns={"score": "bewertung"})
    _, written = run_command_of(error.fix)
    found = [json.loads(line)["bewertung"] for line in Path(written).read_text().splitlines()[:4]]
    assert found == [1.5, -2.25, 3.0, None]
    assert proposed(written, score="bewertung").objective == "regression"


@pytest.mark.parametrize("values", [["1,500", "2,000", "12,250"], ["no, thanks", "yes, please", "well, no"]])
def test_commas_of_thousands_and_of_sentences_divide_nothing(values: list[str]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts(said=values)))
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0


def test_queries_that_have_several_documents_are_no_classes() -> None:
    rows = [{"query": f"what of {i % 9}?", "positive": f"a text about {i}", "neg": [f"of {i + 1}"]} for i in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = NewRecipeRequest("x", "rows.jsonl")
    found = choose_objective_and_columns(request, read_source_sample(find_source(request).source), "encoder")
    assert found.objective == "embedding"
