"""The sections about rows: where they come from, how they are split and checked, and how they become tokens."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat
from pydantic import model_validator as validate_model

from params.sections.base import (
    MAX_INT,
    Fraction,
    Importable,
    PositiveInt,
    Section,
    check_repo_id,
    conflict_error,
    from_text,
)


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


class Expectation(Section, extra="allow"):
    """One Great Expectations check. All other keys are arguments of the expectation."""

    type: str
    """Snake-case name, for example `expect_column_value_lengths_to_be_between`."""
    on_failure: Literal["quarantine", "fail", "report"] = "quarantine"
    """`quarantine` sets failing rows aside, `fail` ends the stage if any row fails, `report` only counts them."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the expectation."""
        return dict(self.__pydantic_extra__ or {})


class Drift(Section):
    """Whether the new rows are like those that the published model learned from. docs/drift.md says how often it errs."""

    on_drift: Literal["report", "fail", "off"] = "report"
    """`report` shows what moved, `fail` also ends the stage, `off` neither compares nor publishes a profile of the rows."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """The chance that no comparison calls new rows different that are like the others (Holm 1979)."""
    min_new_labels: Fraction = 0.005
    """Smallest share of new rows with labels that the published model does not know that counts as drift."""
    min_label_change: Fraction = 0.02
    """Smallest total variation distance of the labels, above that of chance, that counts as drift: the share of rows with
    another label."""
    min_distance: NonNegativeFloat = 0.1
    """Smallest Wasserstein distance of a number, or of the length of a text, in standard deviations, that counts as drift."""
    min_auc: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.55
    """Smallest area under the ROC curve of a classifier that tells new texts from known ones that counts as drift."""
    min_confidence_fall: Fraction = 0.02
    """Smallest fall of the published model's mean confidence, from 0 to 1, from held-out to new rows that counts as drift."""
    ignore: list[str] = []
    """Columns of numbers that are not compared, such as one that grows with time."""


class Validation(Section):
    """Checks of the rows, besides those that the objective makes."""

    expectations: list[Expectation] = []
    max_quarantined: Fraction = 0.01
    """Largest share of rows that may be set aside. The stage fails above it."""
    drift: Annotated[Drift, from_text("on_drift")] = Drift()
    """Comparison of new rows with those that the published model learned from: `report`, `fail`, `off`, or its keys. Without
    it, `report`, and releases to public repositories carry no profile of the rows to compare with."""


class TrainTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the train split."""

    kind: Literal["train"]
    vocab_size: Annotated[int, Field(ge=260, le=MAX_INT)]
    """Number of tokens, including the 256 bytes and the special tokens."""
    min_frequency: PositiveInt = 2
    """Smallest number of times that a pair of tokens must occur to be merged."""
    sample_rows: PositiveInt | None = None
    """Learn from about so many rows, chosen by a hash of their text. Default: from all."""


class PretrainedTokenizer(Section):
    """The tokenizer of a pretrained model."""

    kind: Literal["pretrained"]
    path: str
    """Local folder or Hub repository."""
    revision: str | None = None
    """Commit, tag or branch of the repository."""
    added_tokens: list[str] = []
    """Special tokens that it gets, such as those of a chat template. Embeddings of the model that lack rows for them get new ones;
    with adapters, these embeddings are then trained in full. Where they have spare rows, adapters train only these rows."""


class Tokenization(Section):
    """How text becomes tokens."""

    tokenizer: Annotated[TrainTokenizer | PretrainedTokenizer, Field(discriminator="kind")]
    """Default in a recipe: that of `model.pretrained`."""
    max_length: Annotated[int, Field(ge=2, le=MAX_INT)] = 512
    """Length of the longest sequence, in tokens. Longer texts are cut; packing fills sequences up to it."""
