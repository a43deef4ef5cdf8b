"""The text of a recipe: every key that a person may want to change, each choice with its reason as a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from params.schema import PretrainedTokenizer
from tasks.scaffold.plan import Plan
from tasks.scaffold.quality import input_column
from tasks.scaffold.sources import FoundSource, source_recipe_keys
from tasks.scaffold.start import SEED
from tasks.scaffold.yaml_text import scalar, to_comment_line
from trainer.objectives.bases.advice import Choice

_WIDTH: Final = 120
_MAX_SLICES: Final = 100
_TRAINING: Final = (
    *("epochs", "global_batch_size", "learning_rate", "lr_scheduler", "warmup_steps", "weight_decay", "precision"),
    *("group_by_length", "eval_steps", "save_steps", "logging_steps", "best_metric"),
)
Keys = Mapping[str, Any]
"""Keys with a `Choice`, a plain value or further keys each; a key that begins with `#` is a comment."""


def recipe_text(name: str, found: FoundSource, plan: Plan, repo_id: str) -> str:
    """Return the recipe as YAML; the same arguments give the same text."""
    sections: Keys = {
        "seed": SEED,
        "data": _data(found, plan),
        "validation": {
            **_chosen(plan, "validation", "max_quarantined"),
            "# Columns and types are checked anyway, and each row as the objective needs it. `expectations` adds checks.": "",
        },
        "tokenization": {"tokenizer": _tokenizer(plan), **_chosen(plan, "tokenization", "max_length")},
        "objective": _objective(plan),
        "model": _model(plan),
        "training": _chosen(plan, "training", *_TRAINING),
        "launch": _chosen(plan, "launch", "micro_batch_size", "eval_batch_size"),
        "evaluation": _evaluation(plan),
        "publish": {
            "repo_id": repo_id,
            "endpoint": Choice("local", "the Hub in the folder .hub; or https://huggingface.co, with HF_TOKEN"),
            "private": True,
            "license": Choice("other", "write that of data and model, such as cc-by-4.0 or apache-2.0"),
        },
    }
    texts = (_head(name, plan), *(_lines({key: section}) for key, section in sections.items()))
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


def _head(name: str, plan: Plan) -> list[str]:
    facts = plan.facts
    model = f"{facts.model_type} of {facts.size} parameters" if facts else "a small model from random weights"
    counts = ", ".join(f"{plan.sample.estimated(split):,} {split}" for split in plan.sample.rows)
    of = "" if plan.sample.is_whole else f", of which {len(plan.sample.train):,} training rows were looked at"
    notes = [f"#   - {note}" for note in plan.quality.notes()]
    return [
        f"# {name}: learn {plan.proposal.advice.meaning}, with {model}. Written by `evergreen new`; every value may be changed.",
        "#",
        f"#   evergreen check {name}      find mistakes in this recipe, in seconds",
        f"#   evergreen run {name}        run every stage that is out of date, and publish the model",
        "#",
        f"# The rows: {counts}{of}.{' What is in them:' if notes else ''}",
        *notes,
    ]


def _data(found: FoundSource, plan: Plan) -> Keys:
    source: dict[str, Any] = dict(source_recipe_keys(found.source))
    if len(source.get("revision", "")) in range(1, 40):
        source["revision"] = Choice(source["revision"], "a branch: every run asks whether it has a new commit")
    data: dict[str, Any] = {"source": source}
    if plan.shares:
        data["split"] = plan.shares
    column = input_column(plan.proposal)
    if column and plan.shares and plan.quality.repeated and not plan.quality.known:
        why = f"{plan.quality.repeated:,} rows repeat a text: all rows with it are in one split"
        data["group_by"] = Choice([column], why)
    return data


def _tokenizer(plan: Plan) -> Keys:
    own, why = plan.values["tokenizer"].value, plan.values["tokenizer"].why
    if not isinstance(own, PretrainedTokenizer):
        return {"kind": own.kind, "vocab_size": Choice(own.vocab_size, why)}
    return {"kind": own.kind, "path": Choice(own.path, why)} | ({"revision": own.revision} if own.revision else {})


def _objective(plan: Plan) -> Keys:
    keys: dict[str, Any] = {"name": Choice(plan.proposal.objective, plan.proposal.advice.meaning)}
    labels = plan.quality.labels
    for flag, column in plan.proposal.columns.items():
        facts = ""
        if flag == "label":
            (most, rows), (least, few) = labels.most_common()[0], labels.most_common()[-1]
            facts = f"{len(labels)} labels, from {few:,} rows ({least[:40]}) to {rows:,} ({most[:40]})"
        elif flag == "spans":
            listed = ", ".join(f"{label} {count:,}" for label, count in labels.most_common(5))
            facts = f"{len(labels)} labels: {listed}"
        keys[plan.proposal.advice.columns[flag]] = Choice(column, facts)
    return {**keys, **plan.options}


def _model(plan: Plan) -> Keys:
    model = plan.model
    if model.config is not None:
        why = "# random weights; for better results give a pretrained model (`pretrained`), and its tokenizer"
        return {why: "", "config": model.config}
    assert plan.facts
    keys: dict[str, Any] = {
        "pretrained": Choice(model.pretrained, f"{plan.facts.model_type}, {plan.facts.size} parameters")
    }
    if model.revision:
        keys["revision"] = Choice(model.revision, "the commit of today")
    if model.lora:
        keys[f"# Adapters instead of all weights: {plan.values['model.lora'].why}."] = ""
        keys["lora"] = {"r": Choice(model.lora.r, "rank"), "alpha": Choice(model.lora.alpha, "twice the rank")}
    return keys


def _evaluation(plan: Plan) -> Keys:
    keys: dict[str, Any] = {
        "split": "test",
        "compare_untrained": Choice(value=True, why="the first release must be better"),
    }
    label = plan.proposal.columns.get("label")
    if label and len(plan.quality.labels) <= _MAX_SLICES:
        keys["slices"] = Choice([label], "the accuracy within each label, which is its recall, too")
    if plan.proposal.advice.gates_on_best_metric:
        metric = plan.values["training.best_metric"].value
        keys["gate"] = {"metric": Choice(metric, "a new model must be better by more than chance")}
    return keys


def _chosen(plan: Plan, section: str, *keys: str) -> dict[str, Choice]:
    return {key: plan.values[f"{section}.{key}"] for key in keys}
