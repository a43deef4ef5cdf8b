"""Embeddings through tokenizing and training: the same weights however a global batch is spread, and a folder that two libraries load."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tasks.training.model_folder import check_same_metrics, complete_model_folder
from tests.support import in_process, tiny
from tests.support.training import plan_job, run_train, run_train_with_kills
from trainer import objectives
from trainer.data.tokens import read_documents, read_tokenizer
from trainer.loop.mining_trainer import MINED
from trainer.model.network import load_trained_model
from trainer.objectives.bases.vectors.several_texts import NO_TEXT

MODEL = tiny.CLASSES["model"]["config"] | {"max_position_embeddings": 64}
NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}
FEW = {"training.max_steps": 4, "training.eval_steps": 2, "training.save_steps": 2}
FORMS = {
    "pairs": ({"both_directions": True, "negative_columns": "negative"}, "ndcg_at_10"),
    "mined": ({"mined_negatives": 3, "negative_columns": "negative"}, "ndcg_at_10"),
    "scored pairs": ({"positive_column": "positive", "label_column": "score"}, "spearman"),
    "classes": ({"label_column": "topic"}, "ndcg_at_10"),
}


def made(root, objective, changes):
    """A recipe with its rows tokenized; the best metric is that of the form."""
    metric = changes.pop("metric", "ndcg_at_10")
    sections = {"objective": {"name": "embedding", **objective}, "model": {"config": MODEL}}
    content = tiny.recipe(FEW | {"training.best_metric": metric} | changes, **sections)
    recipe, artifacts = load(tiny.write(root / "params/tiny.yaml", content)), Artifacts("tiny", root)
    splits = {}
    for seed, split in enumerate(("train", "validation", "test")):
        texts = tiny.sentences(32 if split == "train" else 8, seed)
        splits[split] = {
            "anchor": texts,
            "positive": [f"{text.split()[1]} {i}" for i, text in enumerate(texts)],
            "negative": [text.split()[-1] for text in texts],
            "negatives": [[f"{i} {text.split()[0]} {j}" for j in range(12)] for i, text in enumerate(texts)],
            "score": [float(len(text) % 5) for text in texts],
            "topic": [text.split()[1] for text in texts],
        }
    tiny.write_rows(artifacts, **splits)
    if "label_column" not in objective:
        tiny.write_splits(
            artifacts.rows, {"corpus": {"positive": [f"{text.split()[1]} far" for text in tiny.sentences(30, 3)]}}
        )
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (FORMS["pairs"][0], 3),
        (FORMS["mined"][0], 6),
        ({"negative_columns": "negatives", "listed_negatives": 12}, 14),
        ({"negative_columns": "negatives", "listed_negatives": 12, "mined_negatives": 2}, 16),
    ],
    ids=["column", "column and mined", "list", "list and mined"],
)
def test_texts_of_stored_rows_stay_in_order(tmp_path, options, count):
    """A file has its columns by name: a negative before the positive, and the tenth before the second."""
    artifacts, recipe = made(tmp_path, options, {"training.max_steps": 1, "training.eval_steps": 1})
    job = plan_job(artifacts, recipe)
    trainer, tokenizer = in_process.trained(job), read_tokenizer(job.tokens)
    rows = [*trainer.train_dataset][:3]
    batch = trainer.objective.collate(rows, tokenizer)
    assert batch["texts"].tolist() == [[row[f"text_{i}"] for i in range(count)] for row in rows]
    with torch.no_grad():
        vectors = trainer.objective.embed(trainer.model.eval(), batch)
        for place, name in enumerate(["", "positive_", *(f"negative{i}_" for i in range(count - 2))]):
            one = {kind: batch[name + kind] for kind in ("input_ids", "attention_mask")}
            alone = trainer.objective.embed(trainer.model, one)[:, 0]
            torch.testing.assert_close(vectors[:, place], alone)


@pytest.mark.parametrize(
    ("options", "metric", "lora"),
    [*((*form, {}) for form in FORMS.values()), (*FORMS["pairs"], {"model.lora": {"r": 4}})],
    ids=[*FORMS, "adapters"],
)
def test_steps_do_not_depend_on_the_micro_batch(tmp_path, options, metric, lora):
    found = []
    for size in (8, 2):
        changes = {**NO_DROPOUT, **lora, "metric": metric, "launch.micro_batch_size": size}
        trainer = in_process.trained(plan_job(*made(tmp_path / str(size), options, changes)))
        found.append([(e["loss"], e["grad_norm"]) for e in trainer.state.log_history if "grad_norm" in e])
    assert len(found[0]) == 4
    for whole, parts in zip(*found, strict=True):
        assert parts == pytest.approx(whole, rel=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "metric"), FORMS.values(), ids=FORMS)
def test_two_processes_end_with_the_weights_of_one(tmp_path, options, metric):
    weights = []
    for processes, size in ((1, 8), (2, 2)):
        launch = {"launch.num_processes": processes, "launch.micro_batch_size": size, "training.optimizer": "sgd"}
        artifacts, recipe = made(tmp_path / str(processes), options, {**NO_DROPOUT, **launch, "metric": metric})
        run_train(artifacts, recipe)
        weights.append(load_file(artifacts.model / "model.safetensors"))
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pairs", "mined"])
def test_killed_run_ends_with_the_same_bits(tmp_path, form):
    changes = {"training.max_steps": 6, "launch.micro_batch_size": 2}  # with dropout
    golden, recipe = made(tmp_path / "golden", FORMS[form][0], changes)
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    one, other = (load_file(artifacts.model / "model.safetensors") for artifacts in (golden, killed))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_validation_during_training_searches_documents_of_the_corpus(tmp_path):
    """The saved model is scored in the same way: the train stage compares."""
    found = {}
    for most in (0, 4, 1000):
        changes = {"training.max_steps": 1, "training.eval_steps": 1, "training.learning_rate": 1e-9}
        artifacts, recipe = made(tmp_path / str(most), {"validation_documents": most}, changes)
        job = plan_job(artifacts, recipe)
        trainer = in_process.trained(job)
        (first, last) = [entry for entry in trainer.state.log_history if "eval_ndcg_at_10" in entry]
        found[most] = last["eval_ndcg_at_10"]
        assert first["eval_ndcg_at_10"] == pytest.approx(found[most], abs=1e-3)
        trainer.model.save_pretrained(artifacts.model)
        check_same_metrics(artifacts.model, job, last)
    assert found[1000] < found[0], "documents are in the way"
    assert found[1000] <= found[4] <= found[0]


def test_negatives_are_mined_once_by_the_model_that_training_starts_from(tmp_path):
    artifacts, recipe = made(tmp_path, FORMS["mined"][0], {"training.max_steps": 4})
    job = plan_job(artifacts, recipe)
    first = in_process.trained(job).train_dataset
    kept = json.loads((job.folder / MINED).read_text())
    texts = {one["text_1"] for one in first} | {one["text_0"] for one in read_documents(job.tokens)}
    for one in first:
        mined = [one[f"text_{i}"] for i in range(3, 6)]
        assert one["text_2"] not in mined or one["text_2"] in texts
        assert {*mined} <= texts | {NO_TEXT}
        assert one["text_1"] not in mined
    assert min(map(max, kept)) >= 0, "each row has at least one"
    assert max(map(max, kept)) >= len(first), "some are documents of the corpus"

    last = max(job.folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    (job.folder / MINED).write_text(json.dumps([[i, i, i] for i in range(len(first))]))
    again = in_process.trainer_of(job.model_copy(update={"checkpoint": last}))
    again.train(resume_from_checkpoint=str(last))
    assert again.train_dataset[5]["text_3"] == first[5]["text_1"], "what the first start has mined is read"
    (job.folder / MINED).write_text("torn")
    again = in_process.trained(job.model_copy(update={"checkpoint": last}))
    assert [*again.train_dataset] == [*first], "and mined again by the start model, not by that of the checkpoint"


def released(root, objective, changes):
    """A model's folder as the train stage leaves it, after one step in this process."""
    artifacts, recipe = made(root, objective, changes | {"training.max_steps": 1, "training.eval_steps": 1})
    trainer = in_process.trained(plan_job(artifacts, recipe))
    trainer.model.save_pretrained(artifacts.model)
    complete_model_folder(artifacts.model, artifacts, recipe.model, trainer.objective.release_format)
    return artifacts, recipe


