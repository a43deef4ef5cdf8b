"""KTO: losses by hand and against TRL's, the KL term over the global batch, weights, forms of rows, metrics and resumes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import roc_auc_score

from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import in_process, preferences, releases
from tests.support.metrics import undefined_metrics
from tests.support.training import assert_same, metrics_log, run_train, run_train_with_kills
from trainer import objectives
from trainer.data import tokens


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="kto", **options))


def byte_tokenizer() -> Any:
    return train_tokenizer(["x"], TrainTokenizer(kind="train", vocab_size=260))


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def test_losses_by_hand() -> None:
    """beta is 0.5 and the KL term 1: sigma(-0.5) = 0.377541 of gain 2 liked, sigma(0.5) = 0.622459 of gain 2 disliked."""
    task = objective(beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    task.logprobs = lambda *_: torch.tensor([2.0, 2.0])
    task.reference_logprobs = lambda _: torch.zeros(2)
    task.weigh(1, 1)
    batch = {"liked": torch.tensor([True, False]), "input_ids": torch.zeros(2, 1)}
    losses, rewards, _ = task.score_answers(None, batch, 1.0)
    assert losses.tolist() == pytest.approx([0.377541, 0.622459], abs=1e-6)
    assert rewards.tolist() == [1.0, 1.0]
    task.reference_point = torch.tensor(1.0)
    share = type("Share", (), {"micro_batches": 1})
    assert float(task.batch_loss(None, batch, share).loss) == pytest.approx((2 * 0.377541 + 3 * 0.622459) / 2, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({}, (30, 10), (1.0, 3.0)),
        ({}, (10, 30), (3.0, 1.0)),
        ({}, (10, 0), (1.0, 1.0)),
        ({"desirable_weight": 1.0, "undesirable_weight": 1.0}, (30, 10), (1.0, 1.0)),
        ({"undesirable_weight": 2.5}, (30, 10), (1.0, 2.5)),
    ],
)
def test_both_kinds_weigh_the_same_unless_weights_are_given(
    options: dict[str, float], rows: tuple[int, int], expected: tuple[float, float]
) -> None:
    assert [float(own) for own in objective(**options).weights(*map(np.array, rows))] == list(expected)


def test_encode_and_answers_of_other_rows() -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    task = objective(separator=":")
    rows = [
        {"row_id": 7, "prompt": "abcd", "completion": "xy", "liked": "good"},
        {"row_id": 8, "prompt": "e", "completion": "vwxyz", "liked": 0},
    ]
    ((first,), is_cut), ((second,), _) = task.encode(rows, tokenizer, 8, {})
    assert (first["input_ids"], is_cut) == ([*ids("abcd:xy"), end], False)
    assert first["labels"] == [-100] * 5 + [*ids("xy"), end]
    assert (first["liked"], first["most"], second["liked"], second["most"]) == (1, 3, 0, 6)
    batch = task.collate([first, second], tokenizer)
    assert batch["liked"].tolist() == [True, False]
    assert task.answers(batch) == [[*ids("xy"), end], [*ids("vwxyz"), end]]
    other = task.with_other_answers(batch, task.answers(batch)[::-1], tokenizer)
    assert other["input_ids"].tolist() == [ids("abcd:vwx"), [*ids("e:xy"), end, *[tokenizer.pad_token_id] * 3]]
    assert other["labels"][0].tolist() == [-100] * 5 + ids("vwx"), "cut to what fits behind the prompt"


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}\n{% endif %}{% endfor %}"
CHAT += "{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"chat": True}, {"prompt": turns("1+1?"), "completion": turns("1+1?", "two")[1:]}),
        ({"chat": True}, {"prompt": turns("1+1?"), "completion": turns("1+1?", "two")}),
        ({"chat": True, "prompt_column": None}, {"completion": turns("1+1?", "two")}),
        ({}, {"prompt": "<user>1+1?<assistant>", "completion": "two"}),
    ],
    ids=["answer behind a prompt", "whole conversation and its prompt", "whole conversation", "texts"],
)
def test_forms_of_rows_give_the_same_sequence(options: dict[str, Any], row: dict[str, Any]) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    task = objective(**options)
    task.prepare_tokenizer(tokenizer)
    row = {"row_id": 0, "liked": True, **row}
    assert task.reject_reason(row) is None
    (((example,), _),) = task.encode([row], tokenizer, 100, {})
    prompt = tokenizer.apply_chat_template(turns("1+1?"), add_generation_prompt=True)["input_ids"]
    assert example["input_ids"] == [*prompt, *tokenizer("two")["input_ids"], tokenizer.eos_token_id]


def test_text_with_turns_is_split_before_the_last_answer() -> None:
    text = "\n\nHuman: 1+1?\n\nAssistant: two\n\nHuman: sure?\n\nAssistant: yes"
    task = objective(prompt_column=None)
    assert task.reader_input({"completion": text}) == text.removesuffix(" yes")
    assert task.input_text({"completion": text}) == text.removesuffix(" yes")


@pytest.mark.parametrize(
    ("options", "changes", "reason"),
    [
        ({}, {"liked": "maybe"}, "'maybe' says neither that the answer is good"),
        ({"prompt_column": None}, {}, "nothing says where the prompt ends"),
        ({"chat": True, "prompt_column": None}, {"completion": turns("a", "b", "c")}, "not an answer of the assistant"),
        ({"chat": True, "prompt_column": None}, {"completion": turns("a", " ")}, "not an answer of the assistant"),
        ({"chat": True, "prompt_column": None}, {"completion": turns("a", "b")[1:]}, "no message before the answer"),
    ],
)
def test_unusable_rows_are_set_aside_with_the_reason(options: Any, changes: Any, reason: str) -> None:
    row = {"prompt": "a", "completion": "b", "liked": True} | changes
    assert reason in (objective(**options).reject_reason(row) or "")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after two steps, and its job."""
    changes = {"training.max_steps": 2, "training.warmup_steps": 0, "training.learning_rate": 1e-2}
    job = preferences.job(tmp_path_factory.mktemp("started"), changes, "kto")
    return in_process.trained(job), job


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@pytest.mark.parametrize(("kind", "weights"), [("kto", (1.0, 1.0)), ("kto", (1.5, 0.7)), ("apo_zero_unpaired", (1, 1))])
def test_loss_and_gradients_match_trl(kind: str, weights: tuple[float, float], started: Any, tmp_path: Path) -> None:
    """With the KL term of one global batch, of which the model's answers to other prompts are likelier than before."""
    from trl import KTOConfig, KTOTrainer

    from trainer.model.network import build_model_to_train

    trainer, job = started
    ours = objective(loss_type=kind, beta=0.3, desirable_weight=weights[0], undesirable_weight=weights[1])
    ours.reference_logprobs = trainer.objective.reference_logprobs
    ours.weigh(3, 1)
    examples = [trainer.train_dataset[i] for i in range(4)]
    assert {example["liked"] for example in examples} == {0, 1}
    trained, tokenizer = trainer.accelerator.unwrap_model(trainer.model), tokens.read_tokenizer(job.tokens)
    trained.eval()
    trained.zero_grad()
    batch = ours.collate(examples, tokenizer)
    answers = ours.answers(batch)
    other = ours.with_other_answers(batch, [answers[i - 1] for i in range(4)], tokenizer)
    with torch.no_grad():
        kl = (ours.logprobs(trained, other) - ours.reference_logprobs(other)).mean()
    assert float(kl) > 0.01
    ours.reference_point = kl.clamp(min=0) if ours.has_reference_point else 0.0
    loss = ours.batch_loss(trained, batch, type("Share", (), {"micro_batches": 1})).loss
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in trained.named_parameters()}
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3

    start = build_model_to_train(job.model, objective=ours, state={}, tokenizer=tokenizer, seed=job.seed)
    for name, network in (("start", start), ("trained", trained)):
        network.save_pretrained(tmp_path / name)
    found = preferences.feedback(preferences.SIZES["train"])
    rows = [dict(zip(found, own, strict=True)) for own in zip(*found.values(), strict=True)][:4]
    rows = [{"label": row.pop("liked"), **row} for row in rows]
    theirs = KTOTrainer(
        model=str(tmp_path / "trained"),
        ref_model=type(start).from_pretrained(tmp_path / "start"),
        args=KTOConfig(
            output_dir=str(tmp_path / "out"),
            loss_type=kind,
            beta=0.3,
            desirable_weight=weights[0],
            undesirable_weight=weights[1],
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
    given = theirs.data_collator([theirs.train_dataset[i] for i in range(4)])
    assert given["input_ids"].tolist() == batch["input_ids"].tolist()
    theirs.model.eval()
    expected = theirs.compute_loss(theirs.model, given)
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    for name, weight in theirs.model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6)


def test_kl_term_is_of_answers_to_the_prompts_before_in_the_global_batch(started: Any) -> None:
    """Also across micro-batches, of which the first row of each gets the last answer of another."""
    trainer, _ = started
    task, rows = trainer.objective, [trainer.train_dataset[i] for i in range(8)]
    batches = [trainer.collate_on_device(rows[i : i + 4]) for i in (0, 4)]
    whole = trainer.collate_on_device(rows)
    answers = task.answers(whole)
    other = task.with_other_answers(whole, [answers[i - 1] for i in range(8)], trainer.processing_class)
    with torch.no_grad():
        expected = (task.logprobs(trainer.model.eval(), other) - task.reference_logprobs(other)).mean()
    assert float(trainer._divergence(batches)) == pytest.approx(float(expected), abs=1e-6)
    assert trainer.model.training, "dropout is on again"


# Plain SGD: Adam would amplify the rounding errors of zero gradients
STEPS = {"training.max_steps": 3, "training.optimizer": "sgd", "training.learning_rate": 0.1, "objective.beta": 0.5}
STEPS |= {"objective.undesirable_weight": 0.01}  # so that the model learns to give answers, and the KL term is positive
EXACT = STEPS | {"model.config.attention_dropout": 0.0, "training.global_batch_size": 4, "training.warmup_steps": 0}


def test_weights_do_not_depend_on_micro_batches_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.loop.kto_trainer import KTOTrainer

    points, divergence = list[float](), KTOTrainer._divergence
    monkeypatch.setattr(
        KTOTrainer, "_divergence", lambda self, batches: points.append(float(own := divergence(self, batches))) or own
    )
    preferences.assert_weights_do_not_depend_on_micro_batches_and_processes(tmp_path, EXACT, "kto", of_two=1)
    one, other = points[:3], points[3:]
    assert one[0] == 0.0, "the model is the start model"
    assert one[1] > 0.01, "the KL term matters"
    assert other == pytest.approx(one, abs=1e-5)


KINDS = {
    "all": {},
    "adapters": {"model.lora": {"r": 4, "alpha": 8, "dropout": 0.1}},
    "a stream": {"training.streaming": True},
}


@pytest.mark.parametrize(
    "changes",
    [pytest.param(own, id=name, marks=pytest.mark.slow if name == "all" else ()) for name, own in KINDS.items()],
)
def test_stopped_run_ends_with_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    preferences.assert_stopped_run_ends_with_the_same_bits(tmp_path, changes, "kto")


@pytest.mark.slow
def test_two_killed_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    two = {"training.max_steps": 6, "launch.num_processes": 2, "launch.micro_batch_size": 2}
    golden, recipe = preferences.tokenized(tmp_path / "golden", two, "kto")
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)


