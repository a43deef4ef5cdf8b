r"""Supervised fine-tuning: learn the answer to a prompt, or an assistant's turns of a conversation.

    {"prompt": "What is 3 + 4?", "completion": " 7"}
    {"messages": [{"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "7"}]}

A prompt becomes the same tokens as at inference, and a completion those that it has behind it
(trainer.objectives.bases.texts.continuations). The end-of-text token after an answer has a loss too. Conversations are
rendered by the tokenizer's chat template, or the recipe's; trainer.objectives.bases.conversations.chat says which tokens are the assistant's.
A sequence that is too long loses its end; a row that then has no token with a loss becomes no example, and statistics.json
counts it. Training can pack (trainer.objectives.bases.texts.packing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Self

from params import Problem, RecipeError
from params.schema import Launch, Model, Training
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.advice.base import AdvisedValue, NewRecipeAdvice, ObjectiveFit, SeenColumns
from trainer.objectives.bases.conversations import chat
from trainer.objectives.bases.conversations.message_reader import text_of_calls
from trainer.objectives.bases.conversations.messages import Turns, is_learned, read_turns, why_conversation_unusable
from trainer.objectives.bases.conversations.pictures import describe_picture_marks
from trainer.objectives.bases.conversations.verbatim import describe_syntax_error
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch
from trainer.objectives.bases.likelihood import TokenLikelihood, count_scored_bytes, tokens_contain_texts_in_order
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, PromptForm, Row
from trainer.objectives.bases.row_content import read_template, without_outer_space
from trainer.objectives.bases.texts import packing
from trainer.objectives.bases.texts.continuations import tokenize_continuations
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_batch
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate, find_answers_in_prompt, form_around_text
from trainer.objectives.bases.texts.tokenizing import (
    Tokenizer,
    strip_repeated_special_tokens,
    tokenize_prompts,
)

_CHAT_TEMPLATE = (
    "{% if tools %}<|tools|>\n{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<|call|>{{ (call.function or call) | tojson }}{% endfor %}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""For conversations, where the tokenizer has none."""
_FIX = "set objective.packing to false"


class Options(chat.ConversationOptions):
    """Keys of the recipe's `objective` section."""

    prompt_column: ColumnOrTemplate = "prompt"
    """The column with the prompt, or a template of columns, such as `{instruction} {input}`
    (trainer.objectives.bases.texts.prompt_template)."""
    completion_column: str = "completion"
    """The column with the answer, its leading space included."""
    separator: str = ""
    """Text to put between prompt and answer; it is tokenized with the prompt."""
    messages_column: str | None = None
    """The column with conversations, lists of {role, content}, instead of prompt and completion."""
    chat_template: str | None = None
    """The Jinja template of conversations, by default the tokenizer's own. It is published with the model."""
    completion_only: bool = True
    """Compute the loss on completions and assistant's turns only, not on prompts."""
    packing: bool = False
    """Fill training sequences up to `max_length` with several examples that do not attend to each other."""


class _Advice(NewRecipeAdvice):
    meaning = "an answer to a prompt"
    columns: ClassVar[Mapping[str, str]] = {name: f"{name}_column" for name in ("prompt", "completion", "messages")}
    templates = frozenset({"prompt"})
    reads_prompts = True
    place = 0
    batch = 16

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        if self.asked(seen) == ["messages"]:
            is_open = seen.rates_answers and "messages" not in seen.named
            return ObjectiveFit.NOT if is_open else ObjectiveFit.CONVERSATIONS
        return ObjectiveFit.COLUMNS if seen.has_pairs else ObjectiveFit.NOT

    def asked(self, seen: SeenColumns) -> Sequence[str]:
        has_messages = "messages" in seen.named or ("messages" in seen.found and not seen.names_pair)
        return ["messages"] if has_messages else ["prompt", "completion"]

    def options(self, columns: Mapping[str, str], *, has_template: bool) -> dict[str, AdvisedValue]:
        options = {
            "packing": AdvisedValue(value=True, why="fills sequences with several examples, which needs no padding")
        }
        if names_columns(columns.get("prompt", "")):
            options["separator"] = AdvisedValue("\n\n", "between prompt and answer")
        if "messages" in columns and not has_template:
            options["chat_template"] = AdvisedValue(_CHAT_TEMPLATE, "the tokenizer has none; published with the model")
        return options


