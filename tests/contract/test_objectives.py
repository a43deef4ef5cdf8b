"""What every objective guarantees, tested on each module of trainer/objectives; new ones are found by themselves."""

from __future__ import annotations

import copy
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from params import RecipeError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import new_objectives
from tests.support.placed_weights import place_weights
from tests.support.project import ROOT
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics, MetricAccumulator
from trainer.model.network import load_trained_model
from trainer.objectives.bases.likelihood import Likelihood, compute_logits
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.metrics.metric import directions_in_training
from trainer.objectives.bases.rewards.generative import GenerativeObjective
from trainer.objectives.bases.texts.padding import token_column_names

MAX_LENGTH = 24
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class ObjectiveCase:
    """An objective with its examples encoded, and a tiny model with its head."""

    def __init__(self, name, options=None, rows=None):
        self.name = name
        self.objective = objectives.build_objective(ObjectiveChoice(name=name, **(options or {})))
        self.rows = [{"row_id": i, **row} for i, row in enumerate(rows or self.objective.example_rows)]
        texts = [self.objective.text(row) for row in self.rows]
        self.tokenizer = train_tokenizer(texts, TrainTokenizer(kind="train", vocab_size=280))
        self.objective.prepare_tokenizer(self.tokenizer)
        self.state = self.objective.collect_state(self.rows)
        self.examples = [e for examples, _ in self.encode(self.rows) for e in examples]
        self.objective.set_reference(self.model)

    def encode(self, rows, max_length=MAX_LENGTH):
        return self.objective.encode(rows, self.tokenizer, max_length, self.state)

    def model(self):
        torch.manual_seed(0)
        model_type = "llama" if self.objective.pipeline_tag == "text-generation" else "bert"
        model_type = "t5" if self.objective.has_target_text else model_type
        config = AutoConfig.for_model(
            model_type,
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            decoder_start_token_id=self.tokenizer.pad_token_id,
            num_decoder_layers=SMALL["num_hidden_layers"],
            **SMALL,
            **self.objective.model_config(self.state),
        )
        model = self.objective.model_class().from_config(config)
        self.objective.prepare_model(model, self.tokenizer, self.state, list(model.state_dict()))
        return model.eval()


@pytest.fixture(scope="module", params=[*objectives.objective_names(), *new_objectives.NAMES])
def case(request):
    """Those of the project, and those that a user might write."""
    with new_objectives.known():
        return ObjectiveCase(request.param)


def test_examples_have_every_column(case):
    assert len(case.objective.example_rows) >= 2
    for row in case.objective.example_rows:
        assert set(case.objective.columns()) <= set(row)


def test_sequences_respect_max_length_and_have_a_row_id(case):
    assert {e["row_id"] for e in case.examples} == {row["row_id"] for row in case.rows}
    for example in case.examples:
        for name in token_column_names(example):
            assert 1 < len(example[name]) <= MAX_LENGTH
            assert all(0 <= i < len(case.tokenizer) for i in example[name])
        if case.objective.has_target_text:
            assert 1 < len(example["labels"]) <= MAX_LENGTH
        elif isinstance(example.get("labels"), list) and isinstance(example["labels"][0], int):
            assert len(example["labels"]) == len(example["input_ids"])


@pytest.mark.parametrize("max_length", [6, MAX_LENGTH, 500])
def test_row_is_encoded_as_it_is_alone(case, max_length):
    """Whatever the batch, so that batches may be of any size."""
    together = case.encode([*case.rows, *reversed(case.rows)], max_length)
    alone = [encoded for row in case.rows for encoded in case.encode([row], max_length)]
    assert together == [*alone, *reversed(alone)]


def test_whole_row_is_not_truncated(case):
    assert not any(is_truncated for _, is_truncated in case.encode(case.rows, 500))


