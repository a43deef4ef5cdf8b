"""Embeddings: losses against sentence-transformers', ranks against other definitions, and what a base model's repository says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import constants

from params import ModelError, TransientError
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.recipes.loading import load
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny
from tests.support.faulty_hub import quick_client
from tests.support.pretrained import write_model
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions
from trainer.objectives.bases.metrics.retrieval import NAMES, measure_queries, measure_ranks, rank_relevant
from trainer.objectives.bases.vectors import contrastive_loss as losses
from trainer.objectives.bases.vectors import sentence_transformers_files as files


def vectors(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def numbers(rows, texts):
    """All texts are different."""
    return torch.arange(rows * texts).reshape(rows, texts)


def same(one, other, given):
    """Both losses, and their gradients, are equal within 1e-6."""
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(loss, given, retain_graph=True)[0] for loss in (one, other)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


@pytest.mark.parametrize("texts", [2, 4])
@pytest.mark.parametrize("both", [False, True])
def test_multiple_negatives_loss_is_that_of_sentence_transformers(texts, both):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    directions = ("query_to_doc", "doc_to_query") if both else ("query_to_doc",)
    theirs = MultipleNegativesRankingLoss(None, scale=20.0, directions=directions, partition_mode="per_direction")
    given = vectors(9, texts, 5)
    own = losses.multiple_negatives_loss(given, numbers(9, texts), scale=20.0, both_directions=both)
    same(own, theirs.compute_loss_from_embeddings(list(given.unbind(1)), None), given)


def test_cosent_loss_is_that_of_sentence_transformers():
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    given, scores = vectors(12, 2, 5), torch.tensor([1, 2, 2, 3, 0.5, 5, 4.5, 1, 3, 2, 4, 4], dtype=torch.float64)
    own = losses.cosent_loss(given, scores, scale=20.0)
    same(own, CoSENTLoss(None).compute_loss_from_embeddings(list(given.unbind(1)), scores), given)


def test_losses_by_hand():
    """Without the library: the formulas, term by term."""
    given = vectors(4, 3, 5)
    unit = torch.nn.functional.normalize(given, dim=-1)
    found = losses.multiple_negatives_loss(given, numbers(4, 3), scale=2.0, both_directions=False)
    terms = []
    for i in range(4):
        others = [2 * unit[i, 0] @ unit[j, k] for k in (1, 2) for j in range(4)]
        terms.append(torch.stack(others).logsumexp(0) - others[i])
    same(found, torch.stack(terms).mean(), given)

    classes = torch.tensor([0, 1, 0, 2])
    found = losses.supervised_contrastive_loss(given[:, 0], classes, scale=2.0)
    of_pairs = []
    for i, j in ((0, 2), (2, 0)):
        others = torch.stack([2 * unit[i, 0] @ unit[k, 0] for k in range(4) if k != i])
        of_pairs.append(others.logsumexp(0) - 2 * unit[i, 0] @ unit[j, 0])
    same(found, torch.stack(of_pairs).mean(), given)


def test_positive_of_the_same_anchor_is_no_negative():
    given = vectors(3, 2, 5)
    texts = torch.tensor([[7, 1], [7, 2], [8, 3]])  # rows 0 and 1 have the same anchor
    alone = losses.multiple_negatives_loss(given[[0, 2]], numbers(2, 2), scale=20.0, both_directions=False)
    all_rows = losses.multiple_negatives_loss(given, texts, scale=20.0, both_directions=False)
    unit = torch.nn.functional.normalize(given, dim=-1)
    logits = 20 * unit[:, 0] @ unit[:, 1].T
    expected = [logits[0, [0, 2]].logsumexp(0) - logits[0, 0], logits[1, [1, 2]].logsumexp(0) - logits[1, 1]]
    expected += [logits[2].logsumexp(0) - logits[2, 2]]
    torch.testing.assert_close(all_rows, torch.stack(expected).mean())
    assert alone != all_rows


def test_matryoshka_loss_is_the_sum_over_the_first_numbers():
    options = {"matryoshka_dims": [5, 2]}
    objective, given = build(**options), vectors(6, 2, 5)
    parts = [build().global_loss(given[..., :size], numbers(6, 2)) for size in (5, 2)]
    torch.testing.assert_close(objective.global_loss(given, numbers(6, 2)), sum(parts))


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="embedding", **options))


def test_metrics_of_queries_are_those_of_scikit_learn():
    from sklearn.metrics import ndcg_score

    chance = np.random.default_rng(3)
    for _ in range(200):
        cosines, relevant = chance.uniform(-1, 1, 30), chance.random(30) < chance.uniform(0.05, 0.6)
        if not relevant.any():
            continue
        found = dict(zip(NAMES, measure_ranks(*rank_relevant(cosines, relevant * 1.0)), strict=True))
        assert found["ndcg_at_10"] == pytest.approx(ndcg_score([relevant], [cosines], k=10), abs=1e-9)
        grades = relevant * chance.integers(1, 5, 30).astype(float)
        graded = dict(zip(NAMES, measure_ranks(*rank_relevant(cosines, grades)), strict=True))
        assert graded["ndcg_at_10"] == pytest.approx(ndcg_score([grades], [cosines], k=10), abs=1e-9)
        assert {**graded, "ndcg_at_10": 0} == {**found, "ndcg_at_10": 0}, "the other metrics know no grades"
        ordered = relevant[np.argsort(-cosines)]
        first = np.flatnonzero(ordered)[0]
        assert found["mrr_at_10"] == pytest.approx(1 / (first + 1) if first < 10 else 0)
        for k in (1, 10):
            assert found[f"recall_at_{k}"] == pytest.approx(ordered[:k].sum() / relevant.sum())


def test_equal_vectors_find_nothing():
    grades = np.zeros(20)
    grades[[3, 4]] = 2, 1
    ranks, found = rank_relevant(np.full(20, 0.5), grades)
    assert (ranks.tolist(), found.tolist()) == ([19, 20], [1, 2])


def test_a_query_does_not_find_its_own_text():
    """Of two texts, each is the anchor of the other: without this, no model could find more than the second document first."""
    texts = {1: np.array([1.0, 0.0]), 2: np.array([0.8, 0.6]), 3: np.array([0.0, 1.0])}
    pairs = ((1, 2), (2, 1), (3, 3), (3, 2))
    rows = [np.concatenate([texts[one], texts[other], [one, other]]) for one, other in pairs]
    objective = build()
    for documents in (None, np.array([[*texts[1], 1.0]])):
        found = objective.scores_of_split(np.stack(rows), {}, documents)
        assert found[:, :3].tolist() == [[1.0, 1.0, 1.0]] * 4


def test_query_is_one_anchor_with_all_its_positives_among_all_documents_of_the_split():
    """Anchor 7 has the documents 1 and 2, the second of which is last; document 1 stands twice."""
    corners = np.eye(4)
    rows = [  # anchor, positive, their numbers
        np.concatenate([corners[0], corners[0], [7, 1]]),
        np.concatenate([corners[0], -corners[0], [7, 2]]),
        np.concatenate([corners[1], corners[0], [8, 1]]),
        np.concatenate([corners[2], corners[2], [9, 3]]),
    ]
    objective = build()
    scores = dict(zip(objective.score_names({}), objective.scores_of_split(np.stack(rows), {}).T, strict=True))
    ndcg = (1 + 1 / np.log2(4)) / (1 + 1 / np.log2(3))  # ranks 1 and 3
    tied = 1 / np.log2(4)  # document 3 has the same cosine, and is first; document 2 has a lower one or the same: 0
    assert scores["ndcg_at_10"].tolist() == pytest.approx([ndcg, ndcg, tied, 1])
    assert scores["query"].tolist() == [7, 7, 8, 9]
    totals = objective.additive_statistics(scores, {}).sum(0)
    assert totals[len(NAMES)] == 3
    assert objective.compute_metrics(totals, {})["ndcg_at_10"] == pytest.approx((ndcg + tied + 1) / 3)


def test_grades_are_gains_and_the_highest_of_equal_pairs_counts():
    """Query 7 finds a document of grade 1 before one of grade 3, which the split has twice, once with grade 2."""
    corners, near = np.eye(3), np.array([0.8, 0.6, 0])
    rows = [
        np.concatenate([corners[0], corners[0], [7, 1], [1]]),
        np.concatenate([corners[0], near, [7, 2], [3]]),
        np.concatenate([corners[0], near, [7, 2], [2]]),
        np.concatenate([corners[2], corners[2], [8, 3], [2]]),
    ]
    objective = build(grade_column="grade")
    scores = dict(zip(objective.score_names({}), objective.scores_of_split(np.stack(rows), {}).T, strict=True))
    ndcg = (1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3))
    assert scores["ndcg_at_10"].tolist() == pytest.approx([ndcg, ndcg, ndcg, 1])
    assert scores["recall_at_1"].tolist() == [0.5, 0.5, 0.5, 1]
    assert len(objective.vector_space.vectors_of_texts(np.stack(rows))) == 5
    assert objective.columns()["grade"] == "number"
    row = {"anchor": "a", "positive": "b", "grade": 0}
    assert objective.reject_reason(row) == "grade is 0, and that of a positive is above 0"
    assert objective.reject_reason({**row, "grade": 0.5}) is None


@pytest.mark.parametrize("given", [["negative_1", "negative_2"], "{negative_1} {negative_2}"])
def test_several_columns_of_negatives_are_a_list_or_a_template(given):
    objective = build(negative_columns=given)
    assert [*objective.columns()] == ["anchor", "positive", "negative_1", "negative_2"]
    assert build(negative_columns="negative").options.negative_columns == ["negative"]


LISTED = {"negative_columns": "negatives", "listed_negatives": 2}


def test_negatives_of_a_list_are_read_up_to_so_many_and_those_that_lack_are_no_texts():
    tokenizer = train_tokenizer(tiny.sentences(20), TrainTokenizer(kind="train", vocab_size=300, min_frequency=1))
    objective, apart = build(**LISTED), build(negative_columns=["negative_1", "negative_2"])
    assert objective.columns() == {"anchor": "string", "positive": "string", "negatives": "labels"}
    lists = (["a bird", "rain", "again"], ["a king"], [])
    rows = [{"row_id": i, "anchor": f"the cat {i}", "positive": "a", "negatives": own} for i, own in enumerate(lists)]
    assert objective.texts(rows[0]) == ["the cat 0", "a", "a bird", "rain"]
    examples = [one.examples[0] for one in objective.encode(rows, tokenizer, 8, {})]
    columns = {f"negative_{i + 1}": text for i, text in enumerate(lists[0][:2])}
    assert examples[0] == apart.encode([rows[0] | columns], tokenizer, 8, {})[0].examples[0]
    batch = objective.collate(examples, tokenizer)
    assert (batch["texts"] == -1).tolist() == [[False] * 4, [False] * 3 + [True], [False, False, True, True]]
    vectors = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (gradient,) = torch.autograd.grad(objective.global_loss(vectors, batch["texts"]), vectors)
    assert (gradient.abs().sum(-1) > 0).tolist() == (batch["texts"] != -1).tolist(), "only texts are learned from"


def test_a_text_that_a_row_lacks_is_not_found():
    """It would be the nearest one, and stands in the place of two negatives."""
    corners = np.eye(3)
    rows = [
        np.concatenate([corners[0], corners[1], corners[0], corners[0], [7, 1, -1, -1]]),
        np.concatenate([corners[1], corners[2], corners[1], corners[0], [8, 2, 3, -1]]),
    ]
    objective = build(**LISTED)
    scores = dict(zip(objective.score_names({}), objective.scores_of_split(np.stack(rows), {}).T, strict=True))
    assert scores["mrr_at_10"].tolist() == [1 / 3, 1 / 3], "behind both other documents, as equal ones are"
    assert len(objective.vector_space.vectors_of_texts(np.stack(rows))) == 5


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (["a", None], "one of its negatives is null"),
        (["a", " "], "one of its negatives is blank"),
        ({"a": True}, "its negatives is a record, and not a list of texts"),
        ([], None),
    ],
)
def test_a_list_of_negatives_that_cannot_be_read_is_set_aside(value, why):
    assert build(**LISTED).reject_reason({"anchor": "a", "positive": "b", "negatives": value}) == why


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"listed_negatives": 2}, "needs one column with lists, and negative_columns names none"),
        (LISTED | {"negative_columns": ["a", "b"]}, "needs one column with lists, and negative_columns names 2"),
        (LISTED | {"label_column": "label"}, "has no effect beside label_column"),
    ],
)
def test_keys_of_lists_that_contradict_each_other_are_refused(options, what, tmp_path):
    recipe = load(tiny.write(tmp_path / "tiny.yaml", tiny.recipe()))
    sections = {"model": recipe.model, "training": recipe.training, "launch": recipe.launch}
    found = build(**options).conflicts(**sections)
    assert what in {one.what for one in found if one.key[1] == "listed_negatives"}


def test_grade_of_a_row_reaches_the_scores():
    """Through tokens and a batch."""
    tokenizer = train_tokenizer(tiny.sentences(20), TrainTokenizer(kind="train", vocab_size=300, min_frequency=1))
    objective = build(grade_column="grade")
    rows = [{"row_id": i, "anchor": "the cat", "positive": text, "grade": i + 1} for i, text in enumerate("ab")]
    batch = objective.collate([one.examples[0] for one in objective.encode(rows, tokenizer, 8, {})], tokenizer)
    assert batch["grade"].tolist() == [[1], [2]]
    assert batch["texts"].shape == (2, 2)


def test_texts_of_a_class_find_each_other_and_not_themselves():
    objective = build(label_column="label")
    angles = np.radians([0, 10, 100, 5])
    measured = np.stack([np.cos(angles), np.sin(angles), np.arange(4), [1, 1, 1, 2]], 1)
    scores = dict(zip(objective.score_names({}), objective.scores_of_split(measured, {}).T, strict=True))
    assert scores["counted"].tolist() == [1, 1, 1, 0], "one that is alone in its class asks for nothing"
    assert scores["mrr_at_10"].tolist() == pytest.approx([1 / 2, 1 / 2, 1, 0])
    found = objective.compute_metrics(objective.additive_statistics(scores, {}).sum(0), {})
    assert found["mrr_at_10"] == pytest.approx(2 / 3)


def test_rank_correlation_is_that_of_scipy():
    from scipy.stats import spearmanr

    objective, chance = build(positive_column="positive", label_column="score"), np.random.default_rng(5)
    for _ in range(50):
        scores = {"predicted": chance.normal(size=20), "given": chance.integers(0, 6, 20).astype(float)}
        assert objective.whole_metrics(scores)["spearman"] == pytest.approx(spearmanr(*scores.values()).statistic)
    assert directions(objective.metrics) == {"spearman": "max"}


def test_not_finite_vectors_have_no_metric():
    found = measure_queries(np.array([[np.nan, 1.0]]), np.eye(2), [np.array([0])], np.array([-1])).queries
    assert np.isnan(found).all()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_pooling_is_that_of_sentence_transformers(pooling):
    from sentence_transformers.sentence_transformer.modules import Pooling

    states, behind = vectors(3, 4, 5).detach(), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    for mask in (behind, behind.flip(1)):
        theirs = Pooling(5, pooling_mode=pooling)({"token_embeddings": states.clone(), "attention_mask": mask})
        torch.testing.assert_close(files.pool(states, mask, pooling), theirs["sentence_embedding"])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_no_vector_depends_on_the_texts_beside_it(model_type, side, tmp_path):
    """Nor on the side on which the tokenizer pads: a place before a text would be counted by models of absolute positions."""
    write_model(tmp_path, model_type, initializer_range=0.5)
    network = transformers.AutoModel.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, padding_side=side)
    texts = ["rain", "what about the rain in this place", "a train and a road"]
    for pooling in ("mean", "cls", "max", "lasttoken"):
        setattr(network.config, files.KEY, {"pooling": pooling, "normalize": True})
        with torch.no_grad():
            alone = torch.cat([files.embed_texts(network, tokenizer, [text], "document") for text in texts])
            together = files.embed_texts(network, tokenizer, texts, "document")
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-4, msg=pooling)


TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


def write(folder, modules, pooling=None, **more):
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling or {"pooling_mode_cls_token": True}))
    for name, content in more.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def test_parts_of_a_base_model_are_kept(tmp_path):
    assert files.read_parts(str(tmp_path), None) is None
    base = write(tmp_path, [TRANSFORMER, POOLING, {"type": "sentence_transformers.models.Normalize"}])
    assert files.read_parts(base, None) == {"pooling": "cls", "normalize": True}


def test_a_hub_that_does_not_answer_has_not_said_that_a_base_has_no_pooling(tmp_path, monkeypatch):
    """The weights may be in the client's cache all the same."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with quick_client(), pytest.raises(TransientError, match=r"modules\.json cannot be downloaded"):
        files.read_parts("tests/base", None)