@pytest.mark.slow
def test_training_and_the_evaluate_stage_agree_on_metrics(tmp_path: Path) -> None:
    artifacts, recipe = preferences.tokenized(tmp_path, {"evaluation.split": "validation"}, "kto")
    run_train(artifacts, recipe)
    evaluations = [entry for entry in metrics_log(artifacts) if "eval_loss" in entry]
    best = min(evaluations, key=lambda entry: entry["eval_loss"])
    report = releases.evaluate(artifacts, recipe)
    for name, value in report.model.items():
        assert value == pytest.approx(best[f"eval_{name}"], rel=1e-4, abs=1e-5), name
    assert report.model["roc_auc"] > 0.9
    assert report.untrained
    assert (report.untrained["roc_auc"], report.untrained["reward_margin"]) == (0.5, 0.0)


def test_metrics_match_sklearn() -> None:
    task = objective(desirable_weight=1.0, undesirable_weight=1.0)
    for seed in range(200):
        draw = np.random.default_rng(seed)
        rows = int(draw.integers(2, 60))
        liked = draw.permutation(np.arange(rows) % 3 > 0)
        liked[:2] = False, True
        rewards = draw.normal(liked, 2).round(int(draw.integers(0, 3)))  # some are equal
        scores = {
            "loss": draw.random(rows),
            "liked": liked.astype(float),
            "reward": rewards,
            "logprob": -draw.random(rows),
        }
        found = task.compute_metrics(task.additive_statistics(scores, {}).sum(0), {}) | task.whole_metrics(scores)
        assert found.keys() == task.metrics.keys()
        assert found["roc_auc"] == pytest.approx(roc_auc_score(liked, rewards), abs=1e-12)
        assert found["loss"] == pytest.approx(scores["loss"].mean())
        assert found["reward_margin"] == pytest.approx(rewards[liked].mean() - rewards[~liked].mean())
        assert found["undesirable_logprob"] == pytest.approx(scores["logprob"][~liked].mean())


