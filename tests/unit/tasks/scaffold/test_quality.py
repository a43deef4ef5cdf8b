"""What is wrong with rows: what validation will set aside, and what a person should know."""

from __future__ import annotations

from typing import Any

import pytest

from params import DataError
from params.schema import ObjectiveChoice
from tasks.scaffold.look import RowSample
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.scaffold.quality import SampleQuality, assess_sample_quality
from trainer import objectives
from trainer.objectives.sequence_classification import SequenceClassification

CLASSES = ObjectiveProposal("sequence_classification", {"text": "text", "label": "label"})


def judged(
    train: list[dict[str, Any]], test: list[dict[str, Any]] | None = None, proposal: ObjectiveProposal = CLASSES
) -> SampleQuality:
    rows = {"train": train} | ({"test": test} if test else {})
    objective = objectives.build_objective(ObjectiveChoice(name=proposal.objective, **proposal.options))
    return assess_sample_quality(
        RowSample(rows, {split: len(found) for split, found in rows.items()}), proposal, objective
    )


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": f"label {i % 2}"} | changes for i in range(count)]


def conflicting(found: SampleQuality) -> bool:
    return any("occur with different labels" in note for note in found.notes())


def test_sound_rows_give_no_notes() -> None:
    found = judged(rows(20))
    assert list(found.notes()) == []
    assert (found.set_aside_share, found.labels) == (0.0, {"label 0": 10, "label 1": 10})


def test_rows_that_validation_sets_aside_are_counted() -> None:
    bad = [{"text": " ", "label": "label 0"}, {"text": "a", "label": None}, {"text": None, "label": "label 0"}]
    found = judged([*rows(96), *bad])
    assert found.unusable == {"an empty `text`": 1, "no `label`": 1, "no `text`": 1}
    assert found.set_aside_share == pytest.approx(3 / 99)


def test_a_dash_beside_words_is_no_label_and_beside_a_plus_it_is_one() -> None:
    found = judged([*rows(96), {"text": "a", "label": "-"}])
    assert (found.unlabelled, found.unusable) == ("label", {"no label: `label` is `-`": 1})
    assert "-" not in found.labels
    found = judged([*rows(96, label="+"), {"text": "a", "label": "-"}])
    assert (found.unlabelled, found.unusable, found.labels["-"]) == ("", {}, 1)


@pytest.mark.parametrize("kind", [int, str])
def test_minus_one_beside_numbers_of_classes_is_no_label(kind: type[Any]) -> None:
    classes = [{"text": f"text {i}", "label": kind(i % 3)} for i in range(96)]
    found = judged([*classes, {"text": "a", "label": kind(-1)}])
    assert (found.unlabelled, found.no_label) == ("label", kind(-1))
    assert found.unusable == {"no label: `label` is `-1`": 1}
    assert "-1" not in found.labels
    for others in ([-1, 1], [-2, -1, 0, 1, 2], [-1, 0, 1], [-1, 1, 2, 3]):  # opinions, and numbers that are no places
        found = judged([{"text": f"text {i}", "label": kind(others[i % len(others)])} for i in range(96)])
        assert (found.unlabelled, found.unusable) == ("", {})
        assert ("if it says that a row has none" in " ".join(found.notes())) is (others == [-1, 0, 1])


def test_a_sample_of_rows_has_all_kinds_that_take_turns() -> None:
    found = judged(rows(1000))
    sample, step = found.sample(100)
    assert (len(sample), step) == (100, 10)
    assert sum(row["label"] == "label 0" for row in sample) in range(35, 66)
    assert found.sample(1000) == (found.usable, 1)


def test_reasons_that_differ_in_numbers_and_names_are_one() -> None:
    found = judged(rows(20))
    said = ["the tool 'add' in message 1 is lost", "the tool 'mul' in message 3 is lost", "`text` is empty"]
    refused = {id(row): said[i % 3] for i, row in enumerate(found.usable[:8])}
    once = found.without(refused, 2)
    alike = f"for example, {said[0]}"
    assert once.unusable == {alike: 12, said[2]: 4}
    assert once.examples[alike] == str(found.usable[0])
    again = once.without({id(once.usable[0]): "the tool 'sub' in message 5 is lost"}, 1)
    assert again.unusable == {alike: 13, said[2]: 4}
    assert len(again.usable) == 11


