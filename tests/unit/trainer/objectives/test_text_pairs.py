"""Pairs of texts: encoded, cut and padded as the tokenizer's own call does it, and read as the model learned to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny
from tests.support.zoo import tokenizers_of_kinds
from trainer import objectives
from trainer.objectives.advice.pairs import find_usual_pair
from trainer.objectives.bases.texts.pairs import read_pair

NAMES = {"text_column": "premise", "text_pair_column": "hypothesis"}
STATE = {"labels": ["no", "yes"]}
LENGTHS = [(1, 1), (3, 20), (20, 3), (9, 9), (1, 30), (12, 13)]
TEMPLATES = {
    "bert": ("<begin> $A <end>", "<begin> $A <end> $B:1 <end>:1"),
    "roberta": ("<begin> $A <end>", "<begin> $A <end> <end> $B <end>"),
    "end only": ("$A <end>", "$A <end> $B <end>"),
}


def words(template: tuple[str, str] | None = TEMPLATES["bert"], **names: object) -> PreTrainedTokenizerFast:
    """A tokenizer of words: 1 begins, 2 ends, 0 pads; words are numbers from 3 on."""
    known = ["<pad>", "<begin>", "<end>", *map(str, range(3, 50))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        special = [("<begin>", 1), ("<end>", 2)]
        tokenizer.post_processor = processors.TemplateProcessing(*template, special)
    given = {"pad_token": "<pad>", "eos_token": "<end>", "model_input_names": ["input_ids", "token_type_ids"], **names}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def numbers(first: int, count: int) -> str:
    return " ".join(str(first + i % 20) for i in range(count))


KINDS = {
    "trained": lambda: train_tokenizer(["a cat, the rain"] * 9, TrainTokenizer(kind="train", vocab_size=270)),
    **{
        name: getattr(tokenizers_of_kinds, name)
        for name in ("wordpiece", "gpt2", "qwen", "roberta", "opt", "llama", "t5", "gemma")
    },
}
FRONT, BACK = slice(None, 1), slice(-1, None)


def without_pairs(tokenizer: Tokenizer) -> None:
    """Let a tokenizer add nothing to pairs of texts."""
    state = json.loads(tokenizer.to_str())
    if state["post_processor"] and state["post_processor"]["type"] == "TemplateProcessing":
        parts = [{"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB")]
        state["post_processor"]["pair"] = parts
        tokenizer.post_processor = Tokenizer.from_str(json.dumps(state)).post_processor


def rows() -> list[dict[str, object]]:
    found = [{"premise": numbers(3, a), "hypothesis": numbers(25, b), "label": "yes"} for a, b in LENGTHS]
    return [{"row_id": i, **row} for i, row in enumerate(found)]


def pairs(**options: object):
    return objectives.build_objective(ObjectiveChoice(name="sequence_classification", **{**NAMES, **options}))


@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize("max_length", [8, 17, 64])
def test_pair_is_encoded_and_cut_as_the_tokenizer_does_it(kind, has_types, max_length):
    inputs = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    tokenizer = words(TEMPLATES[kind], model_input_names=inputs)
    encoded = pairs().encode(rows(), tokenizer, max_length, STATE)
    for row, ((example,), is_truncated) in zip(rows(), encoded, strict=True):
        texts = row["premise"], row["hypothesis"]
        expected = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        expected.pop("attention_mask")
        assert {name: example[name] for name in expected} == expected
        assert example.keys() == {"row_id", "labels", *expected}
        assert is_truncated == (len(tokenizer(*texts)["input_ids"]) > max_length)


def test_the_longer_text_loses_its_end():
    (example,), is_truncated = pairs().encode([rows()[1]], words(), 12, STATE)[0]
    assert is_truncated
    assert example["input_ids"] == [1, 3, 4, 5, 2, *range(25, 31), 2]
    assert example["token_type_ids"] == [0] * 5 + [1] * 7


def test_types_are_padded_as_the_tokenizer_pads_them():
    tokenizer = words()
    tokenizer._pad_token_type_id = 3  # as XLNet's
    examples = [found.examples[0] for found in pairs().encode(rows()[:2], tokenizer, 64, STATE)]
    batch = pairs().collate(examples, tokenizer)
    expected = tokenizer.pad([{k: e[k] for k in ("input_ids", "token_type_ids")} for e in examples])
    assert batch["token_type_ids"].tolist() == expected["token_type_ids"]
    assert batch["token_type_ids"][0].tolist() == [0] * 3 + [1] * 2 + [3] * 21
    assert batch["input_ids"].tolist() == expected["input_ids"]


def test_one_text_has_no_types():
    """So that the tokens of recipes without pairs stay as they are."""
    (example,), _ = pairs(text_pair_column=None).encode(rows()[:1], words(), 64, STATE)[0]
    assert example == {"row_id": 0, "input_ids": [1, 3, 2], "labels": 1}


def test_columns_and_what_a_reader_gives():
    objective, row = pairs(), rows()[0]
    assert objective.columns() == {"premise": "string", "hypothesis": "string", "label": "label"}
    assert objective.texts(row) == ("3", "25")
    assert objective.text(row) == "3\n25"
    assert objective.reader_input(row) == {"text": "3", "text_pair": "25"}
    assert pairs(text_pair_column=None).reader_input(row) == "3"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_without_a_token_between_texts_gets_one(kind, tmp_path: Path):
    """What stands around one text stands around both, and one text is read as before."""
    tokenizer = KINDS[kind]()
    without_pairs(tokenizer.backend_tokenizer)
    known = {token for token in tokenizer.get_vocab().values() if token in tokenizer.all_special_ids}
    texts = "a cat", "the rain: 3"
    single = [tokenizer(text)["input_ids"] for text in texts]
    front, back = ([token for token in tokenizer("a")["input_ids"][part] if token in known] for part in (FRONT, BACK))
    pairs(text_pair_column=None).prepare_tokenizer(tokenizer)
    assert tokenizer(*texts)["input_ids"] == [token for ids in single for token in ids if token not in known], (
        "one text needs no separator"
    )
    for _ in range(2):
        pairs().prepare_tokenizer(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    separator = back or [tokenizer.convert_tokens_to_ids(tokenizer.sep_token or tokenizer.eos_token)]
    first, second = ([token for token in ids if token not in known] for ids in single)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert one(*texts)["input_ids"] == [*front, *first, *separator, *second, *back]
        assert [one(text)["input_ids"] for text in texts] == single
        assert one(*texts, truncation=True, max_length=len(front + separator + back) + 2)["input_ids"] == [
            *front,
            first[0],
            *separator,
            second[0],
            *back,
        ]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_tokenizer_that_separates_texts_stays_as_it_is(kind):
    tokenizer = words(TEMPLATES[kind])
    before = tokenizer.backend_tokenizer.to_str()
    pairs().prepare_tokenizer(tokenizer)
    tokenizer("3", truncation=False)
    assert json.loads(tokenizer.backend_tokenizer.to_str())["post_processor"] == json.loads(before)["post_processor"]


def test_the_same_column_twice_is_refused():
    sections = {
        name: kind.model_validate(tiny.CLASSES.get(name, tiny.RECIPE[name]))
        for name, kind in {"model": Model, "training": Training, "launch": Launch}.items()
    }
    (problem,) = pairs(text_pair_column="premise").conflicts(**sections)
    assert problem.key == ("objective", "text_pair_column")
    assert list(pairs().conflicts(**sections)) == []


@pytest.mark.parametrize(
    ("own", "released", "read"),
    [
        ("hypothesis", {"text_pair_column": "b"}, "hypothesis"),  # today's name of the column
        ("hypothesis", {}, None),  # a champion from before the pairs
        (None, {"text_pair_column": "b"}, "b"),
        (None, {}, None),
        ("hypothesis", None, "hypothesis"),
    ],
)
def test_a_released_model_reads_as_many_texts_as_it_learned_from(own, released, read):
    assert pairs(text_pair_column=own).as_released(released).options.text_pair_column == read


def test_the_form_says_that_a_release_reads_pairs():
    section = {"name": "sequence_classification", **NAMES}
    assert objectives.prompt_form(section, has_template=False).is_pair
    assert not objectives.prompt_form(section | {"text_pair_column": None}, has_template=True).is_pair


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        (["label", "Premise", "hypothesis"], {"text": "Premise", "text-pair": "hypothesis"}),
        (["sentence_b", "sentence_a"], {"text": "sentence_a", "text-pair": "sentence_b"}),
        (["question2", "question1", "text"], {"text": "question1", "text-pair": "question2"}),
        (["text", "title"], {}),
        (["question", "answer"], {}),
    ],
)
def test_pairs_with_usual_names(columns, pair):
    assert find_usual_pair(columns) == pair


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ('{"text_pair": "b", "text": "a"}', {"text": "a", "text_pair": "b"}),
        ('{"text": "a"}', None),
        ('{"text": "a", "text_pair": 3}', None),
        ("[1]", None),
        ("a {text}", None),
    ],
)
def test_a_pair_is_read_from_json(text, pair):
    assert read_pair(text) == pair