def test_padding_is_not_learned(case):
    batch = case.objective.collate(case.examples, case.tokenizer)
    for name in token_column_names(case.examples[0]):
        lengths = [len(e[name]) for e in case.examples]
        shape = (len(lengths), max(lengths))
        ids, mask = batch[name], batch[name.replace("input_ids", "attention_mask")]
        assert len(set(lengths)) > 1, "examples of different lengths are needed"
        assert ids.shape == mask.shape == shape
        assert ids.dtype == torch.long
        for i, (example, length) in enumerate(zip(case.examples, lengths, strict=True)):
            assert ids[i, :length].tolist() == example[name]
            assert ids[i, length:].eq(case.tokenizer.pad_token_id).all()
            assert mask[i].tolist() == [1] * length + [0] * (shape[1] - length)
    for i, example in enumerate(case.examples if "labels" in batch else ()):
        learned = example["labels"]
        if not isinstance(learned, list):
            assert batch["labels"][i] == torch.tensor(learned)
            continue
        assert batch["labels"].dtype == (torch.float32 if isinstance(learned[0], float) else torch.long)
        assert batch["labels"][i, : len(learned)].tolist() == learned
        assert batch["labels"][i, len(learned) :].eq(-100).all()


def scores(case, batch_size):
    model = case.model()
    for start in range(0, len(case.examples), batch_size):
        collated = case.objective.collate(case.examples[start : start + batch_size], case.tokenizer)
        batch = case.objective.prepare_inputs(model, collated)
        with torch.inference_mode():
            yield batch, case.objective.score_batch(model, batch, case.tokenizer)


def test_scores_are_finite_doubles(case):
    for batch, found in scores(case, 2):
        assert found.dtype == torch.float64
        assert found.isfinite().all()
        of_split = case.objective.scores_of_split(found.numpy(), case.state)
        assert of_split.shape == (len(batch["input_ids"]), len(case.objective.score_names(case.state)))
        assert np.isfinite(of_split).all()


def test_token_losses_sum_to_the_score(case):
    if not isinstance(case.objective, Likelihood):
        pytest.skip("it gives labels no probability")
    at, model = case.objective.score_names(case.state).index("nll"), case.model()
    for batch, found in scores(case, 3):
        with torch.inference_mode():
            losses = case.objective.losses(compute_logits(model, batch), batch["labels"])
        assert losses.shape == batch["labels"].shape
        assert losses.isfinite().any()
        total = losses.double().nan_to_num(0).reshape(len(losses), -1).sum(1)
        torch.testing.assert_close(total, found[:, at], rtol=1e-12, atol=0)