def test_rows_repeat_a_prompt_only_with_all_of_its_columns() -> None:
    columns = {"prompt": "{a}\n\n{b}", "completion": "c"}
    asked = [{"a": "do", "b": str(i % 10) if i % 2 else None, "c": f"it is {i}"} for i in range(20)]
    found = judged(asked, proposal=ObjectiveProposal("sft", columns))
    assert (found.repeated, found.largest_group, found.set_aside_share) == (14, 10, 0)
    assert judged(asked, proposal=ObjectiveProposal("sft", {**columns, "prompt": "a"})).largest_group == 20


def test_repeated_rows_are_how_people_write_and_stay() -> None:
    found = judged([*rows(50), *rows(5)], [{"text": "text 2", "label": "label 0"}, {"text": "new", "label": "label 1"}])
    assert (found.repeated, found.known, found.set_aside_share) == (5, 1, 0)
    notes = list(found.notes())
    assert notes[0] == "5 training rows repeat a text; they are kept"
    assert notes[1].startswith("1 held-out rows have a text that training rows have, too")


def test_rows_repeat_a_text_whatever_white_space_is_at_its_ends_unless_that_is_learned() -> None:
    train = [*rows(50), {"text": "text 2 ", "label": "label 0"}]
    found = judged(train, [{"text": "\ttext 3", "label": "label 1"}])
    assert (found.repeated, found.largest_group, found.known, found.is_written_alike) == (1, 2, 1, False)
    assert "in data.group_by, and write equal ones alike" in "".join(found.notes())
    assert judged([*rows(50), *rows(1)]).is_written_alike
    assert judged(train, proposal=ObjectiveProposal("causal_lm", {"text": "text"})).repeated == 0


def test_labels_that_contradict_each_other_are_few_or_unseen_are_named() -> None:
    train = [*rows(20), {"text": "text 1", "label": "label 0"}, {"text": "rare", "label": "x"}]
    found = judged(train, [{"text": "new", "label": "unheard"}])
    notes = "\n".join(found.notes())
    assert "1 texts occur with different labels" in notes
    assert "labels with fewer than 5 rows: 1, 'x'" in notes
    assert "no training row has: 'unheard'; validation will refuse them: add training rows" in notes


def test_labels_that_consist_of_others_are_named() -> None:
    names = ["billing", "bug", "billing|bug", "bug|billing", "lost, found", "New York, NY"]
    found = judged([{"text": f"text {i}", "label": names[i % 6]} for i in range(60)])
    (note,) = found.notes()
    assert note.startswith("labels that consist of others, and are learned as labels of their own: 2, ")
    assert note.endswith("'billing|bug', 'bug|billing'; to learn each by itself, add --labels label")


def test_labels_that_differ_by_white_space_are_one_and_said() -> None:
    found = judged([*rows(20), {"text": "new", "label": "label 0 "}], [{"text": "newer", "label": " label 1"}])
    assert found.labels == {"label 0": 11, "label 1": 10}
    said = "the labels 'label 0' (10 rows) and 'label 0 ' (1 rows) look alike, and are learned as one"
    assert list(found.notes()) == [said]


def test_labels_that_are_learned_as_one_contradict_nothing() -> None:
    train = [{"text": "see you", "label": label} for label in ("bye", "bye ", "\tbye")]
    found = judged([*rows(20), *train])
    assert (found.repeated, conflicting(found), found.labels["bye"]) == (2, 0, 3)
    spans = [{"label": "a", "start": 0, "end": 1}, {"label": "b", "start": 2, "end": 3}]
    other = [{"label": "b ", "start": 2, "end": 3, "by": "me"}, {"label": "a", "start": 0, "end": 1}]
    tags = ObjectiveProposal("token_classification", {"text": "text", "spans": "spans"})
    assert not conflicting(judged([{"text": "a b c", "spans": own} for own in (spans, other)], proposal=tags))
    assert conflicting(judged([{"text": "a b c", "spans": own} for own in (spans, other[1:])], proposal=tags))


