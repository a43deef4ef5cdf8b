"""Custom losses, Trainers, callbacks and metrics of a recipe: they are used, and the guarantees hold."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from params import ModelError, Recipe, RecipeError
from params.sections.base import Call
from params.sections.evaluation import OwnMetrics
from tests.support import releases, tiny
from tests.support.in_process import job, losses, trained, trainer_of
from tests.support.training import run_train, run_train_with_kills
from trainer.loop import extensions
from trainer.loop.metrics import EvaluationMetrics
from trainer.loop.trainer import EvergreenTrainer
from trainer.losses import cross_entropy
from trainer.objectives.bases.loss import BatchLoss
from trainer.objectives.causal_lm import CausalLM
from trainer.objectives.sequence_classification import SequenceClassification

OWN = "tests.support.own_code"
PLAIN = {
    "model.config.attention_dropout": 0.0,
    "training.arguments": {"optim_args": None},
    "training.optimizer": "sgd",
    "training.max_steps": 4,
    "training.max_grad_norm": 0.0,
    "training.learning_rate": 0.1,
    "training.warmup_steps": 0,
}


class Outputs:
    def __init__(self, logits):
        self.logits = logits


# training.loss


def test_cross_entropy_matches_torch():
    logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]])  # (1, 3, 3)
    labels = torch.tensor([[0, 2, -100]])
    options = {"smoothing": 0.1, "class_weights": [1.0, 2.0, 3.0]}
    expected = F.cross_entropy(
        logits[0, :2], labels[0, :2], weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1, reduction="sum"
    )
    assert cross_entropy(Outputs(logits), labels, 4, **options) == pytest.approx(float(expected) / 4)
    assert cross_entropy(Outputs(logits), labels, None, **options) == pytest.approx(float(expected) / 2)
    shifted = F.cross_entropy(logits[0, :1], labels[0, 1:2], reduction="sum")  # the first position predicts the second
    assert cross_entropy(Outputs(logits), labels, 1, next_token=True) == pytest.approx(float(shifted))


SMOOTHED = {"name": "trainer.losses:cross_entropy", "arguments": {"smoothing": 0.2, "next_token": True}}


def test_loss_gets_what_the_train_split_taught_if_it_asks(tmp_path):
    """Both that of a recipe and that of an objective; resumed and on several processes, it is read from the same file."""
    own = {"name": f"{OWN}:loss_of_known_labels", "arguments": {"factor": 2.0}}
    made = trainer_of(job(tmp_path, {"training.loss": own}, **tiny.CLASSES))
    labels, shares = made.model.config.id2label.values(), []
    assert made.compute_loss_func(Outputs(torch.zeros(2, 3)), torch.tensor([0, 1]), 2) == 2.0 * len(labels) > 0
    made.compute_loss_func = None
    made.objective.batch_loss = lambda model, batch, share: shares.append(share) or BatchLoss(torch.zeros(()))
    made.compute_loss(made.model, {}, num_items_in_batch=1.0)
    assert shares[0].state["labels"] == [*labels]


def test_custom_loss_is_trained_on(tmp_path):
    own = losses(trained(job(tmp_path / "own", PLAIN | {"training.loss": SMOOTHED})))
    usual = losses(trained(job(tmp_path / "usual", PLAIN)))
    # Both start near the uniform distribution, where smoothing changes little.
    assert own[1] == pytest.approx(usual[1], rel=0.05)
    assert own[4] != pytest.approx(usual[4], rel=1e-4)


@pytest.mark.parametrize(
    "loss", [SMOOTHED, {"name": "trainer.losses:cross_entropy", "arguments": {"next_token": True}}]
)
def test_custom_loss_gradient_does_not_depend_on_the_micro_batch(tmp_path, loss):
    """test_two_processes_agree_with_custom_loss_and_metrics tests two processes."""
    changes = PLAIN | {"training.loss": loss}
    weights = []
    for micro_batch in (8, 2, 1):
        made = job(tmp_path / str(micro_batch), changes | {"launch.micro_batch_size": micro_batch})
        weights.append(trained(made).model.state_dict())
    for other in weights[1:]:
        for name, value in weights[0].items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-6)


def test_mean_loss_per_micro_batch_does_depend_on_the_micro_batch(tmp_path):
    """The control of the test above."""
    changes = PLAIN | {"training.loss": f"{OWN}:mean_loss"}
    whole, split = (
        trained(job(tmp_path / str(n), changes | {"launch.micro_batch_size": n})).model.state_dict() for n in (8, 1)
    )
    assert max(float((whole[name] - split[name]).abs().max()) for name in whole) > 1e-3


def test_class_weights_change_what_a_classifier_learns(tmp_path):
    sections = {**tiny.CLASSES, "training": tiny.RECIPE["training"] | {"best_metric": "loss"}}
    weighted = {"name": "trainer.losses:cross_entropy", "arguments": {"class_weights": [100.0, 0.01, 0.01, 0.01]}}
    shares = {}
    for name, loss in (("weighted", weighted), ("plain", None)):
        made = job(tmp_path / name, {"training.loss": loss, "training.max_steps": 20}, **sections)
        trainer = trained(made)
        batch = next(iter(trainer.get_eval_dataloader()))
        logits = trainer.model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        shares[name] = logits.softmax(1)[:, 0].mean().item()
    assert shares["weighted"] > shares["plain"] + 0.05, "the first class is more probable"


def test_equal_class_weights_change_nothing_in_a_training(tmp_path):
    """The trainer divides by what the loss counts, over all micro-batches."""
    sections = {**tiny.CLASSES, "training": tiny.RECIPE["training"] | {"best_metric": "loss", "max_steps": 3}}
    weighted = {"name": "trainer.losses:cross_entropy", "arguments": {"class_weights": [5.0] * 4}}
    found = {}
    for name, loss, size in (("plain", None, 8), ("whole", weighted, 8), ("parts", weighted, 2)):
        changes = {"training.loss": loss, "launch.micro_batch_size": size, "training.logging_steps": 1}
        changes |= {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}
        history = trained(job(tmp_path / name, changes, **sections)).state.log_history
        found[name] = [entry[key] for entry in history if "grad_norm" in entry for key in ("loss", "grad_norm")]
    assert found["plain"]
    assert found["whole"] == pytest.approx(found["plain"], rel=1e-4)
    assert found["parts"] == pytest.approx(found["plain"], rel=2e-4)


@pytest.mark.parametrize("size", [6, 2, 1])
@pytest.mark.parametrize("next_token", [False, True])
def test_class_weights_divide_as_torch_does_however_a_global_batch_is_split(size, next_token):
    draw = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(6, 5, 3, generator=draw), torch.randint(0, 3, (6, 5), generator=draw)
    labels[2:, 3:] = -100
    weights = {"class_weights": [0.2, 1.0, 5.0], "smoothing": 0.1, "next_token": next_token}
    aligned = (logits[:, :-1], labels[:, 1:]) if next_token else (logits, labels)
    torchs = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights["class_weights"]), label_smoothing=0.1)
    expected = torchs(*(part.flatten(0, 1) for part in aligned))
    loss = extensions.import_loss_function(Call(name="trainer.losses:cross_entropy", arguments=weights))
    items = sum(loss.items(part) for part in labels.split(size))
    parts = zip(logits.split(size), labels.split(size), strict=True)
    assert float(sum(loss(Outputs(own), part, items) for own, part in parts)) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_wrong_number_of_class_weights_is_an_error():
    with pytest.raises(ModelError, match="has 2 class_weights for 3 classes"):
        cross_entropy(Outputs(torch.zeros(1, 3)), torch.tensor([0]), 1, class_weights=[1.0, 2.0])


# training.trainer


def test_custom_trainer_sets_loss_optimizer_schedule_and_rows(tmp_path):
    trainer = trained(job(tmp_path, {"training.trainer": f"{OWN}:Careful", "training.max_steps": 12}))
    assert isinstance(trainer, EvergreenTrainer)
    assert trainer.times == 12 * 2
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert trainer.lr_scheduler.get_last_lr() == [1e-2 * 0.5**6]
    drawn = [int(row) for epoch in (0, 1) for row in trainer.training_data.order.rows(epoch)]
    assert sum(row < 32 for row in drawn) / len(drawn) > 0.75  # of 64 rows; the default order gives 0.5


@pytest.mark.slow
def test_killed_run_with_a_custom_trainer_ends_with_the_same_bits(tmp_path):
    changes = {
        "training.trainer": f"{OWN}:Careful",
        "training.callbacks": [{"name": f"{OWN}:Counter", "arguments": {"start": 100}}],
        "objective.packing": False,
        "launch.micro_batch_size": 2,
        "training.max_steps": 40,
        "training.save_steps": 6,
        "training.eval_steps": 20,
    }
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:3")
    for name in ("model/model.safetensors", "checkpoint/optimizer.pt", "checkpoint/model.safetensors"):
        assert (killed.run / name).read_bytes() == (golden.run / name).read_bytes()
    state = json.loads((killed.checkpoint / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["Counter"]["attributes"] == {"count": 140}  # its state survived the kill


@pytest.mark.slow
def test_two_processes_agree_with_custom_loss_and_metrics(tmp_path):
    found = []
    for processes in (1, 2):
        changes = PLAIN | {
            "launch.num_processes": processes,
            "launch.micro_batch_size": 2,
            "launch.eval_batch_size": 7,
            "training.loss": SMOOTHED,
            "training.best_metric": "half",
            "evaluation.metrics": METRICS,
            "training.arguments": {"include_for_metrics": ["inputs", "loss"]},
        }
        artifacts, recipe = tiny.tokenized(tmp_path / str(processes), tiny.recipe(changes))
        run_train(artifacts, recipe)
        report = releases.evaluate(artifacts, recipe)
        lines = (artifacts.history / "validation.csv").read_text().splitlines()
        found.append([float(x) for line in lines[1:] for x in line.split(",")] + sorted(report.model.values()))
        assert "half" in lines[0]
        assert {"whole", "half"} < set(report.model)
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_custom_trainer_that_breaks_a_guarantee_is_refused():
    with pytest.raises(RecipeError) as caught:
        extensions.combine_trainer_class(training(trainer=f"{OWN}:OwnStep"), EvergreenTrainer)
    assert "overrides _save_checkpoint, training_step, on which" in caught.value.what
    assert "override only compute_loss" in caught.value.fix


def test_custom_trainer_with_its_own_batches_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="batches follow from the recipe"):
        trained(job(tmp_path, {"training.trainer": f"{OWN}:OwnBatches"}))


def test_custom_trainer_may_keep_the_row_order(tmp_path):
    trainer = trainer_of(job(tmp_path, {"training.trainer": f"{OWN}:InOrder"}))
    rows = [row for loaded in trainer.get_train_dataloader() for row in loaded["rows"]]
    assert rows == sorted(rows)
    assert len(rows) == 64


def test_loader_of_the_pipeline_is_not_sharded_twice(tmp_path):
    trainer = trainer_of(job(tmp_path))
    loader = trainer.get_train_dataloader()
    assert isinstance(loader, DataLoader)
    assert trainer.shard_dataloader(loader) is loader


def test_callback_may_stop_training(tmp_path):
    stops = {"name": f"{OWN}:StopsAt", "arguments": {"step": 5}}
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe({"training.callbacks": [stops]}))
    run_train(artifacts, recipe)
    assert json.loads((artifacts.history / "training.json").read_text())["steps"] == 5
    assert json.loads((artifacts.checkpoint / "trainer_state.json").read_text())["global_step"] == 5


# evaluation.metrics

METRICS = {"function": f"{OWN}:whole_sequences", "directions": {"whole": "max", "half": "max"}}


def test_best_weights_follow_a_custom_metric(tmp_path):
    """With reduced logits; it equals the objective's accuracy plus 1, so the best step is the same."""
    best = {}
    for name, changes in {
        "own": {
            "training.best_metric": "own_accuracy",
            "evaluation.metrics": {
                "function": {"name": f"{OWN}:accuracy", "arguments": {"offset": 1.0}},
                "preprocess_logits": f"{OWN}:last_token",
                "directions": {"own_accuracy": "max"},
            },
        },
        "usual": {"training.best_metric": "accuracy"},
    }.items():
        trainer = trained(job(tmp_path / name, {"training.eval_steps": 2} | changes, **tiny.CLASSES))
        best[name] = (trainer.state.best_global_step, trainer.state.best_metric)
    assert best["own"][0] == best["usual"][0] > 0
    assert best["own"][1] == pytest.approx(best["usual"][1] + 1.0)


