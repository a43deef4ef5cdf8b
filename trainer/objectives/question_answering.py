"""Question answering: find the answer to a question in a context, or say that it is not there (extractive, as SQuAD).

    {"question": "Who wrote it?", "context": "It was written by Ada in 1843.", "answers": {"text": ["Ada"], "answer_start": [18]}}
    {"question": "Who paid for it?", "context": "It was written by Ada in 1843.", "answers": {"text": [], "answer_start": []}}

The model tells the first and the last token of the answer, as run_qa.py of transformers does it. A context that is too long is read in
windows that share `stride` tokens; in a window without the whole answer, the model is to choose the first position, which means that
there is none. Training learns the first of several answers. The loss is the mean over windows of the negative log-likelihood of both
ends, in nats, divided by two.

The answer to a question is the span with the highest sum of both logits in any of its windows, unless the lowest sum of the first
position is higher (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 4.3). Exact match and F1 are those of SQuAD 2.0, as
shares. Each question counts once, however many windows its context has.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from params.defaults import ObjectiveDefaults
from params.sections.base import Section
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, Objective, ObjectiveState, Row
from trainer.objectives.bases.release_reading import ReleaseFormat
from trainer.objectives.bases.rows import ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.spans import answer_spans
from trainer.objectives.bases.spans.answer_spans import PairFrame, Passage, score_answer
from trainer.objectives.bases.texts.padding import pad_batch
from trainer.objectives.bases.texts.tokenizing import MODEL_INPUTS, TOKEN_TYPES, Tokenizer, encode_texts

_SCORES = ("nll", "windows", "questions", "exact_match", "f1")
_MEASURED = ("nll", "row_id", "best", "no_answer", "exact_match", "f1", "exact_match_of_none", "f1_of_none")


class Options(Section):
    """Keys of the recipe's `objective` section."""

    question_column: str = "question"
    """The column with the question."""
    context_column: str = "context"
    """The column with the text that may hold the answer."""
    answers_column: str = "answers"
    """The column with the correct answers: a record of lists, `text` and `answer_start`, or a list of records with these keys. Without
    any, the context has no answer."""
    stride: Annotated[int, Field(ge=0)] = 128
    """How many tokens two windows of a long context share; a quarter of a window at most. HF calls it `doc_stride`."""
    max_answer_length: PositiveInt = 30
    """The most tokens of an answer that the model gives."""
    no_answer: bool = True
    """Whether the model may say that there is no answer, and rows without one are learned; otherwise they are set aside."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "the answer to a question in a context"
    columns: ClassVar[Mapping[str, str]] = {name: f"{name}_column" for name in ("question", "context", "answers")}
    models = ("encoder",)
    epochs: ClassVar[UpTo] = ((5_000, 5), (50_000, 3), (500_000, 2), (float("inf"), 1))

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.SPANS if all(map(seen.has, self.columns)) else ObjectiveFit.NOT

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        return AdvisedValue("f1", "over questions")


class QuestionAnswering(Objective[Options]):
    """The first and the last token of an answer."""

    options_class = Options
    own_options = frozenset({"stride", "max_answer_length", "no_answer"})
    # as run_qa.py's README for bert-base-uncased: 3e-5, 2 epochs, 384 tokens
    defaults = ObjectiveDefaults(3e-5, 2.0, 32, 8, best_metric="f1", group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("nll", "windows"), per_tokenizer=True),
        Metric(
            "exact_match",
            "max",
            ratio("exact_match", "questions"),
            share_of=every_row,
            right=lambda scores: np.asarray(scores["exact_match"] == 1),
        ),
        Metric("f1", "max", ratio("f1", "questions"), share_of=every_row),
    )
    main_metric = "f1"
    served_scores = ("nll", "windows")
    reader_strides = True
    cut_texts_are_easier = False
    auto_class = "AutoModelForQuestionAnswering"
    unfit_model_types: ClassVar[Mapping[str, str]] = {
        "convbert": "its convolutions read padding, so its answers depend on the rest of the batch"
    }
    pipeline_tag = "question-answering"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {
            "question": "Who wrote it?",
            "context": "The notes were written by Ada in 1843.",
            "answers": {"text": ["Ada"], "answer_start": [26]},
        },
        {"question": "Who paid?", "context": "Nobody knows.", "answers": {"text": [], "answer_start": []}},
        {
            "question": "When was that?",
            "context": "She wrote them in 1843.",
            "answers": {"text": ["1843", "in 1843"], "answer_start": [18, 15]},
        },
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        o = self.options
        return {o.question_column: "string", o.context_column: "string", o.answers_column: "record"}

    def reject_reason(self, row: Row) -> str | None:
        """Return why a row's answers cannot be read, or do not stand where they say."""
        try:
            answers = self._answers(row)
        except ValueError as error:
            return str(error)
        if not answers and not self.options.no_answer:
            return "it has no answer, and objective.no_answer is false"
        for number, (text, start) in enumerate(answers):
            if reason := answer_spans.why_answer_misplaced(text, start, str(row[self.options.context_column])):
                return f"an answer is not where it says: answer {number}, {reason}"
        return None

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; the first answer, which is learned, where it stands in the context without outer space."""
        context = str(row[self.options.context_column])
        before = len(context) - len(context.lstrip())
        learned = [[text, start - before] for text, start in self._answers(row)[:1]]
        return {**super().content(row), self.options.answers_column: learned}

    def texts(self, row: Row) -> Sequence[str]:
        return str(row[self.options.question_column]).strip(), str(row[self.options.context_column])

    def text(self, row: Row) -> str:
        return "\n".join(self.texts(row))

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        answer_spans.frame_pairs(tokenizer)

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        return {"num_labels": 2}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """The windows of each row's context, each behind the question; a row is truncated if none has the whole first answer."""
        frame = answer_spans.frame_of_pairs(tokenizer)
        room = max_length - frame.size
        if room < 2:
            raise ValueError(f"max_length {max_length} leaves no room for a question and its context")
        pairs = [self.texts(row) for row in rows]
        questions, contexts = (
            encode_texts(texts, tokenizer, offsets=True, add_special_tokens=False) for texts in zip(*pairs, strict=True)
        )
        return [
            self._encode_row(row, context, question.ids, of_context, frame, max_length)
            for row, (_, context), question, of_context in zip(rows, pairs, questions, contexts, strict=True)
        ]

    def encode_training(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """As `encode`, without what only scores need."""
        needed = {"row_id", "input_ids", TOKEN_TYPES, "start_position", "end_position"}
        return [
            found._replace(examples=[{name: one[name] for name in one if name in needed} for one in found.examples])
            for found in self.encode(rows, tokenizer, max_length, state)
        ]

    def _encode_row(  # noqa: PLR0917
        self, row: Row, context: str, question: list[int], encoding: Any, frame: PairFrame, max_length: int
    ) -> EncodedRow:
        answers, kept = self._answers(row), question[: (max_length - frame.size) // 2]
        room = max_length - frame.size - len(kept)
        overlap = min(answer_spans.overlap_of(self.options.stride, max_length), room - 1)
        span = None
        if answers:
            text, start = answers[0]
            span = answer_spans.tokens_of_span(encoding, start, start + len(text))
        before = [*frame.front, *kept, *frame.middle]
        examples, is_found = [], not answers
        for window in answer_spans.windows(len(encoding.ids), room, overlap):
            places = encoding.offsets[window.start : window.stop]
            first_character = places[0][0] if places else 0
            example: Example = {
                "row_id": row["row_id"],
                "input_ids": [*before, *encoding.ids[window.start : window.stop], *frame.back],
                "start_position": 0,
                "end_position": 0,
                "passage": context[first_character : places[-1][1]] if places else "",
                "starts": [start - first_character for start, _ in places],
                "ends": [end - first_character for _, end in places],
                "first": len(before),
                "golds": json.dumps([text for text, _ in answers]),
            }
            if frame.has_types:
                parts = (frame.front, kept, frame.middle, places, frame.back)
                example[TOKEN_TYPES] = [kind for part, kind in zip(parts, frame.types, strict=True) for _ in part]
            if span and window.start <= span[0] and span[1] < window.stop:
                moved = len(before) - window.start
                example |= {"start_position": span[0] + moved, "end_position": span[1] + moved}
                is_found = True
            examples.append(example)
        return EncodedRow(examples, is_truncated=not is_found or len(kept) < len(question))

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, Any]:
        """The padded windows, `start_positions`, `end_positions` and `row_id` (B,) and, to score them, their `passages`."""
        batch: dict[str, Any] = dict(pad_batch(examples, tokenizer))
        for name in ("start_position", "end_position"):
            batch[f"{name}s"] = torch.tensor([one[name] for one in examples])
        batch["row_id"] = torch.tensor([one["row_id"] for one in examples])
        if "passage" in examples[0]:
            batch["passages"] = [
                [one[name] for name in ("passage", "starts", "ends", "first", "golds")] for one in examples
            ]
        return batch

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        _, losses, outputs = self._read(model, batch)
        return BatchLoss(losses.sum() / share.items * share.processes, outputs)

    def _read(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Return the logits of starts and ends, (2, B, T), which padding never is, the loss of each window, (B,), and the model's outputs."""
        named = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        outputs = model(**named)
        logits = torch.stack([outputs.start_logits, outputs.end_logits]).float()
        logits = logits.masked_fill(batch["attention_mask"] == 0, torch.finfo(logits.dtype).min)
        both = zip(logits, (batch["start_positions"], batch["end_positions"]), strict=True)
        starts, ends = (F.cross_entropy(one, places, reduction="none") for one, places in both)
        return logits, (starts + ends) / 2, outputs

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        """Put the context of another row, over and over, in the place of that of the example; its question stays."""
        first, of_other = example["first"], other["first"]
        words = other["input_ids"][of_other : of_other + len(other["starts"])]
        if not words:
            return example
        own, size = [*example["input_ids"]], len(example["starts"])
        own[first : first + size] = itertools.islice(itertools.cycle(words), size)
        return {**example, "input_ids": own}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The logits of starts and ends, (B, T, 2), the likeliest place of each, and the right ones, (B, 2).

        Scores: what is measured of each window, (B, 8): of its best span, and of saying that there is no answer.
        """
        logits, losses, _ = self._read(model, batch)
        no_answer = logits[:, :, 0].double().sum(0)  # (B,)
        found = []
        for i, passage in enumerate(map(_passage, batch["passages"])):
            best, text = answer_spans.best_span(logits[0, i], logits[1, i], passage, self.options.max_answer_length)
            found.append(
                [best, float(no_answer[i]), *score_answer(text, passage.golds), *score_answer("", passage.golds)]
            )
        measured = torch.tensor(found, dtype=torch.float64, device=logits.device)
        scores = torch.cat([losses[:, None].double(), batch["row_id"][:, None].double(), measured], 1)
        places = torch.stack([batch["start_positions"], batch["end_positions"]], 1)
        return ScoredBatch(scores, logits.permute(1, 2, 0), places, predictions=logits.argmax(-1).T)

    def scores_of_split(
        self, measured: NDArray[np.float64], state: ObjectiveState, documents: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of each window, (N, 5), which add up to those of its question: its answer counts in the window that has it."""
        columns = dict(zip(_MEASURED, measured.T, strict=True))
        _, group = np.unique(columns["row_id"], return_inverse=True)
        # the first window of a question with the highest sum
        order = np.lexsort((np.arange(len(group)), -columns["best"], group))
        is_first = np.diff(group[order], prepend=-1) != 0
        answers = np.zeros(len(group))
        answers[order[is_first]] = 1.0
        lowest = np.full(group.max(initial=-1) + 1, np.inf)
        np.minimum.at(lowest, group, columns["no_answer"])
        is_none = (lowest[group] > columns["best"]) & self.options.no_answer
        exact, f1 = (np.where(is_none, columns[f"{n}_of_none"], columns[n]) * answers for n in ("exact_match", "f1"))
        return np.stack([columns["nll"], np.ones(len(group)), answers, exact, f1], 1)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """The scores themselves."""
        return {name: scores[name] for name in _SCORES}

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        return scores["nll"] / scores["windows"]

    @property
    def release_format(self) -> ReleaseFormat:  # type: ignore[override]
        """The code on the card: transformers has no pipeline for this task any more."""
        o = self.options
        code = partial(answer_spans.card_code, stride=o.stride, longest=o.max_answer_length, may_be_none=o.no_answer)
        return ReleaseFormat("transformers", lambda _: None, code)

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        return {"answer": "exact" if scores["exact_match"] else f"F1 {scores['f1']:.2f}"}

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        row = {**row, self.options.answers_column: row[self.options.answers_column] or []}
        batch = self.collate(self.encode([row], tokenizer, max_length, state)[0].examples, tokenizer)
        logits, _, _ = self._read(model, batch)
        spans = [
            answer_spans.best_span(logits[0, i], logits[1, i], passage, self.options.max_answer_length)
            for i, passage in enumerate(map(_passage, batch["passages"]))
        ]
        best, said = max(spans, key=lambda span: span[0])
        is_none = self.options.no_answer and float(logits[:, :, 0].double().sum(0).min()) > best
        return ["no answer" if is_none else repr(said)]

    def _answers(self, row: Row) -> list[answer_spans.Answer]:
        return answer_spans.read_answers(row[self.options.answers_column])


def _passage(values: Sequence[Any]) -> Passage:
    text, starts, ends, first, golds = values
    return Passage(text, starts, ends, first, json.loads(golds))
