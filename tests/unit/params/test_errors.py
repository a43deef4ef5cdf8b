"""Errors as data: their JSON and pickled forms."""

from __future__ import annotations

import json
import pickle

import pytest

import params
from params import CheckpointError, DataError, EvergreenError, HubRefusedError, ModelError, RecipeError, TransientError
from params.foundation.errors import error_from_json

CLASSES = [c for c in vars(params).values() if isinstance(c, type) and issubclass(c, EvergreenError)]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "copy_error", [lambda e: error_from_json(e.to_json(10_000)), lambda e: pickle.loads(pickle.dumps(e))]
)
def test_every_error_class_survives_a_copy(kind, copy_error) -> None:
    error = kind("rows.csv:3", 'two\nlines: "of text"\n  fix: é', "do it", key="data.source.0")
    copy = copy_error(error)
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("size", [300, 1000, 4000])
def test_to_json_shortens_the_longest_text(size: int) -> None:
    text = RecipeError("here", "é" * 5000, "do it", key="seed").to_json(size)
    assert len(text.encode()) <= size
    short = error_from_json(text)
    assert (type(short), short.where, short.fix, short.key) == (RecipeError, "here", "do it", "seed")
    assert short.what.startswith("éé")
    assert short.what.endswith(" ...")


def test_to_json_accepts_a_size_that_is_too_small() -> None:
    assert "RecipeError" in RecipeError("here", "what", "fix").to_json(1)


def test_replace_changes_one_field() -> None:
    error = CheckpointError("here", "what", "fix", key="seed").replace(where="train: here")
    assert type(error) is CheckpointError
    assert (error.where, error.what, error.fix, error.key) == ("train: here", "what", "fix", "seed")


@pytest.mark.parametrize("kind", [HubRefusedError, ModelError, TransientError, DataError])
def test_unknown_error_class_is_found_by_its_exit_code(kind) -> None:
    content = json.loads(kind("a", "b", "c").to_json(1000)) | {"type": "NewerError"}
    assert type(error_from_json(json.dumps(content))) is kind


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '{"type": "DataError"}', "   "])
def test_from_json_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an error in JSON|Expecting"):
        error_from_json(text)