def test_trained_folder_gives_sentence_transformers_the_same_vectors(tmp_path):
    """Prompts, pooling, normalization and the limit of tokens are those of the base model's repository."""
    from sentence_transformers import SentenceTransformer

    artifacts, _ = released(tmp_path / "first", {"query_prompt": "query: ", "pooling": "cls"}, {})
    base = shutil.copytree(artifacts.model, tmp_path / "base")
    modules = json.loads((base / "modules.json").read_text())
    normalize = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    (base / "modules.json").write_text(json.dumps([*modules, normalize]))
    (base / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": false}')

    changes = {
        "tokenization.tokenizer": {"kind": "pretrained", "path": str(base)},
        "model": {"pretrained": str(base)},
    }
    artifacts, recipe = released(tmp_path / "second", {}, changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        published = SentenceTransformer(str(artifacts.model))
    texts = ["The cat sees a bird", "A dog hears the rain, again and again and again and again"]
    objective = objectives.build_objective(recipe.objective)
    tokenizer = read_tokenizer(artifacts.tokens)
    rows = [{"row_id": i, "anchor": text, "positive": text} for i, text in enumerate(texts)]
    encoded = objective.encode(rows, tokenizer, 32, {})
    assert [len(one.examples[0]["input_ids"]) for one in encoded][1] == 12
    model = load_trained_model(artifacts.model, objective.model_class()).eval()
    with torch.inference_mode():
        batch = objective.collate([one.examples[0] for one in encoded], tokenizer)
        own = torch.nn.functional.normalize(objective.embed(model, batch), dim=-1)
    np.testing.assert_allclose(published.encode_query(texts), own[:, 0].numpy(), atol=1e-6)
    np.testing.assert_allclose(published.encode_document(texts), own[:, 1].numpy(), atol=1e-6)
    assert not np.allclose(own[:, 0], own[:, 1], atol=1e-3), "the prompt makes a difference"
    assert published[1].pooling_mode == "cls"
    assert len(published) == 3
    assert published.max_seq_length == 12
