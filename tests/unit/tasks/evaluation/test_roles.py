"""A model's scores are the same as candidate, champion and base, whatever the other model and the recipe of the day are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, XLNetConfig

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.digests import PROVENANCE
from tasks.evaluation import champion
from tasks.evaluation.reading import ModelTokenization
from tasks.publishing.provenance import collect_provenance
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.stage import tokenize
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import releases, tiny
from tests.support.tiny_releases import CHAT, KINDS, OWN_ROWS
from trainer import objectives
from trainer.data import tokens
from trainer.objectives.bases.likelihood import tokens_contain_texts_in_order
from trainer.start import ReleaseReference

SIZES = {"train": 40, "validation": 8, "test": 16}
LENGTH = 96
"""Tokens that every row fits into."""
OTHER_CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
DAYS: dict[str, dict[str, Any]] = {
    "shorter": {"tokenization.max_length": 15},
    "longer": {"tokenization.max_length": 120},
    "tokenizer": {"tokenization.tokenizer.vocab_size": 280},
    "batch": {"launch.eval_batch_size": 3},
}
"""Changes to the recipe of the day that hold for every objective."""
OWN_DAYS: dict[str, dict[str, dict[str, Any]]] = {
    "conversations": {
        "shorter": {"tokenization.max_length": 44},
        "template": {"objective.chat_template": OTHER_CHAT},
        "template, shorter": {"objective.chat_template": OTHER_CHAT, "tokenization.max_length": 44},
    },
    "seq2seq": {
        "prefix": {"objective.prefix": "say who it is: "},
        "targets": {"objective.max_target_length": 1},
        "answers": {"objective.max_new_tokens": 1, "objective.num_beams": 3},
    },
    "dpo": {"separator": {"objective.separator": "\n\nThe better one:"}},
    "grpo": {"prompt": {"objective.prompt": "Say who does it. {text}"}, "answers": {"objective.max_new_tokens": 1}},
    "iterative_sft": {"prompt": {"objective.prompt": "{text} Who?"}, "answers": {"objective.max_new_tokens": 1}},
    "sequence_classification": {"labels": {}, "pairs": {"objective.text_pair_column": "label"}},
    "regression": {"one text": {"objective.text_pair_column": None}},
    "token_classification": {"labels": {}},
}
FAST = {
    ("sft", "shorter"),
    ("conversations", "template, shorter"),
    ("seq2seq", "prefix"),
    ("seq2seq", "targets"),
    ("seq2seq", "answers"),
    ("dpo", "separator"),
    ("grpo", "prompt"),
    ("grpo", "answers"),
    ("sequence_classification", "labels"),
    ("sequence_classification", "pairs"),
    ("regression", "one text"),
    ("token_classification", "labels"),
    ("causal_lm", "tokenizer"),
}
"""What `make test` tries."""


def content_of(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {"tokenization.max_length": LENGTH}
    if "rewards" in KINDS[kind][1].get("objective", {}):  # a random model repeats the end of its prompt
        usual["objective.rewards"] = [{"name": "trainer.rewards:matches", "arguments": {"pattern": ":"}}]
    return tiny.recipe(usual | changes, **KINDS[kind][1])


def prepared(root: Path, kind: str, changes: dict[str, Any], *, new_label: bool = False) -> tuple[Artifacts, Recipe]:
    """Tokens of the same held-out rows; with `new_label`, some train rows have a label that others do not have."""
    artifacts, _ = releases.tokenized(root, tiny.recipe(), SIZES)
    if kind in OWN_ROWS:
        tiny.write_rows(artifacts, **{split: OWN_ROWS[kind](count, split) for split, count in SIZES.items()})
    if new_label:
        splits = {split: SplitRows(artifacts.rows / split).table().drop("row_id").to_pydict() for split in SIZES}
        splits["train"]["label"][:4] = ["a new one"] * 4
        splits["train"]["spans"][:4] = [[{"label": "a new one", "start": 0, "end": 3}]] * 4
        tiny.write_rows(artifacts, **splits)
    recipe = load(tiny.write(artifacts.recipe_path, content_of(kind, changes)))
    shutil.rmtree(artifacts.tokens)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe


def scores_of(artifacts: Artifacts, role: str) -> dict[str, Any]:
    """The scores of a role that do not depend on how labels are numbered, by name, each (N,)."""
    table = pq.read_table(artifacts.evaluation / "scores" / f"{role}.parquet")
    return {name: table[name].to_numpy() for name in table.column_names if name not in {"label", "prediction"}}


def assert_equal(one: dict[str, Any], other: dict[str, Any], *, but: frozenset[str] = frozenset()) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        if name not in but:
            np.testing.assert_allclose(values, other[name], rtol=1e-4, atol=1e-5, err_msg=name)


SPLIT = ("token_classification", "seq2seq", "sft", "causal_lm")
"""Kinds whose long texts training cuts or splits, beside classes."""


@dataclass
class Released:
    """A model with its scores as candidate, and its folder as a release has it."""

    artifacts: Artifacts
    recipe: Recipe
    folder: Path

    def champion(self) -> champion.ChampionStatus:
        found = ReleaseReference(endpoint="local", repo_id="tests/tiny", commit="c0ffee", tag=None, weights="0" * 64)
        return champion.ChampionStatus(found, self.folder, None)


def released(root: Path, kind: str, changes: dict[str, Any]) -> Released:
    artifacts, recipe = prepared(root, kind, changes)
    releases.learn(artifacts, recipe, 6)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    folder = shutil.copytree(artifacts.model, root / "release")
    (folder / PROVENANCE).write_text(json.dumps(collect_provenance(artifacts)))
    return Released(artifacts, recipe, folder)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Released]:
    """Make the released model of a kind."""
    made: dict[str, Released] = {}

    def make(kind: str) -> Released:
        if kind not in made:
            made[kind] = released(tmp_path_factory.mktemp(kind), kind, {})
        return made[kind]

    return make


RELATIVE = ("dpo", "kto")
"""Kinds whose rewards are relative to the model that training began with."""
ROLES = [
    pytest.param(kind, day, changes, id=f"{kind}-{day}", marks=() if (kind, day) in FAST else pytest.mark.slow)
    for kind in KINDS
    for day, changes in (DAYS | OWN_DAYS.get(kind, {})).items()
    if not (kind in RELATIVE and day == "tokenizer")  # which none of their metrics allows
]


@pytest.mark.parametrize(("kind", "day", "changes"), ROLES)
def test_a_champion_has_the_scores_that_it_had_as_a_candidate(
    kind: str,
    day: str,
    changes: dict[str, Any],
    release: Callable[[str], Released],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = release(kind)
    if (
        kind in RELATIVE
    ):  # whose rewards do not compare between tokenizers, and separators are in the texts that train one
        changes = {**changes, "tokenization.tokenizer": {"kind": "pretrained", "path": str(before.folder)}}
    artifacts, recipe = prepared(tmp_path, kind, changes, new_label=day == "labels")
    releases.learn(artifacts, recipe, 1, seed=5)
    monkeypatch.setattr(champion, "fetch_champion", lambda *_, **__: before.champion())
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert_equal(scores_of(artifacts, "champion"), scores_of(before.artifacts, "model"))
    found, columns = before.champion().champion, SplitRows(artifacts.rows / "test").schema.names
    assert found
    read = champion.build_champion_reader(
        before.folder, recipe.objective, max_length=9, champion=found, columns=columns
    )
    on_card = objectives.build_objective(before.recipe.objective).call_arguments
    assert read.objective.call_arguments == on_card
    if day not in {"shorter", "targets", "template, shorter"} or kind == "sequence_classification":
        return
    # The candidate, too, has the scores of the limit that both can read, not those of its shorter one.
    candidate = scores_of(artifacts, "model")
    kept = {key: value for key, value in changes.items() if not key.endswith("_length")}
    whole, longer = prepared(tmp_path / "whole", kind, kept)
    shutil.copytree(artifacts.model, whole.model)
    monkeypatch.setattr(champion, "fetch_champion", lambda *_, **__: champion.ChampionStatus(None, None, None))
    releases.evaluate(whole, longer, compare_untrained=False)
    assert_equal(candidate, scores_of(whole, "model"))


@pytest.mark.parametrize("kind", ["sequence_classification", *(pytest.param(k, marks=pytest.mark.slow) for k in SPLIT)])
def test_a_candidate_is_judged_as_far_as_its_release_reads(
    kind: str, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the limit of its training was; of a model that writes text, it says how much of a row is scored."""
    before = release(kind)
    limit = {"conversations": 44, "sft": 16}.get(kind, 8)  # in which some of an answer is left
    artifacts, recipe = prepared(tmp_path, kind, {"tokenization.max_length": limit})
    shutil.copytree(before.artifacts.model, artifacts.model)
    monkeypatch.setattr(champion, "fetch_champion", lambda *_, **__: champion.ChampionStatus(None, None, None))
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    own, whole = scores_of(artifacts, "model"), scores_of(before.artifacts, "model")
    if objectives.build_objective(recipe.objective).reads_as_its_release:
        assert_equal(own, whole)
    else:
        assert len(own["nll"]) < len(whole["nll"]) or not np.allclose(own["nll"], whole["nll"])


