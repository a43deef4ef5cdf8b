"""Models that go on from a cross-encoder, or become one: `CrossEncoder` gives what the evaluation measured, whatever it made of the base model's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, pipeline

from params.schema import Model, ObjectiveChoice
from tests.support.pretrained import write_model
from trainer import objectives
from trainer.model.network import build_model_to_train
from trainer.objectives.bases.likelihood import compute_logits
from trainer.objectives.bases.network.standardization import restore_units

PAIRS = [("what about rain?", "a train and a road"), ("bread", "bread, soup and rice")]
SAID_OF_BASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "identity": {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}},
    "sigmoid": {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}},
    "identity, before version 4": {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
}
STATES: dict[str, Any] = {
    "regression": {"numbers": ["score"], "mean": [3.0], "std": [2.0]},
    "ranking": {"highest": 1.0},
}


def built(folder: Path, name: str, state: Any) -> tuple[Any, Any, Any]:
    """Return a model that goes on from the base in a folder, its objective and its tokenizer."""
    objective, tokenizer = objectives.build_objective(ObjectiveChoice(name=name)), AutoTokenizer.from_pretrained(folder)
    objective.prepare_tokenizer(tokenizer)
    model = Model(pretrained=str(folder))
    return (
        build_model_to_train(model, objective=objective, state=state, tokenizer=tokenizer, seed=1),
        objective,
        tokenizer,
    )


@pytest.mark.parametrize("said", SAID_OF_BASES.values(), ids=SAID_OF_BASES)
@pytest.mark.parametrize("name", STATES)
def test_a_cross_encoder_gives_what_was_measured(name: str, said: dict[str, Any], tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "bert", num_labels=1, **said)
    network, _, tokenizer = built(base, name, STATES[name])
    for part in (network, tokenizer):
        part.save_pretrained(tmp_path / "release")
    restore_units(tmp_path / "release")
    inputs = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        own = compute_logits(network.eval(), inputs)[:, 0]
    expected = (own if name == "regression" else own.sigmoid()).tolist()
    assert CrossEncoder(str(tmp_path / "release")).predict(PAIRS).tolist() == pytest.approx(expected, abs=1e-5)
    ask = pipeline("text-classification", str(tmp_path / "release"))
    answers = ask([{"text": one, "text_pair": other} for one, other in PAIRS])
    assert [one["score"] for one in answers] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("said", SAID_OF_BASES.values(), ids=SAID_OF_BASES)
def test_a_cross_encoder_becomes_an_embedding_of_the_mean(said: dict[str, Any], tmp_path: Path) -> None:
    network, objective, tokenizer = built(write_model(tmp_path / "base", "bert", num_labels=1, **said), "embedding", {})
    rows = [{"row_id": i, "anchor": one, "positive": other} for i, (one, other) in enumerate(PAIRS)]
    batch = objective.collate([one.examples[0] for one in objective.encode(rows, tokenizer, 32, {})], tokenizer)
    assert objective.embed(network, batch).shape == (2, 2, 32)
    assert network.config.sentence_transformers["pooling"] == "mean"