@pytest.mark.parametrize(
    ("kind", "own", "metric"), [("NUMBERS", "mean_error", "mae"), ("CLASSES", "accuracy", "accuracy")]
)
def test_own_metric_is_the_built_in_one_in_training_and_in_evaluation(tmp_path, kind, own, metric):
    """tests/contract/test_own_metrics.py has all objectives, without a training."""
    metrics = {"function": f"{OWN}:{own}", "directions": {f"own_{metric}": "min"}}
    changes = {"training.max_steps": 4, "evaluation.metrics": metrics, "training.best_metric": f"own_{metric}"}
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe(changes, **getattr(tiny, kind)))
    run_train(artifacts, recipe)
    lines = (json.loads(line) for line in (artifacts.history / "metrics.jsonl").read_text().splitlines())
    found = [line for line in lines if f"eval_own_{metric}" in line]
    assert found
    for line in found:
        assert line[f"eval_own_{metric}"] == pytest.approx(line[f"eval_{metric}"], rel=1e-5)
    models = releases.evaluate(artifacts, recipe).metrics
    assert models.keys() == {"model", "untrained"}
    for values in models.values():
        assert values[f"own_{metric}"] == pytest.approx(values[metric], rel=1e-5)


def test_metric_inputs_are_moved_to_the_cpu_every_n_batches():
    metrics = Recipe.model_validate(tiny.recipe({"evaluation.metrics": METRICS})).evaluation.metrics
    evaluation = EvaluationMetrics(
        CausalLM(CausalLM.options_class()), state={}, tokenizer=None, metrics=metrics, to_cpu_every=2
    )
    batch = (torch.ones(2, 3), torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 5))
    moved = []
    for _ in range(3):
        evaluation.update(batch)
        moved.append(evaluation._measurements.tensors is None)
    assert moved == [False, True, False]
    assert evaluation.compute()["half"] == 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{OWN}:broken", "evaluation.metrics.function: raised ZeroDivisionError: no rows"),
        (f"{OWN}:accuracy", "evaluation.metrics.function: returns no 'whole', but ['own_accuracy']"),
        (f"{OWN}:looks_up_a_key", "evaluation.metrics.function: raised KeyError: 'recall'"),
        (f"{OWN}:one_number", "evaluation.metrics.function: returns 0.5, and not a value by the name of each metric"),
        (
            f"{OWN}:value_for_each_row",
            "evaluation.metrics.function: returns array([0., 0.], dtype=float32) for 'whole', which is not a",
        ),
    ],
)
def test_failing_metric_is_an_error_with_its_name(function, message):
    metrics = OwnMetrics.model_validate({"function": function, "directions": {"whole": "max"}})
    objective = SequenceClassification(SequenceClassification.options_class())
    evaluation = EvaluationMetrics(objective, state={"labels": ["a", "b"]}, tokenizer=None, metrics=metrics)
    evaluation.update((torch.ones(2, len(objective.score_names({}))), *[torch.zeros(2)] * 3))
    with pytest.raises(ModelError) as error:
        evaluation.compute()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("looks_up_a_key_of_two", "raised KeyError: 'recall'"),
        ("mean_of_batch", "returns a Tensor of shape () for 4 sequences"),
        ("two_outputs", "returns a tuple for 4 sequences"),
    ],
)
def test_failing_reduction_of_logits_is_an_error_with_its_name(tmp_path, function, message):
    metrics = METRICS | {"preprocess_logits": f"{OWN}:{function}"}
    with pytest.raises(ModelError) as error:
        trained(job(tmp_path, {"evaluation.metrics": metrics, "launch.eval_batch_size": 4}))
    assert str(error.value).startswith(f"evaluation.metrics.preprocess_logits: {message}")


