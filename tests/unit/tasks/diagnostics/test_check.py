"""`check` finds all mistakes in a recipe at once, in seconds, before anything is downloaded."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id
from transformers import T5Config

from params import DataError, RecipeError
from params.foundation.artifacts import Artifacts
from params.schema import Launch, Model, ObjectiveChoice, Recipe, Training
from params.sections.evaluation import Evaluation
from params.sections.rows import Tokenization, TrainTokenizer
from tasks.commands import main
from tasks.diagnostics import model_checks, source_checks
from tasks.diagnostics.check import _gate_problems, check, find_recipe_problems
from tasks.evaluation.report import Blessing
from tasks.hub_server.server import LocalHub
from tasks.recipes.loading import read_yaml_document
from tasks.stage_run import run_stage
from tasks.stages import save_report
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import base_models, forked, prompts, tiny
from tests.support.pretrained import POINTER, write_model
from tests.support.project import ROOT
from tests.support.settings_check import check_settings_in_this_process
from tests.support.signs_of_life import without_signs_of_life
from trainer import objectives
from trainer.loop import arguments
from trainer.model import config_check

UNPATCHED_START = config_check.start_transformers_settings_check


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A working directory with one CSV file."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    check_settings_in_this_process(monkeypatch)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("text,label\na fine text,good\nanother,bad\n")
    return tmp_path


def problems(changes=None, **sections):
    """Return the problems of the changed tiny recipe, by key."""
    document = read_yaml_document(tiny.write(Path("trial.yaml"), tiny.recipe(changes, **sections)))
    found = find_recipe_problems(document)
    assert len({p.key for p in found}) == len(found), "each problem is reported once"
    return {".".join(map(str, p.key)): f"{p.what}; {p.fix}" for p in found}


def test_a_hub_that_offline_mode_forbids_is_found_before_the_training(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert problems() == {}, "the local Hub needs no network"
    found = problems({"publish.endpoint": "https://huggingface.co"})
    assert found["publish.endpoint"].startswith("HF_HUB_OFFLINE forbids requests to it; unset HF_HUB_OFFLINE")


def test_tiny_recipe_is_sound():
    assert problems() == {}
    assert problems(**tiny.CLASSES) == {}


@pytest.mark.parametrize(("name", "instead"), [("macro_f1", "accuracy"), ("calibration_error", "loss")])
def test_floors_of_metrics_that_a_slice_cannot_have_are_refused(name, instead):
    def found(**gate):
        return problems({"evaluation.slices": ["label"], "evaluation.gate": gate}, **tiny.CLASSES)

    key, fix = (
        f"evaluation.gate.slice_floors.{name}",
        f"a slice has no {name}: it needs the rows of all labels; use {instead}",
    )
    assert found(slice_floors={name: 0.5, "accuracy": 0.5}) == {key: fix}
    assert found(metric=name, slice_margin=0.1) == {}, "slices have the other metric"


def test_floors_of_labels_need_an_objective_with_labels():
    changes = {"evaluation.gate": {"label_floors": {"recall": {"sees": 0.5}, "f1": 0.1}}}
    assert problems(changes, **tiny.CLASSES) == {}
    key, fix = "evaluation.gate.label_floors", "causal_lm has no results by label; remove this key, or use `floors`"
    assert problems(changes) == {key: fix}
    (found,) = problems({"evaluation.gate": {"label_floors": {"accuracy": 0.5}}}, **tiny.CLASSES).values()
    assert "'precision', 'recall' or 'f1'" in found


def test_a_margin_of_known_rows_needs_the_profile_of_the_rows():
    margin, key = {"evaluation.gate.known_margin": 0.1}, "evaluation.gate.known_margin"
    assert problems(margin) == {}
    (found,) = problems({**margin, "validation.drift": "off"}).items()
    assert (found[0], "`validation.drift: off` leaves out" in found[1]) == (key, True)
    (found,) = problems({**margin, "publish.private": False}).items()
    assert (found[0], "only with `validation.drift`" in found[1]) == (key, True)
    assert problems({**margin, "publish.private": False, "validation.drift": "report"}) == {}
    replay = {"training.replay": {}, "model.start": "champion"}
    assert problems({**replay, "validation.drift": "off"}) == {}  # its releases name their rows in a file of its own
    (found,) = problems({**replay, "publish.private": False}).items()
    assert (found[0], "only with `validation.drift`" in found[1]) == ("training.replay", True)
    assert problems({**replay, "publish.private": False, "validation.drift": "off"}) == {}


def model_folder(name, *files):
    folder = Path(name)
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("{}")
    return str(folder)


WRONG = {
    "objective": (
        {"objective.name": "causal_ln"},
        "objective.name",
        "no objective `causal_ln`; did you mean `causal_lm`?",
    ),
    "option": (
        {"objective.text_colunm": "text"},
        "objective.text_colunm",
        "no such key; did you mean `text_column`?",
    ),
    "option's type": (
        {"objective.packing": "often"},
        "objective.packing",
        "input should be a valid boolean, found 'often'; write a valid value (Fill training sequences",
    ),
    "column": (
        {"objective.text_column": "texts"},
        "objective",
        "the source has no column `texts`; did you mean `text`?",
    ),
    "column to group by": (
        {"data.group_by": ["labels"]},
        "data.group_by",
        "no column `labels`; did you mean `label`?",
    ),
    "file": ({"data.source.train": "data/none.csv"}, "data.source.train", "data/none.csv"),
    "module": (
        {"data.source": {"kind": "function", "function": "nowhere:rows"}},
        "data.source.function",
        "nowhere",
    ),
    "function": (
        {"data.source": {"kind": "function", "function": "params.python_documentation:documentatoin"}},
        "data.source.function",
        "documentatoin",
    ),
    "expectation": (
        {"validation.expectations": [{"type": "expect_column_values_to_be_uniqe", "column": "text"}]},
        "validation.expectations.0.type",
        "no expectation 'expect_column_values_to_be_uniqe'; did you mean `expect_column_values_to_be_unique`?",
    ),
    "model type": (
        {"model.config.model_type": "lama"},
        "model.config.model_type",
        "no model type 'lama'; did you mean `llama`?",
    ),
    "model setting": (
        {"model.config.hiden_size": 3},
        "model.config.hiden_size",
        "llama has no such setting; did you mean `hidden_size`?",
    ),
    "model value": ({"model.config.num_attention_heads": 3}, "model.config", "transformers rejects it"),
    "model value's type": ({"model.config.hidden_size": "big"}, "model.config", "transformers rejects it"),
    "positions": (
        {"model.config.max_position_embeddings": 16},
        "tokenization.max_length",
        "32 tokens exceed the model's 16 positions; use at most 16",
    ),
    "optimizer": (
        {"training.optimizer": "adamw_torsh"},
        "training.optimizer",
        "'adamw_torsh'; did you mean `adamw_torch`?",
    ),
    "scheduler": ({"training.lr_scheduler": "cosin"}, "training.lr_scheduler", "'cosin'; did you mean `cosine`?"),
    "unknown argument": (
        {"training.arguments": {"adam_beta": 0.9}},
        "training.arguments.adam_beta",
        "TrainingArguments has no such field; did you mean `adam_beta",
    ),
    "argument like one with its own key": (
        {"training.arguments": {"learning_rates": 0.9}},
        "training.arguments.learning_rates",
        "did you mean `training.learning_rate`?",
    ),
    "argument of another Trainer": (
        {"training.arguments": {"predict_with_generate": True}},
        "training.arguments.predict_with_generate",
        "has its own key in a recipe; set `objective.generate` instead",
    ),
    "refused argument": (
        {"training.arguments": {"output_dir": "x"}},
        "training.arguments.output_dir",
        "is set by the pipeline: a run's folder is named after everything that decides its weights; remove it",
    ),
    "hub argument": (
        {"training.arguments": {"hub_model_id": "x"}},
        "training.arguments.hub_model_id",
        "is set by the pipeline: the publish stage pushes, exactly once",
    ),
    "first-class argument": (
        {"training.arguments": {"lr_scheduler_type": "linear"}},
        "training.arguments.lr_scheduler_type",
        "has its own key in a recipe; set `training.lr_scheduler` instead",
    ),
    "argument's type": (
        {"training.arguments": {"adam_beta1": "high"}},
        "training.arguments.adam_beta1",
        "its type is float",
    ),
    "argument's bool": (
        {"training.arguments": {"logging_first_step": "no"}},
        "training.arguments.logging_first_step",
        "valid boolean, found 'no'; its type is bool",
    ),
    "argument's int": (
        {"training.arguments": {"ddp_timeout": "90"}},
        "training.arguments.ddp_timeout",
        "its type is int",
    ),
    "metric": (
        {"training.best_metric": "acuracy"},
        "training.best_metric",
        "causal_lm does not compute 'acuracy'; did you mean `token_accuracy`?",
    ),
    "batch": (
        {"launch.num_processes": 3},
        "launch.num_processes",
        "3 processes cannot share training.global_batch_size 8 evenly; use one of [1, 2, 4, 8] processes",
    ),
    "accelerate": ({"launch.accelerate_config": "fsdp.yaml"}, "launch.accelerate_config", "there is no file fsdp.yaml"),
    "gradient checkpointing that several processes cannot resume": (
        {"launch.num_processes": 2, "training.arguments": {"activation_checkpointing_kwargs": {"use_reentrant": True}}},
        "training.arguments.activation_checkpointing_kwargs",
        "cannot resume exactly on several processes; remove use_reentrant",
    ),
    "token": (
        {"publish.endpoint": "https://hub.example.org"},
        "publish.endpoint",
        "no token for https://hub.example.org",
    ),
    "endpoint": (
        {"publish.endpoint": "huggingface.co"},
        "publish.endpoint",
        "the endpoint is not an address of a Hub; correct the endpoint: write https://<host>",
    ),
    "model folder": ({"model": {"pretrained": "./nowhere"}}, "model.pretrained", "there is no folder ./nowhere"),
    "tokenizer folder": (
        {"tokenization.tokenizer": {"kind": "pretrained", "path": "./nowhere"}},
        "tokenization.tokenizer.path",
        "there is no folder ./nowhere",
    ),
}


@pytest.mark.parametrize(("changes", "key", "message"), WRONG.values(), ids=WRONG)
def test_wrong_recipe_has_exactly_this_problem(changes, key, message):
    found = problems(changes)
    assert list(found) == [key], found
    assert message in found[key]


@pytest.mark.parametrize("form", ["adapter", "both"])
def test_adapters_by_themselves_need_a_base_model_that_others_have(form):
    """All problems are reported together."""
    found = problems({"publish.adapter": form, "training.best_metric": "acuracy"})
    assert found.keys() == {"publish.adapter", "training.best_metric"}
    fix = "add `lora: {}` to the model, or remove publish.adapter"
    assert (
        found["publish.adapter"]
        == f"there are no adapters to publish: without `model.lora`, all weights are trained; {fix}"
    )
    found = problems({"publish.adapter": form, "model.lora": {}, "launch.accelerate_config": "params/none.yaml"})
    assert found.keys() == {"publish.adapter", "model.lora", "launch.accelerate_config"}
    assert "the adapters' base model has random weights" in found["publish.adapter"]
    base = model_folder("base", "config.json")
    found = problems({"publish.adapter": form}, model={"pretrained": base, "lora": {}})
    assert "the folder base, which nobody else can load; upload it to the Hub" in found["publish.adapter"]
    assert problems({"publish.adapter": "merged"}) == {}, "as `evergreen show` prints it"


def test_base_model_of_adapters_is_on_the_hub_that_they_go_to(tmp_path, monkeypatch, caplog):
    token = "hf_" + "1" * 40
    with LocalHub(tmp_path / "hub", tokens={token: "tests"}) as hub:
        base_models.use_hub(monkeypatch, hub.endpoint, token, tmp_path / "cache")
        api = HfApi(endpoint=hub.endpoint, token=token)
        base_models.upload(api, tmp_path / "llama")
        base_models.upload(api, tmp_path / "secret" / "llama", "secret", private=True)

        def found(base, start="base", **publish):
            changes = {"publish.adapter": "adapter"} | {f"publish.{key}": value for key, value in publish.items()}
            changes["model.start"] = start
            content = base_models.recipe("sft", changes, base=base)
            document = read_yaml_document(tiny.write(Path("trial.yaml"), content))
            return {".".join(map(str, p.key)): p.what for p in find_recipe_problems(document)}

        assert found("tests/llama") == {}
        assert found("tests/secret", private=True) == {}
        started = found(
            "tests/llama", repo_id="tests/llama", start="champion"
        )  # the published model has no adapters by themselves
        assert "holds its adapters merged" in started["publish.adapter"]
        assert found("tests/llama", start="champion") == {}  # none is published
        assert (
            "cannot be read there by everybody, and publish.private is false"
            in found("tests/secret")["publish.adapter"]
        )
        assert "tests/nothing, cannot be read" in found("tests/nothing", private=True)["publish.adapter"]
        assert "api/x" in found("api/x")["model.pretrained"]
        monkeypatch.delenv("HF_ENDPOINT")
        assert "tests/llama, cannot be read" in found("tests/llama")["publish.adapter"], "another Hub: the one in .hub"
    monkeypatch.setattr(model_checks, "_HUB_S", 0.1)
    monkeypatch.setenv("HF_ENDPOINT", api.endpoint)
    assert found("tests/llama") == {}, "it cannot be asked"
    assert "whether others can load tests/llama was not checked" in caplog.text


NAN, INFINITY = float("nan"), float("inf")
REPO_IDS = ["api/x", "Datasets/x", "models/x", "a/b--c", "a/b..c", "a/b.git", "a/b.", "a-/b", f"a/{'b' * 97}", "é/b"]
DATASET = {"kind": "hub", "revision": "0" * 40, "train": "a.jsonl"}
FAILS_LATER = [
    *(("publish.repo_id", repo_id, "publish.repo_id") for repo_id in (*REPO_IDS, "model", "a/b/c", "a/..", "a/b c")),
    *(("data.source", {**DATASET, "repo_id": repo_id}, "data.source.repo_id") for repo_id in REPO_IDS),
    *(("model", {"pretrained": repo_id}, "model.pretrained") for repo_id in ("api/x", "a/b--c", "a/b.git")),
    ("seed", 2**32, "seed"),
    ("evaluation.gate", {"floors": {"loss": NAN}}, "evaluation.gate.floors.loss"),
    ("evaluation.gate", {"slice_floors": {"loss": INFINITY}}, "evaluation.gate.slice_floors.loss"),
    ("evaluation.gate", {"gain": INFINITY}, "evaluation.gate.gain"),
    ("evaluation.gate", {"resamples": 10**9}, "evaluation.gate.resamples"),
    ("training.learning_rate", INFINITY, "training.learning_rate"),
    ("training.weight_decay", INFINITY, "training.weight_decay"),
    ("training.warmup_steps", INFINITY, "training.warmup_steps"),
    ("training.save_minutes", INFINITY, "training.save_minutes"),
    ("training.save_steps", 2**63, "training.save_steps"),
    ("tokenization.max_length", 2**63, "tokenization.max_length"),
    ("launch.num_processes", 2**20, "launch"),
    ("launch.dataloader_workers", 10**6, "launch.dataloader_workers"),
    ("launch.main_process_port", 65_536, "launch.main_process_port"),
    ("launch.grace_s", 1e300, "launch.grace_s"),
    ("publish.timeout_s", INFINITY, "publish.timeout_s"),
    ("publish.endpoint", "huggingface.co", "publish.endpoint"),
    ("publish.endpoint", "ftp://x", "publish.endpoint"),
    ("data.source", {**DATASET, "repo_id": "a/b", "endpoint": "huggingface.co"}, "data.source.endpoint"),
]


@pytest.mark.parametrize(("key", "value", "found_at"), FAILS_LATER, ids=lambda value: str(value)[:40])
def test_value_that_would_fail_hours_later_is_a_problem(key, value, found_at):
    assert list(problems({key: value})) == [found_at]


@pytest.mark.parametrize("repo_id", ["a/b", "Foo-BAR/foo.bar_123", "A1/b-c", f"{'a' * 96}/{'b' * 96}"])
def test_repo_id_that_the_client_accepts_is_sound(repo_id):
    validate_repo_id(repo_id)
    assert problems({"publish.repo_id": repo_id}) == {}


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("training.num_train_epochs", "set `training.epochs` instead"),
        ("training.bf16", "set `training.precision` instead"),
        ("training.per_device_eval_batch_size", "set `launch.eval_batch_size` instead"),
        ("training.per_device_train_batch_size", "remove it: it follows from training.global_batch_size"),
        ("training.output_dir", "remove it: a run's folder is named after"),
        ("training.adam_beta2", "write it as `training.arguments.adam_beta2`"),
        ("training.max_length", "did you mean `tokenization.max_length`?"),
        ("tokenization.epochs", "did you mean `training.epochs`?"),
        ("training.qqq", "keys here: epochs,"),
    ],
)
def test_a_key_that_belongs_elsewhere_says_where(key, fix):
    assert problems({key: 3})[key].startswith(f"no such key; {fix}")


def test_valid_arguments_of_training_arguments_are_accepted():
    values = {"adam_beta1": 1, "label_smoothing_factor": 0.1, "lr_scheduler_kwargs": {"num_cycles": 2}, "tf32": None}
    values |= {"report_to": ["none"], "debug": "underflow_overflow", "eval_delay": 3, "ddp_timeout": 90}
    assert problems({"training.arguments": values}) == {}


def test_missing_label_column_is_found():
    found = problems({"objective.label_column": "intent"}, **tiny.CLASSES)
    assert found == {
        "objective": "the source has no column `intent`; did you mean `text`?"
        "; the objective's `..._column` options name it"
    }


@pytest.mark.parametrize(
    ("warmup", "training", "is_said"),
    [
        (4, {"max_steps": 4}, True),
        (3, {"max_steps": 4}, False),
        (0.9, {"max_steps": 4}, False),
        (66, {"epochs": 2.0, "max_steps": ...}, True),
        (65, {"epochs": 2.0, "max_steps": ...}, False),
    ],
)
def test_warmup_that_outlasts_the_training_is_said(project, caplog, warmup, training, is_said):
    (project / "data/rows.csv").write_text("text,label\n" + "a fine text,good\nanother,bad\n" * 150)
    changes = {f"training.{name}": value for name, value in training.items()}
    assert problems({"training.warmup_steps": warmup, **changes}, **tiny.CLASSES) == {}
    assert ("ends before its learning rate is reached" in caplog.text) == is_said
    caplog.clear()
    if "epochs" in training:  # a row of running text can give several sequences
        problems({"training.warmup_steps": warmup, **changes})
        assert "learning rate is reached" not in caplog.text


@pytest.mark.parametrize(
    ("data", "is_said"),
    [
        ({}, True),
        ({"validation": "data/rows.csv"}, True),
        ({"validation": "data/rows.csv", "test": "data/rows.csv"}, False),
        ({"group_by": ["query"]}, False),
    ],
)
def test_splits_that_would_part_the_documents_of_a_query_are_said(project, caplog, data, is_said):
    (project / "data/rows.csv").write_text("query,document,relevance\na,b,1\na,c,0\n")
    changes = {f"data.{'' if name == 'group_by' else 'source.'}{name}": value for name, value in data.items()}
    changes |= {"training.best_metric": "ndcg_at_10"}
    assert problems(changes, objective={"name": "ranking"}, model=tiny.CLASSES["model"]) == {}
    assert ("set `data.group_by: [query]`" in caplog.text) == is_said


SYSTEM = {"name": "os:system", "arguments": {"command": "touch called"}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data.source": {"kind": "function", "function": SYSTEM["name"], "arguments": SYSTEM["arguments"]}}, None),
        ({"training.loss": SYSTEM}, None),
        ({"training.trainer": "subprocess:Popen"}, None),
        ({"training.callbacks": [SYSTEM]}, "training.callbacks.0"),
        ({"evaluation.metrics": {"function": SYSTEM, "directions": {}}}, "evaluation.metrics.function"),
        ({"evaluation.slices": [{"name": "x", "function": SYSTEM}]}, "evaluation.slices.0.function"),
    ],
)
def test_code_outside_of_the_project_is_refused(project, changes, key):
    found = problems(changes)
    name = key or {"data.source": "data.source.function"}.get(next(iter(changes)), next(iter(changes)))
    assert "is not in the project, and a recipe calls only the project's code; write a function" in found.pop(name)
    assert not found
    assert not Path("called").exists()


def test_reward_outside_of_the_project_is_refused(project):
    document = read_yaml_document(tiny.write(Path("trial.yaml"), prompts.recipe({**prompts.GRPO, "rewards": [SYSTEM]})))
    assert "`os` is not in the project" in str(find_recipe_problems(document))
    assert not Path("called").exists()


def test_stage_calls_no_code_outside_of_the_project(project, capsys):
    source = {"kind": "function", "function": SYSTEM["name"], "arguments": SYSTEM["arguments"]}
    tiny.write(Path("params/tiny.yaml"), tiny.recipe({"data.source": source}))
    assert main(["ingest", "params/tiny.yaml"]) == os.EX_CONFIG
    assert "data.source.function: os:system: `os` is not in the project" in capsys.readouterr().err
    assert not Path("called").exists()


def test_slow_code_does_not_stop_the_check(project, monkeypatch, caplog):
    (project / "slow_rows.py").write_text("import time\ndef rows():\n    time.sleep(20)\n    yield {'text': 'x'}\n")
    monkeypatch.syspath_prepend(project)
    monkeypatch.setattr("tasks.diagnostics.check.LIMIT_S", 0.5)
    monkeypatch.setattr("tasks.diagnostics.check._CHECKS", [source_checks.find_missing_columns])
    started = time.monotonic()
    assert problems({"data.source": {"kind": "function", "function": "slow_rows:rows"}}) == {}
    assert time.monotonic() - started < 15
    assert f"{project}/slow_rows.py:3 takes longer than 0.5 s" in caplog.text


def test_function_that_fails_is_a_problem_of_the_recipe(project, monkeypatch):
    (project / "broken_rows.py").write_text("def rows():\n    yield {'text': 1 / 0}\n")
    monkeypatch.syspath_prepend(project)
    found = problems({"data.source": {"kind": "function", "function": "broken_rows:rows"}})
    assert list(found) == ["data.source.function"]
    assert "division by zero" in found["data.source.function"]


def test_corpus_is_read_by_the_objective_and_watched(project):
    (project / "documents").mkdir()
    (project / "documents/all.jsonl").write_text('{"answers": "a"}')
    pairs = {"name": "embedding", "anchor_column": "text", "positive_column": "answer"}
    changes = {"data.corpus": "documents/all.jsonl", "training.best_metric": "ndcg_at_10"}
    assert "ranks no documents" in problems({"data.corpus": "documents/all.jsonl"})["data.corpus"]
    found = problems(changes, objective=pairs)["data.corpus"]
    assert "has no column `answer`; did you mean `answers`?; objective.document_column names it" in found
    found = problems(changes | {"data.corpus": "documents/none.jsonl"}, objective=pairs)
    assert any("none.jsonl" in one for key, one in found.items() if key.startswith("data.corpus"))


def test_suites_and_corrections_are_read_by_the_objective_and_watched(project):
    (project / "people").mkdir()
    (project / "people/rows.csv").write_text("text,lable\nhello,cat\n")
    classes = {"name": "sequence_classification"}
    suite = {"name": "greetings", "source": "people/rows.csv"}
    changes = {"evaluation.suites": [suite], "data.corrections": "people/rows.csv", "training.best_metric": "accuracy"}
    found = problems(changes, objective=classes)
    assert found["evaluation.suites.0.source"] == "has no column `label`; did you mean `lable`?"
    assert "needs label, or corrected_label; and row_hash, or text; it has text, lable" in found["data.corrections"]
    found = problems(changes)
    assert (
        "causal_lm does not say which rows are right; remove the suite; suites work with "
        in found["evaluation.suites.0"]
    )
    assert "rows of this objective have no label" in found["data.corrections"]
    suite |= {"source": "people/none.csv"}
    found = problems({**changes, "data.corrections": "people/none.csv"}, objective=classes)
    assert any("none.csv" in one for key, one in found.items() if key.startswith("evaluation.suites.0.source"))
    assert any("none.csv" in one for key, one in found.items() if key.startswith("data.corrections"))
    found = problems({**changes, "data.corrections": "people/none/*.csv"}, objective=classes)
    assert not [key for key in found if key.startswith("data.corrections")]


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        ({}, {"training.streaming": True}, "reads all rows before the first step"),
        ({"label_column": "label"}, {}, "has no effect beside label_column"),
    ],
)
def test_mined_negatives_that_cannot_be_are_refused(project, options, changes, said):
    objective = {"name": "embedding", "anchor_column": "text", "mined_negatives": 2} | options
    found = problems({"training.best_metric": "ndcg_at_10"} | changes, objective=objective)
    assert said in found["objective.mined_negatives"]


def test_pretrained_folders():
    pickles = model_folder("pickles", "config.json", "pytorch_model.bin")
    assert "only as pickle files" in problems({"model": {"pretrained": pickles}})["model.pretrained"]
    empty = model_folder("empty")
    assert "has no config.json" in problems({"model": {"pretrained": empty}})["model.pretrained"]
    adapters = model_folder("adapters", "adapter_config.json", "adapter_model.safetensors")
    assert "holds adapters, not a whole model" in problems({"model": {"pretrained": adapters}})["model.pretrained"]
    tokenizer = {"tokenization.tokenizer": {"kind": "pretrained", "path": empty}}
    assert "has no tokenizer.json" in problems(tokenizer)["tokenization.tokenizer.path"]
    good = model_folder("good", "config.json", "model.safetensors", "tokenizer.json")
    Path(good, "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    both = {"model": {"pretrained": good}, "tokenization.tokenizer": {"kind": "pretrained", "path": good}}
    assert problems(both) == {}
    assert problems({"model": {"pretrained": "owner/name"}}) == {}  # on the Hub, so not checked


def test_token_or_a_dry_run_satisfies_a_remote_hub(monkeypatch):
    remote = {"publish.endpoint": "https://hub.example.org"}
    assert problems(remote | {"publish.dry_run": True}) == {}
    assert "no token" in problems(remote | {"publish.dry_run": True, "launch.mirror": "last"})["publish.endpoint"]
    monkeypatch.setenv("HF_TOKEN", "token")
    assert "the user's token belongs to https://huggingface.co" in problems(remote)["publish.endpoint"]
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example.org")
    assert problems(remote) == {}
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", "https://other.example.org")
    assert "no token for https://other.example.org" in problems()["publish.endpoint"]


def test_all_problems_come_in_one_error_in_the_order_of_the_file():
    path = tiny.write(
        Path("trial.yaml"),
        tiny.recipe(
            {
                "data.source.train": "data/none.csv",
                "validation.expectations": [{"type": "expect_nothing"}],
                "tokenization.max_length": 64,
                "objective.packin": True,
                "model.config.max_position_embeddings": 48,
                "model.config.hiden_size": 32,
                "training.best_metric": "bleu",
                "training.optimizer": "adam",
                "training.arguments": {"push_to_hub": True, "adam_beta": 1},
                "launch.num_processes": 5,
                "publish.repo_i": "a/b",
            }
        ),
    )
    with pytest.raises(RecipeError) as caught:
        check(path)
    lines = caught.value.what.splitlines()[1:]
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(numbers)
    found = {line.split(": ")[1] for line in lines}
    assert found == {
        "data.source.train",
        "validation.expectations.0.type",
        "tokenization.max_length",
        "objective.packin",
        "model.config.hiden_size",
        "training.optimizer",
        "training.arguments.push_to_hub",
        "training.arguments.adam_beta",
        "launch.num_processes",
        "publish.repo_i",
    } | {"training.best_metric"}


def test_malformed_section_does_not_hide_the_problems_of_others():
    found = problems({"training.max_steps": "many", "model.config.hiden_size": 32, "objective.text_column": "texts"})
    assert set(found) == {"training.max_steps", "model.config.hiden_size", "objective"}


def list_recipe(project, name="trial", **changes):
    """Have dvc.yaml, and an item of a recipe in recipes.yaml."""
    item = {"data": "data", "objective": "trainer/objectives/causal_lm.py", "base": "trainer/rewards.py"}
    content = {"recipes": {name: item | {"code": "trainer/losses.py"} | changes}}
    (project / "recipes.yaml").write_text(json.dumps(content))
    shutil.copy(ROOT / "dvc.yaml", project / "dvc.yaml")


def listed_problems(project, changes=None):
    path = tiny.write(project / "params" / "trial.yaml", tiny.recipe({"evaluation.metrics": None, **(changes or {})}))
    return {".".join(map(str, p.key)): f"{p.what}; {p.fix}" for p in find_recipe_problems(read_yaml_document(path))}


def test_recipe_must_be_listed_with_its_data_and_objective(project):
    for data in ("data/rows.csv", "data"):
        list_recipe(project, data=data)
        assert listed_problems(project) == {}
    list_recipe(project, "other")
    assert "recipes.yaml has no base, code, data, objective for this recipe" in listed_problems(project)[""]
    list_recipe(project, objective="trainer/objectives/sequence_classification.py")
    found = listed_problems(project)
    assert list(found) == ["objective"]
    assert "write `objective: trainer/objectives/causal_lm.py` there" in found["objective"]
    list_recipe(project, data="data/other.csv")
    found = listed_problems(project)
    assert list(found) == ["data.source.train"]
    assert "does not contain data/rows.csv" in found["data.source.train"]


@pytest.mark.parametrize(
    ("key", "base", "problem"),
    [
        ("model.pretrained", "runs/other/model", None),
        ("model.pretrained", "runs/other", None),
        ("model.pretrained", "trainer/rewards.py", "set `base: runs/other/model` there"),
        ("tokenization.tokenizer.path", "runs/other/model", None),
        ("tokenization.tokenizer.path", "trainer/rewards.py", "set `base: runs/other/model` there"),
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_dvc_yaml_must_list_the_model_of_another_recipe(project, key, base, problem, is_here):
    if is_here:
        Path("runs/other/model").mkdir(parents=True)
    tiny.write(project / "params/other.yaml", tiny.recipe())
    list_recipe(project, base=base)
    changes = {"model": {"pretrained": "runs/other/model"}} if key.startswith("model") else {}
    changes |= {"tokenization.tokenizer": {"kind": "pretrained", "path": "runs/other/model"}}
    path = tiny.write(project / "params/trial.yaml", tiny.recipe(changes))
    found = {(".".join(map(str, p.key)), f"{p.what}; {p.fix}") for p in find_recipe_problems(read_yaml_document(path))}
    watched = [text for name, text in found if name == key and "recipes.yaml watches" in text]
    assert len(watched) == (1 if problem else 0)
    assert not problem or problem in watched[0]
    assert is_here or any("makes it: `evergreen run other --no-publish`" in text for _, text in found)


@pytest.mark.parametrize(
    ("base", "code", "is_watched"),
    [
        ("runs/answers/model", "trainer/losses.py", True),
        ("runs/other/model", "runs/answers/model", True),
        ("runs/other/model", "trainer/losses.py", False),
    ],
)
def test_dvc_yaml_must_list_the_reward_model_of_another_recipe(project, base, code, is_watched):
    list_recipe(project, base=base, code=code, objective="trainer/objectives/grpo.py")
    tiny.write(project / "params/answers.yaml", tiny.recipe())
    content = prompts.recipe({**prompts.GRPO, "rewards": [{"model": "runs/answers/model"}]})
    found = find_recipe_problems(read_yaml_document(tiny.write(project / "params/trial.yaml", content)))
    told = [f"{p.what}; {p.fix}" for p in found if p.key == ("objective", "rewards", 0, "model")]
    assert not told if is_watched else "or `code: runs/answers/model` if `base` is another model" in told[0]
    assert any("makes it: `evergreen run answers --no-publish`" in p.fix for p in found)


@pytest.mark.parametrize(("verdict", "is_said"), [("refuse", True), ("keep", True), ("publish", False)])
def test_base_model_that_was_not_published_is_named(project, caplog, verdict, is_said):
    write_model(project / "runs/other/model", "llama")
    fields = {"metric": "loss", "first_release": True, "model": "m", "data": "d", "recipe": "r", "champion": None}
    blessing = Blessing(verdict=verdict, reasons=("accuracy is 0.1, below the floor",), **fields)
    save_report(blessing, Artifacts("other").blessing)
    changes = {"tokenization.tokenizer": {"kind": "pretrained", "path": "runs/other/model"}}
    assert problems(changes, model={"pretrained": "runs/other/model"}) == {}
    said = f"runs/other/model: the last model of other that was evaluated was not published ({verdict}: accuracy is 0.1, below"
    assert sum(said in text for text in caplog.messages) == is_said


def test_pointer_of_git_lfs_is_no_model(project):
    (write_model(project / "base", "llama") / "tokenizer.json").write_text(POINTER)
    changes = {"model": {"pretrained": "base"}, "tokenization.tokenizer": {"kind": "pretrained", "path": "base"}}
    found = problems(changes)
    assert found.keys() == {"model.pretrained", "tokenization.tokenizer.path"}
    assert all("base: tokenizer.json is a git-lfs pointer" in text for text in found.values())
    assert all("run `git -C base lfs pull`" in text for text in found.values())


def test_recipe_cannot_start_from_its_own_model(project):
    list_recipe(project, base="runs/trial/model")
    path = tiny.write(project / "params/trial.yaml", tiny.recipe({"model": {"pretrained": "runs/trial/model"}}))
    (found,) = [p for p in find_recipe_problems(read_yaml_document(path)) if "is what this recipe makes" in p.what]
    assert found.key == ("model", "pretrained")


@pytest.mark.parametrize("entry", ["trial:", "trial: 3", "trial: {}", "trial: {data: data}", "[]", "trial"])
def test_malformed_item_is_a_problem(project, entry):
    (project / "recipes.yaml").write_text(f"recipes:\n  {entry}\n")
    (found,) = listed_problems(project).values()
    line = "data: ..., objective: trainer/objectives/causal_lm.py, base: trainer/rewards.py, code: trainer/losses.py"
    assert f"write `trial: {{{line}}}` under" in found


def test_default_recipe_is_sound(monkeypatch):
    monkeypatch.chdir(ROOT)
    check(Path("params/default.yaml"))


def cli(*command, **environment):
    return subprocess.run(
        [forked.python(), "-m", "tasks", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_exits_with_0_or_78_without_a_traceback(project, capsys):
    sound = tiny.write(project / "params" / "sound.yaml", tiny.recipe())
    done = cli("check", str(sound))
    said = without_signs_of_life(done.stderr)
    assert (done.returncode, done.stdout, said) == (0, f"check: {sound} is sound\n", "")
    wrong = tiny.write(project / "params" / "wrong.yaml", tiny.recipe({"training.best_metric": "bleu", "seed": -1}))
    assert main(["check", str(wrong)]) == os.EX_CONFIG == 78
    out, err = capsys.readouterr()
    assert "2 problems in the recipe" in err
    assert f"{wrong}:" in err
    assert "fix: " in err
    assert "Traceback" not in err + out


@pytest.mark.parametrize("stage", ["validate", "tokenize", "train", "evaluate", "publish", "trace"])
def test_stage_without_its_inputs_says_what_to_run_first(project, capsys, stage):
    path = tiny.write(project / "params" / "tiny.yaml", tiny.recipe())
    assert main([stage, str(path), *(["--row", "0"] if stage == "trace" else [])]) == os.EX_DATAERR
    assert "fix: run `evergreen " in capsys.readouterr().err


def test_stage_needs_only_its_own_inputs(project):
    """A clone that pulled only a stage's own dependencies can run it."""
    path = tiny.write(project / "params" / "tiny.yaml", tiny.recipe())
    for name in ("tokens", "validated/rows"):
        Path("runs/tiny", name).mkdir(parents=True)
    with pytest.raises(DataError, match="evaluate needs what train makes, and it is missing"):
        run_stage("evaluate", path)


