"""Files that outlive a version: this one reads those that version 0.2 wrote. Never change what is in formats/; add a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from tasks.history.run_log import append_run, read_runs
from tasks.hub_client.release_file import ReleaseRecord
from tasks.known_rows.profile import SCHEMA as PROFILE_SCHEMA
from tasks.known_rows.profile import DataProfile
from tasks.publishing.provenance import SCHEMA as PROVENANCE_SCHEMA
from tasks.release_log.events import append_release_event, read_release_events
from tasks.releases.clone import ProvenanceRecord

FORMATS = Path(__file__).parent / "formats"
VERSIONS = sorted(path.name for path in FORMATS.iterdir())


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return FORMATS / request.param


def test_log_of_runs_is_read_and_goes_on(written: Path, tmp_path: Path) -> None:
    artifacts = Artifacts("tiny", tmp_path)
    artifacts.run_log.parent.mkdir(parents=True)
    shutil.copy(written / "runs.jsonl", artifacts.run_log)
    published, failed = read_runs(artifacts)
    assert (published.outcome, published.verdict, published.rows["train"]) == ("published", "publish", 240)
    assert published.stages["train"].last_start_s == 200.25
    assert failed.error is not None
    assert failed.error.fix == "add rows"
    append_run(artifacts, published)
    assert len(read_runs(artifacts)) == 2, "the log has it"
    append_run(artifacts, published.model_copy(update={"run_id": "another"}))
    assert json.loads(artifacts.run_log.read_text().splitlines()[-1])["version"] == 1


def test_log_of_receipts_is_read_and_goes_on(written: Path, tmp_path: Path) -> None:
    artifacts = Artifacts("tiny", tmp_path)
    artifacts.release_events.parent.mkdir(parents=True)
    shutil.copy(written / "log.jsonl", artifacts.release_events)
    verdict, published = read_release_events(artifacts)
    assert (verdict.event, verdict.confidence, verdict.row_sketch) == ("verdict", 0.95, ("0123456789abcdef",))
    assert (published.tag, published.metrics["champion"]) == ("release-0123456789ab", {"accuracy": 0.88})
    append_release_event(artifacts, published)
    assert len(read_release_events(artifacts)) == 2, "the log has it"
    append_release_event(artifacts, published.model_copy(update={"event": "kept"}))
    assert json.loads(artifacts.release_events.read_text().splitlines()[-1])["version"] == 1


def test_what_a_release_says_of_itself_is_read(written: Path) -> None:
    content = json.loads((written / "evergreen-provenance.json").read_bytes())
    record = ProvenanceRecord.model_validate(content)
    assert (record.recipe.name, record.run, record.data.revision[:7]) == ("tiny", "0123456789abcdef", "sha256:")
    assert ObjectiveChoice.model_validate(content["objective"]).name == "causal_lm"
    release = ReleaseRecord.parse((written / "evergreen-release.json").read_bytes())
    assert release is not None
    assert [file.path for file in release.files] == ["config.json"]


def test_profile_of_the_rows_of_a_release_is_read(written: Path) -> None:
    profile = DataProfile.load((written / "evergreen-data-profile.dat").read_bytes())
    assert (profile.rows, profile.content, profile.is_whole) == (3, ["text"], True)
    assert profile.held_out is None
    assert [int(one) for one in profile.known] == [11, 22, 33]
    assert profile.labels == {"label": {7: 2, 9: 1}}
    assert [one.kind for one in profile.samples] == ["length", "text"]


def test_a_new_schema_has_its_files_here() -> None:
    """Whoever raises a number adds a folder with the files of before, and goes on reading them."""
    assert (PROVENANCE_SCHEMA, PROFILE_SCHEMA) == (1, 2)
