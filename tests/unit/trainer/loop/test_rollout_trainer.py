"""Rounds of completions: one generation serves several steps, on any number of processes, also after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationMixin

from params import ModelError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import in_process, prompts
from tests.support.training import ElasticTraining, assert_same, metrics_log, plan_job, run_train_with_kills
from trainer import objectives
from trainer.job import Job
from trainer.loop.trainer import EvergreenTrainer
from trainer.objectives.bases.rewards.rollout import (
    GenerativeObjectiveOptions,
    Rollout,
    completion_token_logprobs,
    sample_completions,
)

N = 4
BUFFERED = prompts.GRPO | {"steps_per_generation": N, "beta": 0.1}
ROUNDS = prompts.ITERATIVE | {"steps_per_round": N, "min_reward": None, "keep_best": 1}


def job(root: Path, objective: dict[str, Any], changes: dict[str, Any] | None = None) -> Job:
    artifacts, recipe = prompts.tokenized(root, prompts.recipe(objective, changes))
    return plan_job(artifacts, recipe)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each call of `generate`."""
    calls: list[int] = []
    plain = GenerationMixin.generate

    def counted(self: Any, **arguments: Any) -> Any:
        calls.append(len(arguments["input_ids"]))
        return plain(self, **arguments)

    monkeypatch.setattr(GenerationMixin, "generate", counted)
    return calls


@pytest.mark.parametrize(("objective", "steps"), [("grpo", 1), ("grpo", N), ("iterative_sft", N)])
def test_one_round_of_completions_serves_several_steps(
    objective: str, steps: int, tmp_path: Path, generated: list[int]
) -> None:
    options = {
        "grpo": prompts.GRPO | {"steps_per_generation": steps},
        "iterative_sft": prompts.ITERATIVE | {"steps_per_round": steps},
    }[objective]
    changes = {"training.max_steps": 2 * N + 1, "training.eval_steps": 100}
    in_process.trained(job(tmp_path, options, changes))
    at_start, *training, at_end = generated
    assert at_start == at_end == 8, "one completion per row of the validation split"
    every = 8 * 4  # prompts of a global batch, completions of a prompt
    assert training == ([every] * (2 * N + 1) if steps == 1 else [N * every, N * every, every])


def test_completions_do_not_depend_on_the_rest_of_the_batch() -> None:
    model, tokenizer = prompts.random_model()
    prompt_ids = [tokenizer(text)["input_ids"] for text in ("a", "a longer one", "b", "a")]
    keys = [("key", i) for i in range(4)]

    def drawn(part: slice, **options: Any) -> list[list[int]]:
        sampling = GenerativeObjectiveOptions(max_new_tokens=12, **options)
        return sample_completions(model, prompt_ids[part], tokenizer=tokenizer, options=sampling, keys=keys[part])[0]

    together = drawn(slice(4))
    assert [drawn(slice(i, i + 1))[0] for i in range(4)] == together
    assert drawn(slice(4), generation_batch_size=3) == together
    assert together[0] != together[3], "the same prompt, another key"
    assert drawn(slice(4), temperature=1e-5) == drawn(slice(4), top_k=1) == drawn(slice(4), top_p=1e-6)
    greedy, ended = sample_completions(
        model, prompt_ids, tokenizer=tokenizer, options=GenerativeObjectiveOptions(max_new_tokens=12), keys=None
    )
    assert greedy == drawn(slice(4), top_k=1)
    assert ended == [ids[-1] == tokenizer.eos_token_id for ids in greedy]


def test_sampled_tokens_follow_the_models_distribution() -> None:
    model, tokenizer = prompts.random_model()
    with torch.no_grad():
        model.lm_head.weight.mul_(60)  # some tokens are much likelier than others
        logits = model(torch.tensor([[65]])).logits[0, -1]
    sampling = GenerativeObjectiveOptions(max_new_tokens=1, temperature=0.7, top_k=5)
    count = 8000
    found, _ = sample_completions(model, [[65]] * count, tokenizer=tokenizer, options=sampling, keys=list(range(count)))
    likeliest = logits.topk(5)
    expected = (likeliest.values / 0.7).softmax(-1).tolist()
    shares = [sum(ids == [token] for ids in found) / count for token in likeliest.indices.tolist()]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == pytest.approx(expected, abs=0.02)


class Rounds(ElasticTraining):
    """A training on prompts that a test can start repeatedly, on any number of processes."""

    def __init__(self, root: Path, objective: dict[str, Any], changes: dict[str, Any]) -> None:
        defaults = {"training.max_steps": 10, "training.save_steps": 3, "launch.micro_batch_size": 2}
        self.artifacts, self.recipe = prompts.tokenized(root, prompts.recipe(objective, defaults | changes))
        self.folder = root / "run"

    @staticmethod
    def pending_rollouts(checkpoint: Path) -> dict[tuple[int, int], Any]:
        """The completions in a checkpoint that later steps train on, of all processes."""
        states = [torch.load(p, weights_only=True) for p in checkpoint.glob("rollouts_*.pt")]
        return {(r["step"], r["place"]): r for state in states for r in state["rollouts"]}