def test_check_does_not_import_slow_libraries(project):
    path = tiny.write(project / "sound.yaml", tiny.recipe())
    code = (
        "import sys, json; from pathlib import Path; from tasks.diagnostics.check import check; check(Path(sys.argv[1])); "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"torch", "transformers", "great_expectations", "datasets", "prefect", "dvc", "fastapi"}
    assert not slow & set(json.loads(done.stdout))


def test_the_process_without_torch_knows_the_names_that_transformers_has_with_it():
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    wait = UNPATCHED_START({}, {"lr_scheduler": "?", "optimizer": "?"})
    found = {key: known for key, _, known in wait()}
    assert found == {
        ("training", "lr_scheduler"): [member.value for member in SchedulerType],
        ("training", "optimizer"): [member.value for member in OptimizerNames],
    }


def test_valid_settings_are_checked_once_by_each_version_of_transformers(tmp_path, monkeypatch):
    valid, started, start = tmp_path / "no folder yet" / "checked-settings", [], subprocess.Popen

    def count(*arguments, **options):
        started.append(arguments)
        return start(*arguments, **options)

    def check(optimizer):
        """Whether a process has looked at it, and whether it is valid."""
        started.clear()
        found = UNPATCHED_START({}, {"optimizer": optimizer}, valid)()
        return len(started), not found

    monkeypatch.setattr(subprocess, "Popen", count)
    assert [check("adamw_torch"), check("adamw_torch")] == [(1, True), (0, True)]
    assert [check("?"), check("adamw_torch")] == [(1, False), (0, True)]
    monkeypatch.setattr(config_check, "version", lambda _: "another")
    assert check("adamw_torch") == (1, True)


