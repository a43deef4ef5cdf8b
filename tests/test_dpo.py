"""Preferences: the losses by hand and against TRL's, the reference, and that neither batches nor resumes change anything."""

from __future__ import annotations

import csv
import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer

from params import KilledError, RecipeError
from params.artifacts import Artifacts
from params.schema import Launch, Model, ObjectiveChoice, Training, TrainTokenizer
from tasks.evaluation import evaluate
from tasks.tokenization import train_tokenizer
from tests import preferences, tiny
from tests.e2e.test_exact_resume import assert_same, run
from tests.features import in_process
from trainer import objectives, tokens
from trainer.checkpoints import all_checkpoints
from trainer.preference import AHEAD
from trainer.write_points import KILL_AT

SMOOTHED = {"robust": 0.1, "exo_pair": 0.01}
TYPES = ("sigmoid", "ipo", "hinge", "robust", "exo_pair", "apo_zero", "apo_down")


def objective(**options: Any) -> Any:
    return objectives.build(ObjectiveChoice(name="dpo", **options))


# By hand: beta 0.5; gains of the chosen completions 2 and -1, of the rejected ones -2 and 1; so margins are 2 and -1.
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


def test_both_completions_follow_the_same_tokens_and_the_prompt_gives_way() -> None:
    tokenizer = train_tokenizer(["x"], TrainTokenizer(kind="train", vocab_size=260))  # one token per byte
    end = tokenizer.eos_token_id

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    row = {"row_id": 7, "prompt": "abcd", "chosen": "xy", "rejected": "w"}
    (whole,) = objective(separator=":").encode(row, tokenizer, 20, {})
    assert whole["input_ids"] == [*ids("abcd:xy"), end]
    assert whole["labels"] == [-100] * 5 + [*ids("xy"), end]
    assert whole["rejected"] == [*ids("w"), end]
    (shorter,) = objective().encode(row, tokenizer, 5, {})
    assert shorter["input_ids"] == [*ids("cdxy"), end], "the beginning of the prompt goes first"
    (shortest,) = objective().encode({**row, "rejected": "vwxyz"}, tokenizer, 4, {})
    assert shortest["input_ids"] == [*ids("dxy"), end], "one token of the prompt stays"
    assert shortest["rejected"] == ids("vwx"), "then completions end earlier"
    tried = [objective().truncates(row, [], tokenizer, length) for length in (6, 7)]
    assert tried == [True, False]
    assert objective().truncates({**row, "rejected": "vwxyz"}, [], tokenizer, 9)

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
    """A trainer that has made two steps, and the folder of its tokens."""
    job = preferences.job(
        tmp_path_factory.mktemp("started"),
        {"training.max_steps": 2, "training.warmup_steps": 0, "training.learning_rate": 1e-3},
    )
    return in_process.trained(job), job


@pytest.mark.filterwarnings("ignore")  # TRL's own, of its experimental parts and of what transformers renamed
@pytest.mark.parametrize("kind", TYPES)
def test_loss_and_gradients_are_those_of_trl(kind: str, started: Any, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    trainer, job = started
    smoothing = SMOOTHED.get(kind, 0.0)
    ours = objective(loss_type=kind, beta=0.3, label_smoothing=smoothing)
    ours.reference = trainer.objective.reference
    examples = [trainer.train_dataset[i] for i in range(4)]
    trained, tokenizer = trainer.accelerator.unwrap_model(trainer.model), tokens.read_tokenizer(job.tokens)
    trained.eval()
    trained.zero_grad()
    loss = ours.preferences(trained, ours.collate(examples, tokenizer))[0].mean()
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in trained.named_parameters()}
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3

    from trainer import modeling

    start = modeling.initial_model(job.model, objective=ours, state={}, tokenizer=tokenizer, seed=job.seed)
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