def test_learned_loss_is_the_metric_loss_however_a_batch_is_split(case):
    """So that what is trained and what is reported are the same value."""
    if "loss" not in case.objective.metrics:
        pytest.skip("it learns from completions that it has yet to generate")
    model, examples = case.model(), case.examples[: len(case.examples) // 2 * 2]
    accumulator = MetricAccumulator(case.objective, case.state)

    def batch(some):
        return case.objective.prepare_inputs(model, case.objective.collate(some, case.tokenizer))

    whole = batch(examples)
    items = case.objective.loss_items(whole)
    with torch.inference_mode():
        accumulator.update(case.objective.score_batch(model, whole, case.tokenizer))
        for parts in (1, 2):
            size = len(examples) // parts
            losses = [
                case.objective.batch_loss(
                    model, batch(examples[i : i + size]), MicroBatchShare(items, parts, 1, state=case.state)
                ).loss
                for i in range(0, len(examples), size)
            ]
            assert accumulator.compute()["loss"] == pytest.approx(float(sum(losses)), rel=1e-5)


@pytest.mark.parametrize("offset", [24, *(pytest.param(one, marks=pytest.mark.slow) for one in (8, 40, 56))])
def test_where_a_file_holds_the_weights_does_not_change_a_bit(case, tmp_path, offset):
    """Some kernels of MKL add in another order where a weight begins elsewhere; a copy is in new memory."""
    case.model().save_pretrained(tmp_path)
    place_weights(tmp_path / "model.safetensors", offset)
    loaded = load_trained_model(tmp_path, case.objective.model_class()).eval()
    assert {weight.data_ptr() % 64 for weight in loaded.state_dict().values()} == {0}
    assert bits_of_a_step(case, loaded) == bits_of_a_step(case, copy.deepcopy(loaded))


def bits_of_a_step(case, network):
    """The scores of all examples; where they have a loss, its value and gradients."""
    batch = case.objective.prepare_inputs(network, case.objective.collate(case.examples, case.tokenizer))
    with torch.inference_mode():
        found = [case.objective.score_batch(network, batch, case.tokenizer)]
    if "loss" in case.objective.metrics:
        share = MicroBatchShare(case.objective.loss_items(batch), 1, 1, state=case.state)
        loss = case.objective.batch_loss(network, batch, share).loss
        loss.backward()
        gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
        assert gradients
        found += [loss.detach(), *gradients]
    return [value.numpy().tobytes() for value in found]


def test_inputs_of_a_batch_are_prepared_once(case, monkeypatch):
    prepared, prepare = [], case.objective.prepare_inputs
    monkeypatch.setattr(
        case.objective, "prepare_inputs", lambda model, batch: prepared.append(0) or prepare(model, batch)
    )
    metrics = EvaluationMetrics(case.objective, state=case.state, tokenizer=case.tokenizer, metrics=None)
    batches = list(metrics.batches(case.model(), case.examples, batch_size=2))
    assert len(prepared) == len(batches)


def test_metrics_do_not_depend_on_the_batch_size(case):
    rows = torch.cat([found for _, found in scores(case, len(case.examples))])
    rows = rows.repeat(7, 1)[torch.randperm(7 * len(rows), generator=torch.Generator().manual_seed(1))]
    found = {}
    for size in (1, 2, 7, len(rows)):
        accumulator = MetricAccumulator(case.objective, case.state)
        for part in rows.split(size):
            accumulator.update(part)
        found[size] = accumulator.compute()
        assert found[size].keys() == directions_in_training(case.objective.metrics).keys()
        for name, value in found[size].items():
            assert value == pytest.approx(found[1][name], rel=1e-9), (size, name)


def test_objective_says_which_rows_are_right_or_that_it_cannot(case):
    """For `evaluation.suites`."""
    objective = case.objective
    metrics = EvaluationMetrics(objective, state=case.state, tokenizer=case.tokenizer, metrics=None)
    measured = [parts[0] for _, parts in metrics.batches(case.model(), case.examples, batch_size=2)]
    scores = objective.scores_of_split(torch.cat(measured).double().numpy(), case.state)
    columns = dict(zip(objective.score_names(case.state), scores.T, strict=True))
    right = objective.right_rows(columns)
    assert (right is not None) == objective.judges_rows
    if right is not None:
        assert (right.shape, right.dtype) == ((len(case.examples),), bool)


def test_nonfinite_loss_is_detected(case):
    rows = torch.cat([found for _, found in scores(case, 2)])
    for bad in (math.nan, math.inf):
        spoilt = rows.clone()
        spoilt[0, 0] = bad
        accumulator = MetricAccumulator(case.objective, case.state)
        accumulator.update(spoilt)
        name = "loss" if "loss" in case.objective.metrics else case.objective.score_names(case.state)[0]
        assert not math.isfinite(accumulator.compute()[name])


def test_input_of_a_row_is_its_columns_without_targets_and_options(case):
    """The gate counts how often held-out rows were used: corrected targets and another prompt form make no row a new one."""
    row, objective = case.rows[0], case.objective
    given = objective.input_text(row)
    changed = {name for name in objective.columns() if objective.input_text(row | {name: _edited(row[name])}) != given}
    assert changed, "a row with another input is another row"
    targets = {
        "label",
        "topics",
        "spans",
        "target",
        "completion",
        "chosen",
        "rejected",
        "answer",
        "answers",
        "similarity",
        "relevant",
        "positive",
        "liked",
        "vector",
    }
    assert not changed & targets
    forms = {"prefix": "do: ", "separator": " => ", "max_target_length": 5, "chat": False}
    options = {name: value for name, value in forms.items() if name in type(objective.options).model_fields}
    other = type(objective)(type(objective).options_class(**options))
    assert other.input_text(row) == given


def _edited(value):
    if isinstance(value, list):
        return [*value, value[-1] if value else {}]
    if isinstance(value, dict):
        return {name: _edited(own) for name, own in value.items()}
    return f"{value} edited" if isinstance(value, str) else value + 1


def test_only_the_turns_of_others_are_the_input_of_a_conversation():
    sft = objectives.build_objective(ObjectiveChoice(name="sft", messages_column="messages"))
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]
    corrected = [turns[0], {"role": "assistant", "content": "4"}]
    other = [{"role": "user", "content": "2 + 3?"}, turns[1]]
    assert sft.input_text({"messages": turns}) == sft.input_text({"messages": corrected})
    assert sft.input_text({"messages": turns}) != sft.input_text({"messages": other})


