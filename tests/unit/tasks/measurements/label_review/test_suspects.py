"""Suspects: confident learning beside a plain reading of the paper, held-out features, the table for people, and the whole stage."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from params.foundation.artifacts import CORRECTIONS, Artifacts
from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowGroups
from tasks.measurements.label_review import cross_fitting, suspects
from tasks.measurements.label_review import review as label_review
from tasks.measurements.label_review.cross_fitting import TrainFeatures
from tasks.measurements.label_review.review_table import COLUMNS, quote_text, review_csv
from tasks.measurements.label_review.suspects import SplitBeliefs, Suspect
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.stage import tokenize
from tests.support import releases, sample_data, tiny
from tests.support.validation import run_validation
from trainer import objectives
from trainer.data.tokens import Sequences
from trainer.objectives.bases.metrics.label_results import LabelBeliefs

SIZES = {"train": 200, "validation": 20, "test": 60}
FUNNEL = {
    "model_type": "funnel",
    "vocab_size": 300,
    "block_sizes": [1, 1],
    "d_model": 32,
    "n_head": 2,
    "d_head": 16,
    "d_inner": 64,
}


def beliefs_of(name: str, logits: torch.Tensor, labels: torch.Tensor) -> list[Any]:
    """What the scores of an objective say, for labels called by letters."""
    objective: Any = objectives.build_objective(ObjectiveChoice(name=name))
    state = {"labels": [chr(97 + i) for i in range(logits.shape[1])]}
    table = objective.score_logits(logits, labels)
    columns = dict(zip(objective.score_names(state), table.numpy().T, strict=True))
    return list(objective.label_beliefs(columns, state))


def confident_joint(probabilities: Any, given: Any) -> dict[int, int]:
    """The paper, row by row: the likely label of each row off the diagonal, without rows whose likeliest label is their own."""
    thresholds = {}
    for label in range(probabilities.shape[1]):
        own = [probabilities[i][label] for i in range(len(given)) if given[i] == label]
        every = [probabilities[i][given[i]] for i in range(len(given))]
        thresholds[label] = sum(own) / len(own) if own else sum(every) / len(every)
    found = {}
    for i, row in enumerate(probabilities):
        likely = [label for label, p in enumerate(row) if p >= thresholds[label]]
        best = max(likely, key=lambda label: row[label], default=given[i])
        if best != given[i] and row.argmax() != given[i]:
            found[i] = best
    return found


def noisy(seed: int) -> tuple[torch.Tensor, Any]:
    """Logits of rows of a few labels, some of which are given wrongly, and are rare."""
    draw = np.random.default_rng(seed)
    rows, labels = int(draw.integers(5, 80)), int(draw.integers(2, 9))
    truth = draw.choice(labels, rows, p=draw.dirichlet(np.ones(labels)))
    given = np.where(draw.random(rows) < draw.uniform(0, 0.4), draw.integers(0, labels, rows), truth)
    logits = draw.normal(0, draw.uniform(0.2, 2), (rows, labels)) + draw.uniform(0, 4) * np.eye(labels)[truth]
    return torch.tensor(logits), given


def test_suspects_of_200_random_confusions_are_those_of_the_confident_joint() -> None:
    found_any, left_any = 0, 0
    for seed in range(200):
        logits, given = noisy(seed)
        probabilities = logits.softmax(1).numpy()
        (beliefs,) = beliefs_of("sequence_classification", logits, torch.tensor(given))
        found = set(np.flatnonzero(suspects.is_suspect(beliefs)))
        paper = confident_joint(probabilities, given)
        likeliest = {i for i, label in paper.items() if label == probabilities[i].argmax()}
        assert found == likeliest, seed
        found_any, left_any = found_any + len(found), left_any + len(paper.keys() - found)
        for i in found:
            others = np.delete(probabilities[i], given[i])
            margin = beliefs.given_probability[i] - beliefs.likeliest_probability[i]
            assert margin == pytest.approx(probabilities[i][given[i]] - others.max(), abs=1e-6)
    assert found_any > 500
    assert left_any < found_any / 4, "the rows whose likely label is not the likeliest are few"


def test_each_of_several_labels_is_reviewed_by_itself() -> None:
    for seed in range(50):
        draw = np.random.default_rng(seed)
        logits, given = torch.tensor(draw.normal(0, 2, (60, 3))), torch.tensor(draw.random((60, 3)) < 0.4).float()
        found = beliefs_of("multi_label_classification", logits, given)
        assert [one.answers for one in found] == [("not a", "a"), ("not b", "b"), ("not c", "c")]
        for label, one in enumerate(found):
            yes = logits[:, label].sigmoid().numpy()
            paper = confident_joint(np.stack([1 - yes, yes], 1), given[:, label].int().tolist())
            assert set(np.flatnonzero(suspects.is_suspect(one))) == {*paper}, "of two, the likely one is the likeliest"


def gaussians(rows: int = 400, labels: int = 4, width: int = 6, seed: int = 0) -> TrainFeatures:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, labels, rows)
    features = draw.normal(0, 2, (labels, width))[truth] + draw.normal(0, 1, (rows, width)) @ draw.normal(
        0, 1, (width, width)
    )
    return TrainFeatures(np.arange(rows), features.astype(np.float32), truth)


def standardized(train: TrainFeatures) -> Any:
    features = train.features.astype(float)
    return (features - features.mean(0)) / features.std(0)


@pytest.fixture
def to_the_end(monkeypatch) -> None:
    """Let the regression go on until nothing changes."""
    monkeypatch.setattr(cross_fitting, "_ITERATIONS", 5000)


def reference(train: TrainFeatures, given: Any, out: Any) -> Any:
    model = LogisticRegression(C=10 / train.features.shape[1], max_iter=5000, tol=1e-8)
    return model.fit(standardized(train)[~out], given[~out])


@pytest.mark.usefixtures("to_the_end")
def test_held_out_logits_are_those_of_scikit_learn() -> None:
    train = gaussians()
    folds = cross_fitting.assign_folds(train, None, 3)
    logits, judged = cross_fitting.cross_fit(train, folds, 4)
    assert judged.all()
    for fold in range(cross_fitting.FOLDS):
        out = folds == fold
        theirs = reference(train, train.labels, out).predict_proba(standardized(train)[out])
        assert torch.tensor(logits[out]).softmax(1).numpy() == pytest.approx(theirs, abs=1e-3)


@pytest.mark.usefixtures("to_the_end")
def test_held_out_logits_of_several_labels_are_those_of_each_label_alone() -> None:
    train = gaussians()
    given = np.stack([train.labels == 0, train.labels > 1, train.labels % 2 == 0], 1).astype(float)
    folds = cross_fitting.assign_folds(train, None, 3)
    logits, _ = cross_fitting.cross_fit(train._replace(labels=given), folds, 3)
    for label in range(3):
        for fold in range(cross_fitting.FOLDS):
            out = folds == fold
            theirs = reference(train, given[:, label], out).predict_proba(standardized(train)[out])[:, 1]
            assert torch.tensor(logits[out, label]).sigmoid().numpy() == pytest.approx(theirs, abs=1e-3)


def test_what_is_held_of_a_row_does_not_depend_on_its_own_label() -> None:
    train = gaussians(80)
    folds = cross_fitting.assign_folds(train, None, 3)
    before, _ = cross_fitting.cross_fit(train, folds, 4)
    labels = train.labels.copy()
    labels[7] = (labels[7] + 1) % 4
    after, _ = cross_fitting.cross_fit(train._replace(labels=labels), folds, 4)
    assert (after[folds == folds[7]] == before[folds == folds[7]]).all()
    assert not (after[folds != folds[7]] == before[folds != folds[7]]).any()


def test_folds_keep_groups_together_and_share_out_each_class() -> None:
    train = gaussians(400)
    for label in range(4):
        sizes = np.bincount(cross_fitting.assign_folds(train, None, 1)[train.labels == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    groups = RowGroups(train.row_ids, train.row_ids // 3)
    folds = cross_fitting.assign_folds(train, groups, 1)
    assert all(len(set(folds[groups.numbers == group])) == 1 for group in set(groups.numbers))
    assert len(set(folds)) == 5
    assert (folds != cross_fitting.assign_folds(train, groups, 2)).any()


def test_a_label_of_few_rows_is_not_judged() -> None:
    train = gaussians(200)
    labels = train.labels.copy()
    labels[:3] = 4
    logits, judged = cross_fitting.cross_fit(train._replace(labels=labels), np.arange(200) % 5, 5)
    assert judged.any(1).tolist() == [False] * 3 + [True] * 197
    assert (logits[:3].argmax(1) == 4).all()
    (beliefs,) = beliefs_of("sequence_classification", torch.tensor(logits), torch.tensor(labels))
    assert not suspects.is_suspect(beliefs)[:3].any()


def test_skill_is_the_share_of_the_errors_of_a_guess_that_are_avoided() -> None:
    rows: Any = None
    given, likeliest = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    one = beliefs_of("sequence_classification", 9.0 * torch.nn.functional.one_hot(likeliest), given)
    assert SplitBeliefs(rows, np.arange(5), one).skill == 1 - 1 / 2
    judged = np.array([[True], [True], [False], [True], [True]])
    assert SplitBeliefs(rows, np.arange(5), one, judged).skill == 1
    assert SplitBeliefs(rows, np.arange(5), [*one, *one]).skill == 1 - 2 / 4
    same = beliefs_of("sequence_classification", 9.0 * torch.nn.functional.one_hot(likeliest), given * 0)
    assert SplitBeliefs(rows, np.arange(5), same).skill == 0, "there is nothing to know"


@pytest.mark.parametrize(("name", "kind"), sample_data.cases("banking77", slow=["banking77"]))
def test_labels_that_were_changed_are_found(name, kind, tmp_path) -> None:
    """Questions to a bank, of which 5 % have another label by chance, and features of their words that know no labels."""
    with (sample_data.data_set(name, kind, tmp_path) / "train.csv").open(encoding="utf-8") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    intents = sorted({label for _, label in rows})[:20]
    texts, names = zip(*(row for row in rows if row[1] in intents), strict=True)
    labels = np.unique(names, return_inverse=True)[1]
    draw = np.random.default_rng(0)
    wrong = draw.random(len(labels)) < 0.05
    given = np.where(wrong, (labels + draw.integers(1, 20, len(labels))) % 20, labels)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(texts)
    features = TruncatedSVD(150, random_state=0).fit_transform(words).astype(np.float32)
    train = TrainFeatures(np.arange(len(labels)), features, given)
    logits, _ = cross_fitting.cross_fit(train, cross_fitting.assign_folds(train, None, 0), 20)
    (beliefs,) = beliefs_of("sequence_classification", torch.tensor(logits), torch.tensor(given))
    found = suspects.is_suspect(beliefs)
    assert wrong[found].mean() > 0.65, f"of {found.sum()} suspects {wrong[found].mean():.3f} were changed"
    assert found[wrong].mean() > 0.65, f"of {wrong.sum()} that were changed {found[wrong].mean():.3f} are suspects"


def test_cells_are_no_formulas_and_keep_their_text() -> None:
    texts = [
        "=HYPERLINK(1)",
        "+1 for this",
        "-",
        "@you",
        "\tx",
        "\uff1d1",
        "-1",
        "+2.5",
        'say "a, b"\nand c',
        "Grüße",
        " =1",
        "",
    ]
    found = [Suspect("train", i, "-1", "=b", 0.98765, -0.9) for i in range(len(texts))]
    content = review_csv(found, dict(enumerate(texts)))
    assert content.startswith("\ufeffsplit,row_id,"), "Excel takes other files for another encoding"
    header, *rows = csv.reader(io.StringIO(content.removeprefix("\ufeff"), newline=""))
    assert tuple(header) == COLUMNS
    guarded = {row[2] for row in rows if row[2].startswith("'")}
    assert guarded == {f"'{text}" for text in (*texts[:6], " =1")}
    assert [row[2].removeprefix("'") for row in rows] == texts
    assert rows[0][3:] == ["-1", "'=b", "0.988", "suspect", "", ""]


def test_other_columns_of_a_row_stand_behind_those_of_the_table() -> None:
    found = [Suspect("train", i, "a", "b", 0.5, -0.1) for i in (3, 4)]
    others = {"=id": {3: "007", 4: None}, "split": {3: {"é": [1.5]}}, "note": {3: "x" * 3000, 4: "-"}}
    header, first, second = csv.reader(io.StringIO(review_csv(found, {3: "t", 4: "u"}, others).removeprefix("\ufeff")))
    assert header == [*COLUMNS, "'=id", "row.split", "note"]
    assert first[9:] == ["007", '{"é": [1.5]}', "x" * 2000 + " ... (3,000 characters)"]
    assert second[9:] == ["", "", "'-"]


def test_a_long_text_says_that_it_is_cut() -> None:
    assert quote_text("a" * 2000) == "a" * 2000
    assert quote_text("a" * 12_345) == "a" * 2000 + " ... (12,345 characters)"


def with_wrong_labels(root: Any, content: dict[str, Any], steps: int = 25) -> tuple[Artifacts, Any, set[int]]:
    """A model that has learned from sentences with a label, each tenth of which is another one; the rows with those."""
    recipe, artifacts = load(tiny.write(root / "params/tiny.yaml", content)), Artifacts("tiny", root)
    splits, wrong, start = dict[str, Any](), set[int](), 0
    animals = ["cat", "dog", "friend", "king"]
    for seed, (split, count) in enumerate(SIZES.items()):
        texts = tiny.sentences(count, seed)
        labels, sets = [text.split()[1] for text in texts], tiny.label_sets_of(texts)
        for i in range(5, count, 10):
            labels[i] = animals[(animals.index(labels[i]) + 1) % 4]
            sets[i] = sorted({*sets[i]} ^ {"cat" if i % 20 == 5 else "rain"})
            wrong.add(start + i)
        splits[split] = {"text": texts, "other": ["and"] * count, "label": labels, "labels": sets}
        start += count
    tiny.write_rows(artifacts, **splits)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, steps, rows=SIZES["train"])
    return artifacts, recipe, wrong


def review_of(artifacts: Artifacts) -> list[dict[str, str]]:
    with artifacts.review.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_in_which_two_models_differ_show_the_answer_that_is_not_the_rows_own() -> None:
    known = np.tile([0, 1], 10)  # both models know these rows
    given = np.concatenate([[0, 0, 1, 1], known])
    half = np.full(len(given), 0.5)
    sure = np.concatenate([[0.6, 0.7, 0.8, 0.9], half])

    def held(*likeliest: int, row_ids: Sequence[int] = (1, 2, 3, 4), others: Any = known) -> SplitBeliefs:
        beliefs = LabelBeliefs(("a", "b"), given, half, np.concatenate([likeliest, others]), sure)
        rows = SimpleNamespace(folder=Path("test"))
        return SplitBeliefs(rows, np.array([*row_ids, *range(11, 31)]), [beliefs])  # type: ignore[arg-type]

    found = list(suspects.find_disagreements(held(0, 1, 1, 1), held(1, 1, 0, 1)))
    assert [(one.row_id, one.given, one.suggested, one.confidence) for one in found] == [
        (1, "a", "b", 0.6),
        (3, "b", "a", 0.8),
    ]
    assert {one.why for one in found} == {"models disagree"}
    shifted = held(1, 0, 0, 0, row_ids=(2, 3, 9, 10))  # the champion cannot read rows 1 and 4
    assert [one.row_id for one in suspects.find_disagreements(held(0, 0, 1, 1), shifted)] == [2, 3]
    another = held(2, 2, 2, 2)  # an answer that only the champion knows is none for people
    assert [(one.row_id, one.suggested) for one in suspects.find_disagreements(held(0, 1, 1, 1), another)] == [(2, "b")]
    ignorant = held(1, 1, 0, 1, others=1 - known)
    assert not [*suspects.find_disagreements(held(0, 1, 1, 1), ignorant)], "it differs by chance"
    assert not [*suspects.find_disagreements(ignorant, held(0, 1, 1, 1))]


def ignorant_logits(kind: str, draw: np.random.Generator, shares: Any, rows: int) -> Any:
    """What a model that knows nothing of the rows gives each of L labels with these shares, (N, L)."""
    prior = np.log(shares)
    spread = draw.normal(0, draw.uniform(0.1, 2), (rows, len(shares)))
    return {
        "how frequent labels are": prior + 0.1 * spread,
        "and noise": prior + spread,
        "noise alone": spread,
        "one answer": np.tile(draw.normal(0, 1, len(shares)), (rows, 1)),
    }[kind]


IGNORANT = ["how frequent labels are", "and noise", "noise alone", "one answer"]


@pytest.mark.parametrize("kind", IGNORANT)
@pytest.mark.parametrize("name", ["sequence_classification", "multi_label_classification"])
@pytest.mark.parametrize("has_groups", [False, True], ids=["rows", "groups"])
def test_a_model_that_knows_nothing_of_the_labels_calls_none_of_them_wrong(name, kind, has_groups) -> None:
    """It does so in at most 5 % of 100 tries, for each question; without the rule it nearly always calls many of them wrong."""
    named, tries = 0, 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        rows, labels = int(draw.integers(20, 600)), int(draw.integers(2, 6))
        shares = np.clip(draw.dirichlet(np.full(labels, 2.0)), 0.02, 1)
        groups = np.arange(rows) // 4 if has_groups else None
        size = rows if groups is None else len(np.unique(groups))
        if name == "sequence_classification":
            given: Any = draw.choice(labels, size, p=shares / shares.sum())
        else:
            given = (draw.random((size, labels)) < shares).astype(np.float32)
        logits = ignorant_logits(kind, draw, shares, size)
        at = np.arange(rows) if groups is None else groups  # the rows of a group are equal
        beliefs = beliefs_of(name, torch.tensor(logits[at]), torch.tensor(given[at]))
        split: Any = SimpleNamespace(folder=Path("test"))
        own = SplitBeliefs(split, np.arange(rows), beliefs, groups=groups)
        assert bool([*own.suspects()]) <= bool(own.known)
        named, tries = named + len(own.known), tries + len(beliefs)
    assert named <= 0.05 * tries, (named, tries)


@pytest.mark.parametrize("name", ["sequence_classification", "multi_label_classification"])
def test_a_model_that_knows_the_labels_is_asked(name) -> None:
    right, changed = 0, 0
    for seed in range(50):
        draw = np.random.default_rng(seed)
        truth = draw.integers(0, 4, 100)
        wrong = draw.random(100) < 0.05
        given = np.where(wrong, (truth + 1) % 4, truth)
        logits = torch.tensor(6.0 * np.eye(4)[truth] - 3 + draw.normal(0, 0.5, (100, 4)))
        labels = torch.tensor(given) if name == "sequence_classification" else torch.tensor(np.eye(4)[given]).float()
        split: Any = SimpleNamespace(folder=Path("test"))
        own = SplitBeliefs(split, np.arange(100), beliefs_of(name, logits, labels))
        found = {one.row_id for one in own.suspects()}
        assert found <= set(np.flatnonzero(wrong))
        right, changed = right + len(found), changed + int(wrong.sum())
    assert right >= 0.5 * changed, (right, changed)


def test_a_label_that_the_model_does_not_know_is_not_reviewed_beside_one_that_it_knows() -> None:
    draw = np.random.default_rng(0)
    given = torch.tensor(draw.random((300, 2)) < 0.3).float()
    logits = torch.stack([8 * given[:, 0] - 4, torch.tensor(draw.normal(-1, 0.3, 300)).float()], 1)
    given[:3, 0] = 1 - given[:3, 0]
    split: Any = SimpleNamespace(folder=Path("test"))
    own = SplitBeliefs(split, np.arange(300), beliefs_of("multi_label_classification", logits, given))
    assert suspects.is_suspect(own.beliefs[1]).sum() > 20, "its errors would be called those of people"
    assert {one.row_id for one in own.suspects()} == {0, 1, 2}


@pytest.mark.parametrize(
    "objective",
    [tiny.CLASSES, tiny.CLASSES | {"objective": {"name": "sequence_classification", "text_pair_column": "other"}}],
)
def test_a_filled_in_review_corrects_the_next_run(objective, tmp_path) -> None:
    artifacts, recipe, _ = with_wrong_labels(tmp_path, tiny.recipe(**objective))
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    table = review_of(artifacts)
    method, train = objectives.build_objective(recipe.objective), SplitRows(artifacts.rows / "train")
    (unsure,) = label_review._unsure([(4, 0.3), (10**6, 0.2)], train, method)
    assert (unsure.row_id, unsure.split, unsure.given, unsure.confidence) == (
        4,
        "train",
        method.text(next(train.pick([4]))).split()[1],
        0.3,
    )
    shutil.copytree(artifacts.rows, artifacts.raw)
    filled = [row | {"corrected_label": row["suggested_label"] or row["given_label"]} for row in table]
    tiny.write_splits(artifacts.raw, {CORRECTIONS: {name: [row[name] for row in filled] for name in COLUMNS}})
    found = run_validation(artifacts, objective=recipe.objective).corrections
    suspicious = {row["row_hash"] for row in table if row["suggested_label"]}
    assert found.unmatched == []
    assert sum(found.changed.values()) >= len(suspicious) > 0
    wrong = sum("suspect; random" in row["why"] for row in table)
    assert (found.drawn, found.drawn_wrong) == (25, wrong)


PAIRS = tiny.CLASSES | {"objective": {"name": "sequence_classification", "text_pair_column": "other"}}


@pytest.mark.parametrize(
    "content",
    [pytest.param(tiny.CLASSES, marks=pytest.mark.slow), PAIRS, tiny.LABEL_SETS],
    ids=["text", "pair", "several labels"],
)
def test_the_stage_finds_wrong_labels_of_both_splits(content, tmp_path, caplog, monkeypatch) -> None:
    artifacts, recipe, wrong = with_wrong_labels(tmp_path, tiny.recipe(**content))
    caplog.set_level("INFO")
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    table = review_of(artifacts)
    drawn = {row["row_id"] for row in table if "random" in row["why"]}
    assert len(drawn) == 25, "people see some rows that no model chose"
    assert {row["why"] for row in table} == {"suspect", "suspect; random", "random"}
    table = [row for row in table if row["why"] != "random"]
    details = json.loads(artifacts.report("details").read_text())["suspects"]
    for one, first in zip(details["splits"], (0, 220), strict=True):
        split, rows = one["split"], one["rows"]
        assert (rows, one["reviewed"]) == (SIZES[split], SIZES[split])
        found = {int(row["row_id"]) for row in table if row["split"] == split}
        own = {row_id for row_id in wrong if first <= row_id < first + rows}
        assert len(found) == one["suspects"]
        assert len(found & own) >= 0.5 * len(own), (split, found, own)
        assert len(found & own) >= 0.4 * len(found), (split, found, own)
    said = f"evaluate: labels that look wrong: {details['splits'][0]['suspects']} of 200 train rows, "
    assert f"{said}{details['splits'][1]['suspects']} of 60 test rows: {artifacts.review}" in caplog.text
    assert [row["row_id"] for row in table[:20]] == [str(row["row_id"]) for row in details["worst"]]
    assert sum(one["suspects"] for one in details["labels"]) == len(table)
    in_table = {"label"} if content is tiny.CLASSES else {"label", "other"} if content is PAIRS else set()
    assert table[0].keys() - {*COLUMNS} == {"other", "label", "labels"} - in_table, "all else that the row has"
    for row in table:
        pair = {row["given_label"], row["suggested_label"]}
        assert len(pair) == 2
        assert content is not tiny.LABEL_SETS or any(
            pair == {label, f"not {label}"} for label in ("again", "cat", "rain")
        )
    before = artifacts.review.read_bytes(), artifacts.report("details").read_bytes()
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert before == (artifacts.review.read_bytes(), artifacts.report("details").read_bytes())
    releases.evaluate(artifacts, recipe, compare_untrained=False, batch_size=3)
    assert before[0] == artifacts.review.read_bytes()
    monkeypatch.setattr(cross_fitting, "MAX_ROWS", 50)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    (looked_at,) = re.findall(r" of (\d+) train rows that were looked at, of 200, ", caplog.text)
    assert 30 < int(looked_at) < 70
    monkeypatch.setattr(label_review, "_LEAST_SHARE", 9.0)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert " of 60 test rows; no train rows, because the model before training knows too little" in caplog.text
    assert {row["split"] for row in review_of(artifacts)} == {"test"}


@pytest.mark.parametrize("content", [tiny.recipe(), tiny.recipe(**tiny.TAGS)], ids=["no labels", "labels of spans"])
def test_an_objective_without_labels_of_rows_says_so(content, tmp_path, caplog) -> None:
    artifacts, recipe = tiny.tokenized(tmp_path, content, {"train": 20, "validation": 8, "test": 8})
    releases.learn(artifacts, recipe, 1)
    caplog.set_level("INFO")
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert "evaluate: no review of labels: this objective gives whole rows no labels" in caplog.text
    assert artifacts.review.read_text(encoding="utf-8-sig").split() == [",".join(COLUMNS)]
    assert json.loads(artifacts.report("details").read_text())["suspects"] is None


@pytest.mark.parametrize("most", [1000, 150], ids=["all", "sampled"])
def test_only_new_rows_are_read_again(most, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cross_fitting, "MAX_ROWS", most)
    artifacts, recipe, _ = with_wrong_labels(tmp_path, tiny.recipe(**tiny.CLASSES), 1)
    monkeypatch.setattr(cross_fitting, "_CHUNK", 50)

    def kept() -> dict[str, tuple[int, bytes]]:
        releases.evaluate(artifacts, recipe, compare_untrained=False)
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in artifacts.features.iterdir()}

    before = kept()
    assert len(before) == (4 if most == 1000 else 2)
    assert kept() == before
    table = artifacts.review.read_bytes()
    shutil.rmtree(artifacts.features)
    anew = kept()
    assert {name: content for name, (_, content) in anew.items()} == {
        name: content for name, (_, content) in before.items()
    }
    assert artifacts.review.read_bytes() == table
    tokens = artifacts.tokens / "train"
    whole = SplitRows(artifacts.rows / "train")
    looked_at = 70 if most == 1000 else int(np.flatnonzero(Sequences(tokens).hashes(recipe.seed) < 2**63)[0])
    is_left = [row["row_id"] != looked_at for row in whole.rows(["row_id"])]  # as if another split had it now
    tiny.write_some(whole, tmp_path / "fewer/train", is_left)
    shutil.rmtree(whole.folder)
    (tmp_path / "fewer/train").rename(whole.folder)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    assert len(Sequences(tokens)) == 199
    changed = kept()
    assert len(changed) == len(before)
    assert sum(changed.get(name) == one for name, one in anew.items()) == len(before) - 1, (
        "only the part that lacks a row is read"
    )


def test_a_network_without_a_state_for_each_token_has_held_out_rows_reviewed(tmp_path, caplog) -> None:
    artifacts, recipe, _ = with_wrong_labels(tmp_path, tiny.recipe(**tiny.CLASSES | {"model": {"config": FUNNEL}}))
    caplog.set_level("INFO")
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert " of 60 test rows; no train rows, because the network gives no hidden state for each token" in caplog.text


def test_new_and_published_models_that_know_nothing_are_not_asked(tmp_path, caplog, monkeypatch) -> None:
    """All that people see of their rows are those that are drawn at random: no suspects, none in which models differ,
    none of which one is unsure. What is held of train rows comes from another model, which has skill here."""
    artifacts, recipe, _ = with_wrong_labels(tmp_path, tiny.recipe(**tiny.CLASSES), 0)
    caplog.set_level("INFO")
    asked = []

    def with_champion(plan, scores, train, champion=None, unsure=()):
        asked.append(label_review_of(plan, scores, train, scores, [(3, 0.26), (4, 0.27)]))
        return asked[-1]

    label_review_of = label_review.review_labels
    monkeypatch.setattr(label_review, "review_labels", with_champion)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert "; no test rows, because the new model knows too little of these labels (its skill is " in caplog.text
    assert {row["why"] for row in review_of(artifacts) if row["split"] == "test"} == {"random"}
    assert {row["why"] for row in review_of(artifacts)} <= {"random", "suspect"}, "what the model before training says"
    assert [one.split for one in asked[0].report.splits] == ["train"]
    nobody = asked[0].report.model_copy(update={"splits": [], "not_read": "no train rows; no test rows"})
    assert nobody.sentence == "no review of labels: no train rows; no test rows"
