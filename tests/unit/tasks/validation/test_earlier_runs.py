"""Shards are checked by processes, and only those that are new: what was found in an earlier run is found again."""

from __future__ import annotations

import functools
import hashlib
import pickle
import shutil

import pyarrow.parquet as pq
import pytest

from params import DataError
from params.schema import Launch, ObjectiveChoice
from params.sections.rows import Expectation
from tasks.known_rows import hashes as known
from tasks.known_rows import rows as drift_rows
from tasks.validation import by_key, label_checks, separated_rows
from tasks.validation import checks as checks_module
from tests.support import tiny
from tests.support.validation import LANGUAGE, UNIQUE, run_validation, write_raw
from tests.unit.tasks.shards.test_cluster import cluster  # noqa: F401 - a fixture
from tests.unit.tasks.validation.test_shards import as_columns, checks, faulty_rows
from trainer import objectives

CLASSES = ObjectiveChoice(name="sequence_classification")
TAGS = ObjectiveChoice(name="token_classification")
LONG = Expectation(type="expect_column_value_lengths_to_be_between", column="text", min_value=5)
TWO_PROCESSES = Launch(micro_batch_size=1, data_workers=2)
FUNCTIONS = {
    "labels": (label_checks, "count_shard_labels"),
    "rows": (checks_module, "check_shard_rows"),
    "objective": (checks_module, "find_rejected_positions"),
    "keys": (by_key, "write_shard_key_hashes"),
    "good": (separated_rows, "write_good_shard_rows"),
    "drift": (drift_rows, "scan_shard"),
    "held out": (known, "_hash_shard"),
    "sampled": (drift_rows, "_compared"),
    "failing": (separated_rows, "read_failing_shard_rows"),
}


def inputs(artifacts, code="1"):
    return tiny.inputs("validate", artifacts, code)


