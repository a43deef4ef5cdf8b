"""Files as people have them, in folders of `EVERGREEN_SAMPLE_DATA`: read as they are, or refused with a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from params import DataError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.ingestion.stage import ingest
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tasks.shards.split_rows import SplitRows
from tests.support.sample_data import data_set, needs_public_data

pytestmark = needs_public_data

READ: dict[str, dict[str, Any]] = {
    "tool-arguments-null/rows.jsonl": {},
    "csv-numeric-text/shards2": {"zip": {"00001", "10001"}},
    "csv-numeric-text/numans/rows.csv": {"answer": {"0.10", "12.50"}},
    "csv-numeric-text/intans/rows.csv": {"answer": {"7"}},
    "shard-types-crash/shards": {"label": {"0", "1", "2", "other"}},
    "shard-types-crash/shardsj": {"label": {"0", "1", "2"}},
    "shard-types-crash/pq1": {"label": {"good", "bad"}},
    "shard-types-crash/pq2": {"when": {"2024-01-01"}},
    "shard-types-crash/bigids": {"id": {"9007199254740995", "80.5"}},
    "convert-commands/semicolon/rows.csv": {"label": {"NA"}, "code": {"0001"}},
    "convert-commands/tsvna/rows.tsv": {"label": {"null", "None"}},
    "convert-commands/jsonarray/rows.json": {"label": {"007", "012", "1_0"}},
    "convert-commands/gz/rows.jsonl.gz": {},
    "convert-commands/gzcsv/rows.csv.gz": {"label": {"007"}},
    "misleading-fixes/toolstypes.jsonl": {},
    "misleading-fixes/partsmixed.jsonl": {},
    "misleading-fixes/row_id.jsonl": {"source_row_id": {"r0", "r1"}},
}
REFUSED = {
    "convert-commands/cp1252/rows.csv": "--encoding cp1252",
    "misleading-fixes/index.csv": "evergreen convert",
    "misleading-fixes/utf16-no-bom.csv": "--encoding utf-16le",
}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """The folder of odd rows."""
    found = data_set("odd", "public", tmp_path)
    if not found.is_dir():
        pytest.skip("there are no odd rows")
    return found


@pytest.mark.parametrize(("name", "values"), READ.items(), ids=READ)
def test_values_stay_as_they_are_written(name: str, values: dict[str, set[str]], odd: Path, tmp_path: Path) -> None:
    found = find_source(NewRecipeRequest("x", str(odd / name)), tmp_path)
    data = Data(source=found.source)
    ingest(Artifacts("x", tmp_path), data=data, seed=17, launch=Launch(micro_batch_size=1))
    splits = [SplitRows(tmp_path / "runs/x/raw" / split) for split in SPLITS]
    rows = [row for split in splits for row in split.reading(dict.fromkeys(values, "string")).rows()]
    assert all(wanted <= {row[column] for row in rows} for column, wanted in values.items())
    if name.startswith(("tool", "misleading-fixes/tools")):
        assert not any("None" in str(row) for row in rows)


@pytest.mark.parametrize(("name", "command"), REFUSED.items(), ids=REFUSED)
def test_what_would_be_misread_is_refused_with_a_command(name: str, command: str, odd: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_source_sample(find_source(NewRecipeRequest("x", str(odd / name)), tmp_path).source, tmp_path)
    assert command in caught.value.fix