def test_conversations_without_a_last_answer_are_counted() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    train = [{"messages": turns[: 3 if i < 2 else 4]} for i in range(9)]
    found = judged(train, proposal=ObjectiveProposal("sft", {"messages": "messages"}))
    assert list(found.notes()) == [
        "2 conversations do not end with the assistant; what follows its last message is not learned"
    ]


def test_a_row_without_spans_is_usable() -> None:
    tags = ObjectiveProposal("token_classification", {"text": "text", "spans": "spans"})
    train = [
        {"text": f"text {i}"} | ({"spans": [{"label": "a", "start": 0, "end": 4}]} if i % 3 else {}) for i in range(9)
    ]
    assert judged(train, proposal=tags).set_aside_share == 0


@pytest.mark.parametrize("text", ["🙂🙂 call Anna now", "call Anna now"])
def test_spans_that_are_read_elsewhere_than_their_offsets_say_are_counted(text: str) -> None:
    """Offsets in units of UTF-16 are others than those in characters behind an emoji."""
    start = len(text[: text.index("Anna")].encode("utf-16-le")) // 2
    train = [
        {"text": f"{text}, {i}", "spans": [{"label": "who", "start": start, "end": start + 4, "text": "Anna"}]}
        for i in range(9)
    ]
    tags = ObjectiveProposal("token_classification", {"text": "text", "spans": "spans"})
    found = judged([*train, {"text": "nobody", "spans": None}], proposal=tags)
    said = "9 spans have offsets that their own text contradicts; they are read where that text is"
    assert [note for note in found.notes() if "offsets" in note] == [said] * text.startswith("🙂")
    assert found.set_aside_share == 0


def test_most_rows_with_one_label_are_an_imbalance() -> None:
    assert CLASSES.advice.best_metric(judged(rows(20)).labels).value == "accuracy"
    labels = judged([*rows(20), *[{"text": f"t{i}", "label": "label 0"} for i in range(20)]]).labels
    chosen = CLASSES.advice.best_metric(labels)
    assert (chosen.value, chosen.why[:42]) == ("macro_f1", "75% of the rows have the label 'label 0': ")


def test_rows_without_anything_to_learn_are_refused() -> None:
    with pytest.raises(DataError, match="every row has the label 'label 0'"):
        judged(rows(10, label="label 0"))
    with pytest.raises(DataError, match="none can be used: 10 rows: an empty `text`"):
        judged(rows(10, text=""))


def test_the_objectives_own_reasons_count() -> None:
    spans = [{"label": "a", "start": 0, "end": 3}, {"label": "b", "start": 2, "end": 4}]
    train = [{"text": f"text {i}", "spans": spans if i == 7 else spans[:1]} for i in range(20)]
    found = judged(train, proposal=ObjectiveProposal("token_classification", {"text": "text", "spans": "spans"}))
    assert found.unusable == {"overlapping spans": 1}
    assert found.labels == {"a": 19}


def test_equal_texts_with_other_spans_contradict_each_other() -> None:
    people, time = ([{"label": label, "start": 0, "end": 1}] for label in ("people", "time"))
    train = [{"text": str(i // 2), "spans": people if i < 19 else time} for i in range(20)]
    found = judged(train, proposal=ObjectiveProposal("token_classification", {"text": "text", "spans": "spans"}))
    assert (found.repeated, conflicting(found)) == (10, 1)
    assert "1 texts occur with different labels; correct them if they are mistakes" in list(found.notes())


def test_rows_of_another_form_than_the_objective_reads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequenceClassification, "reject_reason", lambda _, row: str(int(row["label"])))
    with pytest.raises(DataError, match=r"none can be used: .* has another form .*: ValueError: .*label 0"):
        judged(rows(3))