def test_every_training_argument_has_a_key_is_refused_or_is_passed_on():
    from transformers import Seq2SeqTrainingArguments, TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    theirs = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    own_keys, refused = set(arguments._OWN_KEYS), set(arguments._REFUSED)
    assert not own_keys & refused
    assert own_keys | refused <= theirs, "names that transformers no longer has"
    assert set(arguments.training_argument_types()) == known
    for name in known:
        (*_, problem) = arguments.find_argument_problems({name: object()}) or [None]
        assert problem is not None, f"{name} accepts anything"
    for key in arguments._OWN_KEYS.values():
        section, *field = key.split(".")
        assert field[:1] != ["arguments"] or field[1] in known - own_keys - refused
        assert section in Recipe.model_fields
        if field and section != "objective":
            assert field[0] in {"training": Training, "launch": Launch}[section].model_fields


def test_every_key_of_the_training_section_reaches_the_trainer():
    """A new key must be listed here if it is no argument of transformers."""
    ours = {"global_batch_size", "arguments", "early_stopping_patience", "resume", "save_minutes", "streaming"}
    ours |= {"callbacks", "loss", "trainer", "replay", "stay_close"}
    reached = {key.split(".")[1] for key in arguments._OWN_KEYS.values() if key.startswith("training.")}
    assert reached | ours == set(Training.model_fields)


