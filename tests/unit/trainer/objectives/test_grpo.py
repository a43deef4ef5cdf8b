"""GRPO: advantages and losses by hand and against TRL's, and conflicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import prompts
from trainer import objectives
from trainer.objectives.bases.rewards.rollout import Rollout, TrainingSample, collate_training_samples

REWARD = "trainer.rewards:numeric_answer"


def objective(name: str = "grpo", **options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name=name, **options))


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    scaled = [0.75 / 0.5001, -0.25 / 0.5001]  # the mean is 1/4, the standard deviation 1/2
    found = objective().advantages(rewards)
    assert found[0].tolist() == pytest.approx([scaled[0], scaled[1], scaled[1], scaled[1]])
    assert found[1].tolist() == [0.0] * 4, "equal rewards have no advantage"
    assert objective(scale_rewards="none").advantages(rewards)[0].tolist() == [0.75, -0.25, -0.25, -0.25]


def test_losses_by_hand() -> None:
    """One sequence of four tokens with ratios 1, 1.5, 0.5 and 0.5; the advantage is 2, then -2."""
    old = torch.zeros(1, 4)
    now = torch.tensor([[1.0, 1.5, 0.5, 0.5]]).log()
    batch = {"old_logprobs": old, "weights": torch.tensor([2.0]), "ref_logprobs": torch.tensor([[0.0, 0.0, 0.0, -1.0]])}
    better, metrics = objective().token_losses(now, batch)
    assert better.tolist()[0] == pytest.approx([-2.0, -2.4, -1.0, -1.0]), "clipped above 1.2"
    assert metrics["clip_ratio"].tolist() == [[0.0, 1.0, 0.0, 0.0]]
    worse, metrics = objective().token_losses(now, batch | {"weights": torch.tensor([-2.0])})
    assert worse.tolist()[0] == pytest.approx([2.0, 3.0, 1.6, 1.6]), "clipped below 0.8"
    assert metrics["clip_ratio"].tolist() == [[0.0, 0.0, 1.0, 1.0]]
    wider, _ = objective(epsilon_high=0.4).token_losses(now, batch)
    assert wider.tolist()[0] == pytest.approx([-2.0, -2.8, -1.0, -1.0])

    penalized, metrics = objective(beta=0.1).token_losses(now, batch)
    log_ratios = [0.0, math.log(2 / 3), math.log(2), math.log(2) - 1]
    divergence = [math.exp(a) - a - 1 for a in log_ratios]
    assert metrics["kl"].tolist()[0] == pytest.approx(divergence, abs=1e-6)
    expected = [loss + 0.1 * d for loss, d in zip(better.tolist()[0], divergence, strict=True)]
    assert penalized.tolist()[0] == pytest.approx(expected, abs=1e-6)


GROUPS = [
    Rollout(0, 0, {}, [5, 6, 7], [[8, 9], [10, 11, 12, 0], [13]], [False, True, False], [1.0, 0.0, 0.5]),
    Rollout(0, 1, {}, [20], [[21, 22, 23], [24, 0], [25, 26]], [False, True, False], [0.0, 0.0, 3.0]),
]


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@pytest.mark.parametrize("kind", ["grpo", "dapo", "dr_grpo"])
def test_loss_and_gradients_match_trl(kind: str, tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = prompts.random_model()
    model.save_pretrained(tmp_path / "model")
    ours = objective(loss_type=kind, beta=0.2, temperature=0.8, max_new_tokens=6)
    generator = torch.Generator().manual_seed(1)
    for rollout in GROUPS:  # log-probabilities near those of a random model, but far enough to be clipped
        for name in ("old_logprobs", "ref_logprobs"):
            logprobs = [-5.6 + 0.3 * torch.randn(len(c), generator=generator) for c in rollout.completions]
            setattr(rollout, name, logprobs)
    training_samples = [training_sample for rollout in GROUPS for training_sample in ours.training_samples(rollout)]
    batch = collate_training_samples(training_samples, 0)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    losses, metrics = ours.losses(logits, batch)
    loss = losses.sum() / ours.loss_denominator(sequences=6, tokens=14)
    loss.backward()
    assert 0 < metrics["clip_ratio"].sum() < 14

    theirs = GRPOTrainer(
        model=str(tmp_path / "model"),
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            loss_type=kind,
            beta=0.2,
            use_bias_correction_kl=False,  # it would weigh the divergence by the ratio
            temperature=0.8,
            epsilon=0.2,
            max_completion_length=6,
            num_generations=3,
            per_device_train_batch_size=6,
            steps_per_generation=1,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 6),
        processing_class=tokenizer,
    )
    theirs.model.train()
    theirs.current_gradient_accumulation_steps = 1
    expected = theirs._compute_loss(theirs.model, trl_batch(training_samples))
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    for (name, weight), other in zip(model.named_parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def trl_batch(training_samples: list[TrainingSample]) -> dict[str, torch.Tensor]:
    """The same sequences in TRL's layout: prompts padded left, completions right."""
    prompts, completions = (
        [torch.tensor(x.prompt) for x in training_samples],
        [torch.tensor(x.completion) for x in training_samples],
    )
    ones = torch.ones_like
    right, left = {"batch_first": True}, {"batch_first": True, "padding_side": "left"}
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "prompt_ids": pad(prompts, **left),
        "prompt_mask": pad([ones(p) for p in prompts], **left),
        "completion_ids": pad(completions, **right),
        "completion_mask": pad([ones(c) for c in completions], **right),
        "advantages": torch.tensor([training_sample.weight for training_sample in training_samples]),
        "old_per_token_logps": pad([training_sample.old_logprobs for training_sample in training_samples], **right),
        "ref_per_token_logps": pad([training_sample.ref_logprobs for training_sample in training_samples], **right),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }


