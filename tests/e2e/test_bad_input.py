"""Bad input, as a user meets it: one clear error, an exit status that says its kind, and nothing lost that was there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.hub_server.server import LocalHub
from tests.support.project import Project, free_port

CONFIG, DATA, MODEL, STORAGE, TRANSIENT, ACCESS = (
    os.EX_CONFIG,
    os.EX_DATAERR,
    os.EX_NOINPUT,
    os.EX_IOERR,
    os.EX_TEMPFAIL,
    os.EX_NOPERM,
)
RECIPE = "params/tiny.yaml"
ROWS = "data/sentences.csv"


@pytest.fixture(scope="module")
def complete(finished: Project) -> Project:
    """A project whose six stages have run, for tests that run stages without DVC."""
    (finished.root / "dvc.lock").unlink()
    return finished


@pytest.fixture
def project(complete) -> Iterator:
    """The complete project; what a test changes in params/ and data/ is put back."""
    kept = complete.root / "kept"
    for name in ("params", "data"):
        shutil.copytree(complete.root / name, kept / name)
    environment = dict(complete.environment)
    yield complete
    complete.environment = environment
    for name in ("params", "data"):
        shutil.rmtree(complete.root / name)
        (kept / name).rename(complete.root / name)
    kept.rmdir()


def contents(root: Path) -> dict[str, str]:
    """Hashes of all artifacts of the tiny recipe but the page and the logs, which tell of the failure, and of all that the Hub holds."""
    files = [p for name in ("runs/tiny", ".hub") for p in sorted((root / name).rglob("*")) if p.is_file()]
    tell = {root / "runs/tiny/report.html", *(root / "runs/tiny/logs").iterdir()}
    files = [path for path in files if path not in tell]
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def unknown_key(project) -> None:
    project.edit(RECIPE, "learning_rate: 1e-2", "learning_rat: 1e-2")


def wrong_type(project) -> None:
    project.edit(RECIPE, "max_steps: 20", "max_steps: many")


def missing_file(project) -> None:
    (project.root / ROWS).unlink()


def empty_file(project) -> None:
    (project.root / ROWS).write_text("")


def not_utf8(project) -> None:
    text = (project.root / ROWS).read_bytes()
    (project.root / ROWS).write_bytes(text.replace(b"The cat", b"Le ch\xe2t", 1))


def missing_column(project) -> None:
    project.edit(RECIPE, "text_column: text", "text_column: txt")


def no_share(project) -> None:
    project.edit(RECIPE, "validation: 0.1", "validation: 0.0")


def empty_split(project) -> None:
    lines = (project.root / ROWS).read_text().splitlines()
    (project.root / ROWS).write_text("\n".join(lines[:3]))


def all_rows_bad(project) -> None:
    check = "{type: expect_column_value_lengths_to_be_between, column: text, min_value: 10000}"
    project.edit(RECIPE, "max_quarantined: 0.05", f"max_quarantined: 0.99\n  expectations:\n    - {check}")


def pickle_only(project) -> None:
    folder = project.root / "data" / "pickled"
    folder.mkdir()
    shutil.copy(project.root / "runs/tiny/model/config.json", folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    text = (project.root / RECIPE).read_text()
    start, end = text.index("model:\n"), text.index("training:\n")
    (project.root / RECIPE).write_text(text[:start] + "model: {pretrained: data/pickled}\n" + text[end:])


def too_few_rows(project) -> None:
    project.edit(RECIPE, "global_batch_size: 8", "global_batch_size: 4096")


@pytest.mark.parametrize(
    ("damage", "stage", "status", "words"),
    [
        (unknown_key, "train", CONFIG, [f"{RECIPE}:2", "training.learning_rat", "did you mean `learning_rate`?"]),
        pytest.param(wrong_type, "train", CONFIG, ["training.max_steps", "found 'many'"], marks=pytest.mark.slow),
        pytest.param(missing_file, "ingest", DATA, [ROWS, "no file matches"], marks=pytest.mark.slow),
        (empty_file, "ingest", DATA, [ROWS, "empty"]),
        (not_utf8, "ingest", DATA, [ROWS, "UTF-8"]),
        (missing_column, "validate", DATA, ["txt", "did you mean `text`?"]),
        (no_share, "ingest", CONFIG, ["data.split.validation"]),
        (empty_split, "ingest", DATA, ["validation"]),
        (all_rows_bad, "validate", DATA, ["expect_column_value_lengths_to_be_between", "report.html"]),
        pytest.param(
            pickle_only, "train", MODEL, ["data/pickled", "pickle only", "safetensors"], marks=pytest.mark.slow
        ),
        pytest.param(too_few_rows, "train", DATA, ["training.global_batch_size", "4096"], marks=pytest.mark.slow),
    ],
)
def test_one_clear_error_and_nothing_lost(project, damage: Callable, stage: str, status: int, words: list[str]) -> None:
    damage(project)
    refused(project, stage, status, words)


def test_a_label_that_training_never_sees_is_named(project) -> None:
    rows = [f"{word} number {i},{word}" for i in range(40) for word in ("one", "two")]
    (project.root / "data/train.csv").write_text("\n".join(["text,label", *rows]))
    unseen = "".join(f"three at last {i},three\n" for i in range(5))
    (project.root / "data/test.csv").write_text(f"text,label\none more,one\n{unseen}")
    text = (project.root / RECIPE).read_text()
    text = text.replace(f"train: {ROWS}", "train: data/train.csv, test: data/test.csv")
    text = text.replace("{name: causal_lm, text_column: text}", "{name: sequence_classification}")
    (project.root / "params/labels.yaml").write_text(text)
    project.run("python", "-m", "tasks", "ingest", "params/labels.yaml")
    words = ["no training row has a label of test: 'three' (5 rows)", "add training rows with these labels"]
    refused(project, "validate", DATA, words, recipe="params/labels.yaml")


def test_a_hub_without_write_access_is_named(project) -> None:
    with LocalHub(project.root / "data" / "hub", tokens={"hf_someone": "someone"}) as hub:
        project.environment |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_someone"}
        out = refused(project, "publish", ACCESS, [hub.endpoint, "tests/tiny"])
    assert "hf_someone" not in out


def test_a_hub_that_is_down_can_be_tried_again(project) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    project.edit(RECIPE, "endpoint: local", "endpoint: local, timeout_s: 2")
    project.environment |= {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_someone"}
    out = refused(project, "publish", TRANSIENT, [endpoint, "later"])
    assert "hf_someone" not in out


@pytest.mark.parametrize(
    "stage",
    ["ingest", *(pytest.param(s, marks=pytest.mark.slow) for s in ("validate", "tokenize", "train", "evaluate"))],
)
def test_a_full_disk_leaves_what_was_there(project, stage: str) -> None:
    shutil.rmtree(
        project.root / ".scratch/tiny/shards", ignore_errors=True
    )  # else the stage links what it wrote before
    # No file may grow beyond 512 bytes; Python ignores the signal and gets EFBIG, as a full disk gives ENOSPC.
    limited = f"ulimit -f 1; exec python -m tasks {stage} {RECIPE}"
    refused(project, stage, STORAGE, ["cannot be written", "MiB free"], command=("bash", "-c", limited))


def refused(
    project, stage: str, status: int, words: list[str], *, recipe: str = RECIPE, command: tuple[str, ...] = ()
) -> str:
    """Run a stage that must fail: its status, one error that says all of `words`, no traceback, nothing changed."""
    before = contents(project.root)
    found, output = project.run_and_report(*command or ("python", "-m", "tasks", stage, recipe), timeout_s=120)
    assert found == status, output
    assert "Traceback" not in output
    assert output.count("  fix: ") == 1, output
    for word in words:
        assert word in output, output
    assert contents(project.root) == before
    return output
