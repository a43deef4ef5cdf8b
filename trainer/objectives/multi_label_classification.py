"""Multi-label classification: any number of labels per text, each with a probability of its own.

    {"text": "So hyped to see this line, and so nervous", "labels": ["excitement", "nervousness"]}
    {"text": "So hyped to see this line, and so nervous", "cats": {"excitement": 1.0, "nervousness": 1.0, "anger": 0.0}}
    {"text": "So hyped to see this line, and so nervous", "excitement": 1, "nervousness": 1, "anger": 0}

The labels are the sorted labels of the train split; a row without any is a row. The loss is the mean negative log-likelihood per row
and label, in nats: the binary cross-entropy. A label is predicted where its probability reaches its threshold. That is 0.5 while the
model is trained. Then the threshold with the best F1 of the label on the validation split goes into `label_thresholds` of config.json
(`bases/labels/thresholds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import PositiveFloat

from params import DataError, RecipeError
from params.defaults import ObjectiveDefaults
from params.problems import suggestion
from params.sections.base import Section
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit, SeenColumns
from trainer.objectives.bases.labels import thresholds as label_thresholds
from trainer.objectives.bases.labels.sets import list_labels_in, why_labels_unusable
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import ClassifierObjective, compute_logits, without_labels
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics import label_results
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.network.output_layer import find_output_layer
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, Row, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate
from trainer.objectives.bases.texts.tokenizing import Tokenizer, tokenize_texts_truncated

_KIND = "multi_label_classification"
"""The `problem_type` of the model, by which a pipeline answers sigmoids."""
_OF_A_LABEL = ("given", "probability", "predicted")


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    labels_column: ColumnOrTemplate = "labels"
    """The column with a list of labels, which may be empty, or with a record that says yes or no of each (spaCy's `cats`); or columns in
    braces, one for each label, that say yes or no: `{toxic} {insult}`."""
    positive_weights: PositiveFloat | dict[str, PositiveFloat] = 1.0
    """How often a row counts in the loss of each label that it has; a mapping gives it for some labels."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "any number of labels per text"
    columns: ClassVar[Mapping[str, str]] = {"text": "text_column", "labels": "labels_column"}
    templates = frozenset({"labels"})
    place = 2

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        if "labels" in seen.named:
            return ObjectiveFit.NAMED
        is_pair = seen.has_pairs or seen.rates_answers
        return ObjectiveFit.COLUMNS if "labels" in seen.found and not is_pair else ObjectiveFit.NOT

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("loss", "thresholds are chosen afterwards: until then, F1 says little of rare labels")


def _micro_f1(sums: Sums) -> NDArray[np.float64]:
    """F1 of all decisions together."""
    together = sums["labels"].sum(-1, keepdims=True)
    return label_results.precision_recall_f1(together)["f1"][..., 0]


def _rows_of_micro_f1(sums: Sums) -> Sequence[float]:
    """The mean of rows and predictions of all labels, as far as there are as many rows; those without a label say nothing of it."""
    _, predicted, given = sums["labels"]
    either = (predicted + given) / 2
    return [min(float(either.sum()), float(sums["rows"]))] if either.any() else ()


def _has_a_label(statistics: Sums) -> NDArray[np.bool_]:
    """Which rows have a label or are predicted to have one."""
    return np.array(statistics["labels"][:, 1:].any((1, 2)), np.bool_)


def _count_labels(scores: ScoreColumns) -> NDArray[np.float64]:
    """The labels that a row has or is predicted to have."""
    counted: NDArray[np.float64] = np.sum(
        [own for name, own in scores.items() if name.startswith(("given ", "predicted "))], axis=0
    )
    return counted


def _right_rows(scores: ScoreColumns) -> NDArray[np.bool_]:
    labels = [name.removeprefix("given ") for name in scores if name.startswith("given ")]
    given, _, predicted = _columns(scores, {"labels": labels})
    right: NDArray[np.bool_] = (given == predicted).all(1)
    return right


class MultiLabelClassification(ClassifierObjective[Options]):
    """A sigmoid and a threshold for each label."""

    options_class = Options
    # Devlin et al. 2019 (https://arxiv.org/abs/1810.04805, A.3), as for one label per text
    defaults = ObjectiveDefaults(5e-5, 4.0, 32, 32, group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", lambda sums: sums["nll"] / (sums["rows"] * sums["labels"].shape[-1])),
        Metric(
            "micro_f1",
            "max",
            _micro_f1,
            share_of=_rows_of_micro_f1,
            about=_has_a_label,
            exists=lambda sums: bool(sums["labels"][1:].any()),
            weights=_count_labels,
        ),
        Metric(
            "macro_f1",
            "max",
            label_results.macro_f1,
            share_of=label_results.rows_of_macro_f1,
            about=_has_a_label,
            exists=lambda sums: bool(sums["labels"][1:].any()),
            on_slices="micro_f1",  # most labels have no row in a slice
        ),
        Metric("exact_match", "max", ratio("exact", "rows"), share_of=every_row, right=_right_rows),
    )
    counts_labels = True
    main_metric = "micro_f1"
    served_scores = ("nll", "agreement")
    smooths_labels = False
    reader_cuts = True
    cut_texts_are_easier = False
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "So hyped to see this line, and so nervous", "labels": ["excitement", "nervousness"]},
        {"text": "Devastating to hear of any news like this", "labels": ["sadness"]},
        {"text": "I'm on the train", "labels": []},
    )

    # Rows

    @property
    def _columns(self) -> list[str]:
        return [*column_or_template(self.options.labels_column).columns]

    @property
    def _has_each(self) -> bool:
        return names_columns(self.options.labels_column)

    def columns(self) -> Mapping[str, ColumnKind]:
        return {
            self.options.text_column: "string",
            **dict.fromkeys(self._columns, "label" if self._has_each else "labels"),
        }

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; the labels of several columns are one set, too."""
        if not self._has_each:
            return super().content(row)
        labels = sorted({self.learned_label(label) for label in self.row_labels(row)})
        return {**super().content(row), **dict.fromkeys(self._columns), self._columns[0]: labels}

    def reject_reason(self, row: Row) -> str | None:
        if reason := super().reject_reason(row):
            return reason
        values = ({name: row[name]} if self._has_each else row[name] for name in self._columns)
        return next(filter(None, map(why_labels_unusable, self._columns, values)), None)

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def row_labels(self, row: Row) -> Iterable[str]:
        value = {name: row[name] for name in self._columns}
        return list_labels_in(value if self._has_each else value[self.options.labels_column])

    def state_of(self, labels: Collection[str]) -> ObjectiveState:
        return {"labels": sorted({label.strip() for label in labels})}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        marks = [self._marks(row, state) for row in rows]
        encoded = tokenize_texts_truncated([self.text(row) for row in rows], tokenizer, max_length)
        return [
            EncodedRow([{"row_id": row["row_id"], "input_ids": ids, "labels": own}], is_truncated)
            for row, own, (ids, is_truncated) in zip(rows, marks, encoded, strict=True)
        ]

    def _marks(self, row: Row, state: ObjectiveState) -> list[float]:
        own = {label.strip() for label in self.row_labels(row)}
        if unknown := sorted(own.difference(state["labels"])):
            raise ValueError(f"no training row has the label {unknown[0]!r}")
        return [float(label in own) for label in state["labels"]]

    # Model and loss

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        """As the base class; raises an error without labels, or if a positive weight is of none of them."""
        labels, weights = state["labels"], self.options.positive_weights
        if not labels:
            raise DataError(
                self.options.labels_column, "no row of the train split has a label", "add rows that have labels"
            )
        for label in weights if isinstance(weights, dict) else ():
            if label not in labels:
                what = f"no training row has the label {label!r}"
                raise RecipeError("objective.positive_weights", what, suggestion(label, labels, "labels"))
        return {**super().model_config(state), "problem_type": _KIND}

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Let each new label begin with the probability 1 / L: Lin et al. 2017, https://arxiv.org/abs/1708.02002, section 3.3.

        From 0.5 on, the encoder would first learn to make all labels rare, whatever the text, and not come back from that soon. A head without
        a bias, such as that of a Llama, begins at 0.5 all the same.
        """
        found = find_output_layer(model, new)
        if found is None or found.layer.bias is None:
            return
        labels = model.config.num_labels
        fresh = [row for row in range(labels) if row not in found.trained]
        with torch.no_grad():
            found.layer.bias[fresh] = -math.log(max(labels - 1, 1))

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, L) logits and (B, L) labels, 0 or 1, to losses (B, L)."""
        return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        outputs, weights = model(**without_labels(batch)), self.options.positive_weights
        losses = self.losses(outputs.logits, batch["labels"])
        if weights != 1.0:
            names = label_thresholds.names_of(getattr(model, "module", model).config)
            of_labels = [weights.get(name, 1.0) for name in names] if isinstance(weights, dict) else weights
            weight = torch.as_tensor(of_labels, device=losses.device)
            losses = torch.where(batch["labels"] > 0, losses * weight, losses)
        return BatchLoss(losses.mean(1).sum() / share.items * share.processes, outputs)

    # Scores and metrics

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        return {**other, **{name: example[name] for name in ("row_id", "labels")}}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "agreement", *(f"{what} {label}" for what in _OF_A_LABEL for label in state["labels"]))

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The model's logits, (B, L), and the labels that it gives each row by its thresholds, 1 or 0, (B, L)."""
        logits = compute_logits(model, batch)
        config = getattr(model, "module", model).config
        thresholds = torch.tensor(
            label_thresholds.thresholds_of(config, label_thresholds.names_of(config)),
            dtype=torch.float64,
            device=logits.device,
        )
        scores = self._scores(logits, batch["labels"], thresholds)
        return ScoredBatch(scores, logits, batch["labels"], predictions=scores[:, -logits.shape[1] :].long())

    def score_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """As `score_outputs`, with the thresholds of a model for which none were chosen."""
        return self._scores(logits, labels, torch.full_like(logits[0], label_thresholds.USUAL, dtype=torch.float64))

    def _scores(self, logits: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
        """Summed losses, mean probability of what the row says of a label; then per label as `_OF_A_LABEL`, (B, 2 + 3 L).

        A label that the model cannot know is in both only where a row has it.
        """
        nll = self.charge_unknown(self.losses(logits, labels), labels).double().sum(1, keepdim=True)
        given, probability = labels.double(), logits.double().sigmoid()
        counts = given > 0
        counts[:, self._known_places(labels.shape[1])] = True
        agreeing = torch.where(given > 0, probability, 1 - probability) * counts
        agreement = agreeing.sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp(min=1)
        return torch.cat([nll, agreement, given, probability, (probability >= thresholds).double()], 1)

    def charge_unknown(self, losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return losses (B, L), where a label that the model cannot know costs as much as a guess if the row has it, else nothing."""
        if not self._unknown:
            return losses
        charged = losses.clone()
        unknown = list(self._unknown)
        charged[:, unknown] = self._guess * labels[:, unknown].to(losses.dtype)
        return charged

    def _known_places(self, labels: int) -> list[int]:
        return [place for place in range(labels) if place not in self._unknown]

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Summed loss, and whether all labels are right; per label true positives, predictions, rows, (N, 3, L)."""
        given, _, predicted = _columns(scores, state)
        return {
            "nll": scores["nll"],
            "rows": np.ones(len(given)),
            "exact": (given == predicted).all(1).astype(float),
            "labels": np.stack([given * predicted, predicted, given], 1),
        }

    def label_curves(
        self, scores: ScoreColumns, state: ObjectiveState
    ) -> Mapping[str, label_results.PrecisionRecallCurve]:
        given, probability, _ = _columns(scores, state)
        pairs = zip(state["labels"], given.T > 0, probability.T, strict=True)
        return {label: label_results.precision_recall_curve(own, of) for label, own, of in pairs if own.any()}

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """Return the mean probability of what the model holds for likelier of each label that it knows, (N,)."""
        found = np.stack([own for name, own in scores.items() if name.startswith("probability ")], 1)
        found = found[:, self._known_places(found.shape[1])]
        likelier: NDArray[np.float64] = np.maximum(found, 1 - found).mean(1)
        return likelier

    def config_from_validation(self, scores: ScoreColumns, state: ObjectiveState) -> dict[str, Any]:
        """Return the threshold of each label, see `choose_f1_thresholds`."""
        given, probability, _ = _columns(scores, state)
        chosen = label_thresholds.choose_f1_thresholds(given > 0, probability)
        return {label_thresholds.KEY: dict(zip(state["labels"], chosen, strict=True))}

    def label_beliefs(self, scores: ScoreColumns, state: ObjectiveState) -> Iterator[label_results.LabelBeliefs]:
        given, probability, _ = _columns(scores, state)
        for label, own, of in zip(state["labels"], given.T > 0, probability.T, strict=True):
            yield label_results.LabelBeliefs.of_one_label(label, own, of)

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        """Return a model from another run whose logits (B, L) are those of this run's labels, see `rearrange_labels`.

        ValueError if it gives each text one label.
        """
        if (kind := getattr(model.config, "problem_type", None)) != _KIND:
            raise ValueError(f"it predicts no several labels: problem_type in its config.json is {kind}, not {_KIND}")
        self.keep_unknown_labels(label_thresholds.names_of(model.config), state["labels"])
        return label_thresholds.rearrange_labels(model, state["labels"])

    # Releases

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"truncation": True, "top_k": None}

    def reader_input(self, row: Row) -> str:
        return self.text(row)

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        own = {label.strip() for label in self.row_labels(row)}
        found = {str(one["label"]): float(one["score"]) for one in ask(self.text(row))}
        agreement = [probability if label in own else 1 - probability for label, probability in found.items()]
        return {"agreement": sum(agreement) / len(agreement)} | {f"probability {n}": p for n, p in found.items()}

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        def named(what: str) -> Iterator[str]:
            for label in state["labels"]:
                if scores[f"{what} {label}"]:
                    yield label if what == "given" else f"{label} ({scores[f'probability {label}']:.3f})"

        return {
            told: ", ".join(named(what)) or "none" for what, told in (("given", "expected"), ("predicted", "predicted"))
        }


def _columns(scores: ScoreColumns, state: ObjectiveState) -> list[NDArray[np.float64]]:
    """Return what scores say of each of N rows and L labels, (N, L) each, in the order of `_OF_A_LABEL`."""
    return [np.stack([scores[f"{what} {label}"] for label in state["labels"]], 1) for what in _OF_A_LABEL]
