"""DPO: losses by hand and against TRL's, the reference model, micro-batches and resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import Trainer

from params import RecipeError
from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import in_process, preferences, releases
from tests.support.training import assert_same, metrics_log, run_train, run_train_with_kills
from trainer import objectives
from trainer.checkpoints.sealed import list_checkpoints
from trainer.data import tokens
from trainer.loop.preference_trainer import PRECOMPUTED
from trainer.objectives.bases.preferences.losses import completion_logprobs

SMOOTHED = {"robust": 0.1, "exo_pair": 0.01}
TYPES = ("sigmoid", "ipo", "hinge", "robust", "exo_pair", "apo_zero", "apo_down")


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="dpo", **options))


# beta is 0.5; the gains are 2 and -1 (chosen), -2 and 1 (rejected), so the margins are 2 and -1.
# sigma(2) = 0.880797, sigma(-1) = 0.268941, sigma(1) = 0.731059, sigma(0.5) = 0.622459
HAND = {
    "sigmoid": [-math.log(0.880797), -math.log(0.268941)],
    "ipo": [(2 / 4 + 2 / 2 - 1) ** 2, (-1 / 1 - 1 / 5 - 1) ** 2],
    "hinge": [0.0, 2.0],
    "apo_zero": [0.268941 + 0.268941, 0.622459 + 0.622459],
    "apo_down": [0.731059 + 0.119203, 0.377541 + 0.731059],
}


@pytest.mark.parametrize("kind", HAND)
def test_losses_by_hand(kind: str) -> None:
    gains = torch.tensor([[2.0, -1.0], [-2.0, 1.0]], dtype=torch.float64)
    found = objective(loss_type=kind, beta=0.5).losses(gains, torch.tensor([[4, 1], [2, 5]]))
    assert found.tolist() == pytest.approx(HAND[kind], abs=1e-5)


def test_label_smoothing_by_hand() -> None:
    gains, count = torch.tensor([[2.0], [-2.0]], dtype=torch.float64), torch.ones(2, 1)
    right, wrong = -math.log(0.880797), -math.log(0.119203)
    conservative = objective(beta=0.5, label_smoothing=0.2).losses(gains, count)
    assert float(conservative) == pytest.approx(0.8 * right + 0.2 * wrong, abs=1e-5)
    robust = objective(beta=0.5, label_smoothing=0.2, loss_type="robust").losses(gains, count)
    assert float(robust) == pytest.approx((0.8 * right - 0.2 * wrong) / 0.6, abs=1e-5)


def test_encode_shares_the_prompt_and_truncates_it_first() -> None:
    tokenizer = train_tokenizer(["x"], TrainTokenizer(kind="train", vocab_size=260))  # one token per byte
    end = tokenizer.eos_token_id

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    row = {"row_id": 7, "prompt": "abcd", "chosen": "xy", "rejected": "w"}
    (((whole,), _),) = objective(separator=":").encode([row], tokenizer, 20, {})
    assert whole["input_ids"] == [*ids("abcd:xy"), end]
    assert whole["labels"] == [-100] * 5 + [*ids("xy"), end]
    assert whole["rejected"] == [*ids("w"), end]
    (((shorter,), _),) = objective().encode([row], tokenizer, 5, {})
    assert shorter["input_ids"] == [*ids("cdxy"), end], "the beginning of the prompt is cut first"
    (((shortest,), _),) = objective().encode([{**row, "rejected": "vwxyz"}], tokenizer, 4, {})
    assert shortest["input_ids"] == [*ids("dxy"), end], "one token of the prompt remains"
    assert shortest["rejected"] == ids("vwx"), "then completions are cut"
    truncated = [objective().encode([row], tokenizer, length, {})[0].is_truncated for length in (6, 7)]
    assert truncated == [True, False]
    assert objective().encode([{**row, "rejected": "vwxyz"}], tokenizer, 9, {})[0].is_truncated

    batch = objective().collate([shorter, whole], tokenizer)
    assert batch["row_id"].tolist() == [7, 7]
    assert batch["rejected_input_ids"].tolist() == [[*ids("cdw"), end, end, end, end], [*ids("abcd:w"), end]]
    assert batch["rejected_attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0, 0], [1] * 7]
    assert batch["rejected_labels"].tolist() == [
        [-100] * 2 + [*ids("w"), end] + [-100] * 3,
        [-100] * 5 + [*ids("w"), end],
    ]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after two steps, and its job."""
    job = preferences.job(
        tmp_path_factory.mktemp("started"),
        {"training.max_steps": 2, "training.warmup_steps": 0, "training.learning_rate": 1e-3},
    )
    return in_process.trained(job), job


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@pytest.mark.parametrize("kind", TYPES)
def test_loss_and_gradients_match_trl(kind: str, started: Any, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    trainer, job = started
    smoothing = SMOOTHED.get(kind, 0.0)
    ours = objective(loss_type=kind, beta=0.3, label_smoothing=smoothing)
    ours.reference_logprobs = trainer.objective.reference_logprobs
    examples = [trainer.train_dataset[i] for i in range(4)]
    trained, tokenizer = trainer.accelerator.unwrap_model(trainer.model), tokens.read_tokenizer(job.tokens)
    trained.eval()
    trained.zero_grad()
    loss = ours.score_pairs(trained, ours.collate(examples, tokenizer))[0].mean()
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in trained.named_parameters()}
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3

    from trainer.model.network import build_model_to_train

    start = build_model_to_train(job.model, objective=ours, state={}, tokenizer=tokenizer, seed=job.seed)
    for name, network in (("start", start), ("trained", trained)):
        network.save_pretrained(tmp_path / name)
    rows = [
        {
            "prompt": tokenizer.decode([i for i, at in zip(e["input_ids"], e["labels"], strict=True) if at == -100]),
            "chosen": tokenizer.decode([i for i in e["labels"] if i != -100]),
            "rejected": tokenizer.decode(e["rejected"]),
        }
        for e in examples
    ]
    theirs = DPOTrainer(
        model=str(tmp_path / "trained"),
        ref_model=type(start).from_pretrained(tmp_path / "start"),
        args=DPOConfig(
            output_dir=str(tmp_path / "out"),
            loss_type=kind,
            beta=0.3,
            label_smoothing=smoothing,
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            per_device_train_batch_size=4,
            disable_dropout=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    batch = theirs.data_collator([theirs.train_dataset[i] for i in range(4)])
    assert int(batch["attention_mask"].sum()) == sum(
        2 * len(e["input_ids"]) + len(e["rejected"]) for e in examples
    ) - sum(len([i for i in e["labels"] if i != -100]) for e in examples)
    theirs.model.eval()
    expected = theirs.compute_loss(theirs.model, batch)
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    for name, weight in theirs.model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6)


# Plain SGD: Adam would amplify the rounding errors of zero gradients
STEPS = {"training.max_steps": 3, "training.optimizer": "sgd", "training.learning_rate": 0.1}
EXACT = STEPS | {"model.config.attention_dropout": 0.0, "training.global_batch_size": 4}
SPLITS = {
    "4 at once": {"launch.micro_batch_size": 4},
    "2 of 2": {"launch.micro_batch_size": 2},
    "4 of 1": {"launch.micro_batch_size": 1},
    "two processes": {"launch.micro_batch_size": 2, "launch.num_processes": 2},
}


def test_gradients_do_not_depend_on_the_micro_batch(tmp_path: Path) -> None:
    found = {}
    for name, changes in SPLITS.items():
        if name == "two processes":
            artifacts, recipe = preferences.tokenized(tmp_path / "two", EXACT | changes)
            run_train(artifacts, recipe)
            log, folder = metrics_log(artifacts), artifacts.checkpoint
        else:
            trainer = in_process.trained(preferences.job(tmp_path / name.replace(" ", "-"), EXACT | changes))
            log, folder = trainer.state.log_history, list_checkpoints(Path(trainer.args.output_dir))[0]
        losses = [(entry["loss"], entry["grad_norm"]) for entry in log if "loss" in entry]
        found[name] = losses, load_file(folder / "model.safetensors")
    golden, weights = found.pop("4 at once")
    assert golden[0][0] == pytest.approx(math.log(2), abs=1e-6)
    assert abs(golden[-1][0] - math.log(2)) > 1e-3
    for name, (losses, others) in found.items():
        for key, weight in weights.items():
            torch.testing.assert_close(others[key], weight, rtol=0, atol=1e-6, msg=f"{name}: {key}")
        for one, other in zip(golden, losses, strict=True):
            assert other[0] == pytest.approx(one[0], abs=1e-6), name
            assert other[1] == pytest.approx(one[1], rel=1e-5), name


LORA = {"model.lora": {"r": 4, "alpha": 8, "dropout": 0.1}}
KINDS = {"model": {}, "precomputed": {"objective.reference": "precomputed"}, "adapters": LORA}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_reference_is_the_start_model_without_dropout(changes: dict[str, Any], tmp_path: Path) -> None:
    job = preferences.job(tmp_path, {"training.max_steps": 4, **changes})
    trainer = in_process.trainer_of(job)
    batch = trainer.data_collator([trainer.eval_dataset[i] for i in range(3)])
    start = completion_logprobs(trainer.model.eval(), batch).detach()
    trainer.train()
    learned = trainer.model.train()
    torch.testing.assert_close(trainer.objective.reference_logprobs(batch), start, rtol=0, atol=1e-5)
    assert learned.training, "the reference leaves dropout on"
    assert (completion_logprobs(learned.eval(), batch) - start).abs().max() > 0.1


def test_reference_kinds_give_the_same_metrics(tmp_path: Path) -> None:
    """They differ by rounding only. Adapters train other weights and are compared with each other."""
    for kinds in (({}, {"objective.reference": "precomputed"}), (LORA, LORA | {"objective.reference": "precomputed"})):
        logs = []
        for i, changes in enumerate(kinds):
            job = preferences.job(tmp_path / f"{len(changes)}{i}", {"training.max_steps": 4, **changes})
            logs.append(in_process.trained(job).state.log_history)
        names = ("loss", "grad_norm", "eval_loss", "eval_chosen_reward", "eval_rejected_reward")
        for one, other in zip(*logs, strict=True):
            found = [{name: entry[name] for name in names if name in entry} for entry in (one, other)]
            assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-4)


