"""A short recipe: what its objective and its model decide, and what the resolved recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from params import Recipe, RecipeError
from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.recipes.resolve import recipe_text_marking_defaults, write_resolved_recipe
from trainer import objectives

PRETRAINED = {"pretrained": "owner/model", "revision": "main"}
RANDOM = {"config": {"model_type": "llama", "hidden_size": 1024}}


def short(name: str, model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    source = {"kind": "files", "train": "rows.csv"}
    return {"data": {"source": source}, "objective": {"name": name}, "model": model, **sections}


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts("short", tmp_path)


def write(artifacts: Artifacts, content: dict[str, Any]) -> Recipe:
    artifacts.recipe_path.parent.mkdir(exist_ok=True)
    YAML().dump(content, artifacts.recipe_path)
    return load(artifacts.recipe_path)


@pytest.mark.parametrize("name", objectives.objective_names())
def test_three_sections_are_a_recipe_for_every_objective(artifacts: Artifacts, name: str) -> None:
    recipe = write(artifacts, short(name, PRETRAINED))
    tokenizer: Any = recipe.tokenization.tokenizer
    assert (tokenizer.kind, tokenizer.path, tokenizer.revision) == ("pretrained", "owner/model", "main")
    objective = objectives.import_objective_class(name)
    assert recipe.training.best_metric in {"loss", *objective.metrics}
    assert recipe.publish.repo_id == "evergreen/short"
    assert recipe.training.epochs
    assert recipe.training.global_batch_size % recipe.launch.micro_batch_size == 0


DEFAULTS = {
    "causal_lm": (2e-5, 1.0, 32, 8, "loss", False),
    "dpo": (1e-6, 1.0, 32, 4, "loss", False),
    "grpo": (1e-6, 1.0, 16, 4, "reward", False),
    "kto": (1e-6, 1.0, 32, 4, "loss", False),
    "iterative_sft": (1e-5, 1.0, 16, 4, "reward", False),
    "ranking": (2e-5, 1.0, 32, 32, "ndcg_at_10", False),
    "regression": (5e-5, 4.0, 32, 32, "loss", True),
    "reward": (1e-5, 1.0, 32, 4, "loss", False),
    "seq2seq": (5e-5, 3.0, 32, 8, "loss", True),
    "sequence_classification": (5e-5, 4.0, 32, 32, "accuracy", True),
    "sft": (2e-5, 3.0, 32, 8, "loss", False),
    "token_classification": (5e-5, 4.0, 32, 32, "f1", True),
    "of_nobody": (2e-5, 3.0, 32, 8, "loss", False),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_stay_as_they_are(artifacts: Artifacts, name: str) -> None:
    """Another value would make what was trained stale."""
    training = (recipe := write(artifacts, short(name, PRETRAINED))).training
    rest = (recipe.launch.micro_batch_size, training.best_metric, training.group_by_length)
    assert (training.learning_rate, training.epochs, training.global_batch_size, *rest) == DEFAULTS[name]


def test_an_objective_of_your_own_has_its_own_defaults(artifacts: Artifacts, own_objective: Any) -> None:
    own_objective("defaults = ObjectiveDefaults(3e-3, best_metric='accuracy')")
    training = write(artifacts, short("own", PRETRAINED)).training
    assert (training.learning_rate, training.best_metric, training.epochs) == (3e-3, "accuracy", 3.0)


def test_a_broken_objective_has_the_usual_ones_and_is_an_error_where_it_is_built(
    artifacts: Artifacts, own_objective: Any
) -> None:
    own_objective("defaults = Nothing(")
    recipe = write(artifacts, short("own", PRETRAINED))
    assert recipe.training.learning_rate == 2e-5
    with pytest.raises(RecipeError, match=r"own\.py cannot be imported: SyntaxError"):
        objectives.build_objective(recipe.objective)


def test_the_objective_decides(artifacts: Artifacts) -> None:
    classifier = write(artifacts, short("sequence_classification", PRETRAINED)).training
    assert (classifier.best_metric, classifier.group_by_length, classifier.epochs) == ("accuracy", True, 4.0)
    chat = write(artifacts, short("sft", PRETRAINED)).training
    assert (chat.best_metric, chat.group_by_length, chat.epochs) == ("loss", False, 3.0)


def test_the_model_decides_on_the_learning_rate(artifacts: Artifacts) -> None:
    def rate(name: str, model: dict[str, Any]) -> float:
        tokenization = {"tokenizer": {"kind": "train", "vocab_size": 300}}
        return write(artifacts, short(name, model, tokenization=tokenization)).training.learning_rate

    assert rate("sft", PRETRAINED) == 2e-5
    assert rate("sft", PRETRAINED | {"lora": {}}) == 2e-4
    assert rate("sft", RANDOM) == rate("causal_lm", RANDOM) == 3.9e-4
    assert rate("sft", {"config": {"model_type": "gpt2", "n_embd": 64}}) == 2e-3
    assert rate("sft", {"config": {"model_type": "gpt2"}}) == 2e-3


def test_what_the_file_says_wins(artifacts: Artifacts) -> None:
    own = {"max_steps": 7, "learning_rate": 0.5, "best_metric": "loss", "streaming": True}
    training = write(artifacts, short("sequence_classification", PRETRAINED, training=own)).training
    assert {key: getattr(training, key) for key in own} == own
    assert training.epochs is None
    assert not training.group_by_length, "it excludes streaming"


def test_a_new_model_needs_a_tokenizer(artifacts: Artifacts) -> None:
    with pytest.raises(RecipeError, match=r"tokenization\.tokenizer: is missing"):
        write(artifacts, short("causal_lm", RANDOM))


@pytest.mark.parametrize("wrong", [None, 3, "text", ["list"]])
@pytest.mark.parametrize("section", ["tokenization", "objective", "model", "training", "launch", "publish"])
def test_a_section_that_is_no_mapping_is_a_problem(artifacts: Artifacts, section: str, wrong: object) -> None:
    with pytest.raises(RecipeError, match=rf"{section}(\.\w+)?: "):
        write(artifacts, {**short("causal_lm", PRETRAINED), section: wrong})


class TestResolved:
    def test_it_is_the_same_recipe(self, artifacts: Artifacts, tmp_path: Path) -> None:
        recipe = write(artifacts, short("sequence_classification", PRETRAINED))
        write_resolved_recipe(artifacts)
        again = Artifacts("again", tmp_path)
        again.recipe_path.write_bytes(artifacts.resolved_recipe.read_bytes())
        assert load(again.recipe_path) == recipe
        write_resolved_recipe(again)
        assert again.resolved_recipe.read_bytes() == artifacts.resolved_recipe.read_bytes()

    def test_the_default_recipe_is_the_same_recipe(self, tmp_path: Path) -> None:
        artifacts = Artifacts("default", tmp_path)
        (tmp_path / "params").mkdir()
        artifacts.recipe_path.write_bytes(Path("params/default.yaml").read_bytes())
        write_resolved_recipe(artifacts)
        assert load(artifacts.resolved_recipe) == load(artifacts.recipe_path)

    def test_show_marks_what_the_file_does_not_say(self, artifacts: Artifacts) -> None:
        write(artifacts, short("sft", PRETRAINED, training={"max_steps": 3}, seed=5))
        text = recipe_text_marking_defaults(artifacts)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert {
            "seed: 5",
            "max_steps: 3",
            "name: sft",
            "learning_rate: 2e-05 # default",
            "lora: null # default",
        } <= set(lines)
        assert YAML(typ="safe").load(text) == load(artifacts.recipe_path).model_dump(mode="json")

    def test_show_marks_no_value_of_the_file_as_default_in_short_forms_either(self, artifacts: Artifacts) -> None:
        own = {"function": "mine.metrics:own", "directions": {"own": "max"}}
        changes = {"evaluation": {"metrics": own}, "training": {"max_steps": 3, "loss": "mine.losses:own"}}
        changes["validation"] = {"drift": "fail"}
        write(artifacts, short("sequence_classification", PRETRAINED, **changes))
        lines = {" ".join(line.split()) for line in recipe_text_marking_defaults(artifacts).splitlines()}
        assert {"name: mine.metrics:own", "name: mine.losses:own", "own: max", "on_drift: fail"} <= lines
        assert "preprocess_logits: null # default" in lines
