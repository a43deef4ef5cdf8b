"""The section about data: the sources of rows, and how the rows are split."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import model_validator as validate_model

from params.sections.base import Fraction, Importable, Section, check_repo_id, conflict_error


class _SplitPatterns(Section):
    """Where a source has the rows of each split: paths or globs, relative to the root of the project or of the dataset."""

    train: str
    """Path or glob of the training rows, such as `data/train-*.parquet`; `data.split` takes the missing splits from them."""
    validation: str | None = None
    """Path or glob of the rows that choose the best checkpoint."""
    test: str | None = None
    """Path or glob of the held-out rows that the model is evaluated on."""

    @property
    def patterns(self) -> dict[str, str]:
        """The path or glob of each split that the source has."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: pattern for split, pattern in patterns.items() if pattern is not None}


class RowsFromFiles(_SplitPatterns):
    """Rows from local files. The suffix says the format: .csv, .tsv, .jsonl, .json, .parquet or .txt.

    Those of text may be compressed (.gz, .bz2, .zst). A .csv file has commas, semicolons, tabs or vertical bars, as its header says.
    """

    kind: Literal["files"]
    text_unit: Literal["line", "paragraph", "file"] = "paragraph"
    """What one row of a .txt file is. Blank lines separate paragraphs."""
    refresh: bool = False
    """Bring files that `dvc import`, `dvc import-url` or `dvc import-db` brought up to date in every run of the flow, as
    `dvc update` does, if they have changed where they come from; see `launch.keep_rows_hours`."""


class RowsFromHubDataset(_SplitPatterns):
    """Rows from a dataset repository on a Hub: of one commit, or the newest of a branch."""

    kind: Literal["hub"]
    repo_id: Annotated[str, AfterValidator(check_repo_id)]
    """Repository, as `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]*$")]
    """Full commit hash, or a branch such as `main`: then the flow asks in every run whether it has a new commit, see
    `launch.keep_rows_hours`. The run's report names the commit."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s@]+(/\S*)?$")] | None = None
    """URL of the Hub. Default: the one that huggingface_hub uses."""

    @property
    def is_pinned(self) -> bool:
        """Whether `revision` is a commit, which does not move."""
        return bool(re.fullmatch("[0-9a-f]{40}", self.revision))


class RowsFromSql(Section):
    """Rows from a query. The flow repeats it in every run (`launch.keep_rows_hours`): DVC cannot watch a database."""

    kind: Literal["sql"]
    url: str
    """SQLAlchemy URL. `${NAME}` stands for an environment variable, which keeps passwords out of the recipe."""
    query: str
    """SELECT statement that returns the rows. Give it an ORDER BY: training depends on the order of the rows."""


class RowsFromFunction(Section):
    """Rows that a Python function yields."""

    kind: Literal["function"]
    function: Importable
    """`package.module:name` of a function that yields one dict per row."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the function."""
    refresh: bool = False
    """Call the function in every run of the flow, even if no file that DVC watches has changed; see
    `launch.keep_rows_hours`."""


Source = Annotated[RowsFromFiles | RowsFromHubDataset | RowsFromSql | RowsFromFunction, Field(discriminator="kind")]


class SplitFractions(Section):
    """How to split rows that come without a split. A hash of its content decides, so a row stays in its split."""

    validation: Fraction = 0.05
    """Share of the rows for the validation split, which chooses the best checkpoint. Unused with a validation file."""
    test: Fraction = 0.05
    """Share of the rows for the test split, which the model is evaluated on. Unused with a test file."""
    stratify: str | None = None
    """A column, such as the label. Each of its values has at least one training row: if all rows of a label would be held out,
    the last of them goes to `train`. It moves back when a later one comes; all others keep their split."""


class Data(Section):
    """Where the rows come from, and how they are split."""

    source: Source
    corpus: Annotated[
        Source | None, BeforeValidator(lambda own: {"kind": "files", "train": own} if isinstance(own, str) else own)
    ] = None
    """Documents among which the held-out queries have to find theirs, for objectives that rank documents: a path or glob, or
    the keys of a source without held-out splits. Default: the documents of the held-out rows."""
    split: SplitFractions = SplitFractions()
    group_by: list[str] = []
    """Columns whose equal values say that rows belong together, such as those of one customer. `split` keeps them in one
    split, validation sets training rows aside whose group is in a held-out split of the source, and the gate counts them as one
    observation. A row that has no value in any of them (null, NaN or blank text) is on its own. Default: each row is on its own."""

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by their keys."""
        return {"source": self.source} | ({"corpus": self.corpus} if self.corpus else {})

    @validate_model(mode="after")
    def _has_one_corpus(self) -> Data:
        if isinstance(self.corpus, _SplitPatterns) and len(self.corpus.patterns) > 1:
            raise conflict_error("`corpus` has no splits: every query searches all of it", "keep only its `train`")
        return self

    @validate_model(mode="after")
    def _splits_rows_in_one_way(self) -> Data:
        if self.group_by and self.split.stratify:
            what = "`split.stratify` moves single rows, and rows of one group (`group_by`) must stay in one split"
            raise conflict_error(what, "remove one of the two keys")
        return self