def test_precomputed_logprobs_are_reused_by_later_starts(tmp_path: Path) -> None:
    job = preferences.job(tmp_path, {"objective.reference": "precomputed"}, stop_at_step=2)
    in_process.trained(job)
    path = job.folder / PRECOMPUTED
    known = json.loads(path.read_text())
    assert len(known) == preferences.SIZES["train"] + preferences.SIZES["validation"]
    path.write_text(json.dumps({row: [-1.0, -float(row)] for row in known}))
    again = job.model_copy(update={"checkpoint": list_checkpoints(job.folder)[0], "stop_at_step": 4})
    trainer = in_process.trained(again)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in (5, 3)])
    assert trainer.objective.reference_logprobs(batch).tolist() == [[-1.0, -1.0], [-5.0, -3.0]]
    with pytest.raises(RecipeError, match="row 70 is not among them"):
        trainer.objective.reference_logprobs(batch | {"row_id": torch.tensor([5, 70])})
    path.write_text("{")
    assert json.loads(path.read_text() + "}") == {}
    trainer = in_process.trained(again)
    assert json.loads(path.read_text()) == known, "a damaged file is computed again"


VARIANTS = KINDS | {"model, accumulation, by length": {"launch.micro_batch_size": 2, "training.group_by_length": True}}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(own, id=name, marks=pytest.mark.slow if name == "model" else ())  # one variant is of it
        for name, own in VARIANTS.items()
    ],
)
def test_stopped_run_ends_with_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {"training.max_steps": 6, "training.eval_steps": 3, **changes}
    golden = Path(in_process.trained(preferences.job(tmp_path / "golden", changes)).args.output_dir)
    job = preferences.job(tmp_path / "stopped", changes, stop_at_step=3)
    in_process.trained(job)
    (newest, *_) = list_checkpoints(job.folder)
    assert newest.name == "checkpoint-3"
    in_process.trained(job.model_copy(update={"checkpoint": newest, "stop_at_step": None}))
    names = {path.name for path in (golden / "checkpoint-6").iterdir()} - {"manifest.json", "trainer_state.json"}
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "position.json"} < names
    for name in names - {"training_args.bin", "identity.json", "README.md"}:
        one, other = ((folder / "checkpoint-6" / name).read_bytes() for folder in (golden, job.folder))
        assert one == other, name


