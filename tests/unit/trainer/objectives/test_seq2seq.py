"""Sequence to sequence: encoder inputs, decoder targets, generation and its metrics."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from params import RecipeError
from params.schema import Model, ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.encoding import RowEncoder
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics, MetricAccumulator
from trainer.model.network import build_model_to_train
from trainer.objectives.seq2seq import exact_match_and_rouge

ROWS = [
    {"row_id": 0, "input": "three plus four", "target": "seven"},
    {"row_id": 1, "input": "two plus two and a few more words", "target": "it is four"},
    {"row_id": 2, "input": "nine", "target": "nine"},
]
TOKENIZER = train_tokenizer(
    [f"{row['input']} {row['target']}" for row in ROWS], TrainTokenizer(kind="train", vocab_size=280)
)
EOS = TOKENIZER.eos_token_id
T5 = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
BART = {"model_type": "bart", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_attention_heads": 2}


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="seq2seq", **options))


def model(config: dict[str, Any], task: Any) -> Any:
    return build_model_to_train(Model(config=config), objective=task, state={}, tokenizer=TOKENIZER, seed=5).eval()


def encode(task: Any, row: dict[str, Any], max_length: int = 64) -> dict[str, Any]:
    (((example,), _),) = task.encode([row], TOKENIZER, max_length, {})
    return example


def test_truncated_target_has_no_end_of_text_token():
    whole = encode(objective(), ROWS[1])
    assert TOKENIZER.decode(whole["labels"]) == "it is four<|endoftext|>"
    assert TOKENIZER.decode(whole["input_ids"]) == ROWS[1]["input"]
    cut = encode(objective(max_target_length=3), ROWS[1])
    assert cut["labels"] == whole["labels"][:3]
    assert encode(objective(max_target_length=len(whole["labels"])), ROWS[1]) == whole
    prefixed = encode(objective(prefix="add: "), ROWS[0])
    assert TOKENIZER.decode(prefixed["input_ids"]) == "add: three plus four"


def test_truncated_rows_are_counted():
    def truncates(row: dict[str, Any], max_length: int, **options: Any) -> bool:
        return RowEncoder(objective(**options), TOKENIZER, max_length, {}).encode([row])[0].is_truncated

    longest = len(encode(objective(), ROWS[1])["input_ids"])
    assert not truncates(ROWS[1], longest)
    assert truncates(ROWS[1], longest - 1)
    target = len(encode(objective(), ROWS[1])["labels"])
    assert not truncates(ROWS[1], longest, max_target_length=target)
    assert truncates(ROWS[1], longest, max_target_length=target - 1)


@pytest.mark.parametrize("config", [T5, BART], ids=["t5", "bart"])
def test_decoder_input_is_the_shifted_target(config):
    task = objective()
    network = model(config, task)
    batch = task.collate(
        [{"row_id": 0, "input_ids": [5], "labels": [7, 8, EOS]}, {"row_id": 1, "input_ids": [5], "labels": [9]}],
        TOKENIZER,
    )
    assert batch["labels"].tolist() == [[7, 8, EOS], [9, -100, -100]]
    shifted = task.prepare_inputs(network, batch)["decoder_input_ids"].tolist()
    assert shifted == [[EOS, 7, 8], [EOS, 9, EOS]]  # begin, end and padding are one token here
    without = torch.nn.Module()
    without.config = network.config
    assert task.prepare_inputs(without, batch)["decoder_input_ids"].tolist() == shifted
    assert network.generation_config.decoder_start_token_id == EOS
    assert network.generation_config.forced_eos_token_id in (EOS, None)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_deterministic_and_independent_of_the_batch(beams):
    task = objective(max_new_tokens=12, num_beams=beams)
    network = model(T5, task)
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(4)  # so that the output depends on the input, padding included
    examples = [encode(task, row) for row in ROWS]

    def score(examples: list[dict[str, Any]]) -> torch.Tensor:
        batch = task.prepare_inputs(network, task.collate(examples, TOKENIZER))
        return task.score_batch(network, batch, TOKENIZER)

    with torch.inference_mode():
        together = score(examples)
        torch.manual_seed(9)
        alone = torch.cat([score([example]) for example in examples])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    generated = task._generate(network, task.collate(examples, TOKENIZER))
    assert generated.shape[1] <= 13
    for example, row in zip(examples, generated.tolist(), strict=True):
        (alone,) = task._generate(network, task.collate([example], TOKENIZER)).tolist()
        assert row[: len(alone)] == alone


def test_score_text():
    exact, *rouge = exact_match_and_rouge("The cat sat on the mat.", "the cat was on the mat")
    assert exact == 0.0
    # 5 of 6 words; "the cat", "on the", "the mat" of 5 pairs; "the cat on the mat" in this order
    assert rouge == pytest.approx([5 / 6, 3 / 5, 5 / 6], rel=1e-6)
    assert exact_match_and_rouge(" it is four\n", "it is four") == [1.0, 1.0, 1.0, 1.0]
    assert exact_match_and_rouge("four is it", "it is four") == pytest.approx([0.0, 1.0, 0.0, 1 / 3], rel=1e-6)
    assert exact_match_and_rouge("", "four") == [0.0, 0.0, 0.0, 0.0]
    assert exact_match_and_rouge("a b c d", "a")[1] == pytest.approx(2 * 1 / 4 / (1 + 1 / 4), rel=1e-6)
    assert (
        exact_match_and_rouge("Добрый день", "добрый вечер")[1] == 0.5
    )  # the usual tokenization of ROUGE knows only Latin letters


def test_metrics_average_over_rows_or_tokens():
    task = objective()
    accumulator = MetricAccumulator(task, {})
    # nll, tokens, correct, generated, and the metrics of the generated text
    scores = torch.tensor([[2.0, 4, 1, 1, 1, 1, 1, 1], [1.0, 2, 2, 1, 0, 0.5, 0.25, 0]], dtype=torch.float64)
    accumulator.update(scores[:1])
    accumulator.update(scores[1:])
    assert accumulator.compute() == {
        "loss": 0.5,
        "perplexity": math.exp(0.5),
        "token_accuracy": 0.5,
        "exact_match": 0.5,
        "rouge1": 0.75,
        "rouge2": 0.625,
        "rougeL": 0.5,
    }


def test_without_generation_only_target_metrics_exist():
    task = objective(generate=False)
    network = model(T5, task)
    batch = task.prepare_inputs(network, task.collate([encode(task, row) for row in ROWS], TOKENIZER))
    with torch.inference_mode():
        scores = task.score_batch(network, batch, TOKENIZER)
    assert scores[:, :3].isfinite().all()
    assert scores[:, 3:].eq(0).all()
    accumulator = MetricAccumulator(task, {})
    accumulator.update(scores)
    assert set(accumulator.compute()) == {"loss", "perplexity", "token_accuracy"}


def first_token(prediction: Any) -> dict[str, float]:
    """A custom metric: the first token of each prediction."""
    return {"first": float(prediction.predictions[:, 0].mean()), "width": float(prediction.predictions.ndim)}


@pytest.mark.parametrize("generate", [True, False])
def test_custom_metrics_get_the_generated_tokens(generate):
    from params.sections.evaluation import OwnMetrics

    task = objective(generate=generate)
    network = model(T5, task)
    metrics = OwnMetrics(function=f"{__name__}:first_token", directions={"first": "max", "width": "max"})
    evaluation = EvaluationMetrics(task, state={}, tokenizer=TOKENIZER, metrics=metrics)
    batch = task.collate([encode(task, row) for row in ROWS], TOKENIZER)
    with torch.inference_mode():
        inputs = task.prepare_inputs(network, batch)
        evaluation.update(evaluation.measure(network, inputs))
        predicted = network(**inputs).logits.argmax(-1)[:, 0].double().mean()
    found = evaluation.compute()
    assert found["width"] == 2
    assert found["first"] == (EOS if generate else float(predicted))  # generated text begins with the start token


PROBLEMS = {
    "packing": ({"objective.packing": True}, "objective.packing", "seq2seq cannot pack", "use causal_lm or sft"),
    "a decoder-only model": (
        {"model.config": tiny.RECIPE["model"]["config"]},
        "model.config.model_type",
        "llama is not an encoder-decoder model",
        "t5 or bart",
    ),
    "beams without generation": (
        {"objective.generate": False, "objective.num_beams": 4, "objective.max_new_tokens": ...},
        "objective.num_beams",
        "has no effect while `generate` is false",
        "generate: true",
    ),
    "best metric without generation": (
        {"objective.generate": False, "objective.max_new_tokens": ..., "training.best_metric": "rougeL"},
        "training.best_metric",
        "rougeL is a metric of generated text",
        "use loss",
    ),
}


@pytest.mark.parametrize(("changes", "key", "what", "fix"), PROBLEMS.values(), ids=PROBLEMS)
def test_check_reports_conflicts(problems, changes, key, what, fix):
    found = problems(changes, **tiny.TARGETS)
    assert found.keys() == {key}
    assert what in found[key]
    assert fix in found[key]
    assert problems({}, **tiny.TARGETS) == {}


def test_pretrained_model_without_an_encoder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    sections = {"model": Model(pretrained=str(folder)), "training": None, "launch": None}
    assert list(objective().conflicts(**sections)) == []  # other checks report the missing model
    for model_type, sound in (("bart", True), ("llama", False)):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        found = [p.key for p in objective().conflicts(**sections)]
        assert found == ([] if sound else [("model", "pretrained")])


def test_decoder_that_cannot_generate_is_refused():
    uneven = model(T5 | {"num_decoder_layers": 2}, objective())
    with pytest.raises(RecipeError, match="its decoder has 2 layers and its encoder 1"):
        objective().check_model(uneven)
    objective(generate=False).check_model(uneven)
    objective().check_model(model(T5, objective()))