@pytest.mark.slow
@pytest.mark.parametrize("objective", [pytest.param(BUFFERED, id="grpo"), pytest.param(ROUNDS, id="iterative_sft")])
def test_two_processes_generate_and_train_like_one(objective: dict[str, Any], tmp_path: Path) -> None:
    """Resumed in the middle of a round with another micro-batch: the same completions and losses."""
    whole = Rounds(tmp_path / "whole", objective, {"launch.micro_batch_size": 4, "training.keep_checkpoints": 9})
    whole.start()
    expected = whole.pending_rollouts(whole.folder / "checkpoint-6")
    assert {step for step, _ in expected} == {6, 7}, "two of the four steps of the round remain"
    elastic = Rounds(tmp_path / "elastic", objective, {})
    elastic.start(processes=2, until=6)
    found = elastic.pending_rollouts(elastic.checkpoint)
    assert found.keys() == expected.keys()
    for key, rollout in expected.items():
        assert found[key]["completions"] == rollout["completions"], key
        assert found[key]["rewards"] == rollout["rewards"], key
        assert found[key]["row"] == rollout["row"], key
    elastic.start(processes=1)
    steps = elastic.steps()
    for step, at in whole.steps().items():
        assert steps[step]["rows"] == at["rows"], step
        assert steps[step]["loss"] == pytest.approx(at["loss"], rel=1e-5, abs=1e-6), step
    for name, tensor in load_file(whole.checkpoint / "model.safetensors").items():
        assert torch.allclose(load_file(elastic.checkpoint / "model.safetensors")[name], tensor, atol=2e-5), name
    lines = [[e for e in t.history() if "loss" in e] for t in (whole, elastic)]
    for one, other in zip(*lines, strict=True):
        assert other["reward"] == pytest.approx(one["reward"]), "metrics are over all processes"


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "between two passes of grpo, log lines across checkpoints": (BUFFERED, {"training.logging_steps": 5}),
    "dropout, two processes": (
        BUFFERED | {"top_p": 0.9, "loss_type": "dapo"},
        {"model.config.attention_dropout": 0.1, "launch.num_processes": 2, "launch.micro_batch_size": 2},
    ),
    "in the middle of a round": (ROUNDS, {"training.epochs": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "changes"),
    [pytest.param(*values, id=name) for name, values in VARIANTS.items()],
)
def test_killed_run_ends_with_the_same_bits(objective: dict[str, Any], changes: dict[str, Any], tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"training.save_steps": 3, "training.group_by_length": True}
    if "training.epochs" in changes:  # ten steps per epoch: a round crosses the end of the first
        defaults["training.max_steps"] = ...
    golden, recipe = prompts.tokenized(tmp_path / "golden", prompts.recipe(objective, defaults | changes))
    killed = run_train_with_kills(
        golden, recipe, "checkpoint.renamed:2"
    )  # two steps before the next round, or two after
    assert_same(golden, killed)
    lines = metrics_log(killed)
    learned = [line for line in lines if "loss" in line]
    assert all(0 < line["reward"] < 2 and line["completion_length"] > 1 for line in learned)
    if objective["name"] == "grpo":
        assert learned[0]["kl"] < learned[-1]["kl"], "the model moves away from its start"
        assert max(line["clip_ratio"] for line in learned) > 0
    else:
        assert all(line["selected"] == 1 / 4 for line in learned)
        assert [line["step"] for line in lines if "round" in line] == list(range(0, 20, N))
        assert [line["round"] for line in lines if "round" in line] == list(range(5))


def test_last_round_is_shortened_to_the_remaining_steps(tmp_path: Path) -> None:
    trainer = in_process.trained(job(tmp_path, BUFFERED, {"training.max_steps": 6, "training.save_steps": 100}))
    assert trainer.state.global_step == 6
    assert trainer._rollouts == {}  # type: ignore[attr-defined]


def test_first_step_after_sampling_is_on_policy(tmp_path: Path) -> None:
    """Sampling and training use the same model: the ratio is 1 and the KL divergence 0."""
    seen = []

    def record(state: Any, **_: Any) -> None:
        seen.append(trainer.state.log_history[-1])

    trainer: EvergreenTrainer = in_process.trainer_of(
        job(tmp_path, BUFFERED, {"training.max_steps": 2, "training.learning_rate": 1e-12, "training.warmup_steps": 0})
    )
    trainer.add_callback(in_process.At("on_log", record))
    trainer.train()
    lines = [line for line in seen if "kl" in line]
    assert len(lines) == 2
    for line in lines:
        assert abs(line["kl"]) < 1e-9
        assert line["clip_ratio"] == 0
        assert abs(line["loss"]) < 1e-6, "advantages of a prompt's completions add up to 0"


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["a copy", "without adapters"])
def test_reference_is_the_start_model(lora: Any, tmp_path: Path) -> None:
    made = job(tmp_path, BUFFERED, {"model.lora": lora, "training.max_steps": 3})
    trainer: Any = in_process.trainer_of(made)
    prompt_ids = torch.tensor([trainer.train_dataset[0]["input_ids"]])
    before = trainer.model.eval()(prompt_ids).logits.clone()
    trainer.train()
    assert not torch.equal(trainer.model.eval()(prompt_ids).logits, before)
    with trainer.start_model() as model, torch.no_grad():
        assert torch.equal(model(prompt_ids).logits, before)
    assert [line["kl"] for line in trainer.state.log_history if "kl" in line][-1] > 1e-6


