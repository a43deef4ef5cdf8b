"""Objectives of prompts with one or several answers: texts, or messages that the tokenizer's chat template renders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from params import Problem, RecipeError
from params.schema import Launch, Model, Training
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.bases.conversations.chat import (
    ConversationObjective,
    ConversationOptions,
    ConversationTokenizer,
    conversation_template,
)
from trainer.objectives.bases.conversations.pictures import describe_picture_marks
from trainer.objectives.bases.objective import ColumnKind, PromptForm, Row
from trainer.objectives.bases.row_content import without_outer_space
from trainer.objectives.bases.rows import to_json
from trainer.objectives.bases.texts.continuations import tokenize_continuations
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate, find_answers_in_prompt, form_around_text
from trainer.objectives.bases.texts.tokenizing import (
    Tokenizer,
    check_end_of_text_token,
    strip_repeated_special_tokens,
    tokenize_prompts,
    tokenize_texts,
)


class AnswersOptions(ConversationOptions):
    """Keys of the recipe's `objective` section; each objective adds the columns of its answers."""

    prompt_column: ColumnOrTemplate | None = "prompt"
    """The column with the prompt, or a template of columns, such as `{instruction} {input}`
    (trainer.objectives.bases.texts.prompt_template)."""
    separator: str = ""
    """Text to put between prompt and answer; it is tokenized with the prompt."""
    chat: bool = False
    """The columns hold messages, which the tokenizer's chat template renders; answers are messages of the assistant."""


AnswersOptionsT = TypeVar("AnswersOptionsT", bound=AnswersOptions)


class TokenizedAnswers(NamedTuple):
    """A prompt and the answers that follow it, as tokens."""

    prompt: list[int]
    answers: list[list[int]]
    is_truncated: bool


