"""What columns are usually called, by the flags of `evergreen new`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RELEVANCE: Final = ("relevance", "relevant")
"""Usual names of a column that says how relevant a document is to a query."""
CONTEXT: Final = ("input", "context")
"""Usual names of columns that belong to a prompt."""
SYSTEM: Final = ("system", "system_prompt")
"""Usual names of a column that says to the model what it is, before all prompts or some."""
MEANT_FOR_PROMPTS: Final = (*CONTEXT, *SYSTEM, "history", "tools", "functions")
"""Usual names of columns that a model reads before it answers, whatever they hold."""
LISTED: Final = dict.fromkeys(("pos", "positives", "positive"), "positive")
"""Usual names of a column with a list of texts that belong to a query, and the name for one of them."""
USUAL_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text", "sentence", "content", "body", "message", "question", "review", "utterance", "document"),
    "text-pair": ("text_pair", "hypothesis", "passage"),
    "label": ("label", "labels", "category", "class", "intent", "topic", "sentiment", "target", "tag", "type"),
    "labels": ("labels", "cats", "tags", "topics", "categories", "genres", "emotions", "intents", "label"),
    "score": ("score", "similarity", "relatedness", "rating", "stars", "grade", "label", "target", *RELEVANCE),
    "spans": ("spans", "entities"),
    "prompt": (
        *(
            "prompt",
            "question",
            "instruction",
            "input",
            "query",
            "source",
            "article",
            "document",
            "dialogue",
            "problem",
            "anchor",
        ),
    ),
    "completion": (
        *("completion", "answer", "response", "output", "target", "summary", "translation", "solution", "reply"),
        *("highlights", "positive"),
    ),
    "messages": ("messages", "conversation", "conversations", "chat"),
    "chosen": ("chosen", "preferred", "accepted", "better"),
    "rejected": ("rejected", "dispreferred", "worse", "negative", "negatives", "neg"),
    "question": ("question", "query", "sent2"),
    "context": ("context", "passage", "paragraph", "ctx", "article", "sent1", "premise", "goal"),
    "answers": ("answers",),
    "choices": ("choices", "endings", "options"),
    "liked": (),
}
"""Usual names of the columns that a flag of `new` names, most usual first."""
