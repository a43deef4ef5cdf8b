"""Conversations, lists of messages, as tokens: rendered by a chat template, with a mask of the assistant's tokens.

If the template marks generated text with {% generation %}, that is the assistant's. Otherwise the assistant's text is what
each of its turns adds to the rendering of the turns before it, which must not change when the turn is added. The first message of
a conversation then answers nothing, and has no loss.

Templates of reasoning models drop the thoughts of an answer once a user's message follows. Such a conversation is one sequence for each of
its answers, with the turns before it as the template renders them there; only that answer has a loss.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, cycle, islice
from typing import Any, NamedTuple, TypeVar

from jinja2 import TemplateError

from params import Problem
from params.sections.base import Section
from trainer.objectives.bases.conversations.frames import Frame, find_frame
from trainer.objectives.bases.conversations.marks import (
    CAPTURE,
    MARKS,
    START,
    STOP,
    cut_at_spans,
    find_marks,
    mark_answers,
    marked_spans,
    may_say_marks,
)
from trainer.objectives.bases.conversations.message_reader import MessageReader
from trainer.objectives.bases.conversations.messages import Turns, describe_empty_answer, is_learned
from trainer.objectives.bases.conversations.tools import read_tools
from trainer.objectives.bases.conversations.unwritten import describe_unwritten, has_thoughts
from trainer.objectives.bases.conversations.verbatim import writes_verbatim
from trainer.objectives.bases.lazy_imports import Encoding
from trainer.objectives.bases.objective import ColumnKind, Example, Objective, Row
from trainer.objectives.bases.texts.continuations import tokenize_behind_characters
from trainer.objectives.bases.texts.padding import IGNORE_INDEX
from trainer.objectives.bases.texts.tokenizing import (
    Tokenizer,
    backend_with_whole_offsets,
    begins_at,
    count_bytes_of_tokens,
    encode_texts,
    first_token_at_character,
    first_tokens_by_bytes,
    generate_tokens_checking_prompt,
)

_KEPT = 1000
"""Renderings of placeholders."""
_KEPT_TOOLS = 100
"""Sets of tools that are remembered: often many conversations have the same ones."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "zqtoolqz", "description": "a", "parameters": {"type": "object"}},
}


class _Rendering(NamedTuple):
    """A rendered conversation, or its beginning up to an answer."""

    text: str
    spans: list[tuple[int, int]]
    """Of characters that are the assistant's, and have a loss."""
    is_answer: bool
    """Whether it ends with the assistant's turn."""


def conversation_template(tokenizer: Tokenizer) -> str | None:
    """Return the chat template that conversations are rendered with; of several, the one that is called `default`."""
    found: Any = tokenizer.chat_template
    return found.get("default") if isinstance(found, Mapping) else found


