"""Messages as a chat template takes them: without what it writes, too, and calls of tools with arguments in the form that it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from typing import Any, Final, Literal

from trainer.objectives.bases.conversations.messages import Turns, read_turns

_PLAIN_TURNS: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
_PLAIN_KEYS: Final = 2
_SYSTEM: Final = ({"role": "system", "content": "c"},)
_FUNCTION_CALL: Final = re.compile(r"\.function_call\b|(['\"])function_call\1")
_PRINTED: Final = re.compile(r"('|&#39;)zq\1")
"""A key of an object as Python prints it."""


class MessageReader:
    """Reads messages for a chat template, which `render` fills: ValueError if it has no place for them."""

    def __init__(self, render: Callable[[Turns], str], template: str, *, begin: str | None, end: str) -> None:
        self._render, self._begin, self._end = render, begin, end
        self._knows_function_call = bool(_FUNCTION_CALL.search(template))
        self._forms: dict[Any, Literal["text", "object", "both"]] = {}

    def read(self, messages: Any) -> list[dict[str, Any]]:
        """Return messages as `read_turns` does, without the tokens of begin and end of text that the template writes, too.

        Arguments of tool calls become objects if they are JSON text, as OpenAI has them, and the template writes only objects right; they
        become text if it takes nothing else. A `function_call`, OpenAI's older form, is a call of a tool, unless the template reads it.
        """
        turns = read_turns(messages)
        for i, turn in enumerate(turns):
            if not self._knows_function_call and (len(turn) > _PLAIN_KEYS or turn["role"] == "function"):
                _bring_up_to_date(turn)
            self._remove_ends_of_text(i, turn)
            for key in ("tool_calls", "function_call") if len(turn) > _PLAIN_KEYS else ():
                if key in turn:
                    turn[key] = _change_arguments(turn[key], partial(self._in_its_form, i))
        return turns

    def _remove_ends_of_text(self, i: int, turn: dict[str, Any]) -> None:
        """Remove the token of begin of text from the first message, and that of its end from an answer, if the template writes them, too."""
        content = turn["content"]
        if i == 0 and self._begin and content.startswith(self._begin) and self._written.startswith(self._begin):
            turn["content"] = content.removeprefix(self._begin)
        is_ended = turn["role"] == "assistant" and content.rstrip().endswith(self._end)
        if is_ended and self._written.rstrip().endswith(self._end):
            turn["content"] = content.rstrip().removesuffix(self._end)

    @cached_property
    def _written(self) -> str:
        """A small conversation; empty if the template refuses it."""
        with suppress(ValueError):
            return self._render(_PLAIN_TURNS)
        return ""

    def _in_its_form(self, i: int, name: Any, arguments: Any) -> Any:
        """Return the arguments of a call in message `i` in a form that the template takes, if there is one."""
        form = self._form_of_calls(name)
        if not isinstance(arguments, str):
            return _as_text(arguments) if form == "text" else arguments
        if form != "object":
            return arguments
        try:
            return _as_object(arguments)
        except (ValueError, RecursionError) as error:
            what = f"message {i} calls a tool with arguments that are no JSON of an object"
            raise ValueError(f"{what}: {error}") from error

    def _form_of_calls(self, name: Any) -> Literal["text", "object", "both"]:
        """Return which arguments of a tool the template writes: JSON text as it is, objects not as Python prints them, or both."""
        if name not in self._forms:
            text = '{"zq": true}'
            of_text, of_object = self._written_call(name, text), self._written_call(name, {"zq": True})
            needs_text = of_text and not of_object
            needs_object = of_object and text not in of_text and not _PRINTED.search(of_object)
            self._forms[name] = "text" if needs_text else "object" if needs_object else "both"
        return self._forms[name]

    def _written_call(self, name: Any, arguments: Any) -> str:
        """A small conversation with a call; empty if the template refuses it in all forms."""
        function = {"name": name, "arguments": arguments}
        asked, answer = _PLAIN_TURNS
        for before, said, number in product(((), _SYSTEM), ("", "b"), ("abcdefghi", "call_a")):
            call = {"id": number, "type": "function", "function": function, **function}
            with suppress(ValueError):
                return self._render([*before, asked, {**answer, "content": said, "tool_calls": [call]}])
        return ""


def text_of_calls(turn: Mapping[str, Any]) -> str:
    """Return the calls of a message as JSON, the same for arguments that are objects and for JSON of them; empty without calls."""

    def plain(_: Any, arguments: Any) -> Any:
        with suppress(ValueError, RecursionError):
            return _as_object(arguments) if isinstance(arguments, str) else arguments
        return arguments

    calls = _change_arguments(turn.get("tool_calls"), plain)
    return "" if calls is None else json.dumps(calls, ensure_ascii=False)


def _bring_up_to_date(turn: dict[str, Any]) -> None:
    """Change a message of OpenAI's older form, of calls of functions, to the form of tools."""
    if (call := turn.pop("function_call", None)) and not turn.get("tool_calls"):
        turn["tool_calls"] = [{"type": "function", "function": call}]
    if turn["role"] == "function":
        turn["role"] = "tool"


def _change_arguments(call: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a call, or a list of calls, with what `change` makes of a tool's name and arguments."""
    if isinstance(call, list):
        return [_change_arguments(own, change) for own in call]
    if not isinstance(call, Mapping):
        return call
    changed = {"function": _change_arguments(call["function"], change)} if "function" in call else {}
    if "arguments" in call:
        changed["arguments"] = change(call.get("name"), call["arguments"])
    return {**call, **changed}


def _as_object(arguments: str) -> dict[str, Any]:
    """Return the object that JSON text says, an empty one for no text; ValueError if it says none, or what JSON could not say again."""
    found = json.loads(arguments or "{}", object_pairs_hook=_unique_keys)
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # 1e400 and half of a surrogate pair are none
    if not isinstance(found, dict):
        raise ValueError(f"{arguments:.60} is none")  # noqa: TRY004
    return found


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _as_text(arguments: Any) -> Any:
    with suppress(ValueError, TypeError, RecursionError):
        return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments
    return arguments