def test_default_of_each_argument_is_accepted():
    """So that a recipe may set it explicitly."""
    from transformers import TrainingArguments

    not_ours = arguments.training_argument_types().keys() - arguments._OWN_KEYS.keys() - arguments._REFUSED.keys()
    for field in dataclasses.fields(TrainingArguments):
        is_passed_through = field.name in not_ours and not field.name.startswith("hub_")
        if is_passed_through and field.default is not dataclasses.MISSING:
            assert arguments.find_argument_problems({field.name: field.default}) == [], field.name


@pytest.mark.parametrize(
    ("objective", "kind"), [("question_answering", "convbert"), ("multiple_choice", "roformer")], ids=lambda one: one
)
def test_a_type_of_models_that_publish_would_refuse_is_refused_before_training(objective, kind):
    def problems(kind: str) -> list[str]:
        model, choice = Model(config={"model_type": kind}), ObjectiveChoice(name=objective)
        found = model_checks.find_unfit_model_problem(model, choice, objectives.build_objective(choice))
        return [one.what for one in found]

    (what,) = problems(kind)
    assert what.startswith(f"{kind} does not fit the objective {objective}: its ")
    assert problems("bert") == []


@pytest.mark.parametrize("objective", ["causal_lm", "sft", "dpo", "kto", "grpo", "iterative_sft"])
def test_a_model_that_sees_the_token_that_it_is_to_tell_is_refused_before_training(objective):
    def problems(**config: Any) -> list[str]:
        rewards = {"rewards": [{"name": "trainer.rewards:matches"}]} if objective in ("grpo", "iterative_sft") else {}
        method = objectives.build_objective(ObjectiveChoice(name=objective, **rewards))
        found = model_checks.find_model_that_reads_ahead(Model(config=config), method)
        return [".".join(map(str, one.key)) for one in found]

    assert problems(model_type="xlnet") == problems(model_type="cpmant") == ["model.config"]
    assert problems(model_type="bert", is_decoder=False) == ["model.config.is_decoder"]
    for kind in ("bert", "roberta", "llama", "gpt_neox", "bart"):
        assert problems(model_type=kind) == []
    tagger = objectives.build_objective(ObjectiveChoice(name="token_classification"))
    assert [*model_checks.find_model_that_reads_ahead(Model(config={"model_type": "xlnet"}), tagger)] == []


