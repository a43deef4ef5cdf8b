r"""Reward models: a number for an answer, which is higher for the better of two answers to the same prompt.

    {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"}
    {"chosen": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "rejected": [...]}

The forms of rows are those of dpo. The model reads prompt and answer as one text, which ends with the end-of-text token, or as the
conversation that the tokenizer's chat template renders; a text that is too long loses its beginning. Its head has one output. The
probability that the first answer is better is the logistic function of the difference of their rewards (Bradley and Terry 1952), and
the loss is its negative logarithm (Ouyang et al. 2022, https://arxiv.org/abs/2203.02155, equation 1). With a margin m, the difference
is lowered by it (Touvron et al. 2023, https://arxiv.org/abs/2307.09288, equation 2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pydantic import NonNegativeFloat

from params.defaults import ObjectiveDefaults
from trainer.objectives.advice.base import ModelKind, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.advice.pairs import AnswersAdvice
from trainer.objectives.bases.labels.names import require_one_output, require_problem_type
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.metrics.calibration import calibration_error, calibration_statistics
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState
from trainer.objectives.bases.preferences.answer_form import KEY, AnswerForm
from trainer.objectives.bases.preferences.answers import as_text
from trainer.objectives.bases.preferences.pairs import PairObjective, PairOptions, scored_pairs
from trainer.objectives.bases.rows import PromptForm, Row, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch, pad_batch, token_column_names
from trainer.objectives.bases.texts.tokenizing import Tokenizer, end_texts, strip_repeated_special_tokens

_SCORES = ("loss", "chosen_reward", "rejected_reward")


class Options(PairOptions):
    """Keys of the recipe's `objective` section."""

    margin_column: str | None = None
    """The column that says by how much the chosen answer is better, as a number; null: it does not matter."""
    center_rewards_coefficient: NonNegativeFloat = 0.0
    """Weight of the squared sum of both rewards, which keeps rewards around zero (Eisenstein et al. 2023,
    https://arxiv.org/abs/2312.09244); 0.01 is usual."""


class _Advice(AnswersAdvice):
    meaning = "a reward for each answer, from the better of two"
    models: ClassVar[tuple[ModelKind, ...]] = ("encoder", "decoder")
    rates: ClassVar[UpTo] = ((60e6, 1e-4), (200e6, 5e-5), (math.inf, 1e-5))
    """all-MiniLM-L6-v2, 400 pairs of gsm8k, three seeds: loss 0.62 at 1e-4, 0.68 at 3e-4, 0.69 at 5e-5; larger models: not measured."""
    lora_rate = 1e-4

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.NOT  # pairs are for dpo, unless the user names this objective


def _reward_margin(sums: Sums) -> NDArray[np.float64]:
    return (sums["chosen_reward"] - sums["rejected_reward"]) / sums["rows"]