def test_slices_have_metrics_instead_of_those_that_need_all_rows(case):
    objective = case.objective
    instead = {name: metric.on_slices for name, metric in objective.metrics.items() if metric.on_slices}
    assert {*instead.values()} <= objective.metrics.keys() - instead


def test_metrics_have_directions_and_options_have_defaults(case):
    # what a model says is judged by rewards: there is no text whose likelihood would count; a loss of a batch is none of rows
    judged_otherwise = isinstance(case.objective, GenerativeObjective) or hasattr(case.objective, "global_loss")
    assert "loss" in case.objective.metrics or judged_otherwise
    assert {metric.best for metric in case.objective.metrics.values()} <= {"min", "max"}
    assert all(name == metric.name for name, metric in case.objective.metrics.items())
    assert type(case.objective).options_class() == case.objective.options
    if type(case.objective).__module__.partition(".")[0] == "trainer":  # else an installed package brings it
        assert type(case.objective).__module__ == f"trainer.objectives.{case.objective.__module__.split('.')[-1]}"


@pytest.mark.parametrize("name", ["causal_ml", "Objective", "__init__", "os", "..worker", ""])
def test_unknown_objective_is_refused(name):
    with pytest.raises(RecipeError, match="no objective"):
        objectives.import_objective_class(name)


TOY = '''
"""Count: a toy."""
from trainer.objectives.sequence_classification import Options
from trainer.objectives.causal_lm import CausalLM  # an objective of another module is not this one's
from trainer.objectives import Objective
from trainer.objectives.bases.metrics.metric import Metric, named, ratio

class Toy(Objective[Options]):
    """Learns nothing."""
    options_class = Options
    metrics = named(Metric("loss", "min", ratio("nll", "rows")))
    main_metric = "loss"
    def score_names(self, state): return ("nll",)
    pipeline_tag = "other"
    example_rows = ()
    def columns(self): return {}
    def text(self, row): return ""
    def encode(self, rows, tokenizer, max_length, state): return []
    def collate(self, examples, tokenizer): return {}
    def model_class(self): return None
    def score_batch(self, model, batch, tokenizer): return None
'''


def test_new_objective_needs_only_a_new_file(tmp_path):
    for package in ("params", "trainer"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "trainer" / "objectives" / "toy.py").write_text(TOY)
    code = (
        "from trainer import objectives; from params.schema import ObjectiveChoice; import sys; "
        "print(objectives.objective_names(), objectives.import_objective_class('toy').__name__, "
        "objectives.find_option_problems(ObjectiveChoice(name='toy', label_colum='x'))[0].fix, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = sorted([*objectives.objective_names(), "toy"])
    assert done.stdout == f"{names} Toy did you mean `label_column`? False\n"