@pytest.mark.slow
def test_two_killed_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    two = {"objective.reference": "precomputed", "launch.num_processes": 2, "launch.micro_batch_size": 2}
    golden, recipe = preferences.tokenized(tmp_path / "golden", {"training.max_steps": 6, **two})
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)


@pytest.mark.parametrize("kind", ["model", pytest.param("adapters", marks=pytest.mark.slow)])
def test_training_and_the_evaluate_stage_agree_on_metrics(tmp_path: Path, kind: str) -> None:
    artifacts, recipe = preferences.tokenized(tmp_path, {"evaluation.split": "validation", **KINDS[kind]})
    run_train(artifacts, recipe)
    evaluations = [entry for entry in metrics_log(artifacts) if "eval_loss" in entry]
    best = min(evaluations, key=lambda entry: entry["eval_loss"])
    report = releases.evaluate(artifacts, recipe)
    for name, value in report.model.items():
        assert value == pytest.approx(best[f"eval_{name}"], rel=1e-4, abs=1e-5), name
    assert report.model["reward_accuracy"] > 0.9
    assert report.model["reward_margin"] > 0.5
    assert report.untrained
    assert report.untrained["loss"] == pytest.approx(math.log(2), rel=1e-12)
    assert (report.untrained["reward_accuracy"], report.untrained["reward_margin"]) == (0.5, 0.0)