class Reward(PairObjective[Options]):
    """A reward for each answer."""

    options_class = Options
    defaults = ObjectiveDefaults(1e-5, epochs=1.0, micro_batch_size=4)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("loss", "rows")),
        Metric("reward_accuracy", "max", ratio("correct", "rows"), share_of=every_row),
        Metric("reward_margin", "max", _reward_margin),
        Metric("calibration_error", "min", calibration_error, share_of=every_row),
    )
    main_metric = "reward_accuracy"
    served_scores = ("chosen_reward", "rejected_reward")
    writes_answers = False
    reader_cuts = True
    cut_texts_are_easier = False
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5, or 6"},
        {"prompt": "A word for a small dog?", "chosen": "puppy", "rejected": "kitten"},
    )

    @cached_property
    def form(self) -> AnswerForm:
        """How the model reads a prompt with an answer."""
        return AnswerForm(chat=self.options.chat, separator=self.options.separator)

    def columns(self) -> Mapping[str, ColumnKind]:
        margin: dict[str, ColumnKind] = {self.options.margin_column: "number"} if self.options.margin_column else {}
        return {**super().columns(), **margin}

    @property
    def beside_content(self) -> Sequence[str]:
        return [*super().beside_content, *filter(None, [self.options.margin_column])]

    def texts(self, row: Row) -> Sequence[str]:
        return self.texts_with_answers(row)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Let texts that are too long lose their beginning, and not the answer, here and where the release is used."""
        super().prepare_tokenizer(tokenizer)
        tokenizer.truncation_side = "left"
        tokenizer.init_kwargs["truncation_side"] = "left"  # or it would not be saved

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        return PromptForm()

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """One pair: `input_ids` of prompt and chosen answer, `rejected_input_ids`, and the `margin`."""
        texts = [self.read_texts(row, tokenizer) for row in rows]
        chosen, rejected = (self.form.tokenize(own, tokenizer, max_length) for own in zip(*texts, strict=True))
        encoded = []
        for row, (ids, is_cut), (others, other_is_cut) in zip(rows, chosen, rejected, strict=True):
            says_both = all(map(str.strip, self._answers(row, tokenizer)))
            margin = float(row[name]) if (name := self.options.margin_column) else 0.0
            example = {"row_id": row["row_id"], "input_ids": ids, "rejected_input_ids": others, "margin": margin}
            encoded.append(EncodedRow([example] if says_both and ids != others else [], is_cut or other_is_cut))
        return encoded

    def _answers(self, row: Row, tokenizer: Tokenizer) -> list[str]:
        """Return the answers without special tokens."""
        return strip_repeated_special_tokens(map(as_text, self.parts(row)[1:]), tokenizer, ends=True)

    def read_texts(self, row: Row, tokenizer: Tokenizer) -> list[str]:
        """Return what the model reads of a row: the prompt with the chosen answer, and with the rejected one."""
        conversations = None
        if self.form.chat:
            conversations = self.conversation_tokenizer(tokenizer).with_tools(self.tools_of(row))
        return self.form.texts(self.parts(row), tokenizer, conversations)

    def length(self, example: Example) -> int:
        """The tokens of the longer one of its two texts: each is limited by itself."""
        return max(len(example[name]) for name in token_column_names(example))

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As `pad_batch`, with the margins (B,)."""
        return pad_batch(examples, tokenizer) | {"margin": torch.tensor([example["margin"] for example in examples])}

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        """One output, of which a pipeline shows the value as it is."""
        return {"num_labels": 1, "id2label": {0: "reward"}, "label2id": {"reward": 0}, "problem_type": "regression"}

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Let the model say how it reads answers: whoever takes it for a reward reads it there."""
        setattr(model.config, KEY, self.form.model_dump())

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        require_problem_type(model.config, "regression")
        require_one_output(model.config)
        return model

    def score_pairs(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss (B,) of each pair, and the rewards (2, B) of its answers."""
        rewards = model(**concatenate_texts_along_batch(batch, model)).logits.float().view(2, -1)
        chosen, rejected = rewards
        losses = -F.logsigmoid(chosen - rejected - batch["margin"].float())
        if weight := self.options.center_rewards_coefficient:
            losses = losses + weight * (chosen + rejected) ** 2
        return losses, rewards

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The rewards of the chosen and the rejected answer, (B, 2), and as labels the place of the better one, which is 0, (B,)."""
        losses, rewards = self.score_pairs(model, batch)
        return scored_pairs(torch.stack([losses, *rewards], dim=1).double(), rewards)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Whether the chosen answer has the higher reward, the scores, and bins of confidence; equal rewards count half."""
        correct = 0.5 * np.sign(scores["chosen_reward"] - scores["rejected_reward"]) + 0.5
        return {
            "rows": np.ones_like(correct),
            "correct": correct,
            **{name: scores[name] for name in _SCORES},
            "calibration": calibration_statistics(self.confidence(scores), correct),
        }

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """Return the probability of the answer that the model finds better, (N,)."""
        with np.errstate(over="ignore"):
            found: NDArray[np.float64] = 1 / (1 + np.exp(-np.abs(scores["chosen_reward"] - scores["rejected_reward"])))
        return found

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        return {"chosen": f"{scores['chosen_reward']:.3f}", "rejected": f"{scores['rejected_reward']:.3f}"}

    # A release

    def reader_input(self, row: Row) -> str:
        return self.text(row)

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"truncation": True, **self.form.call_arguments}

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        texts = self.read_texts(row, tokenizer)
        return {name: float(ask(text)[0]["score"]) for name, text in zip(_SCORES[1:], texts, strict=True)}

    def card_input(self, read_tokenizer: Callable[[], Tokenizer]) -> str:
        if self.options.chat:
            turns = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is 4."}]
            return f"classifier.tokenizer.apply_chat_template({json.dumps(turns)}, tokenize=False)"
        (text,) = end_texts([f"What is 2 + 2?{self.options.separator or ' '}It is 4."], read_tokenizer())
        return json.dumps(text, ensure_ascii=False)