def written(artifacts):
    """The hash of each file that the stage wrote."""
    folder = artifacts.validated
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class TestWhereTheWorkIsDone:
    @pytest.fixture
    def artifacts(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tests.support.tiny.PART_ROWS", 14)
        return write_raw(tmp_path, **{split: as_columns(rows) for split, rows in faulty_rows().items()})

    def run(self, artifacts, **options):
        run_validation(artifacts, *checks(on_failure="report")[::3], objective=CLASSES, **options)
        return written(artifacts)

    @pytest.mark.slow
    def test_bytes_are_those_of_one_process(self, artifacts):
        alone = self.run(artifacts)
        assert alone.keys() > {"quarantine.parquet", "report.html", "validation.json", "evergreen-data-profile.dat"}
        assert self.run(artifacts, launch=TWO_PROCESSES) == alone
        assert self.run(artifacts, launch=TWO_PROCESSES, inputs=inputs(artifacts)) == alone
        assert self.run(artifacts, inputs=inputs(artifacts)) == alone, "all of it is kept"
        assert not artifacts.validation_keys.exists()

    @pytest.mark.slow  # tests/unit/tasks/shards/test_cluster.py shows it in short
    def test_bytes_are_those_of_a_cluster(self, artifacts, cluster):  # noqa: F811
        assert self.run(artifacts, launch=cluster.launch()) == self.run(artifacts)


class TestEarlierRuns:
    """A shard that was checked before is not checked again, if nothing has changed that its verdicts depend on."""

    @pytest.fixture(autouse=True)
    def _rows(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tests.support.tiny.PART_ROWS", 10)
        self.root, self.done, self.is_first = tmp_path, {}, True
        for name, (module, function) in FUNCTIONS.items():
            self.note(monkeypatch, name, module, function)
        self.texts = tiny.sentences(45, 5)
        self.texts[3] = self.texts[27] = " "
        self.texts[8] = self.texts[21]
        self.write()

    def note(self, monkeypatch, name, module, function):
        own = getattr(module, function)

        @functools.wraps(own)
        def noted(*arguments):
            work = arguments[-1]
            if name in ("drift", "held out", "sampled"):
                rows = work[0] if name == "sampled" else work
                split = rows.folder.name
            else:
                split, rows = work.part.split, work.part.rows
            self.done.setdefault(name, []).append(f"{split} {int(rows.shard.name[:5])}")
            return own(*arguments)

        monkeypatch.setattr(module, function, noted)

    def write(self, count=34, test=(), **changes):
        texts = self.texts[:count]
        for place, text in changes.items():
            texts[int(place[1:])] = text
        held_out = {"validation": tiny.sentences(4, 8), "test": [*tiny.sentences(4, 7), *test]}
        splits = {
            split: {"text": own, "label": [text.split()[1] if text.strip() else "cat" for text in own]}
            for split, own in ({"train": texts} | held_out).items()
        }
        self.artifacts = write_raw(self.root, **splits)

    def run(self, *expectations, code="1", objective=CLASSES):
        """Validate, compare with a run that starts anew unless this is the first one, and return the work that was done."""
        expectations = expectations or (UNIQUE, LONG)
        if not self.is_first:
            run_validation(self.artifacts, *expectations, objective=objective)
            anew = written(self.artifacts)
            self.done = {}
        run_validation(self.artifacts, *expectations, objective=objective, inputs=inputs(self.artifacts, code))
        assert self.is_first or written(self.artifacts) == anew
        self.is_first = False
        done, self.done = self.done, {}
        return done

    def test_only_new_shards_are_checked(self):
        first = self.run()
        assert set(first) == set(FUNCTIONS) - {"objective"}
        assert len(first["rows"]) == len(first["keys"]) == 6
        assert self.run() == {}
        self.write(44)
        again = self.run()
        assert again["rows"] == again["keys"] == ["train 3", "train 4"]
        assert set(again["drift"]) == {"train 3", "train 4"} == set(again["sampled"])
        assert "failing" in first, "blank and equal rows"
        assert "failing" not in again, "the new shards have no bad rows"
        assert "good" not in again, "the new shards have no bad rows"
        kept = list((self.artifacts.shards / "validate").iterdir())
        self.write(10)
        self.run()
        assert len(list((self.artifacts.shards / "validate").iterdir())) < len(kept), "what was not used is gone"

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_nothing_is_kept_of_rows_that_are_not_those_of_the_manifest(self, split):
        """Another hand wrote a shard; when it is put back, the run has the rows that ingest wrote."""
        self.run()
        whole = written(self.artifacts)
        shutil.rmtree(self.artifacts.shards)
        shard = self.artifacts.raw / split / "00000.parquet"
        before = shard.read_bytes()
        table = pq.read_table(shard)
        pq.write_table(table.set_column(table.column_names.index("text"), "text", [["made up"] * len(table)]), shard)
        with pytest.raises(DataError, match=f"{split}/00000.parquet: is not the file that its manifest describes"):
            run_validation(self.artifacts, UNIQUE, LONG, objective=CLASSES, inputs=inputs(self.artifacts))
        shard.write_bytes(before)
        run_validation(self.artifacts, UNIQUE, LONG, objective=CLASSES, inputs=inputs(self.artifacts))
        assert written(self.artifacts) == whole

    def test_rows_that_come_before_change_only_what_repeats_them(self):
        """Positions shift; a row of a shard that is set aside as the duplicate of a new one is gone from the good rows."""
        self.run()
        self.write(test=[self.texts[5], "The cat hears what is new."])
        again = self.run()
        assert again["rows"] == again["keys"] == ["test 0"]
        assert again["good"] == ["train 0"]
        assert (again["drift"], again["held out"]) == (["train 0"], ["test 0"])

    def test_row_that_returns_is_a_row_again(self):
        self.write(test=[self.texts[5]])
        self.run()
        self.write()
        assert self.run()["good"] == ["train 0"]

    def test_changed_row_is_checked_again(self):
        self.run()
        self.write(_12="The cat sees what is new.")
        again = self.run()
        assert again["rows"] == again["keys"] == again["labels"] == ["train 1"]

    def test_other_checks_are_made_again(self):
        self.run()
        again = self.run(UNIQUE, LONG.model_copy(update={"min_value": 30}))
        assert len(again["rows"]) == 6
        assert "keys" not in again
        unique = Expectation(type="expect_compound_columns_to_be_unique", column_list=["text", "label"])
        assert len(self.run(unique)["keys"]) == 6
        assert len(self.run(unique.model_copy(update={"ignore_row_if": "never"}))["keys"]) == 6

    def test_new_label_changes_no_check_of_other_rows(self):
        self.run()
        self.write(35, _34="A zebra sees the rain.")
        again = self.run()
        assert again["rows"] == again["labels"] == ["train 3"]

    def test_other_code_checks_all(self):
        first = {name: len(done) for name, done in self.run().items()}
        assert {name: len(done) for name, done in self.run(code="2").items()} == first

    def test_conditions_on_the_split_hold_for_the_split(self):
        """The shards of the two held-out splits have the same bytes."""
        same = {"text": ["see you on Monday", "no"]}
        self.artifacts = write_raw(self.root, train={"text": ["see you", "or not"]}, validation=same, test=same)
        in_test = {"type": "comparison", "column": {"name": "split"}, "operator": "==", "parameter": "test"}
        check = LONG.model_copy(update={"row_condition": in_test})
        for _ in range(2):
            self.run(check, objective=LANGUAGE)

    def test_checks_of_row_ids_are_made_again_when_they_change(self):
        check = Expectation(type="expect_column_values_to_be_between", column="row_id", max_value=40)
        first = self.run(check, objective=LANGUAGE)
        self.write(30)
        again = self.run(check, objective=LANGUAGE)
        assert len(first["rows"]) == 6
        assert again["rows"] == ["test 0", "validation 0"]

    def test_a_run_that_failed_keeps_what_it_had_done(self, monkeypatch):
        check = checks_module.check_shard_rows

        def fail_at_the_third(*arguments):
            if len(self.done.get("rows", ())) == 2:
                raise ValueError("not this one")
            return check(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(checks_module, "check_shard_rows", fail_at_the_third)
            with pytest.raises(ValueError, match="not this one"):
                run_validation(self.artifacts, UNIQUE, LONG, objective=CLASSES, inputs=inputs(self.artifacts))
        self.is_first = False
        assert self.run()["rows"] == ["train 0", "train 1", "train 2", "train 3"]

    def test_without_dvc_nothing_is_kept(self):
        run_validation(self.artifacts, UNIQUE, objective=CLASSES)
        assert not self.artifacts.shards.exists()

    def test_verdicts_of_the_objective_depend_on_what_it_learned(self):
        def write(*labels):
            rows = [
                {"text": f"see you on day {n}", "spans": [{"label": label, "start": 0, "end": 3}]}
                for n, label in enumerate(labels)
            ]
            rows[5]["spans"][0]["end"] = 99
            columns = {name: [row[name] for row in rows] for name in ("text", "spans")}
            columns["others"] = [[{"label": "verb", "start": 0, "end": 1 + n}] for n in range(len(rows))]
            held_out = {"text": ["see me"], "spans": [[{"label": "verb", "start": 0, "end": 3}]]}
            held_out["others"] = held_out["spans"]
            other = held_out | {"text": ["see you"]}
            self.artifacts = write_raw(self.root, train=columns, validation=held_out, test=other)

        write(*["verb"] * 34)
        first = self.run(LONG, objective=TAGS)["objective"]
        assert len(first) == 2 * 6
        write(*["verb"] * 36)
        assert self.run(LONG, objective=TAGS)["objective"] == ["train 3", "train 3"]
        write(*["verb"] * 36, "noun")
        again = self.run(LONG, objective=TAGS)["objective"]
        assert len(again) == 1 + 6, "a label is new"
        others = ObjectiveChoice(name="token_classification", spans_column="others")
        assert len(self.run(LONG, objective=others)["objective"]) == 2 * 6


@pytest.mark.parametrize("name", objectives.objective_names())
def test_objectives_can_be_sent_to_processes(name):
    own = objectives.build_objective(ObjectiveChoice(name=name))
    state = own.collect_state(own.example_rows)
    for function in (own.reject_reason, functools.partial(own.unseen_label, state=state)):
        sent = pickle.loads(pickle.dumps(functools.partial(checks_module.find_rejected_positions, function)))
        for row in own.example_rows:
            assert sent.args[0](row) == function(row)