class SFT(chat.ConversationObjective[Options], TokenLikelihood[Options]):
    """Next-token prediction of what an assistant says."""

    options_class = Options
    advice = _Advice()
    own_options = frozenset({"chat_template", "separator"})
    prompt_option = "prompt_column"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {
            "prompt": "Add 3 and 4.",
            "completion": " It is 7.",
            "messages": [{"role": "user", "content": "Add 3 and 4."}, {"role": "assistant", "content": "It is 7."}],
        },
        {"prompt": "Add 2 to 5.", "completion": " 7"},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        options = self.options
        if options.messages_column:
            return {options.messages_column: "records", **self.columns_beside_messages()}
        return {**column_or_template(options.prompt_column).columns, options.completion_column: "string"}

    def content(self, row: Row) -> Mapping[str, Any]:
        messages = self.options.messages_column
        if messages:
            return {messages: without_outer_space(self._turns(row)), **self.content_beside_messages(row)}
        return {**super().content(row), **read_template(column_or_template(self.options.prompt_column), row)}

    def reject_reason(self, row: Row) -> str | None:
        if not self.options.messages_column:
            mark = describe_picture_marks(self._prompt(row))
            return f"its prompt has {mark}" if mark else super().reject_reason(row)
        try:
            turns, tools, known = self._turns(row), self.tools_of(row), self._conversations
        except ValueError as error:
            return str(error)
        return why_conversation_unusable(turns) or (known.with_tools(tools).why_refused(turns) if known else None)

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        options = self.options
        columns = {"prompt_column", "completion_column", "separator"} & options.model_fields_set
        if options.messages_column and columns:
            what = f"cannot be used with {' and '.join(sorted(columns))}: a row would have two texts"
            yield Problem(("objective", "messages_column"), what, f"remove it, or {' and '.join(sorted(columns))}")
        if not options.messages_column:
            yield from find_answers_in_prompt(self.options, "prompt_column", "completion_column")
        yield from self.find_columns_without_messages(
            has_messages=bool(options.messages_column), instead="set objective.messages_column"
        )
        if options.chat_template and not options.messages_column:
            what = "has no effect without messages to render"
            yield Problem(("objective", "chat_template"), what, "set objective.messages_column, or remove it")
        if options.chat_template and (error := describe_syntax_error(options.chat_template)):
            yield Problem(("objective", "chat_template"), f"is no Jinja template: {error}", "correct it there")
        if not options.packing:
            return
        if training.arguments.get("use_cache"):
            what = "cannot be used with training.arguments.use_cache: packed examples would attend to each other"
            yield Problem(("objective", "packing"), what, f"remove training.arguments.use_cache, or {_FIX}")
        if model_type := packing.model_type_unfit_for_packing(model):
            what = f"{model_type} does not keep packed examples apart: they would attend to each other"
            yield Problem(("objective", "packing"), what, f"{_FIX}, or use another model type, for example llama")

    def check_model(self, model: PreTrainedModel) -> None:
        if self.options.packing and (why := packing.find_packing_problem(model)):
            what = f"this {model.config.model_type} model cannot be trained on packed sequences: {why}"
            raise RecipeError("objective.packing", what, _FIX)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        if self.options.chat_template:
            tokenizer.chat_template = self.options.chat_template
        super().prepare_tokenizer(tokenizer)
        if self.options.messages_column and not chat.conversation_template(tokenizer):
            what = (
                "is not set, and the tokenizer has no chat template, which messages need; of several, it is `default`"
            )
            raise RecipeError("objective.chat_template", what, "set it, or use the tokenizer of a chat model")
        if self.options.messages_column:
            self.conversation_tokenizer(tokenizer)

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        if options.get("messages_column"):
            return PromptForm(is_chat=True)
        prompt, separator = (str(options.get(name, "")) for name in ("prompt_column", "separator"))
        return form_around_text(prompt, after=separator)

    def text(self, row: Row) -> str:
        if self.options.messages_column:
            return "\n".join(f"{turn['role']}: {turn['content']}" for turn in self._turns(row))
        return f"{self._prompt(row)}{row[self.options.completion_column]}"

    def _prompt(self, row: Row) -> str:
        return f"{column_or_template(self.options.prompt_column).fill(row)}{self.options.separator}"

    def _turns(self, row: Row) -> list[Mapping[str, Any]]:
        return self.with_system(row, read_turns(row[str(self.options.messages_column)]))

    def _scored_texts(self, row: Row, tokenizer: Tokenizer) -> list[str]:
        """The completion or the assistant's messages; without `completion_only` the prompt or the other messages, too."""
        o = self.options
        if o.messages_column:
            turns = self.conversation_tokenizer(tokenizer).read(self._turns(row))
            return [turn["content"] for turn in self._scored_turns(turns)]
        texts = [row[o.completion_column] if o.completion_only else self.text(row)]
        return strip_repeated_special_tokens(texts, tokenizer, ends=True)

    def _scored_turns(self, turns: Turns) -> Turns:
        is_all = not self.options.completion_only
        return [turn for turn in turns if is_all or (turn["role"] == "assistant" and is_learned(turn))]

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        name = "labels" if self.options.completion_only else "input_ids"
        ids = [token for example in examples for token in example[name]]
        return tokens_contain_texts_in_order(ids, self._scored_texts(row, tokenizer), tokenizer)

    def renders_conversations(self) -> bool:
        return bool(self.options.messages_column)

    def learns_answers_only(self) -> bool:
        return self.options.completion_only

    def as_released(self, options: Mapping[str, Any] | None) -> Self:
        if options is None:  # its tokenizer has its own template, if any
            return self.with_options({"chat_template": None})
        kinds = ("conversations", "prompts and completions")
        own, theirs = (bool(one) for one in (self.options.messages_column, options.get("messages_column")))
        if own != theirs:
            raise ValueError(f"it learned from {kinds[not theirs]}, and these rows are {kinds[not own]}")
        return super().as_released(options)

    def input_text(self, row: Row) -> str:
        """Return the prompt, or the turns that the model does not write."""
        if not self.options.messages_column:
            return column_or_template(self.options.prompt_column).values(row)
        given = [turn for turn in self._turns(row) if turn["role"] != "assistant"]
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in given)

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """One sequence, or one for each answer of some conversations; those of which no token within `max_length` has a loss are left out."""
        messages = self.options.messages_column
        if messages:
            conversations = self.conversation_tokenizer(tokenizer)
            turns = [conversations.read(self._turns(row)) for row in rows]
            tokenized = []
            tools = [self.tools_of(row) for row in rows]
            for own, group in groupby(zip(tools, turns, strict=True), key=itemgetter(0)):
                tokenized += conversations.with_tools(own).tokenize([conversation for _, conversation in group])
            texts = ["".join(map(_said, self._scored_turns(own))) for own in turns]
        else:
            tokenized = [[pair] for pair in self._tokenize_pairs(rows, tokenizer)]
            texts = ["".join(self._scored_texts(row, tokenizer)) for row in rows]
        flat = [(i, *pair) for i, own in enumerate(tokenized) for pair in own]
        labels = [(answers if self.options.completion_only else ids)[:max_length] for _, ids, answers in flat]
        for learned in labels:
            learned[:1] = [IGNORE_INDEX]  # no token before it could predict it
        is_part = [len(ids) > max_length or len(tokenized[i]) > 1 for i, ids, _ in flat]
        sizes = count_scored_bytes([texts[i] for i, *_ in flat], labels, is_part, tokenizer)
        examples: list[list[Example]] = [[] for _ in rows]
        for (i, ids, _), learned, size in zip(flat, labels, sizes, strict=True):
            if learned.count(IGNORE_INDEX) < len(learned):
                row_id = rows[i]["row_id"]
                examples[i].append({"row_id": row_id, "input_ids": ids[:max_length], "labels": learned, "bytes": size})
        is_cut = [any(len(ids) > max_length for ids, _ in own) for own in tokenized]
        return [EncodedRow(own, bool(own) and cut) for own, cut in zip(examples, is_cut, strict=True)]

    def _tokenize_pairs(self, rows: Sequence[Row], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each row, and its labels: those of the completion. None if a text has nothing but special tokens."""
        end = tokenizer.eos_token_id
        asked = strip_repeated_special_tokens(map(self._prompt, rows), tokenizer)
        prompts = tokenize_prompts(asked, tokenizer)
        completions = (row[self.options.completion_column] for row in rows)
        texts = strip_repeated_special_tokens(completions, tokenizer, ends=True)
        pairs = []
        answers = tokenize_continuations(asked, prompts, texts, tokenizer)
        for prompt, answer, *written in zip(prompts, answers, asked, texts, strict=True):
            completion = [*answer, end]
            ids, labels = prompt + completion, [IGNORE_INDEX] * len(prompt) + completion
            pairs.append((ids, labels) if all(map(str.strip, written)) else ([], []))
        return pairs

    def reader_input(self, row: Row) -> Any:
        """The prompt, or the messages before the assistant's first one."""
        if not self.options.messages_column:
            return self._prompt(row)
        turns = self._turns(row)
        return turns[: next(i for i, turn in enumerate(turns) if turn["role"] == "assistant")] or None

    def expected_answer(self, row: Row) -> str | None:
        """The completion, or the assistant's first message."""
        if not self.options.messages_column:
            return str(row[self.options.completion_column])
        return next(str(turn["content"]) for turn in self._turns(row) if turn["role"] == "assistant")

    def pack(self, examples: Iterable[Example], max_length: int) -> Iterator[Example]:
        return packing.pack_examples(examples, max_length) if self.options.packing else iter(examples)

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As in the base class; packed sequences have `position_ids` instead of `attention_mask`."""
        packed = "lengths" in examples[0]
        return packing.collate_packed_batch(examples, tokenizer) if packed else pad_batch(examples, tokenizer)


def _said(turn: Mapping[str, Any]) -> str:
    """Return the text of a message and of its calls of tools."""
    return str(turn["content"]) + text_of_calls(turn)
