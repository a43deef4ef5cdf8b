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
_THINK = re.compile(r"(</?think>|\[/?THINK\]|<\|channel>thought|<channel\|>)")
"""Around thoughts, as Qwen and DeepSeek, Mistral, and Gemma write them."""
_END_OF_THOUGHTS = ("</think>", "[/THINK]", "<channel|>")
_WRAPPED = re.compile(r"(\s*<(\w+)>\s*)(.*)(\s*</\2>\s*)", re.DOTALL)
_MARK = re.compile(r"zq\d+qz")
"""Of letters and digits, which no template escapes."""


def has_thoughts(turn: Mapping[str, Any]) -> bool:
    """Whether what a message says has thoughts in it, which some templates drop."""
    return any(end in turn["content"] for end in _END_OF_THOUGHTS)


def describe_unwritten(
    turns: Turns, render: Callable[[Turns], str], *, learned_from: int = 0, learns_all: bool = False
) -> str | None:
    """Return what of a conversation is not in its rendering, or None.

    It is found by rendering marks in place of contents, of names and arguments of tool calls, and of thoughts. None, too, if marks cannot
    be rendered. Unless a model `learns_all`, what follows the last answer that has a loss is not asked for, nor are the thoughts of other
    answers, such as those before message `learned_from`.
    """
    answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    learned = answers if learns_all else [i for i in answers if i >= learned_from and is_learned(turns[i])]
    if not learned:
        return None
    end, marks = len(turns) if learns_all else learned[-1] + 1, _Marks()
    marked = [_mark_turn(i, turn, marks, is_learned=i in learned) for i, turn in enumerate(turns[:end])]
    try:
        written = {*_MARK.findall(render(marked).lower())}
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


def _mark_turn(i: int, turn: Mapping[str, Any], marks: _Marks, *, is_learned: bool) -> dict[str, Any]:
    marked = {**turn, "content": _mark_content(i, turn, marks, is_learned=is_learned)}
    if is_learned:
        pieces = {piece.strip() for piece in _THINK.split(turn["content"])}  # some people have thoughts in both places
        thoughts = {key: own.strip() for key in _THOUGHTS if isinstance(own := turn.get(key), str)}
        own_marks = dict[str, str]()
        for key, own in thoughts.items():
            if own and (own not in pieces or not has_thoughts(turn)):
                marked[key] = own_marks.setdefault(own, "") or marks.add(f"the {key} of message {i}")
                own_marks[own] = marked[key]
    for key in ("tool_calls", "function_call"):
        if key in turn and (key == "tool_calls" or not turn.get("tool_calls")):
            marked[key] = _mark_calls(i, turn[key], marks)
    return marked


def _mark_content(i: int, turn: Mapping[str, Any], marks: _Marks, *, is_learned: bool) -> str:
    """Return a content with marks in place of texts, between the tags that templates look for."""
    says = f"what message {i}, of the {turn['role']}, says"
    if turn["role"] != "assistant":
        found = _WRAPPED.fullmatch(turn["content"])
        begin, _, text, end = found.groups() if found else ("", "", turn["content"], "")
        return f"{begin}{marks.add(says)}{end}" if text.strip() else turn["content"]
    pieces = _THINK.split(turn["content"])
    for place in range(0, len(pieces), 2):
        is_last, text = place + 1 == len(pieces), pieces[place].strip()
        if text and (is_learned or is_last):
            is_thought = not is_last and pieces[place + 1] in _END_OF_THOUGHTS
            mark = marks.add(f"the thoughts of message {i}" if is_thought else says)
            pieces[place] = pieces[place].replace(text, mark)
    return "".join(pieces)


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
    for key in ("arguments", "parameters", "input"):
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
