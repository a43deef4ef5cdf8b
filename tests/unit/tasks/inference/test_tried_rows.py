"""A model for whose task transformers has no pipeline: the objective that its release records answers rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from params import DataError, ModelError
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tests.support.zoo.tokenizers_of_kinds import KINDS as TOKENIZERS
from trainer import objectives
from trainer.objectives.multiple_choice import MultipleChoice

TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ROW = json.dumps({"context": "the king likes the rain", "choices": ["a cat", "a king", "rain"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = TOKENIZERS["wordpiece"]()
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), **TINY)
    torch.manual_seed(0)
    section = {"name": "multiple_choice"}
    objective = objectives.build_objective(ObjectiveChoice.model_validate(section))
    objective.model_class().from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / PROVENANCE).write_text(json.dumps({"objective": section}))
    return tmp_path


def test_a_row_is_answered_as_the_objective_says(folder: Path) -> None:
    model = AnsweringModel.load(folder, "tests/rows")
    assert model.task == "multiple-choice"
    shown = model.answer(ROW, AnswerOptions()).lines()
    assert sorted(line.split(" ", 1)[1].strip() for line in shown) == ["a cat", "a king", "rain"]
    with pytest.raises(DataError, match="the model reads context, choices") as error:
        model.answer("the king", AnswerOptions())
    assert "write them as JSON" in error.value.fix


def test_without_a_record_or_an_answer_of_the_objective_there_is_no_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(MultipleChoice, "prediction_lines")
        with pytest.raises(ModelError, match="BertForMultipleChoice, for which there is no way to try it"):
            AnsweringModel.load(folder, "tests/rows")
    (folder / PROVENANCE).unlink()
    with pytest.raises(ModelError, match="no way to try it") as error:
        AnsweringModel.load(folder, "tests/rows")
    assert "a release whose record names its objective" in error.value.fix