STEPS = {"max_steps": 1, "global_batch_size": 8, "learning_rate": 1e-3, "eval_steps": 1, "save_steps": 1}
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = {
    "no reward": ("grpo", {"rewards": []}, {}, {}, "objective.rewards", "nothing is learned"),
    "a reward that is not there": (
        "grpo",
        {"rewards": ["trainer.rewards:no"]},
        {},
        {},
        "objective.rewards.0",
        "no `no`",
    ),
    "weights": ("grpo", {"reward_weights": [1.0, 2.0]}, {}, {}, "objective.reward_weights", "2 weights for 1 rewards"),
    "one completion": (
        "grpo",
        {"num_generations": 1},
        {},
        {},
        "objective.num_generations",
        "every advantage would be 0",
    ),
    "a stream": ("grpo", {}, {"streaming": True}, {}, "training.streaming", "prompts of the next steps"),
    "a loss": ("grpo", {}, {"loss": {"name": "trainer.losses:cross_entropy"}}, {}, "training.loss", "never be called"),
    "fp16": ("iterative_sft", {}, {"precision": "fp16"}, {}, "training.precision", "rounds log-probabilities"),
    "smoothing": (
        "grpo",
        {},
        {"arguments": {"label_smoothing_factor": 0.1}},
        {},
        "training.arguments.label_smoothing_factor",
        "has no effect",
    ),
    "sharded weights": (
        "grpo",
        {},
        {},
        {"accelerate_config": "params/accelerate/fsdp2.yaml"},
        "launch.accelerate_config",
        "no process has the whole weights",
    ),
    "nothing filters": (
        "iterative_sft",
        {"min_reward": None},
        {},
        {},
        "objective.min_reward",
        "every completion would be selected",
    ),
}


@pytest.mark.parametrize(("name", "options", "training", "launch", "key", "what"), REFUSED.values(), ids=REFUSED)
def test_conflicts_are_reported(name: str, options: Any, training: Any, launch: Any, key: str, what: str) -> None:
    model = Model(config={"model_type": "llama"})
    task = objective(name, **({"rewards": [REWARD]} | options))
    sections = {"training": Training(**(STEPS | training)), "launch": Launch(micro_batch_size=4, **launch)}
    (found,) = task.conflicts(model=model, **sections)
    assert (".".join(map(str, found.key)), what in found.what, bool(found.fix)) == (key, True, True), found
    sound = objective(name, rewards=[REWARD])
    plain = {"training": Training(**STEPS), "launch": Launch(micro_batch_size=4)}
    assert list(sound.conflicts(model=model, **plain)) == []


def test_prompt_is_filled_from_columns() -> None:
    task = objective(prompt="Q: {question} {{short}}\nA:", reference_columns=["goal"])
    assert task.columns() == {"question": "string", "goal": "label"}
    assert task.text({"question": "3 + 4?", "goal": 7}) == "Q: 3 + 4? {short}\nA:"
    for prompt, message in (
        ("Q:", "no column"),
        ("{a.b}", "not a column name"),
        ("{", "braces"),
        ("{0}", "not a column name"),
    ):
        (found,) = objectives.find_option_problems(ObjectiveChoice(name="grpo", prompt=prompt))
        assert message in found.what


def test_long_prompt_keeps_its_end() -> None:
    tokenizer = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=280))
    row = {"row_id": 3, "prompt": "what is 3 + 4?", "answer": "7"}
    (((example,), is_truncated),) = objective().encode([row], tokenizer, 6, {})
    assert is_truncated
    assert tokenizer.decode(example["input_ids"]) == "3 + 4?"
    rows = objective().collate([example], tokenizer)["reward_rows"]
    assert rows == [row]


def test_prompt_that_its_chat_template_makes_too_long_counts_as_truncated() -> None:
    tokenizer = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=280))
    tokenizer.chat_template = "<user>{{ messages[0].content }}"
    row = {"row_id": 3, "prompt": "3 + 4?", "answer": "7"}
    (((example,), is_truncated),) = objective(chat=True).encode([row], tokenizer, 8, {})
    assert tokenizer.decode(example["input_ids"]) == "r>3 + 4?"
    assert is_truncated
    assert not objective(chat=True).encode([row], tokenizer, 12, {})[0].is_truncated
