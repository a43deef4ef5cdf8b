"""What a conversation says and its chat template does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainer.objectives.bases.messages import Turns, is_learned

_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
"""Keys with what the assistant thought before it answered; a template reads one of them."""
_THOUGHTS_IN_CONTENT = re.compile(r"(\s*<think>)(.*?)(</think>\s*)(.*)", re.DOTALL)
_MARK = re.compile(r"zq\d+qz")
"""Of letters and digits, which no template escapes."""


def has_thoughts(turn: Mapping[str, Any]) -> bool:
    """Whether what a message says begins with thoughts, which some templates drop."""
    return "<think>" in turn["content"]


def describe_unwritten(turns: Turns, render: Callable[[Turns], str], *, prompt: int = 0) -> str | None:
    """Return what of a conversation is not in its rendering, or None.

    It is found by rendering marks in place of contents, of names and arguments of tool calls, and of thoughts. None, too, if marks cannot
    be rendered. What follows the last answer that has a loss is not asked for, nor are the thoughts of other answers, such as
    those among the first `prompt` messages.
    """
    learned = [i for i, turn in enumerate(turns) if turn["role"] == "assistant" and is_learned(turn)]
    marks, asked = _Marks(), {i for i in learned if i >= prompt}
    marked = (
        [_mark_turn(i, turn, marks, thoughts=i in asked) for i, turn in enumerate(turns[: max(asked) + 1])]
        if asked
        else []
    )
    try:
        written = {*_MARK.findall(render(marked).lower())} if marked else {*marks}
    except ValueError:
        return None
    lost = next((what for mark, what in marks.items() if mark not in written), None)
    return lost and f"the chat template does not write {lost}: remove it, or use a template that writes it"


class _Marks(dict[str, str]):
    """What each mark stands for."""

    def add(self, what: str) -> str:
        """Return a new mark."""
        self[mark := f"zq{len(self)}qz"] = what
        return mark


def _mark_turn(i: int, turn: Mapping[str, Any], marks: _Marks, *, thoughts: bool) -> dict[str, Any]:
    marked, content = dict(turn), turn["content"]
    inner = _THOUGHTS_IN_CONTENT.fullmatch(content) if thoughts else None
    if inner and inner[2].strip():
        before = f"{inner[1]}\n{marks.add(f'the thoughts of message {i}')}\n{inner[3]}"
        content = inner[4]
    else:
        before = ""
    if content.strip():
        content = marks.add(f"what message {i}, of the {turn['role']}, says")
    marked["content"] = before + content
    said = inner[2] if inner else ""  # some people have thoughts in both places
    others = [key for key in _THOUGHTS if isinstance(own := turn.get(key), str) and own.strip() not in said]
    if others and thoughts:
        marked |= dict.fromkeys(others, marks.add(f"the {others[0]} of message {i}"))
    for key in ("tool_calls", "function_call"):
        if key in turn and (key == "tool_calls" or not turn.get("tool_calls")):
            marked[key] = _mark_calls(i, turn[key], marks)
    return marked


def _mark_calls(i: int, call: Any, marks: _Marks) -> Any:
    """Return a call of a tool, or a list of calls, with marks in place of names and arguments."""
    if isinstance(call, list):
        return [_mark_calls(i, own, marks) for own in call]
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _mark_calls(i, function, marks)}
    marked, name = dict(call), call.get("name")
    if isinstance(name, str):
        marked["name"] = marks.add(f"the call of the tool {name!r:.60} in message {i}")
    for key in ("arguments", "parameters"):
        if given := call.get(key):
            marked[key] = _mark_arguments(given, f"in the call of the tool {name!r:.60} in message {i}", marks)
    return marked


def _mark_arguments(given: Any, where: str, marks: _Marks) -> Any:
    with suppress(ValueError, RecursionError):
        arguments = json.loads(given) if isinstance(given, str) else given
        if isinstance(arguments, Mapping):
            own = {key: marks.add(f"the argument {key!r:.60} {where}") for key in arguments}
            return json.dumps(own) if isinstance(given, str) else own
    mark = marks.add(f"the arguments {where}")
    return [mark] if isinstance(given, list) else mark
