"""What a chat template does with the contents of messages, found by one rendering in which nobody knows them.

The template writes an unknown content as it is, whatever it says. Where the template asks about it, as in `'</think>' in message.content`, it
gets the usual answer, and the answer becomes a condition. Contents that meet all conditions are rendered with the same text around
them, because the template decided everything without them. What else a template does with a content ends its trace.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Final, NamedTuple

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup

UNKNOWN: Final = re.compile("\ue000([0-9]+)\ue001")
"""Stands for the content of a message, by its number, in private characters that templates do not write."""
_MOVING_FILTERS = {"count", "default", "first", "last", "length", "list", "reverse", "selectattr", "string", "trim"}
"""They pass values on, or ask an unknown content as the template itself does."""
_TYPE_TESTS = dict.fromkeys(("defined", "iterable", "sequence", "string"), True) | dict.fromkeys(
    ("boolean", "false", "float", "integer", "mapping", "none", "number", "true", "undefined"), False
)
"""Tests with one answer for all texts."""
_METHODS = {"endswith", "lstrip", "rstrip", "startswith", "strip"}
"""A text that meets the conditions answers them with no, or with itself."""


class UntraceableTemplateError(ValueError):
    """A template does with an unknown content what no condition can say."""


class Condition(NamedTuple):
    """What a message must not be or have, for a trace to hold for its conversation."""

    message: int
    method: str
    """Of its content; of the time, for `strftime`."""
    argument: Any
    answer: Any
    """None for the content itself."""

    def is_met(self, contents: Sequence[str]) -> bool:
        """Whether the contents of a conversation's messages are as the trace supposes."""
        content = contents[self.message]
        asked: Any = datetime.now() if self.method == "strftime" else content
        return bool(getattr(asked, self.method)(self.argument) == (content if self.answer is None else self.answer))


class Rendering(NamedTuple):
    """A rendered conversation, or its beginning up to an answer."""

    text: str
    spans: list[tuple[int, int]]
    """Of characters that are the assistant's, and have a loss."""
    is_answer: bool
    """Whether it ends with the assistant's turn."""


class Frame(NamedTuple):
    """What a template writes around messages of some roles."""

    texts: list[str]
    """Before the first message, between them, and after the last one."""
    spans: list[tuple[tuple[int, int], tuple[int, int]]]
    """Begin and end of each span: how many messages are before it, and how many characters are behind the last of them."""
    is_answer: bool
    conditions: Sequence[Condition] | None
    """None if only a rendering shows whether a conversation has this frame."""

    @classmethod
    def around_unknown(cls, rendering: Rendering, conditions: Iterable[Condition] | None) -> Frame:
        """Return the frame of a rendering of unknown contents."""
        ends = [0, *(match.end() for match in UNKNOWN.finditer(rendering.text))]
        places = [[(i := bisect_right(ends, place) - 1, place - ends[i]) for place in span] for span in rendering.spans]
        known = None if conditions is None else [*conditions]
        return cls(UNKNOWN.split(rendering.text)[::2], [(a, b) for a, b in places], rendering.is_answer, known)

    def fill(self, contents: Sequence[str]) -> Rendering:
        """Return the rendering of messages with these contents."""
        pieces, ends, place = [self.texts[0]], [0], len(self.texts[0])
        for content, after in zip(contents, self.texts[1:], strict=True):
            ends.append(place + len(content))
            place = ends[-1] + len(after)
            pieces += content, after
        spans = [(ends[a] + begin, ends[b] + end) for (a, begin), (b, end) in self.spans]
        return Rendering("".join(pieces), spans, self.is_answer)