class AnswersObjective(ConversationObjective[AnswersOptionsT]):
    """Rows are prompts with answers; a template or a separator belongs to the model that learned by it."""

    answer_options: ClassVar[tuple[str, ...]]
    """The options that name the columns of answers."""
    own_options = frozenset({"separator"})
    prompt_option = "prompt_column"
    writes_answers: ClassVar[bool] = True
    """Whether the model learns to write answers, and so to end them."""

    @abstractmethod
    def parts(self, row: Row) -> Sequence[Any]:
        """Return the prompt and the answers of a row, as texts or as lists of messages; ValueError if it has others."""

    @property
    def answer_columns(self) -> Sequence[str]:
        return [getattr(self.options, name) for name in self.answer_options]

    def columns(self) -> Mapping[str, ColumnKind]:
        o = self.options
        if o.chat:
            named = (name for name in (o.prompt_column, *self.answer_columns) if name)
            return {**dict.fromkeys(named, "records"), **self.columns_beside_messages()}
        prompt = column_or_template(o.prompt_column).columns if o.prompt_column else {}
        answers: dict[str, ColumnKind] = dict.fromkeys(self.answer_columns, "string")
        return {**prompt, **answers}

    def content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; where the prompt ends, `parts` says, whether it has a column or is in the answers."""
        prompt, *answers = map(without_outer_space, self.parts(row))
        answers_by_column = dict(zip(self.answer_columns, answers, strict=True))
        beside = dict.fromkeys(self.beside_content)
        found = {**super().content(row), **answers_by_column, **self.content_beside_messages(row), **beside}
        column = self.options.prompt_column
        if not column:
            return {**found, self.answer_columns[0]: [prompt, answers[0]]}
        first, *others = [column] if self.options.chat else column_or_template(column).columns
        return {**found, first: prompt, **dict.fromkeys(others)}

    def input_content(self, row: Row) -> Mapping[str, Any]:
        """As the base class; which of its answers is the better one is what people say of them."""
        prompt, *answers = map(without_outer_space, self.parts(row))
        ordered = sorted(answers, key=to_json)
        first, *others = self.answer_columns
        given = ordered if self.options.prompt_column else [prompt, ordered]
        return {**super().input_content(row), first: given, **dict.fromkeys(others)}

    def renders_conversations(self) -> bool:
        return self.options.chat

    def prompt_of(self, row: Row) -> Any:
        """Return what a row's columns say of its prompt, as text or messages; None if that is in its answers."""
        column = self.options.prompt_column
        if not column:
            return None
        return row[column] if self.options.chat else column_or_template(column).fill(row)

    def reject_reason(self, row: Row) -> str | None:
        if reason := super().reject_reason(row):
            return reason
        try:
            prompt, *answers = self.parts(row)
            if not self.options.chat and (mark := describe_picture_marks(str(prompt))):
                return f"its prompt has {mark}"
            if not (known := self._conversations):
                return None
            known = known.with_tools(self.tools_of(row))
            if reason := known.why_no_tools():
                return reason
            render_answers([prompt, *answers], known)
            whole = (known.read([*prompt, *answer]) for answer in answers)
            return next(filter(None, (known.describe_unwritten(own, prompt=len(prompt)) for own in whole)), None)
        except ValueError as error:
            return str(error)

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        yield from self.find_columns_without_messages(
            has_messages=self.options.chat, instead="set objective.chat to true"
        )
        if self.options.chat and self.options.separator:
            what = "has no effect on messages, which the chat template puts together"
            yield Problem(("objective", "separator"), what, "remove it, or set objective.chat to false")
        if self.options.chat and names_columns(self.options.prompt_column or ""):
            what = "is a template, which puts texts together and not messages"
            yield Problem(("objective", "prompt_column"), what, "name one column of messages, or null")
        if self.options.prompt_column and not self.options.chat:
            yield from find_answers_in_prompt(self.options, "prompt_column", *self.answer_options)
        if training.loss:
            what = f"replaces the preference loss, so {self._name} would not learn from preferences"
            has_kinds = "loss_type" in type(self.options).model_fields
            fix = "remove it, and choose objective.loss_type" if has_kinds else "remove it"
            yield Problem(("training", "loss"), what, fix)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        if self.writes_answers:
            check_end_of_text_token(tokenizer)
        if self.options.chat:
            if not conversation_template(tokenizer):
                what = "is true, and the tokenizer has no chat template; of several, it is `default`"
                raise RecipeError("objective.chat", what, "use a chat model's tokenizer, or texts and `chat: false`")
            self.conversation_tokenizer(tokenizer)

    def as_released(self, options: Mapping[str, Any] | None) -> Self:
        if options is not None and bool(options.get("chat")) != self.options.chat:
            learned, own = ("texts", "messages") if self.options.chat else ("messages", "texts")
            raise ValueError(f"it learned from {learned}, and these rows are {own}")
        return super().as_released(options)

    def text(self, row: Row) -> str:
        """The prompt with its first answer, as in `input_ids`."""
        return self.texts_with_answers(row)[0]

    def texts_with_answers(self, row: Row) -> list[str]:
        prompt, *answers = map(as_text, self.parts(row))
        return [f"{prompt}{self.options.separator}{answer}" for answer in answers]

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        prompt, separator = options.get("prompt_column"), str(options.get("separator", ""))
        return form_around_text(str(prompt or ""), after=separator, is_chat=bool(options.get("chat")))

    def input_text(self, row: Row) -> str:
        if self.options.prompt_column and not self.options.chat:
            return column_or_template(self.options.prompt_column).values(row)
        return as_text(self.parts(row)[0])

    def reader_input(self, row: Row) -> Any:
        prompt = self.parts(row)[0]
        return prompt if self.options.chat else f"{prompt}{self.options.separator}"

    def tokenize_answers(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int
    ) -> Iterator[TokenizedAnswers | None]:
        """Yield the tokens of each row, each answer with the end-of-text token; None if the prompt or an answer says nothing.

        All answers follow the same tokens, those of the prompt alone (trainer.objectives.bases.texts.continuations). A prompt that is too long
        with the longest answer loses its beginning, down to one token; only then are answers cut, at their end.
        """
        parts = [self.parts(row) for row in rows]
        if self.options.chat:
            known = self.conversation_tokenizer(tokenizer)
            tools = map(self.tools_of, rows)
            parts = [render_answers(own, known.with_tools(defined)) for own, defined in zip(parts, tools, strict=True)]
            asked = [own[0] for own in parts]
            prompts = tokenize_texts(asked, tokenizer, add_special_tokens=False)
        else:
            asked = [f"{own[0]}{self.options.separator}" for own in parts]
            asked = strip_repeated_special_tokens(asked, tokenizer)
            prompts = tokenize_prompts(asked, tokenizer)
        by_answer = [*zip(*(own[1:] for own in parts), strict=True)]
        texts = [strip_repeated_special_tokens(own, tokenizer, ends=True) for own in by_answer]
        writes_special_tokens = not self.options.chat
        answers = (
            tokenize_continuations(asked, prompts, own, tokenizer, add_special_tokens=writes_special_tokens)
            for own in texts
        )
        for written, prompt, *own in zip(zip(asked, *texts, strict=True), prompts, *answers, strict=True):
            if not all(map(str.strip, written)):  # nothing but special tokens
                yield None
                continue
            is_truncated = len(prompt) + max(map(len, own)) + 1 > max_length
            ended = [[*answer, tokenizer.eos_token_id][: max_length - 1] for answer in own]
            yield TokenizedAnswers(prompt[-(max_length - max(map(len, ended))) :], ended, is_truncated)

    @property
    def _name(self) -> str:
        return type(self).__module__.rpartition(".")[2]


def render_answers(parts: Sequence[Any], tokenizer: ConversationTokenizer) -> list[str]:
    """Return a prompt and its answers, which are messages, as texts; ValueError if the template refuses them."""
    prompt, *answers = parts
    rendered = [tokenizer.prompt_and_answer(prompt, answer) for answer in answers]
    return [rendered[0][0], *(answer for _, answer in rendered)]


def as_text(part: Any) -> str:
    """Return a text, or what messages say."""
    return part if isinstance(part, str) else "\n".join(f"{turn['role']}: {turn['content']}" for turn in part)