def test_rows_of_one_kind_have_no_metrics_of_the_other() -> None:
    task = objective()
    scores = dict(zip(("loss", "liked", "reward", "logprob"), np.ones((4, 3)), strict=True))
    totals = task.additive_statistics(scores, {}).sum(0)
    expected = {"roc_auc", "reward_margin", "undesirable_reward", "undesirable_logprob"}
    assert undefined_metrics(task, totals, {}) == expected
    assert all(math.isfinite(value) for value in task.compute_metrics(totals, {}).values())
    assert task.whole_metrics(scores) == {"roc_auc": 0.5}


MODEL = Model(config={"model_type": "llama"})
TRAINING = {"max_steps": 2, "global_batch_size": 4, "learning_rate": 1e-3, "eval_steps": 2, "save_steps": 2}
CONFLICTS = {
    "training.loss": ({}, {"loss": "trainer.losses:cross_entropy"}),
    "training.global_batch_size": ({}, {"global_batch_size": 1}),
    "objective.prompt_column": ({"prompt_column": "{prompt} {completion}"}, {}),
    "": ({"loss_type": "apo_zero_unpaired"}, {"global_batch_size": 1}),
}


@pytest.mark.parametrize("key", CONFLICTS)
def test_conflicting_settings_are_refused(key: str) -> None:
    options, changes = CONFLICTS[key]
    training = Training(**(TRAINING | changes))
    found = objective(**options).conflicts(model=MODEL, training=training, launch=Launch(micro_batch_size=1))
    assert [".".join(problem.key) for problem in found] == [key] * bool(key)
