r"""Supervised fine-tuning: learn the answer to a prompt, or an assistant's turns of a conversation.

    {"prompt": "What is 3 + 4?", "completion": " 7"}
    {"messages": [{"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "7"}]}

A prompt becomes the tokens that it will have when the model is asked; the end-of-text token after an answer is learned
too. Conversations are rendered by the tokenizer's chat template, or the recipe's; where the template marks what the
assistant generates, that is learned, elsewhere what each assistant's turn adds. What is too long loses its end; a row of
which then nothing is left to learn becomes no sequence, and is counted as such. Training may pack (trainer.objectives.bases.packing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from params import ModelError, Problem, RecipeError
from params.schema import Launch, Model, Section, Training
from trainer.objectives.bases import chat, packing
from trainer.objectives.bases.likelihood import (
    IGNORED,
    TokenLikelihood,
    bytes_of,
    next_token_losses,
    pad_batch,
    token_scores,
)
from trainer.objectives.bases.objective import Example, Kind, Row, State

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_ENDLESS = 2**30
"""More tokens than any row has."""
_UNPACKED = "set objective.packing to false"


class Options(Section):
    """Keys of the recipe's `objective` section."""

    prompt_column: str = "prompt"
    """The column with what the model is given."""
    completion_column: str = "completion"
    """The column with what it shall answer, its leading space included."""
    messages_column: str | None = None
    """The column with conversations, lists of {role, content}, in place of the two above."""
    chat_template: str | None = None
    """How conversations are rendered, as Jinja; by default the tokenizer's own template. It is published with the model."""
    completion_only: bool = True
    """Learn completions and assistant's turns only; otherwise prompts, too."""
    packing: bool = False
    """Fill training sequences to `max_length` with several examples that do not see each other; otherwise one, padded."""


class SFT(TokenLikelihood[Options]):
    """Next-token prediction of what an assistant says."""

    options_class = Options
    pipeline_tag = "text-generation"
    examples: ClassVar[tuple[Row, ...]] = (
        {
            "prompt": "Add 3 and 4.",
            "completion": " It is 7.",
            "messages": [{"role": "user", "content": "Add 3 and 4."}, {"role": "assistant", "content": "It is 7."}],
        },
        {"prompt": "Add 2 to 5.", "completion": " 7"},
    )

    def columns(self) -> Mapping[str, Kind]:
        options = self.options
        if options.messages_column:
            return {options.messages_column: "list"}
        return {options.prompt_column: "string", options.completion_column: "string"}

    def reject_reason(self, row: Row) -> str | None:
        if not self.options.messages_column:
            return None
        return chat.reject_reason(row[self.options.messages_column])

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        options = self.options
        columns = {"prompt_column", "completion_column"} & options.model_fields_set
        if options.messages_column and columns:
            what = f"the recipe names messages and {' and '.join(sorted(columns))}: a row would have two texts to learn"
            yield Problem(("objective", "messages_column"), what, f"remove it, or {' and '.join(sorted(columns))}")
        if options.chat_template and not options.messages_column:
            what = "a chat template renders messages, and the recipe names no column of them: it would do nothing"
            yield Problem(("objective", "chat_template"), what, "name objective.messages_column, or remove it")
        if not options.packing:
            return
        if training.arguments.get("use_cache"):
            what = "with a cache, packed examples would see each other"
            yield Problem(("objective", "packing"), what, f"remove training.arguments.use_cache, or {_UNPACKED}")
        if unfit := packing.unfit_type(model):
            what = f"a {unfit} does not tell packed examples apart: they would see each other"
            yield Problem(("objective", "packing"), what, f"{_UNPACKED}, or use another model type, for example llama")

    def try_model(self, model: PreTrainedModel) -> None:
        if self.options.packing and (why := packing.refused(model)):
            what = f"this {model.config.model_type} cannot be trained on packed sequences: {why}"
            raise RecipeError("objective.packing", what, _UNPACKED)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if self.options.chat_template:
            tokenizer.chat_template = self.options.chat_template
        if tokenizer.eos_token_id is None:
            raise ModelError("tokenization.tokenizer", "has no end-of-text token", "use one of a causal language model")
        if self.options.messages_column and not tokenizer.chat_template:
            what = "messages need a chat template, and the tokenizer has none"
            raise RecipeError("objective.chat_template", what, "give one, or the tokenizer of a chat model")

    def text(self, row: Row) -> str:
        if self.options.messages_column:
            return "\n".join(f"{turn['role']}: {turn['content']}" for turn in row[self.options.messages_column])
        return f"{row[self.options.prompt_column]}{row[self.options.completion_column]}"

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """One sequence; none if all that could be learned lies behind `max_length`."""
        messages = self.options.messages_column
        ids, learned = chat.tokens(row[messages], tokenizer) if messages else self._pair(row, tokenizer)
        if not self.options.completion_only:
            learned = [True] * len(ids)
        labels = [token if wanted else IGNORED for token, wanted in zip(ids, learned, strict=True)][:max_length]
        labels[:1] = [IGNORED]  # nothing stands before it that could predict it
        if all(label == IGNORED for label in labels):
            return []
        said = bytes_of(labels, tokenizer)
        return [{"row_id": row["row_id"], "input_ids": ids[:max_length], "labels": labels, "bytes": said}]

    def truncates(
        self, row: Row, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> bool:
        if not examples or len(examples[0]["input_ids"]) < max_length:
            return False
        return len(self.encode(row, tokenizer, _ENDLESS, {})[0]["input_ids"]) > max_length

    def _pair(self, row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[bool]]:
        end = tokenizer.eos_token_id
        prompt = tokenizer(row[self.options.prompt_column], verbose=False)["input_ids"]
        if prompt and prompt[-1] == end:  # some tokenizers end every text
            prompt = prompt[:-1]
        text = row[self.options.completion_column]
        completion = [*tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], end]
        return [*prompt, *completion], [False] * len(prompt) + [True] * len(completion)

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        return packing.pack(examples, max_length) if self.options.packing else iter(examples)

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        """As every objective's; of packed sequences `position_ids` in place of `attention_mask`."""
        packed = "lengths" in examples[0]
        return packing.packed_batch(examples, tokenizer) if packed else pad_batch(examples, tokenizer)

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM  # type: ignore[no-any-return]

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to (B, T); the first token of a sequence is not predicted."""
        return next_token_losses(logits, labels)

    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to summed negative log-likelihood, tokens and correct tokens, (B, 3)."""
        return token_scores(logits[:, :-1], labels[:, 1:])
