"""The sections about rows that a source gave: how they are checked, and how they become tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat

from params.sections.base import MAX_INT, Fraction, PositiveInt, Section, from_text


class Expectation(Section, extra="allow"):
    """One Great Expectations check. All other keys are arguments of the expectation."""

    type: str
    """Snake-case name, for example `expect_column_value_lengths_to_be_between`."""
    on_failure: Literal["quarantine", "fail", "report"] = "quarantine"
    """`quarantine` sets failing rows aside, `fail` ends the stage if any row fails, `report` only counts them."""

    @property
    def arguments(self) -> dict[str, Any]:
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


class NearDuplicates(Section):
    """Rows of the train split that say nearly the same as a held-out row, or as an earlier training row."""

    action: Literal["report", "quarantine"] = "report"
    """`report` counts them, `quarantine` sets them aside; of training rows that are alike, the first one stays."""
    threshold: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.8
    """Smallest Jaccard index of the sets of five characters in a row that are in two texts, for the texts to be nearly the same."""


class Validation(Section):
    """Checks of the rows, besides those that the objective makes."""

    expectations: list[Expectation] = []
    max_quarantined: Fraction = 0.01
    """Largest share of rows that may be set aside. The stage fails above it."""
    near_duplicates: Annotated[NearDuplicates, from_text("action")] | None = None
    """Look for training rows that nearly repeat others: `report`, `quarantine`, or its keys. Default: rows are not compared."""
    drift: Annotated[Drift, from_text("on_drift")] = Drift()
    """Comparison of new rows with those that the published model learned from: `report`, `fail`, `off`, or its keys. Without
    it, `report`, and releases to public repositories carry no profile of the rows to compare with."""

    def releases_profile(self, *, private: bool) -> bool:
        """Whether a release may have the profile of its rows: one that everybody reads only if the recipe asks for it."""
        return private or "drift" in self.model_fields_set


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
