"""What a conversation says and its chat template does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainer.objectives.bases.conversations.messages import Turns, is_learned

_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
"""Keys with what the assistant thought before it answered; a template reads one of them."""
_THINK = re.compile(r"(</?think>|\[/?THINK\]|<\|channel>thought|<channel\|>)")
"""Around thoughts, as Qwen and DeepSeek, Mistral, and Gemma write them."""
_END_OF_THOUGHTS = ("</think>", "[/THINK]", "<channel|>")
_WRAPPED = re.compile(r"(\s*<(\w+)>\s*)(.*)(\s*</\2>\s*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"zq\d+qz")
"""Stands for a text: of letters and digits, which no template escapes."""


def has_thoughts(turn: Mapping[str, Any]) -> bool:
    """Whether what a message says has thoughts in it, which some templates drop."""
    return any(end in turn["content"] for end in _END_OF_THOUGHTS)


def _learned_answers(turns: Turns, answers: list[int], learned_from: int) -> list[int]:
    return [i for i in answers if i >= learned_from and is_learned(turns[i])]


def describe_unwritten(
    turns: Turns, render: Callable[[Turns], str], *, learned_from: int = 0, learns_all: bool = False
) -> str | None:
    """Return what of a conversation is not in its rendering, or None.

    It is found by rendering placeholders in place of contents, of names and arguments of tool calls, and of thoughts. None, too, if
    placeholders cannot be rendered. Unless a model `learns_all`, what follows the last answer that has a loss is not asked for, nor are the thoughts of other
    answers, such as those before message `learned_from`.
    """
    answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    learned = answers if learns_all else _learned_answers(turns, answers, learned_from)
    if not learned:
        return None
    end, found = len(turns) if learns_all else learned[-1] + 1, _Placeholders()
    replaced = [_replace_texts(i, turn, found, has_loss=i in learned) for i, turn in enumerate(turns[:end])]
    try:
        written = {*_PLACEHOLDER.findall(render(replaced).lower())}
    except ValueError:
        return None
    lost = next((what for placeholder, what in found.items() if placeholder not in written), None)
    return lost and f"the chat template does not write {lost}: remove it, or use a template that writes it"


class _Placeholders(dict[str, str]):
    def add(self, what: str) -> str:
        self[placeholder := f"zq{len(self)}qz"] = what
        return placeholder


def _replace_texts(i: int, turn: Mapping[str, Any], found: _Placeholders, *, has_loss: bool) -> dict[str, Any]:
    replaced = {**turn, "content": _replace_content(i, turn, found, has_loss=has_loss)}
    if has_loss:
        replaced |= _replace_thoughts(i, turn, found)
    for key in ("tool_calls", "function_call"):
        if key in turn and (key == "tool_calls" or not turn.get("tool_calls")):
            replaced[key] = _replace_calls(i, turn[key], found)
    return replaced


def _replace_thoughts(i: int, turn: Mapping[str, Any], found: _Placeholders) -> dict[str, str]:
    """Return the keys with thoughts, one placeholder for equal ones; without those that the content has, too."""
    pieces = {piece.strip() for piece in _THINK.split(turn["content"])} if has_thoughts(turn) else set[str]()
    thoughts = {key: own.strip() for key in _THOUGHTS if isinstance(own := turn.get(key), str)}
    first_keys = {own: key for key, own in reversed(thoughts.items()) if own and own not in pieces}
    placeholders = {own: found.add(f"the {key} of message {i}") for own, key in first_keys.items()}
    return {key: placeholders[own] for key, own in thoughts.items() if own in placeholders}


def _replace_content(i: int, turn: Mapping[str, Any], found: _Placeholders, *, has_loss: bool) -> str:
    """Return a content with placeholders of its texts, between the tags that templates look for."""
    says = f"what message {i}, of the {turn['role']}, says"
    if turn["role"] != "assistant":
        wrapped = _WRAPPED.fullmatch(turn["content"])
        begin, _, text, end = wrapped.groups() if wrapped else ("", "", turn["content"], "")
        return f"{begin}{found.add(says)}{end}" if text.strip() else turn["content"]
    pieces = _THINK.split(turn["content"])
    for place in range(0, len(pieces), 2):
        is_last, text = place + 1 == len(pieces), pieces[place].strip()
        if text and (has_loss or is_last):
            is_thought = not is_last and pieces[place + 1] in _END_OF_THOUGHTS
            placeholder = found.add(f"the thoughts of message {i}" if is_thought else says)
            pieces[place] = pieces[place].replace(text, placeholder)
    return "".join(pieces)


def _replace_calls(i: int, call: Any, found: _Placeholders) -> Any:
    """Return a call of a tool, or a list of calls, with placeholders of names and arguments."""
    if isinstance(call, list):
        return [_replace_calls(i, own, found) for own in call]
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _replace_calls(i, function, found)}
    replaced, name = dict(call), call.get("name")
    if isinstance(name, str):
        replaced["name"] = found.add(f"the call of the tool {name!r:.60} in message {i}")
    for key in ("arguments", "parameters", "input"):
        if given := call.get(key):
            replaced[key] = _replace_arguments(given, f"in the call of the tool {name!r:.60} in message {i}", found)
    return replaced


def _replace_arguments(given: Any, where: str, found: _Placeholders) -> Any:
    with suppress(ValueError, RecursionError):
        arguments = json.loads(given) if isinstance(given, str) else given
        if isinstance(arguments, Mapping):
            own = {key: found.add(f"the argument {key!r:.60} {where}") for key in arguments}
            return json.dumps(own) if isinstance(given, str) else own
    placeholder = found.add(f"the arguments {where}")
    return [placeholder] if isinstance(given, list) else placeholder