@pytest.mark.parametrize("path", ["data/rowss.csv", "/nowhere/rows.csv", "data/x*.csv"])
def test_a_path_where_nothing_is_is_one_problem(project: Path, path: str) -> None:
    """That recipes.yaml does not watch it follows from that."""
    item = "{data: data/rows.csv, objective: trainer/objectives/causal_lm.py, base: a, code: b}"
    (project / "recipes.yaml").write_text(f"recipes:\n  tiny: {item}\n")
    found = {}
    for source in ("data/rows.csv", path):
        recipe = tiny.recipe({"data.source.train": source})
        found[source] = find_recipe_problems(read_yaml_document(tiny.write(project / "params/tiny.yaml", recipe)))
    assert [one.what.partition(" in ")[0] for one in found[path]] == [f"{path}: no file matches"]
    (project / "data/xy.csv").write_text("text\na\n")
    (project / "recipes.yaml").write_text(f"recipes:\n  tiny: {item.replace('data/rows.csv', 'data/xy.csv')}\n")
    recipe = tiny.recipe({"data.source.train": "data/rows.csv"})
    (one,) = find_recipe_problems(read_yaml_document(tiny.write(project / "params/tiny.yaml", recipe)))
    assert "recipes.yaml watches data/xy.csv" in one.what


