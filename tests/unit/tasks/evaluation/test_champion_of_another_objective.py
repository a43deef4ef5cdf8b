"""What a champion of one objective is to a recipe of another one: scored where its answers mean the same, and refused in all other cases."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from params import ModelError
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE
from tasks.evaluation.champion import build_champion_reader, load_champion
from tests.support.tiny_releases import KINDS
from tests.support.zoo.tokenizers_of_kinds import KINDS as TOKENIZERS
from trainer import objectives
from trainer.start import ReleaseReference

STATE = {"labels": ["O", "B-x", "I-x"], "numbers": ["number"], "mean": [1.0], "std": [2.0], "highest": 1.0}
CHAMPION = ReleaseReference(endpoint="local", repo_id="tests/tiny", commit="0" * 40, tag=None, weights="0" * 64)
NAMES = objectives.objective_names()
LANGUAGE_MODELS = {"causal_lm", "sft", "dpo", "kto", "grpo", "iterative_sft"}
ONE_NUMBER = ("regression", "reward", "ranking")
TINY: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"tie_word_embeddings": True},
    "modernbert": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"cls_token_id": 0, "sep_token_id": 0, "global_attn_every_n_layers": 1},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
}
"""Llama has the heads of texts and of tokens under one name; so has ModernBERT, with one before them."""


def built(name: str) -> Any:
    section = {"name": name, **KINDS[name][1].get("objective", {})}
    return objectives.build_objective(ObjectiveChoice.model_validate(section)), section


def architecture(name: str) -> str:
    return "t5" if name == "seq2seq" else "modernbert" if name in {"masked_lm", "multiple_choice"} else "llama"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that writes the release of an objective; without its record, it is one of another project."""
    made: dict[tuple[str, str], Path] = {}

    def write(name: str, model_type: str, *, recorded: bool) -> Path:
        if (name, model_type) not in made:
            folder = made[name, model_type] = tmp_path_factory.mktemp(name)
            objective, section = built(name)
            tokenizer = TOKENIZERS["wordpiece"]()
            tokenizer.eos_token = tokenizer.sep_token
            ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": len(tokenizer)}
            config = AutoConfig.for_model(model_type, **ids, **TINY[model_type], **objective.model_config(STATE))
            torch.manual_seed(0)
            model = objective.model_class().from_config(config)
            if objective.vector_space:
                objective.prepare_model(model, tokenizer, STATE, ())
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if objective.vector_space:
                objective.release_format.write_files(folder)
            (folder / PROVENANCE).write_text(json.dumps({"objective": section}))
        record, hidden = (made[name, model_type] / one for one in (PROVENANCE, "hidden"))
        if recorded != record.exists():
            (hidden if recorded else record).rename(record if recorded else hidden)
        return made[name, model_type]

    return write


def scored(folder: Path, recipe: str) -> Any:
    """The champion in a folder as a recipe of this objective scores it."""
    objective, section = built(recipe)
    choice = ObjectiveChoice.model_validate(section)
    columns = {*objective.columns(), "text", "label"}
    reader = build_champion_reader(folder, choice, max_length=20, champion=CHAMPION, columns=columns)
    return load_champion(folder, reader.objective, STATE, CHAMPION)


@pytest.mark.parametrize("recipe", NAMES)
def test_a_recorded_release_is_scored_by_objectives_with_the_same_answers_only(recipe: str, release: Any) -> None:
    for champion in NAMES:
        folder = release(champion, architecture(champion), recorded=True)
        if recipe == champion or {recipe, champion} <= LANGUAGE_MODELS:
            assert scored(folder, recipe)
            continue
        with pytest.raises(ModelError) as error:
            scored(folder, recipe)
        assert (
            f"it was trained by {champion}, whose answers mean something else than those of {recipe}"
            in error.value.what
        )
        assert "publish to another repository (publish.repo_id)" in error.value.fix