class ConversationTokenizer:
    """Tokenizes conversations, and remembers what the template writes around the messages of each sequence of roles.

    ModelError if the tokenizer does not say which characters its tokens are of.
    """

    def __init__(self, tokenizer: Tokenizer, *, learns_answers_only: bool = True) -> None:
        self.tokenizer = tokenizer
        self._learns_answers_only = learns_answers_only
        self._frames: dict[tuple[str, ...], Frame | None] = {}
        template = conversation_template(tokenizer) or ""
        self._marked = mark_answers(template)
        self._captures = bool(CAPTURE.search(template))
        is_jinja = tokenizer.apply_chat_template.__module__ == "transformers.tokenization_utils_base"
        self._is_verbatim = is_jinja and writes_verbatim(template)
        self._end, self._end_id = tokenizer.eos_token, tokenizer.eos_token_id
        self._reader = MessageReader(self._render, template, begin=tokenizer.bos_token, end=self._end)
        self._backend = backend_with_whole_offsets(tokenizer)
        self._token_bytes = count_bytes_of_tokens(tokenizer)
        self._spaces: dict[int, bool] = {}
        self._of_placeholders: dict[str, str] = {}
        self._tools: list[dict[str, Any]] = []
        self._by_tools: dict[str, ConversationTokenizer] = {}

    def with_tools(self, tools: list[dict[str, Any]]) -> ConversationTokenizer:
        """Return what tokenizes conversations in which these tools may be called, as `read_tools` returns them."""
        if not tools:
            return self
        key = json.dumps(tools)
        if key not in self._by_tools:
            if len(self._by_tools) >= _KEPT_TOOLS:
                self._by_tools.clear()
            self._by_tools[key] = copy.copy(self)
            is_known = {"_writes_tools": self._writes_tools}
            vars(self._by_tools[key]).update(is_known, _tools=tools, _frames={}, _of_placeholders={})
        return self._by_tools[key]

    @cached_property
    def _writes_tools(self) -> bool:
        asked = {"role": "user", "content": "a"}
        for before in ([], [{"role": "system", "content": "b"}]):
            try:
                written: str = self._apply([*before, asked], tools=[_TOOL], add_generation_prompt=True)
                return _TOOL["function"]["name"] in written
            except ValueError:
                continue
        return False

    def read(self, messages: Any) -> list[dict[str, Any]]:
        """Return messages as the template takes them; ValueError if one cannot be read."""
        return self._reader.read(messages)

    def settings(self) -> list[Any]:
        """Return what decides how conversations are rendered, as JSON."""
        return [conversation_template(self.tokenizer), dict(self.tokenizer.special_tokens_map)]

    def why_refused(self, messages: Any) -> str | None:
        """Return why the template cannot render a conversation, or its spans cannot be found; None if nothing is wrong."""
        if reason := self.why_no_tools():
            return reason
        try:
            list(self._sequences([turns := self.read(messages)]))
        except ValueError as error:
            return str(error)
        return describe_empty_answer(turns) or self.describe_unwritten(turns)

    def why_no_tools(self) -> str | None:
        """Return why a model would not see the tools; None if it does, or there are none."""
        if not self._tools or self._writes_tools:
            return None
        return (
            "it has tools, and the chat template writes none: use one that does, or set objective.tools_column to null"
        )

    def describe_unwritten(self, turns: Turns, *, prompt: int = 0) -> str | None:
        """Return what the template does not write of a conversation whose first `prompt` messages have no loss; None if nothing is missing."""
        if self._frame(turns) and (self._is_verbatim or not any(map(has_thoughts, turns))):
            return None
        first, learns_all = prompt if self._marked else max(1, prompt), not self._learns_answers_only
        return describe_unwritten(turns, self._render_placeholders, learned_from=first, learns_all=learns_all)

    def _render_placeholders(self, turns: Turns) -> str:
        """Return all that is written of a conversation of placeholders, which many conversations have in common."""
        if (key := repr(turns)) not in self._of_placeholders:
            if len(self._of_placeholders) >= _KEPT:
                self._of_placeholders.clear()
            try:
                self._of_placeholders[key] = "".join(sequence.text for sequence in next(self._sequences([turns])))
            except ValueError:
                self._of_placeholders[key] = self._render(turns)
        return self._of_placeholders[key]

    def tokenize(self, conversations: Sequence[Turns]) -> list[list[tuple[list[int], list[int]]]]:
        """Return the tokens of each conversation, as `read` returns them, and its labels: the assistant's tokens, the end of each turn included.

        It is one sequence, or one for each answer if the template renders answers differently once more turns follow. Raises ValueError
        if the template refuses a conversation, or renders the turns before an answer differently when that follows.
        """
        if not all(conversations):
            raise ValueError("the conversation is empty")
        sequences = list(self._sequences(conversations))
        found = self._tokenize_spans([*chain.from_iterable(sequences)])
        return [[self._label(one, *next(found)) for one in own] for own in sequences]

    def _label(self, sequence: _Rendering, ids: list[int], spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        labels, end = [IGNORE_INDEX] * len(ids), self._end_id
        first = last = 0  # the assistant's last tokens without a gap
        for begin, stop in spans:
            if begin < stop:
                first = first if begin <= last else begin
                last = self._end_of_turn(ids, stop)
                labels[begin:last] = ids[begin:last]
        added = [end] if last and sequence.is_answer and end not in ids[first:last] else []
        return ids + added, labels + added

    def _end_of_turn(self, ids: Sequence[int], stop: int) -> int:
        """Return where the assistant's tokens end, of which the last one is before `stop`: after the token that ends its turn, too.

        Between them may be white space, which the model has to write before it can stop.
        """
        end, place = self._end_id, stop
        while place < len(ids) and ids[place] != end and self._is_space(ids[place]):
            place += 1
        return place + 1 if place < len(ids) and ids[place] == end and ids[stop - 1] != end else stop

    def _is_space(self, token: int) -> bool:
        if token not in self._spaces:
            self._spaces[token] = str(self.tokenizer.decode([token])).isspace()
        return self._spaces[token]

    def prompt_and_answer(self, prompt: Turns, answer: Turns) -> tuple[str, str]:
        """Return the rendered prompt, as at inference, and what an answer adds to it; a ValueError if it changes the prompt."""
        turns = self.read([*prompt, *answer])
        before, whole = self._render(turns[: len(prompt)], prompt=True), self._render(turns)
        if not whole.startswith(before):
            raise ValueError("the chat template renders the prompt differently when the answer follows")
        return before, whole[len(before) :]

    def _sequences(self, conversations: Sequence[Turns]) -> Iterator[list[_Rendering]]:
        """Yield the rendering of each conversation as a whole, or those up to each of its answers."""
        framed = [*map(self._fill, conversations)]
        rest = [turns for turns, own in zip(conversations, framed, strict=True) if own is None]
        rendered = self._rendered(rest) if rest else iter(())
        for own in framed:
            yield next(rendered) if own is None else [own]

    def _fill(self, turns: Turns) -> _Rendering | None:
        """Return what the template makes of a conversation, if that is known without it."""
        frame = self._frame(turns) if self._is_verbatim else None
        found = frame and frame.render([turn["content"] for turn in turns])
        return _Rendering(*found, turns[-1]["role"] == "assistant") if found else None

    def _rendered(self, conversations: Sequence[Turns]) -> Iterator[list[_Rendering]]:
        texts = marked = self._apply(list(conversations), chat_template=self._marked)
        if self._marked and (self._captures or any(map(may_say_marks, chain.from_iterable(conversations)))):
            texts = self._apply(list(conversations))
        elif self._marked:
            texts = [MARKS.sub("", own) for own in marked]
        for turns, text, own in zip(conversations, texts, marked, strict=True):
            are_learned = all(map(is_learned, turns))
            if not self._learns_answers_only and not are_learned:
                raise ValueError(
                    "a message is marked as not to be learned, such as by `weight: 0`, which needs objective.completion_only to be true"
                )
            spans = self._spans(turns, text, own)
            if spans is None and not self._learns_answers_only:
                what = "the chat template drops some of what is said once more messages follow, such as thoughts"
                raise ValueError(f"{what}: set objective.completion_only to true, which learns each answer by itself")
            is_answer = turns[-1]["role"] == "assistant"
            yield self._answers(turns, text) if spans is None else [_Rendering(text, spans, is_answer)]

    def _keeps_answers(self, turns: Turns, marked: str) -> bool:
        """Whether a marked rendering says each answer as it is rendered before more turns follow, but for white space and its end."""

        def said(text: str) -> str:
            own = "".join(re.findall(f"{START}(.*?){STOP}", text, re.DOTALL))
            return re.sub(r"\s", "", own.replace(self._end, ""))

        earlier = [turns[: i + 1] for i, turn in enumerate(turns[:-1]) if turn["role"] == "assistant"]
        found = self._apply(earlier, chat_template=self._marked) if earlier else []
        return all(said(marked).startswith(said(text)) for text in found)

    def _answers(self, turns: Turns, text: str) -> list[_Rendering]:
        """Return the rendering up to each answer, of which only that has a loss; `text` is that of all turns."""
        found = []
        for i, turn in enumerate(turns):
            if turn["role"] != "assistant" or not is_learned(turn) or (i == 0 and not self._marked):
                continue
            before = "" if self._marked else self._render(turns[:i], prompt=True)
            after = text if i + 1 == len(turns) else self._render(turns[: i + 1])
            if not after.startswith(before):
                what = f"the chat template renders the messages before message {i} differently when it follows"
                raise ValueError(f"{what}, so its tokens cannot be found: mark them with {{% generation %}}")
            spans = [(len(before), len(after))]
            if self._marked:
                spans = marked_spans(after, self._apply(turns[: i + 1], chat_template=self._marked))
                spans = spans[self._apply(turns[:i], chat_template=self._marked).count(START) if i else 0 :]
            found.append(_Rendering(after, spans, is_answer=True))
        return found

    def _tokenize_spans(self, rendered: Sequence[_Rendering]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Yield the tokens of each conversation, and the spans of tokens that are inside of the assistant's text.

        No token crosses the start of a span, because none does at inference: there the prompt is tokenized alone.
        """
        texts, sizes = [sequence.text for sequence in rendered], self._token_bytes
        found = self._encode(texts, offsets=sizes is None)
        ids = [encoding.ids for encoding in found]
        places = [sorted({*chain.from_iterable(spans)}) for _, spans, _ in rendered]
        by_bytes = [None] * len(texts) if sizes is None else first_tokens_by_bytes(ids, texts, places, sizes)
        whole: list[tuple[list[int], list[tuple[int, int]]] | None] = []
        before_cut, cut = (
            list[str](),
            list[str](),
        )  # what is tokenized in pieces: all in one call, because each call takes as long as some texts
        for i, (text, spans, _) in enumerate(rendered):
            first = by_bytes[i]
            if first is None:
                (with_offsets,) = (found[i],) if sizes is None else self._encode([text], offsets=True)
                first = {place: first_token_at_character(with_offsets, place, len(text)) for place in places[i]}
                first = first if all(begins_at(with_offsets, first[place], place) for place in first) else {}
            if len(first) == len(places[i]):
                whole.append((ids[i], [(first[a], first[b]) for a, b in spans]))
            else:
                whole.append(None)
                parts = cut_at_spans(text, spans)
                cut += parts
                before_cut += ["", *accumulate(parts[:-1])]
        tokens = iter(tokenize_behind_characters(before_cut, cut, self.tokenizer) if cut else ())
        for (_, spans, _), own in zip(rendered, whole, strict=True):
            pieces = [] if own else [*islice(tokens, 2 * len(spans) + 1)]
            ends = list(accumulate(map(len, pieces)))
            yield own or ([*chain.from_iterable(pieces)], [*zip(ends[::2], ends[1::2], strict=False)])

    def _encode(self, texts: Sequence[str], *, offsets: bool) -> Sequence[Encoding]:
        if self._backend is None:
            return encode_texts(texts, self.tokenizer, offsets=offsets, add_special_tokens=False)
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        found: list[Encoding] = encode(list(texts), add_special_tokens=False)
        return found

    def _spans(self, turns: Turns, text: str, marked: str) -> list[tuple[int, int]] | None:
        """Return the spans of characters in a rendered conversation that are the assistant's; None if it is rendered differently up to one.

        Rendering a conversation up to each of its turns takes time that grows with the square of their number. So this is done once for
        each sequence of roles. A conversation that differs from its frame in nothing but the messages has its spans at the same places.
        """
        if frame := self._frame(turns):
            filled = frame.fill([turn["content"] for turn in turns])
            spans = find_marks(text, filled) if filled == marked or not self._marked else None
            if spans is not None:
                return spans
        return self._rendered_spans(turns, text, marked)

    def _rendered_spans(self, turns: Turns, text: str, marked: str) -> list[tuple[int, int]] | None:
        """Return what the template marks, or what each of the assistant's turns adds to the rendering of the turns before it."""
        if self._marked:
            spans = marked_spans(text, marked)
            return spans if self._keeps_answers(turns, marked) and all(map(is_learned, turns)) else None
        answers = self._answers(turns, text)
        is_whole = all(text.startswith(answer.text) for answer in answers)
        return [span for answer in answers for span in answer.spans] if is_whole else None

    def _frame(self, turns: Turns) -> Frame | None:
        """Return what the template writes around messages of these roles; None if that cannot be found."""
        roles = tuple(turn["role"] for turn in turns if turn.keys() == {"role", "content"})
        if len(roles) < len(turns):
            return None
        if roles not in self._frames:
            self._frames[roles] = find_frame(roles, self._mark, self._render if self._is_verbatim else None)
        return self._frames[roles]

    def _mark(self, turns: Turns) -> str | None:
        """Return the rendering of a conversation with marks of what is the assistant's; None if that cannot be found."""
        try:
            text = self._render(turns)
            marked = str(self._apply(turns, chat_template=self._marked)) if self._marked else text
            spans = self._rendered_spans(turns, text, marked)
        except ValueError:
            return None
        if spans is None or MARKS.search(text):
            return None
        return "".join(chain.from_iterable(zip(cut_at_spans(text, spans), cycle((START, STOP)), strict=False)))[:-1]

    def _render(self, turns: Turns, *, prompt: bool = False) -> str:
        return str(self._apply(turns, add_generation_prompt=prompt))

    def _apply(self, conversation: Any, **options: Any) -> Any:
        """Return the text of a conversation, or those of several."""
        if self._tools:
            options.setdefault("tools", self._tools)
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False, **options)
        except (TemplateError, KeyError, TypeError, AttributeError, SyntaxError) as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error


class ConversationOptions(Section):
    """Keys of the recipe's `objective` section."""

    system_column: str | None = None
    """The column with what the system says before the messages, where they do not begin with a message of it."""
    tools_column: str | None = None
    """The column with the tools that the assistant may call, as a list of definitions or JSON of it; the chat template writes them."""


ConversationOptionsT = TypeVar("ConversationOptionsT", bound=ConversationOptions)


class ConversationObjective(Objective[ConversationOptionsT]):
    """An objective whose rows may be conversations, which the tokenizer's chat template renders."""

    _conversations: ConversationTokenizer | None = None

    def row_check_settings(self) -> Any:
        return self._conversations and self._conversations.settings()

    def conversation_tokenizer(self, tokenizer: Tokenizer) -> ConversationTokenizer:
        """Return what tokenizes conversations by this tokenizer. It stays, for `reject_reason`."""
        if self._conversations is None or self._conversations.tokenizer is not tokenizer:
            self._conversations = ConversationTokenizer(tokenizer, learns_answers_only=self.learns_answers_only())
        return self._conversations

    def learns_answers_only(self) -> bool:
        """Whether nothing but the assistant's messages has a loss."""
        return True

    def columns_beside_messages(self) -> dict[str, ColumnKind]:
        """Return the columns with what the system says, and with tools."""
        o = self.options
        return dict.fromkeys((name for name in (o.system_column, o.tools_column) if name), "any")

    def content_beside_messages(self, row: Row) -> dict[str, Any]:
        """Return the content of these columns; what the system says is in the messages."""
        o = self.options
        found: dict[str, Any] = {o.system_column: None} if o.system_column else {}
        return found | ({o.tools_column: self.tools_of(row)} if o.tools_column else {})

    def tools_of(self, row: Row) -> list[dict[str, Any]]:
        """Return the tools that a row defines; ValueError if they cannot be read."""
        column = self.options.tools_column
        return read_tools(row[column]) if column else []

    def with_system(self, row: Row, turns: Turns) -> list[Mapping[str, Any]]:
        """Return messages behind what the system says in its own column; ValueError if the messages say something else of it."""
        column = self.options.system_column
        said = str(row[column] or "") if column else ""
        if not said.strip():
            return [*turns]
        if turns and turns[0]["role"] == "system":
            if turns[0]["content"].strip() != said.strip():
                raise ValueError(f"its first message, of the system, says something else than `{column}`")
            return [*turns]
        return [{"role": "system", "content": said}, *turns]

    def find_columns_without_messages(self, *, has_messages: bool, instead: str) -> Iterator[Problem]:
        """Yield the problems of columns that only messages have; `instead` says how a recipe has messages."""
        for option in ("system_column", "tools_column"):
            if getattr(self.options, option) and not has_messages:
                yield Problem(("objective", option), "has no effect without messages", f"remove it, or {instead}")

    def reader_arguments(self, row: Row) -> Mapping[str, Any]:
        tools = self.tools_of(row) if self.generates_as_released else []
        return {"tools": tools} if tools else {}

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        given = self.reader_input(row)
        if self.renders_conversations():
            given = self.conversation_tokenizer(tokenizer).read(given)
        generate_tokens_checking_prompt(ask, given, example, tokenizer)
        return {}