@pytest.mark.parametrize("kind", [k if k == "sft" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_a_base_has_the_scores_that_it_had_as_a_candidate(
    kind: str, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release(kind)
    changes = {"model.config": ..., "model.pretrained": str(before.folder)}
    artifacts, recipe = prepared(tmp_path, kind, changes)
    releases.learn(artifacts, recipe, min(1, KINDS[kind][0]))
    monkeypatch.setattr(champion, "fetch_champion", lambda *_, **__: champion.ChampionStatus(None, None, None))
    releases.evaluate(artifacts, recipe)
    # these rewards are relative to the base, which is another one than that of the release
    relative = {"dpo": {"loss", "chosen_reward", "rejected_reward"}, "kto": {"loss", "reward", "kl"}}
    # and a model before training gets thresholds of its own, where this release has those of every model
    own_thresholds = {"multi_label_classification": {f"predicted {label}" for label in ("again", "cat", "rain")}}
    but = frozenset((relative | own_thresholds).get(kind, ()))
    assert_equal(scores_of(artifacts, "untrained"), scores_of(before.artifacts, "model"), but=but)


def against(monkeypatch: pytest.MonkeyPatch, before: Released) -> None:
    monkeypatch.setattr(champion, "fetch_champion", lambda *_, **__: before.champion())


def comparisons_of(artifacts: Artifacts) -> dict[str, dict[str, Any]]:
    details = json.loads((artifacts.evaluation / "details.json").read_text())
    return {one["metric"]: one for one in details["comparisons"] if one["against"] == "champion"}


def lengths_of(artifacts: Artifacts) -> list[int]:
    """Tokens of each held-out row, the longest row last."""
    return sorted(tokens.read_split(artifacts.tokens, "test").lengths().tolist())


@pytest.mark.parametrize("kind", ["causal_lm", pytest.param("sft", marks=pytest.mark.slow)])
def test_a_network_with_fewer_positions_is_compared_on_the_rows_that_it_can_read(
    kind: str, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release(kind)
    against(monkeypatch, before)
    tokenizer = {"tokenization.tokenizer": {"kind": "pretrained", "path": str(before.folder)}}
    lengths = lengths_of(before.artifacts)
    for positions, left_out in ((lengths[-2], 1), (lengths[2], None)):
        assert positions < lengths[-1]
        changes = {
            "tokenization.max_length": positions,
            "model.config.max_position_embeddings": positions,
            "evaluation.slices": ["text" if kind == "causal_lm" else "label"],
        }
        artifacts, recipe = prepared(tmp_path / str(positions), kind, changes | tokenizer)
        releases.learn(artifacts, recipe, 1, seed=5)
        if left_out is None:
            with pytest.raises(ModelError, match=f"with {positions} tokens, so they cannot be compared") as caught:
                releases.evaluate(artifacts, recipe)
            assert f"use a model with {LENGTH} positions or more" in caught.value.fix
            continue
        report = releases.evaluate(artifacts, recipe)
        slices = json.loads((artifacts.evaluation / "details.json").read_text())["slices"]
        assert sum(one["rows"] for one in slices) == report.rows, "floors are about all rows"
        (longest,) = {(one["rows"], one["left_out"]) for one in comparisons_of(artifacts).values()}
        assert longest == (SIZES["test"] - lengths.count(lengths[-1]), lengths.count(lengths[-1]))
        blessing = json.loads(artifacts.blessing.read_text())
        said = "1 row does" if longest[1] == 1 else f"{longest[1]} rows do"
        assert f"{said} not count" in blessing["reasons"][0]


def test_a_candidate_has_its_own_scores_whatever_the_positions_of_the_champion(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the comparison is on what the champion can read, too."""
    before = release("causal_lm")
    lengths = lengths_of(before.artifacts)
    changes = {
        "tokenization.max_length": lengths[-2],
        "model.config.max_position_embeddings": lengths[-2],
        "tokenization.tokenizer": {"kind": "pretrained", "path": str(before.folder)},
    }
    short, recipe = prepared(tmp_path / "short", "causal_lm", changes)
    releases.learn(short, recipe, 6, seed=5)
    against(monkeypatch, Released(short, recipe, short.model))
    shutil.copytree(before.artifacts.root, tmp_path / "project")
    artifacts = Artifacts("tiny", tmp_path / "project")
    report = releases.evaluate(artifacts, before.recipe, compare_untrained=False)
    assert report.max_length is None
    assert_equal(scores_of(artifacts, "model"), scores_of(before.artifacts, "model"))
    whole, found = scores_of(artifacts, "model")["tokens"], comparisons_of(artifacts)["loss"]
    np.testing.assert_array_equal(scores_of(artifacts, "compared")["tokens"] < whole, whole == whole.max())
    read = whole < whole.max()
    assert (found["rows"], found["left_out"]) == (read.sum(), (~read).sum())
    own, other = (
        (one["nll"][read].sum() / one["tokens"][read].sum())
        for one in (scores_of(artifacts, role) for role in ("compared", "champion"))
    )
    assert found["gain"] == pytest.approx(other - own)


def test_a_classifier_with_fewer_positions_answers_for_every_row(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads as much as its release does, and has to give the same label."""
    before = release("sequence_classification")
    against(monkeypatch, before)
    changes = {"tokenization.max_length": 6, "model.config.max_position_embeddings": 6}
    artifacts, recipe = prepared(tmp_path, "sequence_classification", changes)
    releases.learn(artifacts, recipe, 1, seed=5)
    report = releases.evaluate(artifacts, recipe)
    assert (report.max_length, report.rows) == (None, SIZES["test"])
    assert {(one["rows"], one["left_out"]) for one in comparisons_of(artifacts).values()} == {(SIZES["test"], 0)}
    assert_equal(scores_of(artifacts, "champion"), scores_of(before.artifacts, "model"))


def lower_casing(folder: Path) -> Path:
    """A tokenizer that cannot write capitals."""
    texts = [row for split in SIZES for row in tiny.sentences(SIZES[split])]
    made = train_tokenizer([text.lower() for text in texts], TrainTokenizer(kind="train", vocab_size=300))
    made.backend_tokenizer.normalizer = normalizers.Lowercase()
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["causal_lm", "seq2seq"])
def test_a_tokenizer_that_changes_texts_wins_nothing(
    kind: str, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts of causal_lm begin with a capital; the targets of seq2seq have none."""
    before = release(kind)
    against(monkeypatch, before)
    path = str(lower_casing(tmp_path / "tokenizer"))
    changes = {
        "tokenization.tokenizer": {"kind": "pretrained", "path": path},
        "evaluation.gate.metric": "bits_per_byte",
    }
    artifacts, recipe = prepared(tmp_path / "project", kind, changes)
    releases.learn(artifacts, recipe, 12)
    if kind == "seq2seq":
        releases.evaluate(artifacts, recipe)
        assert comparisons_of(artifacts)["bits_per_byte"]["left_out"] == 0
        return
    with pytest.raises(ModelError, match="of 16 of 16 rows one of the two does not have to say all") as caught:
        releases.evaluate(artifacts, recipe)
    assert caught.value.fix == "keep the tokenizer, or publish to another repository (publish.repo_id)"


def test_bytes_are_those_of_the_row_whatever_the_tokenizer_writes(
    release: Callable[[str], Released], tmp_path: Path
) -> None:
    before = release("sft")
    rows = list(SplitRows(before.artifacts.rows / "test").rows())
    objective = objectives.build_objective(before.recipe.objective)
    tokenizer = AutoTokenizer.from_pretrained(lower_casing(tmp_path))
    upper = [{**row, "label": row["label"].upper() + "ﬁ"} for row in rows]
    found = [encoded.examples[0]["bytes"] for encoded in objective.encode(upper, tokenizer, LENGTH, {})]
    assert found == [len(row["label"].encode()) for row in upper]


@pytest.mark.parametrize("max_new_tokens", [100, 120])
def test_a_champion_without_room_for_an_answer_says_so(
    max_new_tokens: int, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a record, which is asked as the recipe says."""
    before = release("grpo")
    folder = shutil.copytree(before.artifacts.model, tmp_path / "short")
    settings = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 100}
    (folder / "config.json").write_text(json.dumps(settings))
    against(monkeypatch, Released(before.artifacts, before.recipe, folder))
    changes = {"objective.max_new_tokens": max_new_tokens, "model.config.max_position_embeddings": 1000}
    artifacts, recipe = prepared(tmp_path / "project", "grpo", changes | {"tokenization.max_length": LENGTH + 9})
    releases.learn(artifacts, recipe, 0)
    what = f"has 100 positions and generates up to {max_new_tokens} tokens, so a prompt has no room"
    with pytest.raises(ModelError, match=what) as caught:
        releases.evaluate(artifacts, recipe)
    assert caught.value.where == "local/tests/tiny"
    assert caught.value.fix.startswith("set objective.max_new_tokens to less than 100, or publish to another")


def test_a_champion_of_conversations_does_not_read_pairs(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    against(monkeypatch, release("conversations"))
    artifacts, recipe = prepared(tmp_path, "sft", {})
    releases.learn(artifacts, recipe, 1)
    what = "it learned from conversations, and these rows are prompts and completions"
    with pytest.raises(ModelError, match=what) as caught:
        releases.evaluate(artifacts, recipe)
    assert "publish to another repository" in caught.value.fix


def test_a_champion_whose_prompt_needs_another_column_says_so(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release("grpo")
    record = json.loads((before.folder / PROVENANCE).read_text())
    other = shutil.copytree(before.folder, tmp_path / "other")
    record["objective"]["prompt"] = "{question} {text}"
    (other / PROVENANCE).write_text(json.dumps(record))
    against(monkeypatch, Released(before.artifacts, before.recipe, other))
    artifacts, recipe = prepared(tmp_path / "project", "grpo", {})
    releases.learn(artifacts, recipe, 0)
    with pytest.raises(ModelError, match="its prompt needs the column 'question', which the rows do not have"):
        releases.evaluate(artifacts, recipe)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        ("{}", "objective: Field required"),
        ('{"objective": "seq2seq"}', "objective: Input should be an object"),
        ('{"objective": {"prefix": ""}}', "objective.name: Field required"),
        ('{"objective": {"name": "seq2seq", "prefix": 5}}', "prefix: Input should be a valid string"),
        ("{", "it: Invalid JSON"),
    ],
)
def test_a_record_of_another_shape_is_named(
    record: str, wrong: str, release: Callable[[str], Released], tmp_path: Path
) -> None:
    before = release("seq2seq")
    folder = shutil.copytree(before.folder, tmp_path / "other")
    (folder / PROVENANCE).write_text(record)
    found = before.champion().champion
    assert found
    with pytest.raises(ModelError) as caught:
        champion.build_champion_reader(folder, before.recipe.objective, max_length=9, champion=found, columns=[])
    assert caught.value.where == "local/tests/tiny"
    expected = f"the champion, c0ffee, cannot be scored: its {PROVENANCE} cannot be used: {wrong}"
    assert caught.value.what.startswith(expected)
    assert caught.value.fix.startswith("roll back to a release that Evergreen has made, or publish to another")


def test_a_champion_without_a_record_keeps_the_template_of_its_tokenizer(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release("conversations")
    other = shutil.copytree(before.folder, tmp_path / "other", ignore=shutil.ignore_patterns(PROVENANCE))
    against(monkeypatch, Released(before.artifacts, before.recipe, other))
    artifacts, recipe = prepared(tmp_path / "project", "conversations", OWN_DAYS["conversations"]["template"])
    releases.learn(artifacts, recipe, 1)
    releases.evaluate(artifacts, recipe)
    assert_equal(scores_of(artifacts, "champion"), scores_of(before.artifacts, "model"))


def test_a_classifier_is_read_up_to_the_limit_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its release cuts there, whatever the limit of the recipe of the day."""
    artifacts, recipe = prepared(tmp_path / "before", "sequence_classification", {"tokenization.max_length": 5})
    releases.learn(artifacts, recipe, 6)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    before = Released(artifacts, recipe, artifacts.model)
    against(monkeypatch, before)
    today, longer = prepared(tmp_path / "today", "sequence_classification", {})
    releases.learn(today, longer, 1, seed=5)
    releases.evaluate(today, longer, compare_untrained=False)
    assert_equal(scores_of(today, "champion"), scores_of(artifacts, "model"))


PRINTS = "{% if bos_token %}{{ bos_token }}{% endif %}" + CHAT.replace("\n", "{{ eos_token }}")
"""A template that writes special tokens."""


@pytest.mark.parametrize(
    ("kind", "both", "today", "settings"),
    [
        ("sequence_classification", {"tokenization.max_length": 5}, {}, {"truncation_side": "left"}),
        ("conversations", {"objective.chat_template": PRINTS}, {}, {"bos_token": None}),
        (
            "conversations",
            {"objective.chat_template": PRINTS},
            {"tokenization.max_length": LENGTH + 9},
            {"split_special_tokens": True},
        ),
    ],
)
def test_all_settings_of_a_tokenizer_belong_to_its_model(
    kind: str,
    both: dict[str, Any],
    today: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `tokenizer.json` does not say: `tokenizer_config.json` and the template decide about it."""
    before = released(tmp_path / "before", kind, both)
    other = shutil.copytree(before.folder, tmp_path / "other")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    changes = {**both, **today, "tokenization.tokenizer": {"kind": "pretrained", "path": str(other)}}
    artifacts, recipe = prepared(tmp_path / "today", kind, changes)
    releases.learn(artifacts, recipe, 1, seed=5)
    against(monkeypatch, before)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert_equal(scores_of(artifacts, "champion"), scores_of(before.artifacts, "model"))


def test_settings_that_change_no_row_make_no_other_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a default that a new version of a library writes down; rows that both cut at the same place count."""
    before = released(tmp_path / "before", "sft", {"tokenization.max_length": 15})
    other = shutil.copytree(before.folder, tmp_path / "other")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    tokenizer = {"tokenization.tokenizer": {"kind": "pretrained", "path": str(other)}}
    artifacts, recipe = prepared(tmp_path / "today", "sft", {"tokenization.max_length": 15, **tokenizer})
    releases.learn(artifacts, recipe, 1, seed=5)
    against(monkeypatch, before)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    assert_equal(scores_of(artifacts, "champion"), scores_of(before.artifacts, "model"))
    assert comparisons_of(artifacts)["loss"]["left_out"] == 0


REFUSES = "{% if REFUSED %}{{ raise_exception('no such question') }}{% endif %}"


@pytest.mark.parametrize("refused", [1, 2])
def test_rows_that_the_template_of_the_champion_refuses_are_left_out(
    refused: int, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a tenth of them."""
    before = release("conversations")
    questions = sorted({turns[0]["content"] for turns in OWN_ROWS["conversations"](SIZES["test"], "test")["messages"]})
    other = shutil.copytree(before.folder, tmp_path / "other")
    record = json.loads((other / PROVENANCE).read_text())
    own = REFUSES.replace("REFUSED", f"messages[0].content in {questions[:refused]}")
    record["objective"]["chat_template"] = own + record["objective"]["chat_template"]
    (other / PROVENANCE).write_text(json.dumps(record))
    against(monkeypatch, Released(before.artifacts, before.recipe, other))
    artifacts, recipe = prepared(tmp_path / "project", "conversations", {})
    releases.learn(artifacts, recipe, 1)
    if refused > 1:
        with pytest.raises(ModelError, match=r"row_id .* the chat template refuses .* no such question") as caught:
            releases.evaluate(artifacts, recipe)
        assert caught.value.fix.startswith("set such rows aside by validation.expectations, or publish to another")
        return
    report = releases.evaluate(artifacts, recipe)
    (counted,) = {(one["rows"], one["left_out"]) for one in comparisons_of(artifacts).values()}
    assert counted == (SIZES["test"] - 1, 1)
    assert (report.rows, len(scores_of(artifacts, "champion")["nll"])) == (SIZES["test"], SIZES["test"] - 1)


HALF = "{% for m in messages %}[{{ m.role }}] {{ m.content[:2] }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"


@pytest.mark.parametrize("kind", ["conversations", "seq2seq", "token_classification"])
def test_what_a_model_does_not_have_to_say_wins_nothing(
    kind: str, release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that drops half of the answer, and tokenizers that change a target or round a span."""
    before = release(kind)
    against(monkeypatch, before)
    tokenizer = {"kind": "pretrained", "path": str(before.folder)}
    changes: dict[str, Any] = {"objective.chat_template": HALF}
    if kind != "conversations":
        coarse = coarse_tokenizer(tmp_path / "tokenizer", lower=kind == "seq2seq")
        tokenizer, changes = {"kind": "pretrained", "path": str(coarse)}, {"evaluation.gate.metric": "f1"}
    if kind == "seq2seq":
        changes = {"evaluation.gate.metric": "exact_match", "objective.target_column": "text"}
    artifacts, recipe = prepared(tmp_path / "project", kind, changes | {"tokenization.tokenizer": tokenizer})
    releases.learn(artifacts, recipe, 1)
    with pytest.raises(ModelError, match="of 16 of 16 rows one of the two does not have to say all"):
        releases.evaluate(artifacts, recipe)


def coarse_tokenizer(folder: Path, *, lower: bool) -> Path:
    """One that cannot write capitals, or one whose tokens are words with the letter after them."""
    if lower:
        return lower_casing(folder)
    pieces = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "?": 1}, unk_token="?"))
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+ \w+ \w|."), "isolated")
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    made = PreTrainedTokenizerFast(tokenizer_object=pieces, **special)
    made.model_max_length = LENGTH
    made.save_pretrained(folder)
    return folder


def test_a_template_that_nothing_renders_makes_no_other_tokenizer(
    release: Callable[[str], Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release("dpo")
    against(monkeypatch, before)
    other = shutil.copytree(before.folder, tmp_path / "other")
    (other / "chat_template.jinja").write_text(OTHER_CHAT)
    changes = {"tokenization.tokenizer": {"kind": "pretrained", "path": str(other)}}
    artifacts, recipe = prepared(tmp_path / "project", "dpo", changes)
    releases.learn(artifacts, recipe, 0, seed=5)
    releases.evaluate(artifacts, recipe)
    assert "reward_accuracy" in comparisons_of(artifacts)


def test_positions_that_a_configuration_does_not_limit(tmp_path: Path) -> None:
    """XLNet says -1."""
    config = XLNetConfig(vocab_size=10, d_model=8, n_layer=1, n_head=2, d_inner=8)
    config.save_pretrained(tmp_path)
    reading = ModelTokenization(
        objectives.build_objective(ObjectiveChoice(name="causal_lm")), None, tmp_path, 8, "a model"
    )  # type: ignore[arg-type]
    assert reading.readable(99) == 99


@pytest.mark.parametrize(
    ("text", "is_said"),
    [(" It is 7", True), ("It is 7", True), (" It is 7 ", False), ("it is 7", False), (" It is", True)],
)
def test_a_text_is_said_to_its_last_space(text: str, is_said: bool) -> None:
    tokenizer = train_tokenizer(["It is 7"], TrainTokenizer(kind="train", vocab_size=280))
    assert tokens_contain_texts_in_order(tokenizer(" It is 7")["input_ids"], [text], tokenizer) == is_said
