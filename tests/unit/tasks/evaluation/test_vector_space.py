"""A corpus from its files to the metrics, and how far a model's vectors are from the champion's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from params import DataError, RecipeError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks import digests
from tasks.ingestion.stage import ingest
from tasks.measurements.vectors import VectorSpaceChange
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.stages import save_report
from tasks.tokenization.stage import tokenize
from tasks.validation.documents import write_good_documents
from tests.support import releases, tiny
from trainer.objectives.bases.vectors.space import compare_spaces

MODEL = {"config": tiny.CLASSES["model"]["config"] | {"max_position_embeddings": 64}}


def corpus(root, *documents, name="text"):
    """What ingest leaves of a corpus: its folder."""
    tiny.write_splits(root, {"corpus": {name: list(documents)}})
    return root / "corpus"


def test_ingest_reads_a_corpus_beside_the_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows", "documents"):
        lines = (json.dumps({"query": f"what of {i}?", "text": f"{name} {i}"}) for i in range(60))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    shares = {"validation": 0.2, "test": 0.2}
    data = {"source": {"kind": "files", "train": "rows.jsonl"}, "split": shares, "corpus": "documents.jsonl"}
    artifacts, launch = Artifacts("tiny"), Launch(micro_batch_size=1)
    report = ingest(artifacts, data=Data.model_validate(data), seed=3, launch=launch)
    assert sum(report.rows.values()) == 60, "documents are rows of no split"
    assert {*report.data_sha256} == {"train", "validation", "test", "corpus"}
    assert report.corpus_revision not in ("", report.revision)
    found = SplitRows(artifacts.raw / "corpus").table(["text"])["text"].to_pylist()
    assert found == [f"documents {i}" for i in range(60)]
    alone = ingest(artifacts, data=Data.model_validate(data | {"corpus": None}), seed=3, launch=launch)
    assert alone.rows == report.rows
    assert not (artifacts.raw / "corpus").exists()
    assert {name: report.data_sha256[name] for name in alone.data_sha256} == alone.data_sha256


def test_each_document_is_kept_once_and_blank_ones_are_counted(tmp_path):
    raw = corpus(tmp_path, "a", " ", "b", " a", None, "c")
    report = write_good_documents(raw, tmp_path / "good", "text", 0.4)
    assert report.sentence == "data.corpus has 3 documents; of its 6 rows, 2 are blank and 1 repeat others"
    kept = SplitRows(tmp_path / "good").table()
    assert (kept["text"].to_pylist(), kept["row_id"].to_pylist()) == (["a", "b", "c"], [0, 2, 5])
    assert write_good_documents(tmp_path / "none", tmp_path / "good", "text", 0.1) is None


@pytest.mark.parametrize(
    ("documents", "column", "error", "said"),
    [
        (
            ["a"],
            "texts",
            DataError,
            "no column `texts`\n  fix: did you mean `text`.; objective.document_column names it",
        ),
        ([7.5], "text", DataError, "holds double, not text"),
        (["a", " "], "text", DataError, "1 of its 2 documents are blank, the first is row_id 1"),
        (
            ["a"],
            None,
            RecipeError,
            "data.corpus: has no effect: this objective, with these options, ranks no documents",
        ),
    ],
)
def test_corpus_that_cannot_be_searched_is_refused(tmp_path, documents, column, error, said):
    with pytest.raises(error, match=said):
        write_good_documents(corpus(tmp_path, *documents), tmp_path / "good", column, 0.1)


def test_queries_search_the_corpus_and_the_report_says_how_far_vectors_have_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objective = {"name": "embedding", "anchor_column": "query", "positive_column": "text"}
    changes = {"training.best_metric": "ndcg_at_10", "evaluation.compare_untrained": False}
    content = tiny.recipe(changes, objective=objective, model=MODEL)
    recipe, artifacts = load(tiny.write(tmp_path / "params/tiny.yaml", content)), Artifacts("tiny")
    texts = tiny.sentences(60)
    rows = {"query": [f"what of {i}?" for i in range(60)], "text": texts}
    places = {"train": slice(20, 60), "validation": slice(10, 20), "test": slice(0, 10)}
    tiny.write_rows(artifacts, **{split: {n: own[at] for n, own in rows.items()} for split, at in places.items()})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, 0)
    save_report(releases.SOURCE, artifacts.report("ingest"))

    alone, before = releases.evaluate(artifacts, recipe), digests.validated_rows_digest(artifacts)
    tiny.write_splits(tmp_path / "raw", {"corpus": {"text": [*texts, *(f"{text} And more." for text in texts)]}})
    write_good_documents(tmp_path / "raw/corpus", artifacts.rows / "corpus", "text", 0.1)
    found = releases.evaluate(artifacts, recipe)
    details = json.loads(artifacts.report("details").read_text())
    assert (details["documents"], details["vectors"]) == (120, None)
    (part,) = details["own_slices"]
    assert (part["slice_by"], part["slice"], part["rows"]) == ("query length", "3 to 4 words", 10)
    assert (part["metric"], part["value"]) == ("ndcg_at_10", pytest.approx(found.model["ndcg_at_10"]))
    assert found.rows == alone.rows == 10
    assert found.model["recall_at_10"] < alone.model["recall_at_10"] == 1, "more documents are in the way"
    assert digests.validated_rows_digest(artifacts) != before, "another corpus makes another evaluation"

    releases.publish(artifacts, recipe, license="other")
    releases.learn(artifacts, recipe, 0, seed=12)
    releases.evaluate(artifacts, recipe)
    moved = json.loads(artifacts.report("details").read_text())["vectors"]
    assert moved["texts"] == 20
    assert moved["cosine"] < moved["rotated"] < 1
    sentence = VectorSpaceChange.model_validate(moved).sentence
    assert sentence.startswith("the vectors of 20 held-out texts have a mean cosine of ")
    assert "an index of vectors must be rebuilt" in sentence


def test_a_corpus_has_no_splits():
    source = {"kind": "files", "train": "rows.csv"}
    assert Data.model_validate({"source": source, "corpus": "a*.csv"}).corpus.train == "a*.csv"
    with pytest.raises(ValueError, match="has no splits"):
        Data.model_validate({"source": source, "corpus": {**source, "test": "others.csv"}})


def test_best_rotation_is_found():
    chance = np.random.default_rng(3)
    vectors = chance.normal(size=(60, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rotation = np.linalg.qr(chance.normal(size=(8, 8)))[0]
    assert compare_spaces(vectors, vectors) == pytest.approx((1, 1))
    cosine, rotated = compare_spaces(vectors, vectors @ rotation)
    assert abs(cosine) < 0.5
    assert rotated == pytest.approx(1)
    other = chance.normal(size=(60, 8))
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    from scipy.linalg import orthogonal_procrustes

    best = orthogonal_procrustes(vectors, other)[0]
    assert compare_spaces(vectors, other)[1] == pytest.approx(((vectors @ best) * other).sum() / 60)