def test_release_that_was_not_trained_here_is_scored_as_it_says(tmp_path):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertModel(BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path)
    write(tmp_path, [TRANSFORMER, POOLING])
    model, ids = BertModel.from_pretrained(tmp_path).eval(), torch.tensor([[1, 2, 3]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        torch.testing.assert_close(build().embed(model, batch)[:, 0], model(ids).last_hidden_state[:, 0])


@pytest.mark.parametrize(
    ("modules", "pooling", "settings", "reason"),
    [
        ([TRANSFORMER, POOLING, {"path": "2_Dense", "type": "a.Dense"}], None, {}, "has Dense, which is not trained"),
        ([TRANSFORMER | {"path": "0_Transformer"}, POOLING], None, {}, "in the folder 0_Transformer"),
        ([TRANSFORMER, POOLING], {"pooling_mode": ["cls", "mean"]}, {}, "pooled by cls and mean"),
        ([TRANSFORMER, POOLING], {"pooling_mode_weightedmean_tokens": True}, {}, "pooled by weightedmean"),
        ([TRANSFORMER, POOLING], {"pooling_mode": "mean", "include_prompt": False}, {}, "include_prompt"),
        ([TRANSFORMER, POOLING], None, {"do_lower_case": True}, "do_lower_case"),
        ({"no": "list"}, None, {}, "no list of modules"),
    ],
)
def test_parts_that_would_be_lost_are_refused(tmp_path, modules, pooling, settings, reason):
    base = write(tmp_path, modules, pooling, sentence_bert_config=settings)
    with pytest.raises(ModelError, match=reason):
        files.read_parts(base, None)


def test_documents_of_a_corpus_are_ranked_beside_those_of_the_split():
    """Two documents of the corpus are nearer to the query than its own; one of them is its own, which counts once."""
    corners, objective = np.eye(4), build()
    near = np.array([0.8, 0.6, 0, 0])
    measured = np.concatenate([corners[0], near, [7, 1]])[None]
    documents = np.stack([np.append(near, 1), np.append(corners[0], 2), np.append(corners[3], 3)])
    names = objective.score_names({})
    alone = dict(zip(names, objective.scores_of_split(measured, {})[0], strict=True))
    found = dict(zip(names, objective.scores_of_split(measured, {}, documents)[0], strict=True))
    assert (alone["mrr_at_10"], found["mrr_at_10"]) == (1, 1 / 2)
    assert found["cosine"] == alone["cosine"] == pytest.approx(0.8)


def test_documents_have_the_number_and_the_tokens_of_the_same_text_in_a_row():
    tokenizer = train_tokenizer(tiny.sentences(20), TrainTokenizer(kind="train", vocab_size=300, min_frequency=1))
    tokenizer.init_kwargs[files.KEY] = {"prompts": {"query": "find: ", "document": "read: "}}
    objective, row = build(), {"row_id": 0, "anchor": "the cat", "positive": " a bird and a rain "}
    (encoded,) = objective.encode([row], tokenizer, 6, {})
    (example,) = objective.vector_space.encode_documents([row["positive"]], tokenizer, 6)
    assert len(example["input_ids"]) == 6
    assert example["input_ids"] == encoded.examples[0]["positive_input_ids"]
    assert example["text_0"] == encoded.examples[0]["text_1"]
    assert build(document_column="body").vector_space.document_column == "body"
    assert build(label_column="label").vector_space.document_column is None


@pytest.mark.parametrize("options", [{}, {"label_column": "label"}, {"positive_column": "p", "label_column": "label"}])
def test_vectors_are_those_of_the_texts_in_an_order_of_their_own(options):
    objective, chance = build(**options), np.random.default_rng(3)
    texts = 1 if options == {"label_column": "label"} else 2
    numbers = chance.permutation(2 * texts).reshape(2, texts)
    vectors = chance.normal(size=(2, texts, 4))
    given = numbers if not options else np.ones((2, 1)) if texts == 2 else np.concatenate([numbers, [[5], [5]]], 1)
    measured = np.concatenate([vectors.reshape(2, -1), given], 1)
    found = objective.vector_space.vectors_of_texts(measured)
    other = objective.vector_space.vectors_of_texts(measured[::-1])
    assert sorted(found[:, 0]) == sorted(vectors[..., 0].ravel())
    if texts == 1 or not options:
        assert found.tolist() == other.tolist()
