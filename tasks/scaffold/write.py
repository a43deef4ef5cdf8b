"""The text of a recipe: every key that a person may want to change, each choice with its reason as a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from trainer.objectives.bases.advice import Choice

if TYPE_CHECKING:
    from tasks.scaffold.look import Sample
    from tasks.scaffold.model_facts import ModelFacts
    from tasks.scaffold.plan import Keys, Plan
    from tasks.scaffold.proposal import Proposal

_WIDTH: Final = 120
_PLAIN: Final = re.compile(r"(\.\.?/)*[A-Za-z/][\w./@+-]*", re.ASCII)
_RESERVED: Final = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def recipe_text(name: str, proposal: Proposal, sample: Sample, facts: ModelFacts | None, plan: Plan) -> str:
    """Return the recipe as YAML; the same arguments give the same text."""
    model = f"{facts.model_type} of {facts.size} parameters" if facts else "a small model from random weights"
    counts = ", ".join(f"{sample.estimated(split):,} {split}" for split in sample.rows)
    of = "" if sample.is_whole else f", of which {len(sample.train):,} training rows were looked at"
    notes = [f"#   - {note}" for note in plan.quality.notes()]
    head = [
        f"# {name}: learn {proposal.advice.meaning}, with {model}. Written by `evergreen new`; every value may be changed.",
        "#",
        f"#   evergreen check {name}      find mistakes in this recipe, in seconds",
        f"#   evergreen run {name}        run every stage that is out of date, and publish the model",
        "#",
        f"# The rows: {counts}{of}.{' What is in them:' if notes else ''}",
        *notes,
    ]
    texts = (head, *(_lines({key: section}) for key, section in plan.sections.items()))
    return "\n\n".join("\n".join(map(to_comment_line, lines)) for lines in texts) + "\n"


def _lines(keys: Keys, indent: str = "") -> Iterator[str]:
    """Yield keys with their values; a reason is behind its value, or above it where the line would be too long."""
    for key, value in keys.items():
        if key.startswith("#"):
            yield f"{indent}{key}"
        elif isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            choice = value if isinstance(value, Choice) else Choice(value)
            line = f"{indent}{key}: {scalar(choice.value)}"
            is_short = len(line) + len(choice.why) + 4 <= _WIDTH
            if choice.why and not is_short:
                yield f"{indent}# {choice.why}"
            yield f"{line}  # {choice.why}" if choice.why and is_short else line


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        text = f"{value:.12g}"
        return f"{value:.3e}".replace("e-0", "e-").replace(".000e", "e") if 0 < value < 0.01 and len(text) > 4 else text
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
            return value
        known = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}  # other characters that YAML does not allow are escaped
        return f'"{"".join(known.get(c, c if c.isprintable() else f"{chr(92)}U{ord(c):08x}") for c in value)}"'
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    return str(value)


def to_comment_line(line: str) -> str:
    """Return a line whose comment may quote rows: what ends a line, or is not allowed in YAML, is a space. Values have none of that."""
    return "".join(c if c.isprintable() else " " for c in line)
