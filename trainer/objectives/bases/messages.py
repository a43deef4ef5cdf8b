"""Messages of conversations, in the forms that people have them.

They are {role, content}, with further keys such as tool_calls, or {from, value} as ShareGPT has them. A content is a text, or a list of
parts that are texts; beside tool calls it may be null. As OpenAI has it, an assistant's message with `weight: 0` is not learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]
"""A conversation, as `read_turns` returns it."""
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}


def looks_like_conversation(value: Any) -> bool:
    """Whether a value is a list of messages in one of the forms that are read, whatever they say."""
    forms = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"}, {"role", "function_call"})
    return isinstance(value, list) and all(
        isinstance(turn, Mapping) and any(form <= turn.keys() for form in forms) for turn in value
    )


def read_turns(messages: Any) -> list[dict[str, Any]]:
    """Return messages as {role, content} with text in both, and what else they have; keys that are null are left out.

    Raises:
        ValueError: a message cannot be read; the error says which.
    """
    return [
        message.copy() if _is_plain(message) else _read_turn(i, _without_nulls(message))
        for i, message in enumerate(messages)
    ]


def _is_plain(message: Any) -> bool:
    """Whether a message is {role, content} with text in both, as most are."""
    if type(message) is not dict or len(message) != 2:
        return False
    return type(message.get("role")) is str and type(message.get("content")) is str


def _read_turn(i: int, turn: Any) -> dict[str, Any]:
    if isinstance(turn, dict) and "role" not in turn and "from" in turn:
        rest = {key: value for key, value in turn.items() if key not in {"from", "value"}}
        kind = str(turn["from"]).lower()
        if (role := _SHAREGPT_ROLES.get(kind)) is None:
            raise ValueError(f"message {i} is from {turn['from']!r:.40}, and not from {', '.join(_SHAREGPT_ROLES)}")
        turn = {"role": role, "content": turn.get("value"), **rest}
        if kind == "function_call":
            turn |= {"content": "", "tool_calls": _sharegpt_calls(i, turn["content"])}
    if isinstance(turn, dict) and isinstance(parts := turn.get("content"), list):
        texts = [text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str)]
        if len(texts) < len(parts):
            raise ValueError(f"message {i} has a part that is no text, and only text is read")
        turn = {**turn, "content": "".join(texts)}
    if isinstance(turn, dict) and calls_tools(turn) and turn.get("content") is None:
        turn = {**turn, "content": ""}
    if not isinstance(turn, dict) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
        raise ValueError(f"message {i} is not {{role, content}} with text in both")
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list) or not all(map(_has_name, calls)):
        raise ValueError(f"message {i} has tool_calls that are no list of {{name, arguments}}")
    if not _has_name(turn.get("function_call", {"name": ""})):
        raise ValueError(f"message {i} has a function_call that is no {{name, arguments}}")
    return turn


def _has_name(call: Any) -> bool:
    """Whether a call of a tool, or of a function, says which."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _sharegpt_calls(i: int, said: Any) -> list[dict[str, Any]]:
    """Return the calls that a message from `function_call` says as JSON of {name, arguments}, or of a list of them."""
    try:
        found = json.loads(said) if isinstance(said, str) else said
    except (ValueError, RecursionError) as error:
        raise ValueError(f"message {i} is from function_call, and no JSON of a call: {error}") from error
    calls = found if isinstance(found, list) else [found]
    if not all(map(_has_name, calls)):
        raise ValueError(f"message {i} is from function_call, and says no {{name, arguments}}")
    return [call if "function" in call else {"type": "function", "function": call} for call in calls]


def calls_tools(turn: Mapping[str, Any]) -> bool:
    """Whether a message calls a tool, in OpenAI's form of today or of before."""
    return bool(turn.get("tool_calls") or turn.get("function_call"))


def _without_nulls(value: Any) -> Any:
    """Return a value without the keys that are null, but for the arguments of a tool call, which are as somebody wrote them."""
    if isinstance(value, Mapping):
        return {
            key: own if key == "arguments" else _without_nulls(own) for key, own in value.items() if own is not None
        }
    return [_without_nulls(own) for own in value] if isinstance(value, list) else value


def why_conversation_unusable(messages: Any) -> str | None:
    """Return why nothing can be learned from a conversation, or None."""
    try:
        turns = read_turns(messages)
    except ValueError as error:
        return str(error)
    if not (answers := [turn for turn in turns if turn["role"] == "assistant"]):
        return "no message is the assistant's, so there is nothing to learn"
    if not any(map(is_learned, answers)):
        return "all messages of the assistant have `weight: 0`, so there is nothing to learn"
    return describe_empty_answer(turns)


def is_learned(turn: Mapping[str, Any]) -> bool:
    """Whether a message, if it is the assistant's, has a loss."""
    return bool(turn.get("weight", 1))


def describe_empty_answer(turns: Turns) -> str | None:
    """Return which answer of a conversation says nothing, or None."""
    said = {i: t["content"].strip() or calls_tools(t) for i, t in enumerate(turns) if t["role"] == "assistant"}
    return next((f"message {i}, of the assistant, is empty" for i, answer in said.items() if not answer), None)
