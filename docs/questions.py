"""Made-up questions of bank customers with their intents, as CSV: `python docs/questions.py 600 > data/questions.csv`.

The first rows are the same, however many there are. A question is drawn from parts, so a small model learns the intents in a minute.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterator

STARTS = ("Hi, ", "Hello! ", "Please help: ", "", "", "Excuse me, ", "Quick question: ")
ENDS = ("", " Thanks.", " I ordered it on day {n}.", " My customer number is {n}.", " This is urgent, case {n}.")
INTENTS = {
    "card_arrival": (
        "where is my new card?",
        "my card has not arrived yet",
        "how long does the delivery of a card take?",
    ),
    "card_lost": ("I lost my card", "somebody stole my card", "I cannot find my card any more, block it"),
    "change_pin": ("how do I change my PIN?", "I want another PIN", "where can I set a new PIN?"),
    "exchange_rate": ("what is your exchange rate?", "the rate for euros was wrong", "how do you convert currencies?"),
    "top_up_failed": ("my top-up failed", "why was the money I added sent back?", "adding money does not work"),
    "close_account": ("please close my account", "I want to leave your bank", "how can I delete my account?"),
}


def questions(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield texts with their intents; one in fifty has another customer's intent, as in real data."""
    chance = random.Random(seed)
    for number in range(count):
        intent = chance.choice(sorted(INTENTS))
        text = chance.choice(STARTS) + chance.choice(INTENTS[intent]) + chance.choice(ENDS).format(n=number)
        yield text, intent if number % 50 else chance.choice(sorted(INTENTS))


if __name__ == "__main__":
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["question", "intent"])
    writer.writerows(questions(int(sys.argv[1])))