def test_too_few_positions_are_an_error_before_training(tmp_path: Path) -> None:
    changes = {"model.config": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24}}
    made = job(tmp_path, prompts.GRPO | {"max_new_tokens": 20}, changes)
    with pytest.raises(ModelError, match="the model has 24 positions") as caught:
        in_process.trained(made)
    assert caught.value.where == "objective.max_new_tokens"


# Iterative fine-tuning


def rounds(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="iterative_sft", **options))


def test_select_completions() -> None:
    rewards = [0.2, 1.0, 0.7, 1.0]
    assert rounds().select_completions(rewards) == [1, 2, 3]
    assert rounds(min_reward=1.0).select_completions(rewards) == [1, 3]
    assert rounds(keep_best=1).select_completions(rewards) == [1], "the first of equal ones"
    assert rounds(keep_best=3, min_reward=0.8).select_completions(rewards) == [1, 3]
    assert rounds(min_reward=2.0).select_completions(rewards) == []
    assert rounds(min_reward=None, keep_best=3).select_completions(rewards) == [1, 2, 3]


def test_reference_completion_replaces_a_missing_selection() -> None:
    tokenizer = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=280))
    task = rounds(reference_completion_column="solution", max_new_tokens=5)
    row = {"row_id": 0, "prompt": "p", "answer": "7", "solution": "is 7"}
    (((example,), _),) = task.encode([row], tokenizer, 8, {})
    assert example["reference_completion"] == [*tokenizer("is 7")["input_ids"], tokenizer.eos_token_id][:5]
    rollout = Rollout(0, 0, {}, [1], [[2, 3], [4]], [False, False], [0.0, 1.0], example["reference_completion"])
    assert [(x.completion, x.weight) for x in task.training_samples(rollout)] == [([4], 1.0)]
    rollout.rewards = [0.0, 0.0]
    assert [x.completion for x in task.training_samples(rollout)] == [example["reference_completion"]]
    rollout.reference_completion = None
    assert task.training_samples(rollout) == []
    assert task.rollout_metrics(rollout)["selected"] == 0.0


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_step_without_a_selected_completion_keeps_the_weights(processes: int, tmp_path: Path) -> None:
    changes = {"training.optimizer": "sgd", "training.max_steps": 2, "training.save_steps": 1}
    training = Rounds(tmp_path, prompts.ITERATIVE | {"min_reward": 99.0}, changes)
    training.start(processes=processes)
    weights = [load_file(training.folder / f"checkpoint-{step}" / "model.safetensors") for step in (1, 2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [line["loss"] for line in training.history() if "loss" in line] == [0.0, 0.0]


def test_iterative_loss_is_the_next_token_loss(tmp_path: Path) -> None:
    """Averaged over the selected tokens of the global batch, whatever the micro-batch."""
    found = []
    for micro_batch in (8, 2):
        made = job(
            tmp_path / str(micro_batch), ROUNDS, {"launch.micro_batch_size": micro_batch, "training.max_grad_norm": 0.0}
        )
        trainer: Any = in_process.trainer_of(made)
        samples: list[Any] = []
        plain = trainer.objective.training_samples
        trainer.objective.training_samples = lambda rollout, plain=plain, samples=samples: (
            samples.extend(plain(rollout)) or plain(rollout)
        )

        def stop(**_: Any) -> None:
            raise StopAsyncIteration

        trainer.add_callback(in_process.At("on_pre_optimizer_step", stop))
        with pytest.raises(StopAsyncIteration):
            trainer.train()
        gradients = {n: w.grad.clone() for n, w in trainer.model.named_parameters()}
        model = trainer.model.eval()
        model.zero_grad()
        total = torch.tensor(0.0)
        for training_sample in samples:  # one by one, without padding
            ids = torch.tensor([[*training_sample.prompt, *training_sample.completion]])
            learned = torch.arange(ids.shape[1])[None] >= len(training_sample.prompt)
            total = total - completion_token_logprobs(model(ids).logits, ids, learned).sum()
        loss = total / sum(len(training_sample.completion) for training_sample in samples)
        loss.backward()
        assert len(samples) == 8
        assert sum(trainer.guard.losses) == pytest.approx(loss.item(), rel=1e-5)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6)
        found.append(loss.item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)
