"""The tokenize stage on small validated splits: output, errors and memory."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from params import DataError, ModelError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.rows import Tokenization
from tasks.shards import kept_work
from tasks.shards.split_rows import SplitRows
from tasks.tokenization import encoding, tokenizers
from tasks.tokenization.encoding import read_row_batches
from tasks.tokenization.stage import tokenize
from tests.support import forked, tiny
from tests.support.memory import peak_anonymous_mib
from tests.support.project import ROOT
from trainer.data import tokens
from trainer.data.shards import folder_sha256
from trainer.objectives.bases.objective import EncodedRow

LANGUAGE = ObjectiveChoice(name="causal_lm")
CLASSES = ObjectiveChoice(name="sequence_classification")
TRAINED = {"kind": "train", "vocab_size": 300}


def run(artifacts, objective=LANGUAGE, tokenizer=TRAINED, max_length=16, workers=1, inputs=None):
    return tokenize(
        artifacts,
        tokenization=Tokenization(tokenizer=tokenizer, max_length=max_length),
        objective=objective,
        launch=Launch(micro_batch_size=1, data_workers=workers),
        inputs=inputs,
    )


def sequences(artifacts, split):
    return list(tokens.read_split(artifacts.tokens, split))


def digests(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.fixture
def artifacts(tmp_path):
    made = Artifacts("trial", tmp_path)
    tiny.write_sentences(made, {"train": 60, "validation": 20, "test": 20})
    return made


@pytest.mark.parametrize("objective", [LANGUAGE, CLASSES], ids=lambda o: o.name)
def test_same_rows_give_the_same_bytes(artifacts, objective):
    first = run(artifacts, objective)
    before = digests(artifacts.tokens)
    assert run(artifacts, objective) == first
    assert digests(artifacts.tokens) == before
    names = (f"{split}/{name}" for split in SPLITS for name in ("00000.arrow", "_manifest.json"))
    assert {*names, "objective.json", "statistics.json"} < set(before)


def test_another_process_gives_the_same_bytes(artifacts):
    run(artifacts)
    before = digests(artifacts.tokens)
    code = (
        "import sys; from pathlib import Path; from params.foundation.artifacts import Artifacts; from params.schema import *; "
        "from tasks.tokenization.stage import tokenize; tokenize(Artifacts('trial', Path(sys.argv[1])), objective="
        "ObjectiveChoice(name='causal_lm'), launch=Launch(micro_batch_size=1), tokenization=Tokenization(max_length=16, "
        "tokenizer={'kind': 'train', 'vocab_size': 300}))"
    )
    subprocess.run([forked.python(), "-c", code, str(artifacts.root)], cwd=ROOT, check=True, capture_output=True)
    assert digests(artifacts.tokens) == before


@pytest.mark.parametrize("objective", [LANGUAGE, CLASSES], ids=lambda o: o.name)
def test_processes_give_the_same_bytes_as_one(artifacts, monkeypatch, objective):
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 25)
    tiny.write_sentences(artifacts, {"train": 60, "validation": 20, "test": 30})
    one = run(artifacts, objective)
    before = digests(artifacts.tokens)
    assert run(artifacts, objective, workers=2) == one
    assert digests(artifacts.tokens) == before
    assert {name for name in before if "0000" in name} == {
        *(f"train/0000{number}.arrow" for number in range(3)),
        "validation/00000.arrow",
        *(f"test/0000{number}.arrow" for number in range(2)),
    }


def test_shards_hold_the_sequences_of_one(artifacts, monkeypatch):
    """Read together, with the ids of their rows; only the order differs, which is within a shard."""
    run(artifacts, CLASSES)
    whole = {split: sequences(artifacts, split) for split in SPLITS}
    lengths = {split: tokens.read_split(artifacts.tokens, split).lengths().tolist() for split in SPLITS}
    assert all(lengths[split] == [len(s["input_ids"]) for s in whole[split]] for split in SPLITS)
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 7)
    tiny.write_sentences(artifacts, {"train": 60, "validation": 20, "test": 20})
    run(artifacts, CLASSES)
    for split in SPLITS:
        found = tokens.read_split(artifacts.tokens, split)
        assert sorted(found, key=lambda s: s["row_id"]) == sorted(whole[split], key=lambda s: s["row_id"])
        assert (found[-1], found[len(found) - 1]) == (found[-1], list(found)[-1])
        assert sorted(found.lengths().tolist()) == sorted(lengths[split])
        several = list(range(len(found)))[::-3]
        assert found.__getitems__(several) == [found[i] for i in several]
        assert found.__getitems__([]) == []
        for outside in (len(found), -len(found) - 1):
            with pytest.raises(IndexError):
                found[outside]
        assert pickle.loads(pickle.dumps(found))[3] == found[3]
    (artifacts.tokens / "test/00001.arrow").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"test/00001\.arrow: cannot be read(?s:.*)fix: run the tokenize stage again"):
        list(tokens.read_split(artifacts.tokens, "test"))


class TestEarlierRuns:
    """A shard that was encoded before is not encoded again, if nothing has changed that its sequences depend on."""

    @pytest.fixture(autouse=True)
    def _rows(self, artifacts, tmp_path, monkeypatch):
        self.choice = pretrained(artifacts, tmp_path / "pretrained")
        self.artifacts, self.encoded = artifacts, []
        encode = encoding._encode_shard

        def noted(encoder, work):
            rows, split, *_ = work
            self.encoded.append(f"{split}/{rows.shard.name[:5]}")
            return encode(encoder, work)

        monkeypatch.setattr(encoding, "_encode_shard", noted)
        monkeypatch.setattr("tests.support.tiny.PART_ROWS", 10)
        self.write(30)

    def write(self, count, texts=()):
        held_out = [{"text": tiny.sentences(10, seed)} for seed in (7, 8)]
        texts = [*tiny.sentences(30, 5), *tiny.sentences(200, 6)][:count] + list(texts)
        tiny.write_rows(self.artifacts, train={"text": texts}, validation=held_out[0], test=held_out[1])

    def run(self, code="1", **settings):
        """Tokenize, and return the shards that were encoded."""
        self.encoded.clear()
        run(self.artifacts, tokenizer=self.choice, inputs=tiny.inputs("tokenize", self.artifacts, code), **settings)
        return self.encoded

    def test_nothing_is_kept_of_rows_that_are_not_those_of_the_manifest(self):
        shard = self.artifacts.rows / "train/00001.parquet"
        before = shard.read_bytes()
        shutil.copyfile(shard.with_name("00000.parquet"), shard)
        with pytest.raises(DataError, match=r"train/00001.parquet: is not the file that its manifest describes"):
            self.run()
        shard.write_bytes(before)
        self.run()
        found = digests(self.artifacts.tokens)
        run(self.artifacts, tokenizer=self.choice)
        assert digests(self.artifacts.tokens) == found

    def test_nothing_is_kept_by_a_process_that_may_have_other_code(self, monkeypatch):
        inputs = tiny.inputs("tokenize", self.artifacts, "1")
        tiny.inputs("tokenize", self.artifacts, "edited since the stage looked at its inputs")
        run(self.artifacts, tokenizer=self.choice, inputs=inputs)
        assert len(self.encoded) == 5
        monkeypatch.setattr(kept_work, "_is_there", kept_work._is_there.__wrapped__)  # as another process does
        assert len(self.run()) == 5, "the edit is undone, and what the edited code made is not taken"
        assert self.run() == []

    def test_only_new_shards_are_encoded(self):
        assert len(self.run()) == 5
        before = digests(self.artifacts.tokens)
        assert self.run() == []
        assert digests(self.artifacts.tokens) == before
        self.write(34)
        assert self.run() == ["train/00003"], "and the held-out rows, which have other ids now, are the same shards"
        grown = digests(self.artifacts.tokens)
        run(self.artifacts, tokenizer=self.choice)  # all of it
        assert digests(self.artifacts.tokens) == grown
        kept = list((self.artifacts.shards / "tokenize").iterdir())
        (self.artifacts.shards / "tokenize/.0.function").touch()  # a stage that was killed left it
        self.write(10)
        assert self.run() == []
        assert len(list((self.artifacts.shards / "tokenize").iterdir())) == len(kept) - 6, (
            "what was not used is gone: tokens and hashes"
        )

    def test_other_settings_or_code_encode_all(self):
        self.run()
        assert len(self.run(max_length=12)) == 5
        self.run()
        assert len(self.run(code="2")) == 5
        tokenizer = Path(self.choice["path"]) / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text().replace('"add_prefix_space": false', '"add_prefix_space": true'))
        assert len(self.run(code="2")) == 5

    def test_a_run_that_failed_keeps_what_it_had_done(self, monkeypatch):
        def encode(rows, *arguments, **options):
            raise ValueError("not this one")

        with monkeypatch.context() as patched:
            patched.setattr(
                "tasks.tokenization.encoding.RowEncoder.encode",
                lambda _, rows, split: encode(rows) if rows[0]["row_id"] == 20 else [EncodedRow([]) for _ in rows],
            )
            with pytest.raises(ValueError, match="not this one"):
                self.run()
        assert self.run() == ["train/00002", "validation/00000", "test/00000"]

    def test_a_damaged_shard_is_encoded_again(self):
        self.run()
        expected = digests(self.artifacts.tokens)
        for data in (self.artifacts.shards / "tokenize").glob("*/0"):
            changed = bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:]
            data.unlink()
            data.write_bytes(changed)
        assert len(self.run()) == 5
        assert digests(self.artifacts.tokens) == expected

    def test_without_dvc_nothing_is_kept(self):
        run(self.artifacts, tokenizer=self.choice)
        assert not self.artifacts.shards.exists()


def test_train_split_is_packed_and_others_are_sorted_by_length(artifacts):
    run(artifacts)
    assert {len(s["input_ids"]) for s in sequences(artifacts, "train")} == {16}
    for split in ("validation", "test"):
        lengths = [len(s["input_ids"]) for s in sequences(artifacts, split)]
        assert lengths == sorted(lengths, reverse=True)
        assert len(set(lengths)) > 1
    by_row = {s["row_id"] for s in sequences(artifacts, "test")}
    assert by_row == set(range(80, 100))
    same = [s["row_id"] for s in sequences(artifacts, "test") if len(s["input_ids"]) == 16]
    assert same == sorted(same), "sequences of equal length keep their order"


def test_sorting_keeps_sequences_whole(artifacts, monkeypatch):
    """Also across the batches in which they are written."""
    for module in ("tasks.tokenization.encoding", "trainer.data.tokens"):
        monkeypatch.setattr(f"{module}.BATCH_SEQUENCES", 7)
    run(artifacts)
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    texts = dict(enumerate(tiny.sentences(20, 2), 80))
    found: dict[int, str] = {}
    windows = sorted(sequences(artifacts, "test"), key=lambda s: -len(s["input_ids"]))
    for sequence in windows:
        assert sequence["labels"] == sequence["input_ids"]
        found[sequence["row_id"]] = found.get(sequence["row_id"], "") + tokenizer.decode(sequence["input_ids"])
    assert {row: text.removesuffix("<|endoftext|>") for row, text in found.items()} == texts


def test_statistics_describe_the_sequences(artifacts):
    report = run(artifacts)
    for split in SPLITS:
        lengths = [len(s["input_ids"]) for s in sequences(artifacts, split)]
        found = report.splits[split]
        assert (found.sequences, found.tokens, found.longest) == (len(lengths), sum(lengths), max(lengths))
        assert found.mean_length == round(sum(lengths) / len(lengths), 2)
        assert found.learned_tokens == sum(lengths)
        assert found.truncated_rows == 0
    assert {s: found.rows for s, found in report.splits.items()} == {"train": 60, "validation": 20, "test": 20}
    assert report.vocab_size == len(tokens.read_tokenizer(artifacts.tokens)) == 300
    characters = sum(map(len, tiny.sentences(60, 0)))
    assert report.characters_per_token == round(characters / report.splits["train"].tokens, 3)
    assert json.loads((artifacts.tokens / "statistics.json").read_text()) == report.model_dump()


def test_truncated_rows_are_counted(artifacts):
    report = run(artifacts, CLASSES, max_length=20)
    tokenizer = tokens.read_tokenizer(artifacts.tokens)
    longer = sum(len(tokenizer(text)["input_ids"]) > 20 for text in tiny.sentences(60, 0))
    assert 0 < longer < 60
    assert report.splits["train"].truncated_rows == longer
    assert report.splits["train"].learned_tokens == report.splits["train"].sequences == 60
    assert tokens.read_objective_state(artifacts.tokens) == {"labels": ["cat", "dog", "friend", "king"]}


def pretrained(artifacts, folder):
    """A saved tokenizer of an earlier run, as the recipe names it."""
    run(artifacts)
    tokens.read_tokenizer(artifacts.tokens).save_pretrained(folder)
    return {"kind": "pretrained", "path": str(folder)}


def test_tokenizer_with_several_chat_templates_is_kept_whole(artifacts, tmp_path):
    """transformers writes them into a folder beside the others."""
    choice = pretrained(artifacts, tmp_path / "pretrained")
    tokenizer = AutoTokenizer.from_pretrained(choice["path"])
    templates = {"default": "{{ messages[0]['content'] }}", "tool_use": "{{ tools }}"}
    keys = []
    for template in ("{{ tools }}", "{{ tools }}!"):
        tokenizer.chat_template = templates | {"tool_use": template}
        tokenizer.save_pretrained(choice["path"])
        run(artifacts, tokenizer=choice)
        assert (artifacts.tokenizer / "additional_chat_templates/tool_use.jinja").read_text() == template
        assert tokens.read_tokenizer(artifacts.tokens).chat_template == tokenizer.chat_template
        keys.append(folder_sha256(artifacts.tokenizer))
    assert len({*keys}) == 2, "shards that another template made are other shards"


def test_pretrained_tokenizer_is_loaded_from_its_folder(artifacts, tmp_path):
    choice = pretrained(artifacts, tmp_path / "pretrained")
    settings = tmp_path / "pretrained" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 77}))
    before = sequences(artifacts, "test")
    run(artifacts, tokenizer=choice)
    assert sequences(artifacts, "test") == before
    assert AutoTokenizer.from_pretrained(artifacts.tokenizer).model_max_length == 77, "its own, not that of training"


@pytest.mark.parametrize(
    ("objective", "trained", "reads"),
    [(LANGUAGE, True, 3), (LANGUAGE, False, 2), (CLASSES, True, 5), (CLASSES, False, 4)],
)
def test_train_rows_are_read_no_more_often_than_needed(artifacts, tmp_path, monkeypatch, objective, trained, reads):
    """Once to encode, once to name the rows, once more to train a tokenizer; with labels, once for their names and once to name the inputs."""
    tokenizer = TRAINED if trained else pretrained(artifacts, tmp_path / "pretrained")
    opened = []

    file = SplitRows._file

    def counted(rows, shard):
        opened.append(rows.folder.name)
        return file(rows, shard)

    monkeypatch.setattr(SplitRows, "_file", counted)
    run(artifacts, objective, tokenizer)
    assert opened.count("train") == reads
    assert opened.count("test") == opened.count("validation") == 1


def test_tokenizer_learns_from_a_sample_of_the_rows(artifacts):
    texts = [f"text {i}" for i in range(5000)]
    found = list(tokenizers.sample_texts(texts, 5000, 500))
    assert 420 < len(found) < 580
    assert sorted(tokenizers.sample_texts(reversed(texts), 5000, 500)) == sorted(found), "whatever their order"
    assert list(tokenizers.sample_texts(texts, 5000, None)) == list(tokenizers.sample_texts(texts, 5000, 5000)) == texts

    def learned(**choice):
        run(artifacts, tokenizer=TRAINED | choice)
        return (artifacts.tokenizer / "tokenizer.json").read_text()

    assert learned() == learned(sample_rows=60) != learned(sample_rows=20) == learned(sample_rows=20)


def test_missing_tokenizer_is_an_error(artifacts, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no tokenizer can be loaded") as caught:
        run(artifacts, tokenizer={"kind": "pretrained", "path": str(tmp_path / "empty")})
    assert caught.value.where == str(tmp_path / "empty")


def test_slow_tokenizer_is_refused(artifacts, tmp_path):
    choice = pretrained(artifacts, tmp_path / "pretrained")
    (tmp_path / "pretrained" / "tokenizer.json").unlink()
    (tmp_path / "pretrained" / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    with pytest.raises(ModelError, match="slow tokenizer"):
        run(artifacts, tokenizer=choice)


def test_tokenizer_without_eos_and_pad_is_refused(artifacts, tmp_path):
    choice = pretrained(artifacts, tmp_path / "pretrained")
    config = tmp_path / "pretrained" / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    for objective in (LANGUAGE, CLASSES):
        with pytest.raises(ModelError, match="neither a padding nor an end-of-text token"):
            run(artifacts, objective, tokenizer=choice)


def test_split_without_sequences_is_an_error_and_keeps_earlier_tokens(artifacts):
    run(artifacts)
    before = digests(artifacts.tokens)
    tiny.write_rows(artifacts, train={"text": ["short"]}, validation={"text": ["a text"]}, test={"text": ["a text"]})
    with pytest.raises(DataError, match="1 rows give no sequence of 64 tokens") as caught:
        run(artifacts, max_length=64)
    assert caught.value.where == str(artifacts.rows / "train")
    assert digests(artifacts.tokens) == before
    assert not list(artifacts.run.glob(".*")), "no temporary files are left"


@pytest.mark.parametrize("split", SPLITS)
def test_split_without_rows_is_an_error(artifacts, split):
    import pyarrow as pa

    splits = {s: {"text": ["a fine text of some words"] * 9} for s in SPLITS} | {
        split: {"text": pa.array([], "string")}
    }
    tiny.write_rows(artifacts, **splits)
    with pytest.raises(DataError) as caught:
        run(artifacts, max_length=4)
    assert caught.value.where == str(artifacts.rows / split)
    assert not artifacts.tokens.exists()


def test_unknown_label_is_an_error_with_the_row(artifacts):
    tiny.write_rows(
        artifacts,
        train={"text": ["one", "two"], "label": ["a", "b"]},
        validation={"text": ["three"], "label": ["a"]},
        test={"text": ["four"], "label": ["zebra"]},
    )
    with pytest.raises(DataError, match="row_id 3: cannot be encoded"):
        run(artifacts, CLASSES)


def test_long_rows_come_in_small_batches(artifacts):
    """Because a tokenizer needs far more memory than the text of a batch."""
    tiny.write_rows(
        artifacts, train={"text": ["a" * 2**19] * 5}, validation={"text": ["b"] * 1500}, test={"text": ["c"]}
    )
    sizes = {split: [len(batch) for batch in read_row_batches(SplitRows(artifacts.rows / split))] for split in SPLITS}
    assert sizes == {"train": [1] * 5, "validation": [1000, 500], "test": [1]}


MEASURE = """
import sys
from pathlib import Path
from params.foundation.artifacts import Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.rows import Tokenization
from tasks.tokenization.stage import tokenize
tokenization = Tokenization(max_length=256, tokenizer={"kind": "pretrained", "path": sys.argv[2]})
launch = Launch(micro_batch_size=1)
tokenize(
    Artifacts("trial", Path(sys.argv[1])), objective=ObjectiveChoice(name="causal_lm"), tokenization=tokenization, launch=launch
)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_tokenization_memory_does_not_grow_with_the_rows(artifacts, tmp_path):
    choice = pretrained(artifacts, tmp_path / "pretrained")
    text = " ".join(tiny.sentences(12))
    peaks = []
    for rows in (1500, 15_000):
        splits = {
            split: {"text": [f"{text} {i}" for i in range(count)]}
            for split, count in {"train": 10, "validation": 10, "test": rows}.items()
        }
        tiny.write_rows(artifacts, **splits)
        environment = {"MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false"}
        peaks.append(peak_anonymous_mib(MEASURE, str(artifacts.root), choice["path"], **environment))
    # The split is 30 MiB larger; held in memory to be ordered, it cost 61 MiB more. The allocator alone moves up to 16.
    assert peaks[1] < peaks[0] + 25, "MiB"