# check


def training(**fields):
    return Recipe.model_validate(tiny.recipe({f"training.{k}": v for k, v in fields.items()})).training


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"training.loss": "trainer.losses:entropy"}, "training.loss", "has no `entropy`"),
        ({"training.loss": f"{OWN}:accuracy"}, "training.loss", "cannot be called with 3 values"),
        ({"training.loss": {"name": f"{OWN}:mean_loss", "arguments": {"x": 1}}}, "training.loss", "['x']"),
        ({"training.trainer": f"{OWN}:accuracy"}, "training.trainer", "is not a subclass of transformers.Trainer"),
        ({"training.trainer": f"{OWN}:OwnStep"}, "training.trainer", "on which the pipeline's guarantees depend"),
        (
            {"training.trainer": f"{OWN}:Careful", "training.loss": f"{OWN}:mean_loss"},
            "training.loss",
            "would never be called; remove one of the two",
        ),
        (
            {"training.callbacks": [f"{OWN}:Careful"]},
            "training.callbacks.0",
            "is not a subclass of transformers.TrainerCallback",
        ),
        ({"training.callbacks": [f"{OWN}:StopsAt"]}, "training.callbacks.0", "missing a required argument: 'step'"),
        (
            {"evaluation.metrics": {"function": f"{OWN}:nothing", "directions": {}}},
            "evaluation.metrics.function",
            "has no `nothing`",
        ),
        (
            {"evaluation.metrics": METRICS | {"preprocess_logits": f"{OWN}:accuracy", "directions": {"loss": "min"}}},
            "evaluation.metrics.directions.loss",
            "causal_lm already computes loss",
        ),
        (
            {"evaluation.metrics": METRICS | {"directions": {"whole": "max", "bits_per_byte": "max"}}},
            "evaluation.metrics.directions.bits_per_byte",  # the main metric, which evaluate alone computes
            "causal_lm already computes bits_per_byte",
        ),
        (
            {"evaluation.metrics": METRICS, "training.best_metric": "hole"},
            "training.best_metric",
            "did you mean `whole`?",
        ),
    ],
)
def test_check_reports_uncallable_and_conflicting_extensions(problems, changes, key, message):
    found = problems(changes)
    assert found.keys() == {key}
    assert message in found[key]


def test_check_refuses_own_metrics_of_an_objective_without_outputs(problems):
    generates = {"name": "grpo", "prompt": "{text}", "rewards": ["trainer.rewards:numeric_answer"]}
    found = problems({"objective": generates, "evaluation.metrics": METRICS, "training.best_metric": "whole"})
    what = "grpo scores the texts that the model generates, which have no labels; write it as a reward function"
    assert found["evaluation.metrics"].startswith(what)


def test_run_identity_includes_custom_code(tmp_path, monkeypatch):
    """A checkpoint trained with another loss is not resumed."""
    package = tmp_path / "own_losses.py"
    package.write_text("def loss(outputs, labels, items):\n    return outputs.logits.sum()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = job(tmp_path / "a", {"training.loss": "own_losses:loss"}).identity
    package.write_text("def loss(outputs, labels, items):\n    return outputs.logits.mean()\n")
    after = job(tmp_path / "a", {"training.loss": "own_losses:loss"}).identity
    assert {name for name in before if before[name] != after[name]} == {"code own_losses:loss"}
