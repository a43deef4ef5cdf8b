"""Multiple choice: which of several texts fits a context best, such as its end or the answer to a question (as SWAG).

    {"context": "She opened the door.", "choices": ["She went in.", "It barked."], "label": 0}
    {"sent1": "She opened the door.", "sent2": "She", "ending0": "went in.", "ending1": "barked.", "label": 0}

For the second form, `context_column` is sent1, `question_column` sent2, and `choices_column` is `{ending0} {ending1}`. The model reads the
context with each choice as two texts, behind the question if there is one, and gives each a score, as run_swag.py of transformers does
it. Of texts that are too long together, the longer one loses its end. Rows may have different numbers of choices. The loss is the mean
negative log-likelihood of the right choice per row, in nats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from params import Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.base import Section
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, Objective, ObjectiveState, Row
from trainer.objectives.bases.release_reading import ReleaseFormat
from trainer.objectives.bases.row_content import without_outer_space
from trainer.objectives.bases.rows import ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.spans.answer_spans import frame_pairs
from trainer.objectives.bases.texts.padding import pad_batch, pad_to_tensor
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate
from trainer.objectives.bases.texts.tokenizing import MODEL_INPUTS, TOKEN_TYPES, Tokenizer, encode_texts, gives_types

_SCORES = ("nll", "correct", "confidence", "label", "prediction")


class Options(Section):
    """Keys of the recipe's `objective` section."""

    context_column: str = "context"
    """The column with what all choices follow, or with the question that they answer."""
    question_column: str | None = None
    """The column with what each choice begins with, such as the beginning of its sentence."""
    choices_column: ColumnOrTemplate = "choices"
    """The column with a list of texts; or the columns with a text each, in braces: `{ending0} {ending1}`, of which some may be null."""
    label_column: str = "label"
    """The column with the right choice: its number, from 0 on, its letter, or its text."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "which of several choices is right"
    columns: ClassVar[Mapping[str, str]] = {
        name: f"{name}_column" for name in ("context", "question", "choices", "label")
    }
    templates = frozenset({"choices"})
    models = ("encoder",)
    epochs: ClassVar[UpTo] = ((5_000, 5), (50_000, 3), (500_000, 2), (float("inf"), 1))

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        is_there = seen.has("choices") and seen.has("label") and (seen.has("context") or seen.has("question"))
        return ObjectiveFit.SPANS if is_there else ObjectiveFit.NOT

    def asked(self, seen: SeenColumns) -> Sequence[str]:
        return [flag for flag in self.columns if flag != "question" or (seen.has("question") and seen.has("context"))]

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("accuracy", "over rows")


class MultipleChoice(Objective[Options]):
    """A score for each choice."""

    options_class = Options
    # as run_swag.py's README for roberta-base: 5e-5, 3 epochs
    defaults = ObjectiveDefaults(5e-5, 3.0, 32, 8, best_metric="accuracy", group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("nll", "rows")),
        Metric(
            "accuracy",
            "max",
            ratio("correct", "rows"),
            share_of=every_row,
            right=lambda scores: np.asarray(scores["correct"] == 1),
        ),
    )
    main_metric = "accuracy"
    served_scores = ("nll", "confidence")
    reader_cuts = True
    cut_texts_are_easier = False
    auto_class = "AutoModelForMultipleChoice"
    unfit_model_types: ClassVar[Mapping[str, str]] = {
        "roformer": "its head reads the last position, which is padding for the shorter choices"
    }
    pipeline_tag = "multiple-choice"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"context": "She opened the door.", "choices": ["She went in.", "It barked.", "Two."], "label": 0},
        {"context": "Rain.", "choices": ["A fish.", "Umbrella."], "label": 1},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        o = self.options
        names = [o.context_column, *([o.question_column] if o.question_column else [])]
        is_list = not names_columns(o.choices_column)
        choices: dict[str, ColumnKind] = dict.fromkeys(column_or_template(o.choices_column).columns, "optional")
        return {
            **dict.fromkeys(names, "string"),
            **({o.choices_column: "labels"} if is_list else choices),
            o.label_column: "label",
        }

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; of the choices, the right one: each is scored by itself, in any order, and the others are its negatives."""
        if (right := self._right(row)) is None:
            raise ValueError(f"no choice, or more than one, is {row[self.options.label_column]!r}")
        first, *others = [*column_or_template(self.options.choices_column).columns, self.options.label_column]
        learned = without_outer_space(self._choices(row)[right])
        return {**super().content(row), first: learned, **dict.fromkeys(others)}

    def input_content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; a model is given all choices, in any order."""
        first, *others = column_or_template(self.options.choices_column).columns
        given = sorted(map(without_outer_space, self._choices(row)), key=str)
        return {**super().input_content(row), first: given, **dict.fromkeys(others)}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterator[Problem]:
        if (
            names_columns(self.options.choices_column)
            and len(column_or_template(self.options.choices_column).columns) < 2
        ):
            what = "names one column in braces, so each row has one choice"
            yield Problem(
                ("objective", "choices_column"),
                what,
                "name the columns of all choices, or a column of lists without braces",
            )
        yield from super().conflicts(model=model, training=training, launch=launch)

    def reject_reason(self, row: Row) -> str | None:
        """Return why a row's choices or its label cannot be used."""
        if reason := super().reject_reason(row):
            return reason
        if isinstance(row.get(self.options.choices_column), Mapping):
            return "its choices are a record, and not a list of texts"
        choices = self._choices(row)
        if len(choices) < 2:
            return f"it has {len(choices)} choices, and needs two or more"
        if not all(str(choice).strip() for choice in choices):
            return "one of its choices is empty"
        return self._why_label_unusable(row)

    def _why_label_unusable(self, row: Row) -> str | None:
        label, named = row[self.options.label_column], self._named(row)
        if len(named) > 1:
            told = " and ".join(f"choice {place} by its {how}" for place, how in named.items())
            return f"its label {label!r} is {told}: write what says one, such as its letter"
        if not named:
            return f"its label {label!r} is neither the number, from 0 on, nor the letter nor the text of one choice"
        return None

    def texts(self, row: Row) -> Sequence[str]:
        question = self.options.question_column
        begin = f"{str(row[question]).strip()} " if question else ""
        return str(row[self.options.context_column]), *(f"{begin}{choice}" for choice in self._choices(row))

    def text(self, row: Row) -> str:
        return "\n".join(self.texts(row))

    def input_text(self, row: Row) -> str:
        """The context with the choices, in whatever order these stand."""
        context, *choices = self.texts(row)
        return "\n".join([context, *sorted(choices)])

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        frame_pairs(tokenizer)

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """One example for each row: `input_ids` has the longest of its choices, `choices` all of them with their token types, as JSON."""
        encoded = []
        for row in rows:
            if (right := self._right(row)) is None:
                raise ValueError(f"no choice, or more than one, is {row[self.options.label_column]!r}")
            encoded.append(self._encode_row(row, right, tokenizer, max_length))
        return encoded

    def _encode_row(self, row: Row, right: int, tokenizer: Tokenizer, max_length: int) -> EncodedRow:
        context, *choices = self.texts(row)
        pairs: list[Any] = [(context, choice) for choice in choices]
        found = encode_texts(pairs, tokenizer, truncation=True, max_length=max_length)
        has_types = gives_types(tokenizer)
        read = [{"input_ids": one.ids} | ({TOKEN_TYPES: one.type_ids} if has_types else {}) for one in found]
        longest = max((one["input_ids"] for one in read), key=len)
        example = {"row_id": row["row_id"], "input_ids": longest, "labels": right, "choices": json.dumps(read)}
        is_cut = any(len(one.ids) == max_length and bool(one.overflowing) for one in found)
        return EncodedRow([example], is_truncated=is_cut)

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As the base class; and all choices of the B rows, one after another, as `choice_ids`, `choice_mask` and `choice_types` (N, T).

        `counts` (B,) says how many each row has.
        """
        rows = [json.loads(example["choices"]) for example in examples]
        read = [choice for row in rows for choice in row]
        ids = [one["input_ids"] for one in read]
        batch = pad_batch(examples, tokenizer)
        batch["choice_ids"] = pad_to_tensor(ids, tokenizer.pad_token_id)
        batch["choice_mask"] = pad_to_tensor([[1] * len(one) for one in ids], 0)
        if TOKEN_TYPES in read[0]:
            batch["choice_types"] = pad_to_tensor([one[TOKEN_TYPES] for one in read], 0)
        return batch | {"counts": torch.tensor([len(row) for row in rows])}

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        losses = F.cross_entropy(self._logits(model, batch), batch["labels"], reduction="sum")
        return BatchLoss(losses / share.items * share.processes)

    def _logits(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the scores of each row's choices, (B, C); minus infinity where a row has fewer.

        The model gets each choice as a row with one choice, so that rows may have different numbers of them.
        """
        names = dict(zip(MODEL_INPUTS, ("choice_ids", "choice_mask", "choice_types"), strict=True))
        inputs = {name: batch[own][:, None] for name, own in names.items() if own in batch}  # (N, 1, T)
        scores = model(**inputs).logits[:, 0].float()  # (N,)
        counts = batch["counts"]
        places = torch.arange(int(counts.max()), device=scores.device) < counts[:, None]  # (B, C)
        lowest = torch.full(places.shape, torch.finfo(scores.dtype).min, device=scores.device, dtype=scores.dtype)
        return lowest.masked_scatter(places, scores)

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The scores of each row's choices, (B, C), and the number of the right one, (B,)."""
        logits = self._logits(model, batch).double()
        losses = F.cross_entropy(logits, batch["labels"], reduction="none")
        confidence, prediction = logits.softmax(-1).max(-1)
        correct = prediction == batch["labels"]
        told = [losses, correct.double(), confidence, batch["labels"].double(), prediction.double()]
        return ScoredBatch(torch.stack(told, 1), logits, batch["labels"])

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """The loss, and whether the right choice has the highest score."""
        return {"nll": scores["nll"], "rows": np.ones_like(scores["nll"]), "correct": scores["correct"]}

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64]:
        return scores["confidence"]

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        said = {name: f"choice {scores[name]:.0f}" for name in ("label", "prediction")}
        return {"expected": said["label"], "predicted": said["prediction"], "confidence": f"{scores['confidence']:.3f}"}

    release_format = ReleaseFormat("transformers", lambda _: None, lambda repo_id, _: _card_code(repo_id))

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        """The choices with their probabilities, the likeliest first."""
        batch = self.collate(self._encode_row(row, 0, tokenizer, max_length).examples, tokenizer)
        found = self._logits(model, batch)[0].double().softmax(-1).tolist()
        pairs = sorted(zip(found, self._choices(row), strict=True), key=lambda pair: -pair[0])
        return [f"{probability:.3f} {choice}" for probability, choice in pairs]

    def _choices(self, row: Row) -> list[Any]:
        named = self.options.choices_column
        if not names_columns(named):
            return [*row[named]]
        every = [row.get(name) for _, name in column_or_template(named).parts]
        return [choice for choice in every if choice is not None]

    def _right(self, row: Row) -> int | None:
        """Return the number of the right choice; None if the label names none, or several."""
        found = self._named(row)
        return next(iter(found)) if len(found) == 1 else None

    def _named(self, row: Row) -> dict[int, str]:
        """Return the numbers of the choices that the label may mean, and how: by its text, its number or its letter."""
        label, choices = str(row[self.options.label_column]).strip(), [str(one).strip() for one in self._choices(row)]
        texts = choices if choices.count(label) == 1 else []
        if label in choices and not texts:
            return {}
        numbers = [str(i) for i in range(len(choices))]
        letters = [chr(ord("A") + i) for i in range(len(choices))]
        found = {"text": texts, "number": numbers, "letter": letters}
        return {names.index(label): how for how, names in found.items() if label in names}


_CODE: Final = '''import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({repo_id})
model = AutoModelForMultipleChoice.from_pretrained({repo_id}, use_safetensors=True, dtype="float32").eval()


def choose(context, choices):
    """The probability of each choice."""
    inputs = tokenizer([context] * len(choices), choices, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**{{name: value[None] for name, value in inputs.items()}}).logits[0].softmax(-1).tolist()


print(choose("She opened the door.", ["She went in.", "It barked."]))'''


def _card_code(repo_id: str) -> str:
    return _CODE.format(repo_id=json.dumps(repo_id))