class TracedTokenizer:
    """Renders conversations as a tokenizer does, with the contents of their messages unknown, and collects the conditions."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.conditions: dict[Condition, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(
        self, chat: Any, *, tokenize: bool, chat_template: str | None = None, add_generation_prompt: bool = False
    ) -> Any:
        """Return the text of a conversation, or those of several; each content is as `UNKNOWN` has it.

        Raises:
            UntraceableTemplateError: the texts do not depend on the contents by conditions alone.
            TemplateError: the template refuses the conversation.
        """
        assert not tokenize
        if not isinstance(chat[0], Mapping):
            return [self.apply_chat_template(one, tokenize=False, chat_template=chat_template) for one in chat]
        turns = [{"role": turn["role"], "content": _Unknown(turn["content"], self.conditions)} for turn in chat]
        given = {"add_generation_prompt": add_generation_prompt, "tools": None, "documents": None}
        template = _compile(chat_template or self.tokenizer.get_chat_template())
        text = template.render(**self.special_tokens_map, **given, messages=turns, strftime_now=self._day)
        return str.__str__(text)

    def _day(self, form: str) -> str:
        found = datetime.now().strftime(form)
        self.conditions[Condition(0, "strftime", form, found)] = None
        return found


def _asks(method: str, *, answer: bool | None) -> Any:
    return lambda content, argument=None: content.suppose(method, argument, answer=answer)


class _Unknown(str):  # noqa: PLW1641 - nobody may hash it
    """A text with unknown contents in it. Only one that is nothing else can be asked."""

    conditions: dict[Condition, None]

    def __new__(cls, text: str, conditions: dict[Condition, None]) -> _Unknown:
        self = super().__new__(cls, text)
        self.conditions = conditions
        return self

    def suppose(self, method: str, argument: Any, *, answer: bool | None) -> Any:
        found = UNKNOWN.fullmatch(str.__str__(self))
        if not found or not _is_known(argument):
            raise UntraceableTemplateError(f"{method} of a content with other texts")
        self.conditions[Condition(int(found[1]), method, argument, answer)] = None
        return self if answer is None else answer

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return self != ""

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and bool(self.suppose("__eq__", other, answer=False)))

    def __ne__(self, other: object) -> bool:
        return not self.__eq__(other)

    __contains__, startswith, endswith = (
        _asks(name, answer=False) for name in ("__contains__", "startswith", "endswith")
    )
    strip, lstrip, rstrip = (_asks(name, answer=None) for name in ("strip", "lstrip", "rstrip"))

    def _refuse(self, *_: Any) -> Any:
        raise UntraceableTemplateError("a content is read")

    __format__ = __ge__ = __getitem__ = __gt__ = __hash__ = __iter__ = __le__ = __len__ = __lt__ = __repr__ = _refuse


class _Searched(str):
    """A text that is searched for another one."""

    def __contains__(self, part: Any) -> bool:
        if not _is_known(part):
            raise UntraceableTemplateError("a text is searched for a content")
        return super().__contains__(part)


def _is_known(value: Any) -> bool:
    """Whether no unknown content is in a value."""
    if type(value) in {list, tuple}:
        return all(map(_is_known, value))
    if type(value) is dict:
        return all(map(_is_known, value.values()))
    return type(value) in {str, int, float, bool, type(None)} or isinstance(value, Undefined)


def _join(pieces: Iterable[str]) -> str:
    pieces = list(map(str, pieces))
    unknown = next((piece for piece in pieces if isinstance(piece, _Unknown)), None)
    joined = "".join(pieces)
    return joined if unknown is None else _Unknown(joined, unknown.conditions)


def _guard(function: Any, *, answer: bool | None = None) -> Callable[..., Any]:
    """Return a filter or test that refuses unknown contents, or has this answer for them."""

    @wraps(function)  # and its marks, by which Jinja knows what it passes
    def guarded(*values: Any, **options: Any) -> Any:
        if answer is not None and isinstance(values[0], _Unknown):
            return answer
        if answer is None and not _is_known([values, options]):
            raise UntraceableTemplateError(function.__name__)
        found = function(*values, **options)
        if isinstance(found, Markup):  # it compares itself with a content, and escapes what is added to it
            raise UntraceableTemplateError(function.__name__)
        return found

    return guarded


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as transformers uses it for chat templates, but no operation reads an unknown content without its knowledge."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    concat = staticmethod(_join)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters = {name: own if name in _MOVING_FILTERS else _guard(own) for name, own in self.filters.items()}
        self.tests = {name: _guard(own, answer=_TYPE_TESTS.get(name)) for name, own in self.tests.items()}
        self.filters["searched"] = lambda value: _Searched(value) if type(value) is str else value
        self.globals |= {"namespace": Namespace, "dict": dict, "generation": _generation, "raise_exception": _raise}

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, _Unknown) and attribute not in _METHODS:
            raise UntraceableTemplateError(attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, function: Any, /, *values: Any, **options: Any) -> Any:
        moves = isinstance(function, Macro) or any(function is one for one in (Namespace, dict, _generation))
        given = [values, {name: own for name, own in options.items() if name not in {"_loop_vars", "_block_vars"}}]
        if not moves and not isinstance(getattr(function, "__self__", None), dict) and not _is_known(given):
            raise UntraceableTemplateError("a content is an argument")
        return super().call(context, function, *values, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return _join((left, right))
        if not (operator == "+" and isinstance(left, list)) and not _is_known([left, right]):
            raise UntraceableTemplateError(operator)
        return super().call_binop(context, operator, left, right)


def _generation(caller: Macro) -> Any:
    return caller()


def _raise(message: str) -> None:
    raise TemplateError(message)


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    source = re.sub(r"(\{%[-+]?\s*)generation(?=\s*[-+]?%\})", r"\1call generation()", source)
    source = re.sub(r"(\{%[-+]?\s*)endgeneration(?=\s*[-+]?%\})", r"\1endcall", source)
    environment = _Environment()
    tree = environment.parse(source)
    if tree.find(nodes.EvalContextModifier):
        raise UntraceableTemplateError("contents are escaped")
    for operand in tree.find_all(nodes.Operand):
        if operand.op in {"in", "notin"}:
            operand.expr = nodes.Filter(operand.expr, "searched", [], [], None, None)
    template = Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    template.root_render_func.__globals__["str_join"] = _join  # of the operator ~
    return template
