"""The key of a run: which settings and files change it."""

from __future__ import annotations

import pytest

from params import Recipe
from tests.support import tiny
from trainer.identity import run_identity, run_key


@pytest.fixture
def tokens(tmp_path):
    folder = tmp_path / "tokens"
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("train.arrow", "objective.json", "tokenizer/tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def key(tokens, changes=None, models=()):
    recipe = Recipe.model_validate(tiny.recipe(changes))
    sections = {name: getattr(recipe, name) for name in ("seed", "objective", "model", "training")}
    return run_key(run_identity(tokens, sections, models))


SAME_RUN = {
    "launch.num_processes": 4,
    "launch.micro_batch_size": 1,
    "launch.eval_batch_size": 2,
    "training.logging_steps": 7,
    "training.keep_checkpoints": 5,
    "training.save_steps": 3,
    "training.save_minutes": 1.5,
    "training.resume": "never",
    "training.arguments": {"log_level": "info", "logging_first_step": True, "report_to": "none", "run_name": "a"},
    "evaluation.split": "validation",
}
OTHER_RUN = {
    "seed": 4,
    "training.learning_rate": 1e-3,
    "training.max_steps": 13,
    "training.eval_steps": 3,
    "training.streaming": True,
    "training.arguments": {"adam_beta2": 0.95},
    "objective.packing": False,
    "objective.name": "sequence_classification",
    "model.config.hidden_size": 64,
    "model": {"pretrained": "owner/name"},
}


@pytest.mark.parametrize("path", SAME_RUN)
def test_logging_and_launch_settings_do_not_change_the_run_key(tokens, path):
    assert key(tokens, {path: SAME_RUN[path]}) == key(tokens)


def test_settings_that_decide_the_weights_change_the_run_key(tokens):
    keys = [key(tokens, {path: value}) for path, value in OTHER_RUN.items()]
    assert len({key(tokens), *keys}) == len(OTHER_RUN) + 1
    assert len(key(tokens)) == 16


@pytest.mark.parametrize("name", ["train.arrow", "objective.json", "tokenizer/tokenizer.json"])
def test_other_data_or_tokenizer_changes_the_run_key(tokens, name):
    before = key(tokens)
    (tokens / name).write_text("changed")
    assert key(tokens) != before


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "1_Pooling/config.json",
        "vocab.txt",
        "spiece.model",
        "adapter/adapter_model.safetensors",
    ],
)
def test_other_files_of_a_base_model_or_of_a_reward_model_change_the_run_key(tokens, tmp_path, name):
    """Its weights, how its vectors are pooled, and how a reward model without tokenizer.json reads."""
    file = tmp_path / "base" / name
    file.parent.mkdir(parents=True)
    (tmp_path / "base" / "training_args.bin").write_text("a")
    changes = {"model": {"pretrained": str(tmp_path / "base")}}

    def keys():
        return key(tokens, changes), key(tokens, models=[str(tmp_path / "base")])

    file.write_text("a")
    before = keys()
    (tmp_path / "base" / "training_args.bin").write_text("b")
    assert keys() == before
    file.write_text("b")
    assert {*keys()}.isdisjoint(before)