class DoubledLoss(Trainer):
    """Doubles the preference loss."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().compute_loss(*args, **kwargs)


def test_custom_trainer_may_change_the_loss(tmp_path: Path) -> None:
    first = {}
    for name, changes in {
        "own": {"training.trainer": "tests.unit.trainer.objectives.test_dpo:DoubledLoss"},
        "usual": {},
    }.items():
        first[name] = in_process.losses(in_process.trained(preferences.job(tmp_path / name, STEPS | changes)))[1]
    assert first["own"] == pytest.approx(2 * first["usual"], rel=1e-6)


MODEL = Model(config={"model_type": "llama"})
LAUNCH = Launch(micro_batch_size=4)
TRAINING = {"max_steps": 2, "global_batch_size": 4, "learning_rate": 1e-3, "eval_steps": 2, "save_steps": 2}
CONFLICTS = {
    "training.loss": ({}, {"loss": "trainer.losses:cross_entropy"}),
    "objective.label_smoothing": ({"loss_type": "hinge", "label_smoothing": 0.1}, {}),
    "objective.label_smoothing ": ({"loss_type": "exo_pair"}, {}),
    "training.arguments.label_smoothing_factor": ({}, {"arguments": {"label_smoothing_factor": 0.1}}),
    "training.arguments.include_num_input_tokens_seen": ({}, {"arguments": {"include_num_input_tokens_seen": "all"}}),
    "objective.prompt_column": ({"chat": True, "prompt_column": "{instruction} {input}"}, {}),
    "objective.reference": ({"reference": "precomputed"}, {"streaming": True}),
}


@pytest.mark.parametrize("key", CONFLICTS)
def test_conflicting_settings_are_refused(key: str) -> None:
    options, changes = CONFLICTS[key]
    found = objective(**options).conflicts(model=MODEL, training=Training(**(TRAINING | changes)), launch=LAUNCH)
    assert [".".join(problem.key) for problem in found] == [key.strip()]


def test_smoothing_of_the_trainer_is_said_to_be_an_option_here() -> None:
    training = Training(**TRAINING, arguments={"label_smoothing_factor": 0.1})
    (problem,) = objective().conflicts(model=MODEL, training=training, launch=LAUNCH)
    assert problem.fix == "set objective.label_smoothing instead"


def test_common_settings_have_no_conflict() -> None:
    training = Training(**TRAINING, streaming=True, arguments={"include_num_input_tokens_seen": "no"})
    assert not list(objective().conflicts(model=MODEL, training=training, launch=LAUNCH))


def test_pair_of_equal_completions_is_rejected() -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "b"}
    assert "same text" in (objective().reject_reason(row) or "")
    assert objective().reject_reason({**row, "rejected": "c"}) is None
