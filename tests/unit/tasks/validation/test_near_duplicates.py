"""Near duplicates: all that brute force finds, no other row, and what happens to them."""

from __future__ import annotations

import random
import re

import pytest

from params import DataError
from params.schema import ObjectiveChoice
from params.sections.rows import NearDuplicates, Validation
from tasks.validation import by_key, near_duplicates
from tasks.validation.near_duplicates import ROW_IS_NEW, bands_for_threshold, check_near_duplicates, row_parts
from tasks.validation.raw_rows import NOTHING, open_raw_rows
from tests.support import tiny
from tests.support.validation import (
    LANGUAGE,
    UNIQUE,
    good_rows,
    quarantine_reasons,
    run_validation,
    workers,
    write_raw,
)
from trainer import objectives

SENTENCE = "please send the new card to my home address before the end of next week"
SETTING = "you are a patient assistant of a bank and answer each question of its customers in one short sentence"


def near(threshold=0.8, action="quarantine"):
    return NearDuplicates(action=action, threshold=threshold)


def shingles(text):
    text = re.sub(r"[\W_]+", " ", text.casefold()).strip().ljust(5)
    return {text[place : place + 5] for place in range(len(text) - 4)}


def jaccard(one, other):
    return len(one & other) / len(one | other)


def edited_texts(seed, rows):
    """Texts of which many are copies of others with some words changed."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(150)]
    texts = [" ".join(draw.choices(words, k=12)) for _ in range(rows // 3)]
    while len(texts) < rows:
        copy = draw.choice(texts).split()
        for _ in range(draw.randint(0, 3)):
            copy[draw.randrange(len(copy))] = draw.choice(words)
        texts.append(" ".join(copy))
    draw.shuffle(texts)
    return texts


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_finds_what_brute_force_finds(tmp_path, monkeypatch, threshold):
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 40)
    monkeypatch.setattr(by_key, "BUCKET_ROWS", 500)
    monkeypatch.setattr(near_duplicates, "_PAIRS", 50)
    texts = edited_texts(5, 240)
    train, validation, test = texts[:180], texts[180:210], texts[210:]
    splits = {"train": {"text": train}, "validation": {"text": validation}, "test": {"text": test}}
    rows = open_raw_rows(write_raw(tmp_path, **splits).raw, {}, {}, workers(tmp_path), tmp_path / "keys")
    method = objectives.build_objective(LANGUAGE)
    found = check_near_duplicates(method, near(threshold), rows, NOTHING).found
    first, sets = {}, [*map(shingles, [*test, *validation, *train])]
    for position in range(60, 240):
        near_rows = [n for n in range(position) if jaccard(sets[position], sets[n]) >= threshold]
        first |= {position: near_rows} if near_rows else {}
    assert 10 < len(first) < 150
    repeated = dict(zip(found.failing.tolist(), found.repeats[0].tolist(), strict=True))
    assert all(stays in first[position] for position, stays in repeated.items()), "each pair is one"
    assert len(first.keys() - repeated.keys()) <= 1, "a pair just at the threshold is missed with a chance of 1 %"


def test_a_held_out_row_stays_and_the_first_of_training_rows(tmp_path):
    train = [SENTENCE + "?", "another text, which nothing repeats", "Another text which nothing repeats!", "short"]
    artifacts = write_raw(tmp_path, train={"text": train}, test={"text": [SENTENCE]})
    report = run_validation(artifacts, near=near())
    assert good_rows(artifacts) == [1, 3]
    check = next(one for one in report.checks if one.type == ROW_IS_NEW)
    assert (check.unexpected_count, check.origin, check.on_failure) == (2, "recipe", "quarantine")
    reasons = quarantine_reasons(artifacts)
    assert reasons["train", 0][0].endswith("repeats row 5 of test"), reasons
    assert reasons["train", 2][0].endswith("repeats row 1 of train"), reasons


def test_letters_count_with_their_marks_and_in_any_form():
    """Devanagari writes vowels as marks of consonants, Thai tones; a font is no difference."""

    def shingles_of(text):
        return {*near_duplicates.hash_shingles([{"text": text}])[0].tolist()}

    for one, other in (("\u0915\u093e", "\u0915\u0940"), ("\u0e44\u0e21\u0e48", "\u0e44\u0e21\u0e49")):
        assert shingles_of(one) != shingles_of(other)
    for one, other in (("cafe\u0301", "CAF\u00c9!"), ("\uff21\uff22\uff23\uff24\uff25", "abcde")):
        assert shingles_of(one) == shingles_of(other)


def test_the_default_compares_nothing_and_report_sets_nothing_aside(tmp_path, caplog):
    artifacts = write_raw(tmp_path, train={"text": [SENTENCE, SENTENCE + "!"]})
    assert Validation().near_duplicates is None
    assert ROW_IS_NEW not in {check.type for check in run_validation(artifacts).checks}
    with caplog.at_level("WARNING"):
        report = run_validation(artifacts, near=NearDuplicates())
    assert (report.quarantined, good_rows(artifacts)) == (0, [0, 1])
    assert "1 of 2 training rows nearly repeat another" in caplog.text
    assert "0 a held-out row, 1 an earlier training row" in caplog.text


def test_rows_that_other_checks_set_aside_repeat_nothing(tmp_path):
    train = {"text": [SENTENCE, SENTENCE, SENTENCE + " now", ""]}
    artifacts = write_raw(tmp_path, train=train)
    run_validation(artifacts, UNIQUE, near=near())
    assert good_rows(artifacts) == [0]
    assert [len(reasons) for reasons in quarantine_reasons(artifacts).values()] == [1, 1, 1]


def test_too_many_end_the_stage(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": [SENTENCE, SENTENCE + "!"]})
    with pytest.raises(DataError, match=r"(?s)max_quarantined = 0.1 allows.*1 rows: row_is_no_near_duplicate"):
        run_validation(artifacts, near=near(), max_quarantined=0.1)


def test_each_column_has_to_be_near(tmp_path):
    """Questions about one passage differ, although nearly all of their text is the same."""
    passage = [f"{SENTENCE}, {SETTING}"] * 3
    questions = ["which card is it?", "where does it go?", "Which card is it"]
    answers = [{"text": ["new"], "answer_start": [16]}] * 3
    rows = {"context": passage, "question": questions, "answers": answers}
    held_out = {name: values[:1] for name, values in rows.items()} | {"question": ["how long may it take?"]}
    test = held_out | {"question": ["and why?"]}
    artifacts = write_raw(tmp_path, train=rows, validation=held_out, test=test)
    run_validation(artifacts, objective=ObjectiveChoice(name="question_answering"), near=near())
    assert good_rows(artifacts) == [0, 1]


def test_each_role_has_to_be_near():
    first = [("system", SETTING), ("user", "is my card lost"), ("assistant", "no")]
    turns = [{"role": role, "content": text} for role, text in first]
    sharegpt = [{"from": role, "value": text} for role, text in first]
    assert set(row_parts({"messages": turns}, ["messages"])) == {f"messages {role}" for role, _ in first}
    assert set(row_parts({"messages": sharegpt}, ["messages"])) == {f"messages {role}" for role, _ in first}
    assert "is my card lost" in row_parts({"messages": turns}, ["messages"])["messages user"]
    assert row_parts({"text": "a", "more": None}, ["text", "more"]) == {"text ": " a", "more ": " "}


def test_only_new_shards_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 10)
    texts, read = edited_texts(1, 30), []
    work = near_duplicates.write_shard_bands
    monkeypatch.setattr(
        near_duplicates, "write_shard_bands", lambda *own: read.append(own[-1].part.rows.shard.name) or work(*own)
    )
    for rows, expected in ((20, 4), (30, 1), (30, 0)):
        artifacts = write_raw(tmp_path, train={"text": texts[:rows]})
        read.clear()
        run_validation(artifacts, near=near(), inputs=tiny.inputs("validate", artifacts, "1"))
        assert len(read) == expected
    kept = good_rows(artifacts)
    run_validation(artifacts, near=near())
    assert good_rows(artifacts) == kept


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.8, 0.95, 0.999])
def test_bands_find_pairs_at_the_threshold(threshold):
    bands, length = bands_for_threshold(threshold)
    assert bands * length <= 128
    assert 1 - (1 - threshold**length) ** bands >= 0.99
