"""The documents of `data.corpus`: each text once, and none that is blank.

    runs/<recipe>/raw/corpus/ -> runs/<recipe>/validated/rows/corpus/       the shards, without the other rows

The raw rows stay where they are, so that nothing is lost; the report counts those that are left out.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import types
from xxhash import xxh3_128_digest

from params import DataError, RecipeError
from params.problems import suggestion
from tasks.shards.split_rows import SplitRows
from tasks.validation.report import CorpusReport
from trainer.data.shards import ROW_ID

logger = logging.getLogger(__name__)


def write_good_documents(raw: Path, folder: Path, column: str | None, max_quarantined: float) -> CorpusReport | None:
    """Copy the documents that can be ranked; None without a corpus. `column` holds their text; None if the objective ranks no documents.

    Raises:
        RecipeError: the objective ranks no documents.
        DataError: there is no such column with text, no document remains, or too many are blank.
    """
    if not raw.exists():
        return None
    if column is None:
        what = "has no effect: this objective, with these options, ranks no documents"
        raise RecipeError.at("data.corpus", what, "remove it, or choose another objective, such as embedding of pairs")
    rows = SplitRows(raw).reading({column: "string"})
    _check_column(rows.schema, column)
    folder.mkdir(parents=True)
    kept, seen, blank = [], set[bytes](), list[int]()
    for own in rows.shards:
        keep = np.zeros(len(own), np.bool_)
        for place, row in enumerate(own.rows([ROW_ID, column])):
            text = str(row[column] or "").strip()
            digest = xxh3_128_digest(text.encode())
            if not text:
                blank.append(row[ROW_ID])
            elif digest not in seen:
                seen.add(digest)
                keep[place] = True
        if keep.any():
            kept.append(own.shard.model_copy(update=own.write_some(keep, folder / own.shard.name)))
    rows.write_manifest(folder, kept)
    report = CorpusReport(rows=len(rows), documents=len(seen), blank=len(blank))
    if not seen or len(blank) > max_quarantined * len(rows):
        what = "has no rows"
        if blank:
            what = f"{len(blank)} of its {len(rows)} documents are blank, the first is row_id {blank[0]}"
        raise DataError("data.corpus", what, "fix them, or raise validation.max_quarantined" if seen else "add some")
    logger.info("validate: %s", report.sentence)
    return report


def _check_column(schema: pa.Schema, column: str) -> None:
    names = [name for name in schema.names if name != ROW_ID]
    if column not in names:
        fix = f"{suggestion(column, names, 'columns')}; objective.document_column names it"
        raise DataError("data.corpus", f"its rows have no column `{column}`", fix)
    kind = schema.field(column).type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise DataError("data.corpus", f"its column `{column}` holds {kind}, not text", "name the column of the text")
