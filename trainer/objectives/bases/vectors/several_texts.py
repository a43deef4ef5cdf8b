"""Rows of several texts, such as an anchor, its positive and its negatives, of which a column may hold a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainer.objectives.bases.labels.sets import why_labels_unusable
from trainer.objectives.bases.rows import Example, Row, hash_group_value
from trainer.objectives.bases.texts.tokenizing import Tokenizer, tokenize_texts_truncated

NO_TEXT: Final = -1
"""The number of a text that a row lacks: the loss leaves it out, and no query finds it."""


def texts_in(value: Any, most: int) -> list[str]:
    """Return the text that a column holds, or the first ones, `most`, of a list."""
    return [*map(str, value[:most])] if isinstance(value, list) else [str(value)]


def why_list_unusable(column: str, row: Row) -> str | None:
    """Return what is wrong with the list of texts without null that a row has in a column, which may be empty; None if nothing."""
    is_list = isinstance(row[column], list)
    return why_labels_unusable(column, row[column]) if is_list else f"its {column} is a record, and not a list of texts"


def number_texts(texts: Sequence[str], most: int) -> list[int]:
    """Return a number for each of up to `most` texts of a row, the same one for the same text, and `NO_TEXT` for those that it lacks."""
    return [hash_group_value(text.strip()) for text in texts] + [NO_TEXT] * (most - len(texts))


def token_names(most: int) -> list[str]:
    """Return the names of the tokens of up to `most` texts: `input_ids`, `positive_input_ids`, `negative0_input_ids` and so on."""
    return ["input_ids", "positive_input_ids", *(f"negative{i}_input_ids" for i in range(most - 2))][:most]


def in_order(example: Example) -> Example:
    """Return the example with its texts, and then their numbers, from the first one on.

    A file has its columns by name, so that `negative0`, `negative10` and `negative2` stand before `positive`.
    """
    most = sum(name.endswith("input_ids") for name in example)
    numbers = sum(name.startswith("text_") for name in example)
    return {name: example[name] for name in (*token_names(most), *(f"text_{i}" for i in range(numbers)))} | example


def tokenize_rows(
    every: Sequence[Sequence[str]], prompts: Sequence[str], tokenizer: Tokenizer, max_length: int
) -> list[tuple[Example, bool]]:
    """Return the tokens of the texts of each row, under `token_names`, and whether one is cut.

    `prompts` stand before them. Each row has as many texts as there are prompts: of one that it lacks, the first token of its second text.
    """
    by_place = []
    for i, prompt in enumerate(prompts):
        own = [prompt + texts[min(i, len(texts) - 1)] for texts in every]
        by_place.append(tokenize_texts_truncated(own, tokenizer, max_length))
    names, found = token_names(len(prompts)), []
    for texts, tokens in zip(every, zip(*by_place, strict=True), strict=True):
        ids = [own if i < len(texts) else tokens[1][0][:1] for i, (own, _) in enumerate(tokens)]
        found.append((dict(zip(names, ids, strict=True)), any(is_cut for _, is_cut in tokens)))
    return found
