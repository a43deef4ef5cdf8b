"""Reward models: losses by hand and against TRL's, texts as they are read, metrics, micro-batches and resumes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import binary_calibration_error

from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import in_process, preferences
from tests.support.training import assert_same, run_train_with_kills
from trainer import objectives
from trainer.data import tokens


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="reward", **options))


def byte_tokenizer() -> Any:
    return train_tokenizer(["x"], TrainTokenizer(kind="train", vocab_size=260))


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
CHAT += "{% if add_generation_prompt %}<assistant>{% endif %}"


class Fixed(torch.nn.Module):
    """A model that gives each text its number of tokens as its reward."""

    config = type("Config", (), {"pad_token_id": 0})

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return type("Outputs", (), {"logits": attention_mask.sum(1, keepdim=True).float()})


def test_losses_by_hand() -> None:
    """Rewards are 3 and 1, then 1 and 2."""
    examples: list[dict[str, Any]] = [
        {"row_id": 0, "input_ids": [5, 6, 7], "rejected_input_ids": [5], "margin": 0.0},
        {"row_id": 1, "input_ids": [5], "rejected_input_ids": [5, 6], "margin": 0.5},
    ]
    batch = objective().collate(examples, byte_tokenizer())
    losses, rewards = objective().score_pairs(Fixed(), batch)
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(1.5))]
    assert rewards.tolist() == [[3, 1], [1, 2]]
    assert losses.tolist() == pytest.approx(expected, abs=1e-6)
    centred, _ = objective(center_rewards_coefficient=0.1).score_pairs(Fixed(), batch)
    assert centred.tolist() == pytest.approx([expected[0] + 1.6, expected[1] + 0.9], abs=1e-6)


def test_texts_end_once_and_lose_their_beginning() -> None:
    tokenizer = byte_tokenizer()
    task = objective(separator=":")
    task.prepare_tokenizer(tokenizer)
    end = tokenizer.eos_token_id

    def ids(text: str) -> list[int]:
        return [*tokenizer(text)["input_ids"], end]

    row = {"row_id": 7, "prompt": "abcd", "chosen": "xy</s>".replace("</s>", tokenizer.eos_token), "rejected": "w"}
    (((whole,), is_cut),) = task.encode([row], tokenizer, 20, {})
    assert (whole["input_ids"], whole["rejected_input_ids"], is_cut) == (ids("abcd:xy"), ids("abcd:w"), False)
    (((cut,), is_cut),) = task.encode([row], tokenizer, 4, {})
    assert (cut["input_ids"], cut["rejected_input_ids"], is_cut) == (ids(":xy"), ids("d:w"), True)
    assert task.encode([row | {"rejected": "vxy"}], tokenizer, 3, {})[0].examples == [], "both are cut to the same"
    assert task.length(whole) == 8
    again = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.init_kwargs)
    assert again.truncation_side == "left"


@pytest.mark.parametrize("prompt", ["prompt", None])
def test_conversations_are_read_as_the_template_renders_them(prompt: str | None) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    task = objective(chat=True, prompt_column=prompt)
    task.prepare_tokenizer(tokenizer)
    row = {"row_id": 0, "prompt": turns("1+1?"), "chosen": turns("1+1?", "two"), "rejected": turns("1+1?", "one")}
    (((example,), _),) = task.encode([row], tokenizer, 100, {})
    assert example["input_ids"] == tokenizer.apply_chat_template(turns("1+1?", "two"))["input_ids"]
    assert example["rejected_input_ids"] == tokenizer.apply_chat_template(turns("1+1?", "one"))["input_ids"]
    assert task.card_input(lambda: tokenizer).startswith("classifier.tokenizer.apply_chat_template([")
    assert task.call_arguments == {"truncation": True, "add_special_tokens": False}


def test_margins_are_a_column_of_numbers() -> None:
    task, tokenizer = objective(margin_column="by"), byte_tokenizer()
    assert task.columns()["by"] == "number"
    row = {"row_id": 0, "prompt": "a", "chosen": "b", "rejected": "c", "by": 2}
    assert task.encode([row], tokenizer, 9, {})[0].examples[0]["margin"] == 2.0
    assert task.collate(task.encode([row], tokenizer, 9, {})[0].examples, tokenizer)["margin"].tolist() == [2.0]


def test_metrics_match_sklearn_and_torchmetrics() -> None:
    task = objective()
    for seed in range(200):
        draw = np.random.default_rng(seed)
        chosen, rejected = draw.normal(0.5, 2, (2, draw.integers(1, 60)))
        margin = chosen - rejected
        scores = {"loss": np.logaddexp(0, -margin), "chosen_reward": chosen, "rejected_reward": rejected}
        found = task.compute_metrics(task.additive_statistics(scores, {}).sum(0), {})
        first, ones = 1 / (1 + np.exp(-margin)), np.ones(len(margin))
        assert found["reward_accuracy"] == pytest.approx(accuracy_score(ones, margin > 0), abs=1e-12)
        assert found["loss"] == pytest.approx(log_loss(ones, first, labels=[0, 1]), rel=1e-9)
        assert found["reward_margin"] == pytest.approx(margin.mean(), rel=1e-9)
        sure, right = torch.from_numpy(np.maximum(first, 1 - first)), torch.from_numpy((margin > 0).astype(int))
        error = binary_calibration_error(sure, right, n_bins=15, norm="l1")
        assert found["calibration_error"] == pytest.approx(float(error), abs=1e-6)
        assert task.confidence(scores) == pytest.approx(sure.numpy())


# Plain SGD: Adam would amplify the rounding errors of zero gradients
STEPS = {"training.max_steps": 3, "training.optimizer": "sgd", "training.learning_rate": 0.1}
EXACT = STEPS | {"model.config.attention_dropout": 0.0, "training.global_batch_size": 4}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after two steps, and its job."""
    changes = {"training.max_steps": 2, "training.warmup_steps": 0, "training.learning_rate": 1e-3}
    job = preferences.job(tmp_path_factory.mktemp("started"), changes, "reward")
    return in_process.trained(job), job


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@pytest.mark.parametrize(("margin", "centre"), [(False, 0.0), (True, 0.0), (True, 0.01)])
def test_loss_and_gradients_match_trl(margin: bool, centre: float, started: Any, tmp_path: Path) -> None:
    from trl import RewardConfig, RewardTrainer

    trainer, job = started
    tokenizer = tokens.read_tokenizer(job.tokens)
    names = ("prompt", "chosen", "rejected")
    rows = [dict(zip(names, own, strict=True)) for own in zip(*preferences.pairs(4).values(), strict=True)]
    rows = [row | ({"margin": 0.5 * i} if margin else {}) for i, row in enumerate(rows)]
    ours = objective(center_rewards_coefficient=centre, margin_column="margin" if margin else None)
    encoded = ours.encode([{"row_id": i, **row} for i, row in enumerate(rows)], tokenizer, 64, {})
    trained = trainer.accelerator.unwrap_model(trainer.model)
    trained.eval()
    trained.zero_grad()
    batch = ours.collate([example for examples, _ in encoded for example in examples], tokenizer)
    loss = ours.score_pairs(trained, batch)[0].mean()
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in trained.named_parameters()}
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3

    trained.save_pretrained(tmp_path / "trained")
    theirs = RewardTrainer(
        model=str(tmp_path / "trained"),
        args=RewardConfig(
            output_dir=str(tmp_path / "out"),
            center_rewards_coefficient=centre or None,
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            per_device_train_batch_size=4,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    examples = [theirs.train_dataset[i] for i in range(4)]
    assert [e["chosen_ids"] for e in examples] == [examples[0]["input_ids"] for examples, _ in encoded]
    theirs.model.eval()
    expected = theirs.compute_loss(theirs.model, theirs.data_collator(examples))
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    for name, weight in theirs.model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6)


def test_weights_do_not_depend_on_micro_batches_and_processes(tmp_path: Path) -> None:
    preferences.assert_weights_do_not_depend_on_micro_batches_and_processes(tmp_path, EXACT, "reward", of_two=2)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [{}, {"model.lora": {"r": 4, "alpha": 8, "dropout": 0.1}}], ids=["all", "adapters"])
