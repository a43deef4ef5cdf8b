"""Messages of conversations, in the forms that people have them.

They are {role, content}, with further keys such as tool_calls, or {from, value} as ShareGPT has them. Roles may have ShareGPT's names
(`human`, `gpt`) in both forms. A content is a text, or a list of
parts that are texts; beside tool calls it may be null. An assistant's message with `weight: 0`, as OpenAI has it, is not learned, nor is one
with another of the `MARKS`. Pictures and sound are refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trainer.objectives.bases.conversations.pictures import describe_picture_keys, describe_picture_marks

Turns = Sequence[Mapping[str, Any]]
"""A conversation, as `read_turns` returns it."""
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}
_ROLES: Final = {**_SHAREGPT_ROLES, "developer": "developer", "function": "function", "function_call": "function_call"}
"""The role that a message has, by what it calls it in small letters; chat templates know no `human`."""
MARKS: Final = ("weight", "loss_weight", "loss", "train", "training", "trainable")
"""Keys that say whether a message of the assistant is learned: by 1 or true, 0 or false."""
_READ_KEYS: Final = frozenset(
    {
        *("role", "content", "from", "value", "name", "tool_calls", "tool_call_id", "function_call"),
        *("reasoning_content", "reasoning", "thinking", "tool_plan", *MARKS),
    }
)


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
    turns = [
        message.copy() if _is_plain(message) else _read_turn(i, _without_nulls(message))
        for i, message in enumerate(messages)
    ]
    for i, turn in enumerate(turns):
        if mark := describe_picture_marks(turn["content"]):
            raise ValueError(f"message {i} has {mark}")
    return turns


def _is_plain(message: Any) -> bool:
    """Whether a message is {role, content} with a usual role and a text, as most are."""
    if type(message) is not dict or len(message) != 2:
        return False
    return message.get("role") in ("user", "assistant", "system") and type(message.get("content")) is str


def _read_turn(i: int, turn: Any) -> dict[str, Any]:
    not_a_message = f"message {i} is not {{role, content}} with text in both"
    if not isinstance(turn, dict):
        raise ValueError(not_a_message)  # noqa: TRY004 - it is wrong in a row of data
    turn = _with_usual_role(i, turn)
    if found := describe_picture_keys(turn):
        raise ValueError(f"message {i} has {found}")
    if isinstance(turn.get("content"), list):
        turn = {**turn, "content": _text_of_parts(i, turn["content"])}
    if calls_tools(turn) and turn.get("content") is None:
        turn = {**turn, "content": ""}
    if not all(isinstance(turn.get(key), str) for key in ("role", "content")):
        raise ValueError(not_a_message)
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list) or not all(map(_has_name, calls)):
        raise ValueError(f"message {i} has tool_calls that are no list of {{name, arguments}}")
    if not _has_name(turn.get("function_call", {"name": ""})):
        raise ValueError(f"message {i} has a function_call that is no {{name, arguments}}")
    return _with_weight(i, turn) if any(mark in turn for mark in MARKS) else turn


def _with_usual_role(i: int, turn: dict[str, Any]) -> dict[str, Any]:
    """Return a message of ShareGPT, {from, value}, as {role, content}, and others with the usual name of their role."""
    if "role" in turn or "from" not in turn:
        named = turn.get("role")
        return {**turn, "role": _ROLES.get(named.lower(), named)} if isinstance(named, str) else turn
    rest = {key: value for key, value in turn.items() if key not in {"from", "value"}}
    kind = str(turn["from"]).lower()
    role = _SHAREGPT_ROLES.get(kind)
    if role is None:
        raise ValueError(f"message {i} is from {turn['from']!r:.40}, and not from {', '.join(_SHAREGPT_ROLES)}")
    message = {"role": role, "content": turn.get("value"), **rest}
    if kind == "function_call":
        message |= {"content": "", "tool_calls": _sharegpt_calls(i, message["content"])}
    return message


def _text_of_parts(i: int, parts: list[Any]) -> str:
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict)]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"message {i} has a part that is no text, and only text is read")
    return "".join(texts)


def _with_weight(i: int, turn: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose only mark is `weight`."""
    marks = {name: turn[name] for name in MARKS if name in turn}
    for name, value in marks.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise ValueError(f"message {i} has `{name}: {value!r:.40}`, and only 0 and 1, or false and true, are read")
    if len({bool(value) for value in marks.values()}) > 1:
        said = " and ".join(f"`{name}: {value}`" for name, value in marks.items())
        raise ValueError(f"message {i} has {said}, which contradict each other")
    rest = {name: value for name, value in turn.items() if name not in MARKS}
    return rest | ({"weight": marks.get("weight", 0)} if "weight" in marks or not all(marks.values()) else {})


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
        return "all messages of the assistant are marked as not to be learned, such as by `weight: 0`"
    return describe_empty_answer(turns)


def is_learned(turn: Mapping[str, Any]) -> bool:
    """Whether a message, if it is the assistant's, has a loss."""
    return bool(turn.get("weight", 1))


def count_unread_keys(conversations: Iterable[Any], template: str) -> Counter[str]:
    """Return the keys of messages that neither we nor a chat template read, each with the number of messages that have it."""
    found = Counter[str]()
    for messages in conversations:
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, Mapping):
                found.update(str(key) for key, value in message.items() if value is not None and key not in _READ_KEYS)
    return Counter({key: count for key, count in found.items() if key not in template})


def describe_empty_answer(turns: Turns) -> str | None:
    """Return which answer of a conversation says nothing, or None."""
    said = {i: t["content"].strip() or calls_tools(t) for i, t in enumerate(turns) if t["role"] == "assistant"}
    return next((f"message {i}, of the assistant, is empty" for i, answer in said.items() if not answer), None)