@pytest.mark.parametrize(
    ("parents", "is_scored"),
    [
        (["sequence_classification", "sequence_classification"], True),
        (["sequence_classification", "multi_label_classification"], False),
        (["ranking", "reward"], False),
    ],
)
def test_objectives_of_a_users_own_answer_as_the_one_that_they_extend(
    parents: list[str], is_scored: bool, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they are called: a renamed copy scores the champion of the first one."""
    folder, names = release(parents[0], "llama", recorded=True), ("their_own", "renamed")
    for name, parent in zip(names, parents, strict=True):
        extended = types.ModuleType(f"trainer.objectives.{name}")
        base = objectives.import_objective_class(parent)
        extended.Own = type("Own", (base,), {"__module__": extended.__name__})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, extended.__name__, extended)
    record = folder / PROVENANCE
    written = record.read_text()
    record.write_text(written.replace(parents[0], names[0]))
    section = {"name": names[1], **KINDS[parents[1]][1].get("objective", {})}
    choice = ObjectiveChoice.model_validate(section)
    columns = {*objectives.build_objective(choice).columns(), "text", "label"}
    try:
        if is_scored:
            assert build_champion_reader(folder, choice, max_length=20, champion=CHAMPION, columns=columns)
            return
        with pytest.raises(ModelError, match="it was trained by their_own, whose answers mean something else"):
            build_champion_reader(folder, choice, max_length=20, champion=CHAMPION, columns=columns)
    finally:
        record.write_text(written)


_LABELS = ("sequence_classification", "multi_label_classification", "token_classification")
HEADS = {
    "llama": ("causal_lm", *_LABELS, "regression", "embedding"),
    "modernbert": ("masked_lm", *_LABELS, *ONE_NUMBER, "embedding", "question_answering", "multiple_choice"),
}
CELLS = [
    pytest.param(model_type, name, marks=[pytest.mark.slow] if model_type == "modernbert" else [])
    for model_type, names in HEADS.items()
    for name in names
]


@pytest.mark.parametrize(("model_type", "recipe"), CELLS)
def test_a_release_without_a_record_is_told_by_its_configuration(model_type: str, recipe: str, release: Any) -> None:
    """Of another project; among those that give one number, nothing says what it is."""
    for champion in HEADS[model_type]:
        folder = release(champion, model_type, recorded=False)
        if recipe == champion or {recipe, champion} <= {*ONE_NUMBER}:
            assert scored(folder, recipe), champion
            continue
        with pytest.raises(ModelError, match="cannot be scored") as error:
            scored(folder, recipe)
        assert "publish to another repository (publish.repo_id)" in error.value.fix, champion


def test_a_classifier_of_an_earlier_version_is_one_although_its_problem_type_says_otherwise(release: Any) -> None:
    """Earlier versions left the base model's; transformers' own say it rightly."""
    folder = release("sequence_classification", "llama", recorded=True)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"problem_type": "multi_label_classification"}))
    try:
        assert scored(folder, "sequence_classification").config.problem_type == "single_label_classification"
        release("sequence_classification", "llama", recorded=False)
        with pytest.raises(
            ModelError, match=r"problem_type in its config\.json is multi_label_classification, and not"
        ):
            scored(folder, "sequence_classification")
    finally:
        path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("names", "why"),
    [(["LABEL_0", "LABEL_1", "LABEL_2"], "its labels have no names"), (["score"], "it gives one number")],
)
def test_a_classifier_that_does_not_say_its_labels_is_refused(names: list[str], why: str, release: Any) -> None:
    folder = release("sequence_classification", "modernbert", recorded=False)
    other = folder.with_name(f"{folder.name}-{len(names)}")
    config = AutoConfig.from_pretrained(folder, id2label=dict(enumerate(names)), problem_type=None)
    objective, _ = built("sequence_classification")
    objective.model_class().from_config(config).save_pretrained(other)
    with pytest.raises(ModelError, match=why):
        load_champion(other, objective, STATE, CHAMPION)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 causes it
def test_adapters_for_another_task_are_refused(tmp_path: Path, release: Any) -> None:
    from peft import LoraConfig, get_peft_model

    folder = release("token_classification", "llama", recorded=False)
    objective, _ = built("token_classification")
    network = objective.model_class().from_pretrained(folder)
    get_peft_model(network, LoraConfig(task_type="TOKEN_CLS", target_modules=["q_proj"])).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert load_champion(tmp_path, objective, STATE, CHAMPION)
    with pytest.raises(ModelError, match="it is a TOKEN_CLS"):
        load_champion(tmp_path, built("sequence_classification")[0], STATE, CHAMPION)


def test_the_early_spelling_of_llama_is_the_same_architecture(release: Any) -> None:
    folder = release("sequence_classification", "llama", recorded=False)
    path = folder / "config.json"
    content = path.read_text()
    path.write_text(content.replace("LlamaFor", "LLaMAFor"))
    try:
        assert scored(folder, "sequence_classification")
    finally:
        path.write_text(content)
