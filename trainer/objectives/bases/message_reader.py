"""Messages as a chat template takes them: without what it writes, too, and calls of tools with arguments in the form that it asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final

from trainer.objectives.bases.messages import Turns, read_turns

_PLAIN_TURNS: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class MessageReader:
    """Reads messages for a chat template, which `render` fills: ValueError if it has no place for them."""

    def __init__(self, render: Callable[[Turns], str], template: str, *, begin: str | None, end: str) -> None:
        self._render, self._begin, self._end = render, begin, end
        self._knows_function_call = "function_call" in template

    def read(self, messages: Any) -> list[dict[str, Any]]:
        """Return messages as `read_turns` does, without the tokens of begin and end of text that the template writes, too.

        Arguments of tool calls become objects if they are JSON text, as OpenAI has them, and the template does not write that text as it is;
        they become text if it takes nothing else. A `function_call`, OpenAI's older form, is a call of a tool, unless the template reads it.
        """
        turns = read_turns(messages)
        for i, turn in enumerate(turns):
            if not self._knows_function_call:
                _bring_up_to_date(turn)
            content = turn["content"]
            if i == 0 and self._begin and content.startswith(self._begin) and self._written.startswith(self._begin):
                turn["content"] = content.removeprefix(self._begin)
            is_ended = turn["role"] == "assistant" and content.rstrip().endswith(self._end)
            if is_ended and self._written.rstrip().endswith(self._end):
                turn["content"] = content.rstrip().removesuffix(self._end)
            for key in ("tool_calls", "function_call"):
                if key in turn:
                    turn[key] = _change_arguments(turn[key], partial(self._in_its_form, i))
        return turns

    @cached_property
    def _written(self) -> str:
        """A small conversation; empty if the template refuses it."""
        with suppress(ValueError):
            return self._render(_PLAIN_TURNS)
        return ""

    def _in_its_form(self, i: int, arguments: Any) -> Any:
        """Return the arguments of a call in message `i` in a form that the template takes, if there is one."""
        if not isinstance(arguments, str):
            return arguments if self._takes_objects or not self._writes_text else _as_text(arguments)
        if self._writes_text or not self._takes_objects:
            return arguments
        try:
            return _as_object(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"message {i} calls a tool with arguments that are no JSON of an object: {error}"
            ) from error

    @cached_property
    def _writes_text(self) -> bool:
        """Whether the template writes arguments that are JSON text as they are."""
        text = '{"zq": true}'
        return text in self._written_call(text)

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the template writes arguments that are an object, and not as Python would print it."""
        return bool(written := self._written_call({"zq": True})) and "{'zq': True}" not in written

    def _written_call(self, arguments: Any) -> str:
        """A small conversation with a call; empty if the template refuses it."""
        function = {"name": "c", "arguments": arguments}
        call = {"id": "abcdefghi", "type": "function", "function": function, **function}
        asked, answer = _PLAIN_TURNS
        with suppress(ValueError):
            return self._render([asked, {**answer, "content": "", "tool_calls": [call]}])
        return ""


def text_of_calls(turn: Mapping[str, Any]) -> str:
    """Return the calls of a message as JSON, the same for arguments that are objects and for JSON of them; empty without calls."""

    def plain(arguments: Any) -> Any:
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


def _change_arguments(call: Any, change: Callable[[Any], Any]) -> Any:
    """Return a call, or a list of calls, with changed arguments."""
    if isinstance(call, list):
        return [_change_arguments(own, change) for own in call]
    changes = {"function": lambda own: _change_arguments(own, change), "arguments": change}
    return {k: changes[k](v) if k in changes else v for k, v in call.items()} if isinstance(call, Mapping) else call


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
