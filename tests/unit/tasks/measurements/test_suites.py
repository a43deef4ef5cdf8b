"""Suites: rows that a model must get right, from their files to the gate's verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError

from params import DataError, ModelError, RecipeError
from params.foundation.artifacts import SUITES
from params.schema import ObjectiveChoice
from params.sections.data import Data
from params.sections.evaluation import Suite
from params.sections.rows import Validation
from tasks.evaluation.report import Blessing, EvaluationDetails
from tasks.ingestion.stage import ingest
from tasks.measurements.suites import judging
from tasks.measurements.suites.judging import why_not_judged
from tasks.measurements.suites.measurement import SuiteResults, Suites
from tasks.measurements.suites.report import FailedRow, SuiteResult
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.validation.stage import validate
from tests.support import releases, tiny, tiny_releases
from tests.support.validation import ONE_PROCESS
from tests.unit.tasks.evaluation.test_stage import run, scores_of, with_model
from trainer import objectives
from trainer.objectives.bases.conversations.tools import read_tools

SFT = {
    "objective": {"name": "sft", "prompt_column": "text", "completion_column": "label"},
    "evaluation": tiny.RECIPE["evaluation"] | {"compare_untrained": False},
}


def suite(**keys):
    return Suite(**{"name": "greetings", "source": "data/greetings.csv"} | keys)


def write_suite(artifacts, name="greetings", **columns):
    tiny.write_splits(artifacts.rows / SUITES, {name: columns})


def results(artifacts):
    return read_report(artifacts, EvaluationDetails).findings(SuiteResults).suites


def built(name, **options):
    return objectives.build_objective(ObjectiveChoice(name=name, **options))


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return with_model(tmp_path_factory.mktemp("classes"), tiny.recipe(**tiny.CLASSES), seed=4)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return with_model(tmp_path_factory.mktemp("sft"), tiny.recipe(**SFT))


def candidate_of(artifacts, recipe, suites=()):
    """Ask whether the blessing is for what is there now."""
    evaluation = recipe.evaluation.model_copy(update={"suites": list(suites)})
    releases.candidate(artifacts).check(seed=recipe.seed, model=recipe.model, evaluation=evaluation)


class TestScores:
    def test_rows_of_the_test_split_are_as_right_as_there(self, classes):
        artifacts, recipe = classes
        rows = list(SplitRows(artifacts.rows / "test").rows())
        write_suite(artifacts, text=[row["text"] for row in rows], label=[row["label"] for row in rows])
        run(artifacts, recipe, suites=[suite(must=0.5)])
        scores = scores_of(artifacts).to_pydict()
        is_right = [label == found for label, found in zip(scores["label"], scores["prediction"], strict=True)]
        (found,) = results(artifacts)
        assert 0 < found.right == sum(is_right) < found.rows == len(rows)
        assert [one.row_id for one in found.failures] == [n for n, right in enumerate(is_right) if not right]
        first = found.failures[0]
        assert first.text == rows[first.row_id]["text"]
        assert first.notes["expected"] == rows[first.row_id]["label"] != first.notes["predicted"]

    def test_one_wrong_row_refuses_a_model_that_passes_else(self, classes):
        artifacts, recipe = classes
        rows = list(SplitRows(artifacts.rows / "test").rows())
        write_suite(artifacts, text=[row["text"] for row in rows], label=[row["label"] for row in rows])
        assert run(artifacts, recipe).verdict == "publish"
        right = run(artifacts, recipe, suites=[suite(must=0.01)])
        assert (right.verdict, read_report(artifacts, Blessing).judged_rows["suites"]) == (
            "publish",
            Suites().rows_read(artifacts),
        )
        assert run(artifacts, recipe, suites=[suite()]).verdict == "refuse"
        (reason,) = read_report(artifacts, Blessing).reasons
        (found,) = results(artifacts)
        assert reason.startswith(
            f"suite greetings: {found.right} of 30 rows are right, and all must be; wrong: row_id "
        )

    def test_a_suite_of_other_rows_needs_a_new_blessing(self, classes):
        artifacts, recipe = classes
        write_suite(artifacts, text=["The cat sees a bird"], label=["cat"])
        recipe = recipe.model_copy(
            update={"evaluation": recipe.evaluation.model_copy(update={"suites": [suite(must=0.01)]})}
        )
        releases.evaluate(artifacts, recipe, compare_untrained=True)
        write_suite(artifacts, text=["The cat sees a bird"], label=["dog"])
        with pytest.raises(ModelError, match="the blessing is for another suites"):
            releases.candidate(artifacts).check(seed=recipe.seed, model=recipe.model, evaluation=recipe.evaluation)

    def test_a_blessing_is_for_the_rows_that_were_judged_and_no_others(self, classes, monkeypatch):
        artifacts, recipe = classes
        write_suite(artifacts, text=["The cat sees a bird"], label=["cat"])
        judge = judging.judge_suites

        def judge_while_rows_change(plan, network):
            found = judge(plan, network)
            write_suite(artifacts, text=["The cat sees a bird"], label=["dog"])
            return found

        monkeypatch.setattr(judging, "judge_suites", judge_while_rows_change)
        run(artifacts, recipe, suites=[suite(must=0.01)])
        with pytest.raises(ModelError, match="the blessing is for another suites"):
            candidate_of(artifacts, recipe, suites=[suite(must=0.01)])

    def test_a_blessing_of_a_measurement_that_is_not_there_is_none(self, classes):
        artifacts, recipe = classes
        run(artifacts, recipe)
        blessing = json.loads(artifacts.blessing.read_text())
        artifacts.blessing.write_text(json.dumps(blessing | {"approvals": {"legal": "0123"}}))
        with pytest.raises(ModelError, match="the blessing is for another approvals"):
            candidate_of(artifacts, recipe)

    def test_a_suite_that_nobody_judged_is_in_no_blessing(self, classes):
        artifacts, recipe = classes
        write_suite(artifacts, text=["The cat sees a bird"], label=["cat"])
        run(artifacts, recipe)
        with pytest.raises(ModelError, match="the blessing is for another suites"):
            candidate_of(artifacts, recipe)


class TestAnswers:
    def test_a_text_is_right_by_match_by_pattern_or_by_a_function(self, language):
        artifacts, recipe = language
        columns = {"text": ["The cat", "A dog"], "label": ["x", "y"]}
        write_suite(artifacts, **columns)
        run(artifacts, recipe, suites=[suite(max_new_tokens=4)])
        (found,) = results(artifacts)
        assert (found.right, len(found.failures)) == (0, 2)
        answers = [one.notes["answered"] for one in found.failures]
        assert [one.notes["expected"] for one in found.failures] == ["x", "y"]
        write_suite(artifacts, text=columns["text"], label=[f" {answers[0]}\n", "y"])
        run(artifacts, recipe, suites=[suite(max_new_tokens=4)])
        assert [one.row_id for one in results(artifacts)[0].failures] == [1]
        write_suite(artifacts, **columns, form=["(?s).*", "^never$"])
        function = {"name": "tests.unit.tasks.measurements.test_suites:says_a_lot", "arguments": {"least": 10**6}}
        suites = [suite(max_new_tokens=4, matches="form"), suite(name="own", max_new_tokens=4, function=function)]
        write_suite(artifacts, "own", **columns)
        run(artifacts, recipe, suites=suites)
        by_pattern, by_function = results(artifacts)
        assert [one.notes["matches"] for one in by_pattern.failures] == ["^never$"]
        assert (by_function.name, by_function.right) == ("own", 0)

    def test_a_function_that_fails_is_named_with_the_row(self, language):
        artifacts, recipe = language
        write_suite(artifacts, text=["The cat"], label=["x"])
        own = suite(max_new_tokens=2, function="tests.unit.tasks.measurements.test_suites:fails")
        with pytest.raises(RecipeError, match=r"evaluation.suites.0.function: raised KeyError for row_id 0: 'no'"):
            run(artifacts, recipe, suites=[own])

    def test_the_text_is_what_a_release_answers(self, language):
        artifacts, recipe = language
        write_suite(artifacts, text=["The cat sees"], label=["x"])
        run(artifacts, recipe, suites=[suite(max_new_tokens=5)])
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(artifacts.model)
        ids = tokenizer("The cat sees", return_tensors="pt")
        with torch.no_grad():
            whole = AutoModelForCausalLM.from_pretrained(artifacts.model).generate(
                **ids, max_new_tokens=5, do_sample=False
            )
        expected = tokenizer.decode(whole[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert results(artifacts)[0].failures[0].notes["answered"] == expected

    def test_a_model_that_learned_with_tools_is_asked_with_them(self, tmp_path):
        """As on the card: the text is what a pipeline answers that gets the tools of the row."""
        artifacts, recipe = tiny_releases.evaluated(tmp_path, "conversations", steps=0)
        network = transformers.AutoModelForCausalLM.from_pretrained(artifacts.model)
        for weight in network.parameters():  # so large that what is answered depends on all that is read
            weight.data *= 25 if weight.dim() == 2 else 1
        network.save_pretrained(artifacts.model)
        asked, tools = [{"role": "user", "content": "Who?"}], [{"name": f"look_{i}"} for i in range(9)]
        talk = [*asked, {"role": "assistant", "content": "nobody"}]
        write_suite(artifacts, messages=[talk] * 2, tools=[json.dumps(tools), None])
        run(artifacts, recipe, suites=[suite(max_new_tokens=12)])
        answered = [one.notes["answered"] for one in results(artifacts)[0].failures]
        pipeline = transformers.pipeline("text-generation", model=str(artifacts.model))
        options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
        expected = [
            pipeline(asked, **options, **given)[0]["generated_text"] for given in ({"tools": read_tools(tools)}, {})
        ]
        assert expected[0] != expected[1]
        assert answered == expected


@pytest.mark.parametrize("content", [tiny.TARGETS, tiny.TAGS], ids=["seq2seq", "token_classification"])
def test_other_objectives_are_judged_by_scores_and_by_the_text_of_their_prediction(tmp_path, content):
    artifacts, recipe = with_model(tmp_path, tiny.recipe(**content))
    rows = list(SplitRows(artifacts.rows / "test").rows())[:4]
    columns = {name: [row[name] for row in rows] for name in ("text", "label", "spans")}
    write_suite(artifacts, **columns, form=["(?s)^.*$", "^$", "(?s).{999}", "x{99}"])
    run(artifacts, recipe, suites=[suite(), suite(matches="form")])
    by_scores, by_text = results(artifacts)
    method, rows = objectives.build_objective(recipe.objective), list(scores_of(artifacts).to_pylist())
    known = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    right = method.right_rows(known)[[row["row_id"] in range(72, 76) for row in rows]]
    assert (by_scores.rows, by_scores.right) == (4, right.sum())
    assert {one.row_id for one in by_text.failures} >= {2, 3}
    assert 0 not in {one.row_id for one in by_text.failures}
    assert all("answered" in one.notes for one in by_text.failures)


def says_a_lot(row, text, *, least):
    assert set(row) >= {"text", "label"}
    return len(text) > least


def fails(row, text):
    raise KeyError("no")


class TestRows:
    """From the files of a suite to the rows that evaluate reads."""

    @pytest.fixture
    def project(self, tmp_path):
        (tmp_path / "data").mkdir()
        texts = tiny.sentences(120)
        lines = [f'"{text}",{text.split()[1]}' for text in texts]
        (tmp_path / "data/rows.csv").write_text("\n".join(["text,label", *lines]))
        return tmp_path

    def validated(self, root, content, **keys):
        (root / "data/greetings.csv").write_text(content)
        recipe = load(tiny.write(root / "params/tiny.yaml", tiny.recipe(**tiny.CLASSES)))
        artifacts = releases.Artifacts("tiny", root)
        data = Data.model_validate({"source": {"kind": "files", "train": "data/rows.csv"}, "split": {"test": 0.2}})
        suites = [suite(**keys)]
        ingest(artifacts, data=data, seed=3, launch=ONE_PROCESS, suites=suites)
        hub = {"repo_id": "tests/tiny", "endpoint": "local"}
        validation = Validation(max_quarantined=0.9, drift="off")
        report = validate(
            artifacts,
            seed=3,
            validation=validation,
            objective=recipe.objective,
            launch=ONE_PROCESS,
            suites=suites,
            **hub,
        )
        return artifacts, report

    def test_rows_go_through_ingest_and_validate(self, project):
        artifacts, report = self.validated(project, "text,label\nhello the cat,cat\nhello the king,king\n")
        kept = SplitRows(artifacts.rows / SUITES / "greetings")
        assert [(row["row_id"], row["label"]) for row in kept.rows()] == [(0, "cat"), (1, "king")]
        assert report.suites == Suites().rows_read(artifacts)
        ingested = json.loads(artifacts.report("ingest").read_text())
        assert f"{SUITES}/greetings" in ingested["data_sha256"]
        before = dict(report.suites)
        _, report = self.validated(project, "text,label\nhello the cat,cat\n")
        assert report.suites != before

    @pytest.mark.parametrize(
        ("content", "keys", "told"),
        [
            (
                "text,label\nhello,tiger\n",
                {},
                r"(?s)evaluation.suites.0 \(greetings\).*row 0: no training row has the label 'tiger'",
            ),
            ("text,label\nhello,cat\n  ,cat\n", {}, r"(?s)expect_column_values_to_match_regex.*row 1: '  '"),
            ("text,kind\nhello,cat\n", {}, r"there is no column `label`, which the objective needs"),
            (
                "text,label\nhello,cat\n",
                {"matches": "form"},
                r"no column `form`, which evaluation.suites.0.matches needs",
            ),
            (
                "text,label,form\nhello,cat,(\n",
                {"matches": "form"},
                r"(?s)row 0: its form, '\(', is no regular expression",
            ),
            ("text,label,form\nhello,cat,a\nhi,cat,\n", {"matches": "form"}, r"(?s)row 1: its form is empty"),
            ("text,label\n", {}, r"evaluation.suites.0.source: has no rows"),
        ],
    )
    def test_every_row_must_be_usable(self, project, content, keys, told):
        with pytest.raises(DataError, match=told):
            self.validated(project, content, **keys)

    def test_a_missing_file_names_the_suite(self, project):
        with pytest.raises(DataError, match=r"evaluation.suites.0.source.train: data/other.csv: no file matches"):
            self.validated(project, "text,label\nhello,cat\n", source="data/other.csv")


@pytest.mark.parametrize(
    ("objective", "keys", "told"),
    [
        (built("causal_lm", text_column="text"), {}, "causal_lm does not say which rows are right"),
        (built("causal_lm", text_column="text"), {"matches": "form"}, "gives no text that could match"),
        (built("sequence_classification"), {"matches": "form"}, "gives no text that could match"),
        (built("sequence_classification"), {"max_new_tokens": 3}, "`max_new_tokens` has no effect"),
        (built("sequence_classification"), {}, None),
        (built("sft"), {}, None),
        (built("sft"), {"matches": "form"}, None),
        (built("dpo"), {}, None),
        (built("dpo"), {"matches": "form"}, None),
        (built("kto"), {}, "kto does not say which rows are right"),
        (built("kto"), {"function": "a.b:c"}, None),
        (built("seq2seq"), {}, None),
        (built("seq2seq", generate=False), {}, "seq2seq does not say which rows are right"),
        (built("seq2seq", generate=False), {"matches": "form"}, "gives no text that could match"),
        (built("regression"), {}, "regression does not say which rows are right"),
        (built("regression"), {"function": "a.b:c"}, None),
    ],
)
def test_objectives_that_cannot_be_judged_are_refused_with_what_works(objective, keys, told):
    name = type(objective).__module__.rpartition(".")[2]
    found = why_not_judged(objective, name, suite(**keys))
    assert (found is None) == (told is None)
    if found:
        assert told in found[0]
        if name == "causal_lm" and not keys:
            assert "suites work with " in found[1]
            assert "sequence_classification" in found[1]


def test_all_is_every_row():
    assert suite(must="all") == suite(must=1.0) == suite()
    for keys in ({"must": 0.0}, {"must": "most"}, {"name": "a/b"}, {"source": {"kind": "sql"}}):
        with pytest.raises(ValidationError):
            suite(**keys)


@pytest.mark.parametrize(
    ("right", "rows", "share", "is_passed"),
    [(10, 10, 1.0, True), (9, 10, 1.0, False), (19, 20, 0.95, True), (18, 20, 0.95, False), (7, 25, 0.28, True)],
)
def test_share_of_rows(right, rows, share, is_passed):
    failures = [FailedRow(row_id=n, text="t", notes={}) for n in range(rows - right)]
    found = SuiteResult(name="a", rows=rows, right=right, share=share, sha256="", failures=failures)
    assert found.is_passed == is_passed
    assert found.sentence.startswith(f"suite a: {right} of {rows} rows are right, and ")