def test_killed_run_ends_with_the_same_bits(lora: dict[str, Any], tmp_path: Path) -> None:
    two = {"training.max_steps": 6, "launch.num_processes": 2, "launch.micro_batch_size": 2}
    golden, recipe = preferences.tokenized(tmp_path / "golden", lora | two, "reward")
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)


def test_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    preferences.assert_stopped_run_ends_with_the_same_bits(tmp_path, {}, "reward")


MODEL = Model(config={"model_type": "llama"})
TRAINING = {"max_steps": 2, "global_batch_size": 4, "learning_rate": 1e-3, "eval_steps": 2, "save_steps": 2}
CONFLICTS = {
    "training.loss": ({}, {"loss": "trainer.losses:cross_entropy"}),
    "training.arguments.label_smoothing_factor": ({}, {"arguments": {"label_smoothing_factor": 0.1}}),
    "objective.prompt_column": ({"chat": True, "prompt_column": "{instruction} {input}"}, {}),
    "objective.separator": ({"chat": True, "separator": "\n"}, {}),
}


@pytest.mark.parametrize("key", CONFLICTS)
def test_conflicting_settings_are_refused(key: str) -> None:
    options, changes = CONFLICTS[key]
    training = Training(**(TRAINING | changes))
    found = objective(**options).conflicts(model=MODEL, training=training, launch=Launch(micro_batch_size=4))
    assert [".".join(problem.key) for problem in found] == [key]
