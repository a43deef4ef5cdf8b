"""Data sets for tests: public ones where a person has them, and made ones of the same form, which are always there.

EVERGREEN_SAMPLE_DATA names the folder with the public ones; CONTRIBUTING.md says which they are. A test takes its cases from
`cases`, so that it runs on the made rows everywhere and on the public rows too where they are.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

VARIABLE = "EVERGREEN_SAMPLE_DATA"
Kind: TypeAlias = Literal["made", "public"]
_PUBLIC = Path(named).resolve() if (named := os.environ.get(VARIABLE)) else None
if _PUBLIC is not None and not _PUBLIC.is_dir():
    raise NotADirectoryError(f"{VARIABLE} names {_PUBLIC}, which is no folder")
needs_public_data = pytest.mark.skipif(_PUBLIC is None, reason=f"{VARIABLE} names no folder")


def cases(*names: str, slow: Iterable[str] = ()) -> list[Any]:
    """Parameters `(name, kind)` of a test: each data set as made rows, then as public ones; `slow` names public ones."""
    made = [pytest.param(name, "made", id=f"{name}-made") for name in names]
    marks = {name: [needs_public_data, pytest.mark.slow] if name in slow else [needs_public_data] for name in names}
    return made + [pytest.param(name, "public", id=f"{name}-public", marks=marks[name]) for name in names]


def public_folder(name: str) -> Path:
    """Return a folder of the public data."""
    assert _PUBLIC is not None
    return _PUBLIC / name


def data_set(name: str, kind: Kind, folder: Path) -> Path:
    """Return the folder of a data set; a made one is written below `folder`."""
    if kind == "public":
        return public_folder(name)
    (folder / name).mkdir(parents=True)
    _WRITERS[name](folder / name)
    return folder / name


INTENTS = (
    *("activate_my_card", "age_limit", "automatic_top_up", "card_swallowed"),
    *("cancel_transfer", "change_pin", "exchange_rate", "terminate_account"),
    *("apple_pay_or_google_pay", "atm_support", "edit_personal_details", "passcode_forgotten"),
    *("beneficiary_not_allowed", "card_about_to_expire", "country_support", "verify_source_of_funds"),
    *("lost_or_stolen_phone", "order_physical_card", "receiving_money", "visa_or_mastercard"),
    *("contactless_not_working", "request_refund", "compromised_card", "transaction_charged_twice"),
)
"""Some of the intents of Banking77, which the made rows have."""
_WORDS = (
    *("account", "address", "amount", "app", "bank", "blocked", "branch", "card", "cash", "charge", "code", "country"),
    *("credit", "currency", "date", "debit", "delay", "device", "email", "error", "euro", "fee", "form", "identity"),
    *(
        "letter",
        "limit",
        "login",
        "machine",
        "message",
        "mobile",
        "money",
        "month",
        "name",
        "number",
        "order",
        "partner",
    ),
    *(
        "password",
        "payment",
        "phone",
        "pound",
        "proof",
        "reader",
        "receipt",
        "salary",
        "shop",
        "street",
        "terminal",
        "week",
    ),
)
_FILLERS = (
    "please",
    "hello",
    "today",
    "again",
    "still",
    "why",
    "how",
    "can",
    "you",
    "help",
    "me",
    "with",
    "my",
    "the",
    "is",
)


def _write_bank(folder: Path) -> None:
    """Write texts with intents: an intent has some words of its own, each shared with others, among words that say nothing."""
    choose = random.Random(77)
    own = {intent: choose.sample(_WORDS, 8) for intent in INTENTS}
    seen = set()
    for split, each in (("train", 200), ("test", 40)):
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("text", "category"))
            for intent in INTENTS:
                for _ in range(each):
                    while (text := _sentence(choose, own[intent])) in seen:
                        pass
                    seen.add(text)
                    table.writerow((text, intent))


def _sentence(choose: random.Random, words: list[str]) -> str:
    """A text with three of these words and four that say nothing."""
    said = choose.sample(words, 3) + choose.sample(_FILLERS, 4)
    choose.shuffle(said)
    return " ".join(said)


def _write_bookings(folder: Path) -> None:
    """Write sentences of guests, with the characters that say how many come."""
    for split, rows in (("train", 120), ("test", 40)):
        texts = [f"A table for {2 + i % 9} people on day {i}" for i in range(rows)]
        spans = [{"label": "people", "start": 12, "end": 20}]
        _write_json(folder / f"{split}.jsonl", ({"text": text, "spans": spans} for text in texts))


def _write_feelings(folder: Path) -> None:
    """Write comments with the feelings that they name, of which some have none and others several."""
    choose, feelings = random.Random(28), {"joy": "glad", "fear": "afraid", "anger": "furious", "love": "fond"}
    for split, rows in (("train", 300), ("validation", 120), ("test", 120)):
        own = [[name for name in feelings if choose.random() < 0.35] for _ in range(rows)]
        said = [" and ".join([*map(feelings.__getitem__, names)] or ["here"]) for names in own]
        texts = (f"I am {words} on day {i}" for i, words in enumerate(said))
        found = ({"text": text, "labels": names} for text, names in zip(texts, own, strict=True))
        _write_json(folder / f"{split}.jsonl", found)


def _write_sums(folder: Path) -> None:
    """Write questions whose answers end in a number."""
    for split, rows in (("train", 120), ("test", 200)):
        _write_json(folder / f"{split}.jsonl", (_sum(i + (split == "test") * 1000) for i in range(rows)))


def _sum(i: int) -> dict[str, str]:
    question = f"Ann has {i} eggs and buys {i % 7 + 1} more. How many eggs does she have?"
    return {"question": question, "answer": f"She has {i} + {i % 7 + 1} eggs.\n#### {i + i % 7 + 1}"}


def _write_preferences(folder: Path) -> None:
    """Write questions with a right and a wrong answer."""
    rows = ((_sum(i), _sum(i + 1)) for i in range(120))
    _write_json(
        folder / "train.jsonl",
        ({"prompt": a["question"], "chosen": a["answer"], "rejected": b["answer"]} for a, b in rows),
    )


def _write_feedback(folder: Path) -> None:
    """Write questions with single answers, of which people liked the right ones."""
    rows = ((_sum(i), _sum(i + i % 2)) for i in range(120))
    liked = ({"prompt": a["question"], "completion": b["answer"], "liked": a["answer"] == b["answer"]} for a, b in rows)
    _write_json(folder / "train.jsonl", liked)


def _write_play(folder: Path) -> None:
    """Write the lines of a play, with an empty line after each speech."""
    speakers = ("First Citizen", "Second Citizen", "Messenger")
    speeches = (f"{speakers[i % 3]}:\nThis is speech {i}, and I say it well.\nThen I go.\n" for i in range(400))
    (folder / "input.txt").write_text("\n".join(speeches), encoding="utf-8")


def _write_json(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


_WRITERS: dict[str, Callable[[Path], None]] = {
    "banking77": _write_bank,
    "restaurant8k": _write_bookings,
    "goemotions": _write_feelings,
    "gsm8k": _write_sums,
    "gsm8k-preferences": _write_preferences,
    "gsm8k-feedback": _write_feedback,
    "tinyshakespeare": _write_play,
}
