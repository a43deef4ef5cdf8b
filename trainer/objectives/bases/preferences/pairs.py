"""Pairs of completions in the forms that people have them: beside a prompt, or as whole texts or conversations that begin alike."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from params import Problem
from params.schema import Launch, Model, Training
from trainer.objectives.bases.conversations.messages import calls_tools, read_turns
from trainer.objectives.bases.lazy_imports import NDArray, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.preferences.answers import AnswersObjective, AnswersOptions
from trainer.objectives.bases.rows import Row, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate

_QUESTION, _ANSWER = "\n\nHuman:", "\n\nAssistant:"
"""Stand before each turn in texts such as those of hh-rlhf."""


class PreferencePair(NamedTuple):
    """A prompt with two completions: texts, or lists of messages."""

    prompt: Any
    chosen: Any
    rejected: Any


def read_texts(prompt: Any, chosen: Any, rejected: Any) -> PreferencePair:
    """Return a pair of texts; without a prompt, None, it is their turns up to the last `Assistant:` that both have.

    Raises:
        ValueError: nothing says where the prompt ends, or more than an answer follows it.
    """
    chosen, rejected = str(chosen), str(rejected)
    if prompt is not None:
        return PreferencePair(str(prompt), chosen, rejected)
    place = chosen[: _shared(chosen, rejected)].rfind(_ANSWER)
    if place < 0:
        what = "chosen and rejected do not begin with the same turns"
        raise ValueError(f"{what}, of which the last one is {_ANSWER!r}: so nothing says where the prompt ends")
    size = place + len(_ANSWER)
    for name, answer in (("chosen", chosen[size:]), ("rejected", rejected[size:])):
        if not answer.strip() or _ANSWER in answer or _QUESTION in answer:
            what = "says nothing" if not answer.strip() else "has more than an answer"
            raise ValueError(f"behind what chosen and rejected have in common, {name} {what}")
    return PreferencePair(chosen[:size], chosen[size:], rejected[size:])


def read_conversations(prompt: Any, chosen: Any, rejected: Any) -> PreferencePair:
    """Return a pair of messages, whether the conversations are whole or behind a prompt; ValueError if it has no two answers."""
    prompt, chosen, rejected = read_turns(prompt or ()), read_turns(chosen), read_turns(rejected)
    if chosen[: len(prompt)] == rejected[: len(prompt)] == prompt:
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    shared = _shared(chosen, rejected)
    pair = PreferencePair([*prompt, *chosen[:shared]], chosen[shared:], rejected[shared:])
    for name, turns in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if others := [turn["role"] for turn in turns if turn["role"] != "assistant"]:
            raise ValueError(
                f"behind what chosen and rejected have in common, {name} has a message of {others[0]}: end both with the answers that differ"
            )
        if not any(turn["content"].strip() or calls_tools(turn) for turn in turns):
            raise ValueError(f"behind what chosen and rejected have in common, {name} says nothing")
    if not pair.prompt:
        raise ValueError("chosen and rejected do not begin with the same messages, so there is no prompt")
    return pair


def split_text(prompt: str | None, answer: str) -> tuple[str, str]:
    """Return a prompt and its answer; without a prompt, None, it is the turns up to the last `Assistant:`. ValueError if there is none."""
    if prompt is not None:
        return prompt, answer
    place = answer.rfind(_ANSWER) + len(_ANSWER)
    if place < len(_ANSWER) or not answer[place:].strip():
        raise ValueError(f"it has no answer behind {_ANSWER!r}, so nothing says where the prompt ends")
    return answer[:place], answer[place:]


def split_conversation(prompt: Any, answer: Any) -> tuple[list[Any], list[Any]]:
    """Return the messages of a prompt and those of the assistant that answer it, at the end; ValueError if there are none."""
    before, turns = read_turns(prompt or ()), read_turns(answer)
    turns = turns if turns[: len(before)] == before else [*before, *turns]
    said = len([*takewhile(lambda turn: turn["role"] == "assistant", reversed(turns))])
    own, asked = turns[len(turns) - said :], turns[: len(turns) - said]
    if not any(turn["content"].strip() or calls_tools(turn) for turn in own):
        raise ValueError("its last message is not an answer of the assistant")
    if not asked:
        raise ValueError("there is no message before the answer")
    return asked, own


def begin_with_prompt(chosen: Any, rejected: Any) -> bool:
    """Whether two completions are whole conversations that begin with the prompt of both."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return bool((read_texts if isinstance(chosen, str) else read_conversations)(None, chosen, rejected))
    return False


def _shared(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return how many characters or messages both begin with."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))])


def scored_pairs(scores: torch.Tensor, rewards: torch.Tensor) -> ScoredBatch:
    """Return scores (B, K), with the rewards (2, B) of chosen and rejected answers as outputs (B, 2); each label is 0, the place of the better one."""
    outputs = rewards.T
    first = torch.zeros(len(outputs), dtype=torch.long, device=outputs.device)
    return ScoredBatch(scores, outputs, first, predictions=outputs)


class PairOptions(AnswersOptions):
    """Keys of the recipe's `objective` section."""

    prompt_column: ColumnOrTemplate | None = "prompt"
    """The column with the prompt of both completions, or a template of columns, such as `{instruction} {input}`
    (trainer.objectives.bases.texts.prompt_template); null: both begin with it. Then it is the messages that they have in common, or
    the text up to the last `Assistant:` at the beginning of a paragraph that they have in common."""
    chosen_column: str = "chosen"
    """The column with the better completion, its leading space included."""
    rejected_column: str = "rejected"
    """The column with the worse completion."""


PairOptionsT = TypeVar("PairOptionsT", bound=PairOptions)


class PairObjective(AnswersObjective[PairOptionsT]):
    """An objective of prompts with a better and a worse answer."""

    answer_options = ("chosen_column", "rejected_column")

    def parts(self, row: Row) -> PreferencePair:
        chosen, rejected = (row[name] for name in self.answer_columns)
        read = read_conversations if self.options.chat else read_texts
        pair = read(self.prompt_of(row), chosen, rejected)
        return pair._replace(prompt=self.with_system(row, pair.prompt)) if self.options.chat else pair

    @property
    def beside_content(self) -> Sequence[str]:
        """The worse answer: who has learned that the better one is good prefers it to others, too."""
        return [self.options.rejected_column]

    @abstractmethod
    def score_pairs(self, model: Any, batch: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """Return the loss (B,) of each pair, rewards (2, B) of its answers, and what else follows from one pass over them."""

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the mean over pairs; micro-batches hold equally many."""
        return BatchLoss(self.score_pairs(model, batch)[0].mean() / share.micro_batches)

    def right_rows(self, scores: ScoreColumns) -> NDArray[np.bool_]:
        """Return of which of N pairs the chosen answer has the higher reward, (N,)."""
        return scores["chosen_reward"] > scores["rejected_reward"]

    def reject_reason(self, row: Row) -> str | None:
        if row[self.options.chosen_column] == row[self.options.rejected_column]:
            return "chosen and rejected are the same text, so there is nothing to learn"
        return super().reject_reason(row)

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if training.arguments.get("include_num_input_tokens_seen", "no") not in {"no", False}:
            key = ("training", "arguments", "include_num_input_tokens_seen")
            yield Problem(key, "would count the tokens of chosen completions only", "remove it")