@pytest.mark.parametrize(
    "objective", ["sequence_classification", "multi_label_classification", "regression", "ranking", "reward"]
)
def test_a_head_that_reads_the_end_of_a_text_needs_a_tokenizer_that_marks_it(tmp_path: Path, objective: str) -> None:
    def problems(end: int, name: str = objective, **model: Any) -> list[str]:
        folder = tmp_path / str(end)
        own = train_tokenizer(["a b"], TrainTokenizer(kind="train", vocab_size=260, min_frequency=1))
        own.save_pretrained(folder)
        T5Config(eos_token_id=end, pad_token_id=2, vocab_size=len(own)).save_pretrained(folder)
        tokenizer = {"kind": "pretrained", "path": str(folder)}
        tokenization = Tokenization.model_validate({"tokenizer": tokenizer, "max_length": 32})
        chosen = Model.model_validate(model or {"pretrained": str(folder)})
        method = objectives.build_objective(ObjectiveChoice(name=name))
        found = model_checks.find_unmarked_ends_of_texts(chosen, tokenization, method)
        return [one.what for one in found]

    token = "the model's head reads a text at the end-of-text token (1 in its configuration)"
    assert problems(1) == [f"{token}, which the tokenizer does not add"]
    assert problems(1, "seq2seq") == []
    assert problems(1, config={"model_type": "bert"}) == []
    (padded,) = problems(1, config={"model_type": "t5"})
    assert padded.endswith("which pads texts, too"), "those of the tokenizer"


def test_the_gate_may_have_a_metric_that_the_options_bring() -> None:
    choice = ObjectiveChoice.model_validate({"name": "embedding", "positive_column": "b", "label_column": "c"})
    evaluation = Evaluation.model_validate({"gate": {"metric": "spearman"}})
    sections: dict[str, Any] = {"method": objectives.build_objective(choice)}
    assert list(_gate_problems(choice, evaluation, sections)) == []
    (unknown,) = _gate_problems(choice, evaluation, {})
    assert unknown.what == "unknown metric spearman"
