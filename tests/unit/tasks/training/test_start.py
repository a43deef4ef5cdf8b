"""A training starts from the published model: of every objective, with its head, its units and its tokens."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import transformers

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from params.schema import AdapterForm, Lora, Model, Replay
from params.sections.rows import TrainTokenizer
from tasks.publishing.assembly import copy_model_for_release
from tasks.stage_run import stage_arguments_from_recipe
from tasks.stages import read_report
from tasks.tokenization.stage import tokenize
from tasks.tokenization.tokenizers import train_tokenizer
from tasks.training.report import TrainingReport
from tasks.training.supervisor import TrainingTimeBudget
from tests.support import releases, tiny
from tests.support.pretrained import write_model
from tests.support.starts import RELEASE, pin
from tests.support.tiny_releases import KINDS, OWN_ROWS, SIZES
from tests.support.training import assert_same, curve, run_train, run_train_with_kills
from trainer import objectives
from trainer.data import tokens
from trainer.job import Job
from trainer.loop.metrics import EvaluationMetrics
from trainer.model import network
from trainer.model.start_model import check_start_fits, resolve_start
from trainer.objectives.bases.likelihood import without_labels

MORE = {**SIZES, "train": 90}
"""Rows of the second run."""


def write_rows(artifacts: Artifacts, kind: str, sizes: dict[str, int]) -> None:
    if kind in OWN_ROWS:
        tiny.write_rows(artifacts, **{split: OWN_ROWS[kind](count, split) for split, count in sizes.items()})
    else:
        tiny.write_sentences(artifacts, sizes, label_sets=kind == "multi_label_classification")


def start_from_release(
    root: Path,
    kind: str,
    steps: int | None = None,
    *,
    first: Mapping[str, Any] = MappingProxyType({}),
    form: AdapterForm = "both",
    **changes: Any,
) -> tuple[Artifacts, Recipe]:
    """A project that has published a model of a kind, and has new rows; its recipe starts from the model."""
    usual, sections = KINDS[kind]
    content = tiny.recipe({"tokenization.max_length": 64, **first}, **sections)
    recipe = tiny.load(tiny.write(root / "params" / "tiny.yaml", content))
    artifacts = Artifacts("tiny", root)
    write_rows(artifacts, kind, SIZES)
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    releases.learn(artifacts, recipe, usual if steps is None else steps)
    copy_model_for_release(artifacts, form, root / "release", limit=64)
    pin(artifacts, root / "release")
    write_rows(artifacts, kind, MORE)
    started = tiny.load(
        tiny.write(artifacts.recipe_path, tiny.changed(content, {"model.start": "champion", **changes}))
    )
    return artifacts, started


QUICK = {"sequence_classification", "regression"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k in QUICK else pytest.mark.slow) for k in KINDS])
def test_training_starts_with_the_answers_of_the_published_model(tmp_path: Path, kind: str) -> None:
    artifacts, recipe = start_from_release(tmp_path, kind)
    if kind == "regression":  # numbers of another mean and deviation
        splits = {
            split: {"text": tiny.sentences(count), "label": tiny.sentences(count, 1)} for split, count in MORE.items()
        }
        tiny.write_rows(
            artifacts,
            **{
                split: {**rows, "number": [3000.5 + i % 7 * 900 for i in range(len(rows["text"]))]}
                for split, rows in splits.items()
            },
        )
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    job, objective = Job.of(recipe, artifacts), objectives.build_objective(recipe.objective)
    state, tokenizer = tokens.read_objective_state(artifacts.tokens), tokens.read_tokenizer(artifacts.tokens)
    assert job.start is not None
    parts: dict[str, Any] = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": 1}
    start = network.build_model_to_train(resolve_start(job.start, job.model)[0], **parts).eval()
    published = objective.remap_labels(network.load_trained_model(job.start, objective.model_class()), state)
    objective.set_reference(lambda: network.build_untrained_model(recipe.model, **parts))
    before, now = (metrics_of(one, objective, state, tokenizer, artifacts) for one in (published, start))
    assert now == pytest.approx(before, rel=1e-4, abs=1e-6)
    untrained = network.build_untrained_model(recipe.model, **parts)
    if KINDS[kind][0] and kind != "question_answering":
        assert metrics_of(untrained, objective, state, tokenizer, artifacts) != pytest.approx(before, rel=1e-4)


def metrics_of(model: Any, objective: Any, state: Any, tokenizer: Any, artifacts: Artifacts) -> dict[str, float]:
    metrics = EvaluationMetrics(objective, state=state, tokenizer=tokenizer, metrics=None)
    for _, parts in metrics.batches(model, tokens.read_split(artifacts.tokens, "validation"), batch_size=4):
        metrics.update(parts)
    return dict(metrics.compute())


@pytest.mark.parametrize(("form", "now"), [("merged", ["b", "a"]), ("merged", ["b"]), ("adapter", ["a", "c", "b"])])
def test_numbers_keep_their_units_in_another_order_and_beside_new_ones(
    tmp_path: Path, form: AdapterForm, now: list[str]
) -> None:
    base = write_model(tmp_path / "base", "bert")
    artifacts = Artifacts("tiny", tmp_path)
    values = {
        "a": [3000.0 + i % 7 * 900 for i in range(60)],
        "b": [i % 5 / 10 for i in range(60)],
        "c": [5e4 + i for i in range(60)],
    }
    tiny.write_rows(artifacts, **{split: {"text": tiny.sentences(60, len(split)), **values} for split in SIZES})
    content = tiny.recipe(
        {
            "objective": {"name": "regression", "label_column": ["a", "b"]},
            "model": {"pretrained": str(base)} | ({"lora": {"r": 4, "alpha": 8}} if form == "adapter" else {}),
            "tokenization.tokenizer": {"kind": "pretrained", "path": str(base)},
        },
    )
    recipe = tiny.load(tiny.write(artifacts.recipe_path, content))
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    releases.learn(artifacts, recipe, 20)
    copy_model_for_release(artifacts, form, tmp_path / "release", limit=64)
    start = pin(artifacts, tmp_path / "release")
    changes = {"model.start": "champion", "objective.label_column": now}
    recipe = tiny.load(tiny.write(artifacts.recipe_path, tiny.changed(content, changes)))
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    objective, tokenizer = objectives.build_objective(recipe.objective), tokens.read_tokenizer(artifacts.tokens)
    state = tokens.read_objective_state(artifacts.tokens)
    initial, adapter = resolve_start(start, recipe.model)
    model, _ = network.build_model_and_name_new_weights(
        initial, objective=objective, state=state, tokenizer=tokenizer, seed=1, adapter=adapter
    )
    published = network.load_trained_model(start, objective.model_class())
    sequences = tokens.read_split(artifacts.tokens, "validation")
    batch = without_labels(objective.collate([sequences[i] for i in range(4)], tokenizer))
    with torch.no_grad():
        before, answers = (one.eval()(**batch).logits for one in (published, model))
    for place, name in enumerate(now):
        if name == "c":  # what is new begins near the mean
            assert (answers[:, place] - 5e4).abs().max() < 100
        else:
            torch.testing.assert_close(answers[:, place].float(), before[:, "ab".index(name)], rtol=1e-3, atol=1e-3)


def test_the_reference_of_preferences_has_the_adapters_that_go_on(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "llama")
    artifacts, recipe = start_from_release(
        tmp_path,
        "dpo",
        3,
        first={
            "model": {"pretrained": str(base), "lora": {"r": 4, "alpha": 8}},
            "tokenization.tokenizer": {"kind": "pretrained", "path": str(base)},
            "training.max_steps": 4,
        },
    )
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    run_train(artifacts, recipe)
    first, *_, last = (one["loss"] for one in curve(artifacts, "validation"))
    assert first == pytest.approx(math.log(2))  # as if no answer had become likelier yet
    assert last < first


LORA = {"causal_lm": "llama", "sequence_classification": "bert", "regression": "bert", "seq2seq": "t5"}


@pytest.mark.parametrize("form", ["merged", "adapter", "both"])
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == "regression" else pytest.mark.slow) for k in LORA])
def test_adapters_go_on_or_begin_on_the_merged_model(tmp_path: Path, kind: str, form: str) -> None:
    base = write_model(tmp_path / "base", LORA[kind])
    artifacts, recipe = start_from_release(
        tmp_path,
        kind,
        3,
        first={
            "model": {"pretrained": str(base), "lora": {"r": 4, "alpha": 8}},
            "tokenization.tokenizer": {"kind": "pretrained", "path": str(base)},
        },
        form=form,
    )
    labels = {"sequence_classification": "label"}.get(kind)
    if labels:  # one more label than the release knows
        rows = {
            "text": [*tiny.sentences(80), *["The owl sees."] * 10],
            labels: [t.split()[1] for t in tiny.sentences(80)] + ["owl"] * 10,
        }
        held_out = {"text": tiny.sentences(8, 5), labels: [t.split()[1] for t in tiny.sentences(8, 5)]}
        tiny.write_rows(artifacts, train=rows, validation=held_out, test=held_out)
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    job, objective = Job.of(recipe, artifacts), objectives.build_objective(recipe.objective)
    state, tokenizer = tokens.read_objective_state(artifacts.tokens), tokens.read_tokenizer(artifacts.tokens)
    assert job.start is not None
    initial, adapter = resolve_start(job.start, job.model)
    check_start_fits(job.start, job.model)
    parts: dict[str, Any] = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": 1}
    start, _ = network.build_model_and_name_new_weights(initial, **parts, adapter=adapter)
    trained = {name for name, one in start.named_parameters() if one.requires_grad}
    assert any("lora_B" in name for name in trained)
    moved = any(one.abs().max() > 0 for name, one in start.named_parameters() if "lora_B" in name)
    assert moved is (form != "merged")  # those of the release, or new ones
    published = objective.remap_labels(network.load_trained_model(artifacts.model, objective.model_class()), state)
    before, now = (metrics_of(one, objective, state, tokenizer, artifacts) for one in (published, start.eval()))
    if not labels:  # a new label is never predicted by the release
        assert now == pytest.approx(before, rel=1e-3, abs=1e-5)
    assert now["loss"] == pytest.approx(before["loss"], rel=0.5)
    if form == "adapter" and kind == "regression":
        report = run_train(artifacts, recipe)
        assert report.started_from == RELEASE
        assert (artifacts.adapter / "adapter_config.json").exists()
        other = recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": Lora(r=8, alpha=8)})})
        with pytest.raises(ModelError, match=r"model.lora.r: is 8, and 4 in the published adapters"):
            network.build_model_and_name_new_weights(other.model, **parts, adapter=adapter)


def test_other_architecture_and_other_tokens_are_refused(tmp_path: Path) -> None:
    artifacts, recipe = start_from_release(tmp_path, "sequence_classification", 1, **{"model.config.hidden_size": 64})
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    with pytest.raises(ModelError, match="hidden_size 32, and the recipe's model 64"):
        check_start_fits(artifacts.start / "model", recipe.model)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hidden_size": 64}, "hidden_size 32, and the recipe's model 64"),  # which is called n_embd in its config.json
        ({"n_layer": 2}, "n_layer 1, and the recipe's model 2"),
        ({"scale_attn_weights": False}, "scale_attn_weights True, and the recipe's model False"),
        ({"hidden_size": 32, "n_layer": 1}, ""),
    ],
)
def test_a_change_of_the_architecture_is_found_by_any_name(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    usual = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}
    transformers.AutoConfig.for_model(**usual).save_pretrained(tmp_path)
    model = Model(
        config={key: value for key, value in usual.items() if key != "n_embd" or not given.get("hidden_size")} | given
    )
    with pytest.raises(ModelError, match=told) if told else contextlib.nullcontext():
        check_start_fits(tmp_path, model)


def test_parts_of_a_configuration_are_compared(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    config = tiny.RECIPE["model"]["config"]
    transformers.AutoConfig.for_model(**config, rope_parameters=rope).save_pretrained(tmp_path)
    check_start_fits(tmp_path, Model(config={**config, "rope_parameters": rope}))
    check_start_fits(tmp_path, Model(config={**config, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}))
    with pytest.raises(ModelError, match=r"rope_parameters \{.*4.0.*\}, and the recipe's model \{.*8.0"):
        check_start_fits(tmp_path, Model(config={**config, "rope_parameters": {**rope, "factor": 8.0}}))


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    artifacts, recipe = start_from_release(tmp_path / "one", "sequence_classification", 0)
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    own = [(folder / "tokenizer.json").read_bytes() for folder in (artifacts.start / "model", artifacts.tokenizer)]
    assert own[0] == own[1]  # a tokenizer that is trained is that of the published model, whatever the new rows are
    other = tmp_path / "other"
    train_tokenizer(["other words make other tokens"], TrainTokenizer(kind="train", vocab_size=270)).save_pretrained(
        other
    )
    named = {"kind": "pretrained", "path": str(other)}
    recipe = tiny.load(
        tiny.write(
            artifacts.recipe_path,
            tiny.recipe({"model.start": "champion", "tokenization.tokenizer": named}, **tiny.CLASSES),
        )
    )
    with pytest.raises(ModelError, match="gives other tokens than that of the published model"):
        tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))


def test_both_starts_are_trained_and_the_better_one_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each start is an ordinary run: killed in both of them, the training ends with the same weights."""
    changes = {"model.start": "best", "training.max_steps": 6, "training.learning_rate": 1e-3}
    changes |= {"training.replay": {"known": 0.5}, "training.stay_close": 1e-3}
    artifacts, recipe = start_from_release(tmp_path / "golden", "sequence_classification", **changes)
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    with caplog.at_level("INFO"):
        killed = run_train_with_kills(artifacts, recipe, "checkpoint.renamed:2", "checkpoint.renamed:3")
    assert_same(artifacts, killed)
    report = read_report(artifacts, TrainingReport)
    assert report == read_report(killed, TrainingReport)
    jobs = Job.arms_of(recipe, artifacts)
    assert [job.start is not None for job in jobs] == [True, False]
    assert report.arms["champion"] > report.arms["base"] + 0.2
    assert (report.best_value, report.started_from) == (report.arms["champion"], RELEASE)
    assert report.run == jobs[0].folder.name
    assert f"from {RELEASE.name}; step" in report.summary
    training = recipe.training.model_copy(update={"replay": Replay()})
    jobs = Job.arms_of(recipe.model_copy(update={"training": training}), artifacts)
    assert [bool(job.training.replay) for job in jobs] == [True, False], "no row is known to the recipe's own model"


def test_start_arms_share_the_budget(tmp_path: Path) -> None:
    budget = {"launch.max_hours": 1.0}
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe(budget))
    job = Job.of(recipe, artifacts)
    job.folder.mkdir(parents=True)
    assert not TrainingTimeBudget(job, [tmp_path]).is_spent
    (tmp_path / "seconds").write_text("3600.0\n")
    assert TrainingTimeBudget(job, [tmp_path]).is_spent
