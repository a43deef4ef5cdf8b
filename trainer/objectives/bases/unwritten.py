"""What a conversation says and its chat template does not write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainer.objectives.bases.messages import Turns, is_learned

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys with what the assistant thought before it answered; a template reads one of them."""


def describe_unwritten(turns: Turns, render: Callable[[Turns], str]) -> str | None:
    """Return what of a conversation is not in its rendering, or None.

    It is found by rendering marks in place of contents, of names and arguments of tool calls, and of thoughts. None, too, if marks cannot
    be rendered. What follows the last answer that has a loss is not asked for, nor are the thoughts of other answers.
    """
    last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant" and is_learned(turn)), default=-1)
    marks = _Marks()
    marked = [_mark_turn(i, turn, marks) for i, turn in enumerate(turns[: last + 1])]
    try:
        text = render(marked).lower() if marked else ""
    except ValueError:
        return None
    lost = next((what for mark, what in marks.items() if mark not in text), None)
    return lost and f"the chat template does not write {lost}: remove it, or use a template that writes it"


class _Marks(dict[str, str]):
    """What each mark stands for."""

    def add(self, what: str) -> str:
        """Return a new mark, of letters and digits, which no template escapes."""
        self[mark := f"zq{len(self)}qz"] = what
        return mark


def _mark_turn(i: int, turn: Mapping[str, Any], marks: _Marks) -> dict[str, Any]:
    marked = dict(turn)
    if turn["content"].strip():
        marked["content"] = marks.add(f"what message {i}, of the {turn['role']}, says")
    thoughts = [key for key in _THOUGHTS if isinstance(turn.get(key), str) and turn[key].strip()]
    if thoughts and turn["role"] == "assistant" and is_learned(turn):
        marked |= dict.fromkeys(thoughts, marks.add(f"the {thoughts[0]} of message {i}"))
    if isinstance(calls := turn.get("tool_calls"), list):
        marked["tool_calls"] = [_mark_call(i, call, marks) for call in calls]
    if "function_call" in turn:
        marked["function_call"] = _mark_call(i, turn["function_call"], marks)
    return marked


def _mark_call(i: int, call: Any, marks: _Marks) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _mark_call(i, function, marks)}
    marked, name, given = dict(call), call.get("name"), call.get("arguments")
    if isinstance(name, str):
        marked["name"] = marks.add(f"the call of the tool {name!r:.60} in message {i}")
    with suppress(ValueError, RecursionError):
        arguments = json.loads(given) if isinstance(given, str) else given
        if isinstance(arguments, Mapping):
            what = f"in the call of the tool {name!r:.60} in message {i}"
            own = {key: marks.add(f"the argument {key!r:.60} {what}") for key in arguments}
            marked["arguments"] = json.dumps(own) if isinstance(given, str) else own
    return marked
