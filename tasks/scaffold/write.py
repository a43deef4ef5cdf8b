"""The text of a recipe: every key that a person may want to change, each choice with its reason as a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from params.schema import PretrainedTokenizer
from tasks.scaffold.plan import Plan
from tasks.scaffold.quality import key_column
from tasks.scaffold.sources import FoundSource, described
from tasks.scaffold.start import SEED
from tasks.scaffold.yaml_text import one_line, scalar
from trainer.objectives.bases.advice import Choice

_WIDTH: Final = 120
_MAX_SLICES: Final = 100


def recipe_text(name: str, found: FoundSource, plan: Plan, repo_id: str) -> str:
    """Return the recipe as YAML; the same arguments give the same text."""
    sections = (
        _head(name, plan),
        [f"seed: {SEED}"],
        _data(found, plan),
        _validation(plan),
        _tokenization(plan),
        _objective(plan),
        _model(plan),
        _training(plan),
        _launch(plan),
        _evaluation(plan),
        _publish(repo_id),
    )
    return "\n\n".join("\n".join(map(one_line, section)) for section in sections if section) + "\n"


def _line(indent: int, key: str, choice: Choice) -> Iterator[str]:
    """Yield a key with its value, and its reason behind it, or above it where the line would be too long."""
    line = f"{' ' * indent}{key}: {scalar(choice.value)}"
    if not choice.why:
        yield line
    elif len(line) + len(choice.why) + 4 <= _WIDTH:
        yield f"{line}  # {choice.why}"
    else:
        yield f"{' ' * indent}# {choice.why}"
        yield line


def _lines(indent: int, values: Mapping[str, Choice]) -> list[str]:
    return [line for key, choice in values.items() for line in _line(indent, key, choice)]


def _head(name: str, plan: Plan) -> list[str]:
    model = (
        f"{plan.facts.model_type} of {plan.facts.size} parameters"
        if plan.facts
        else "a small model from random weights"
    )
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


def _data(found: FoundSource, plan: Plan) -> list[str]:
    lines = ["data:", "  source:"]
    for key, value in described(found.source).items():
        why = "a branch: every run asks whether it has a new commit" if key == "revision" and len(value) < 40 else ""
        lines += _line(4, key, Choice(value, why))
    if plan.shares:
        lines += ["  split:", *_lines(4, plan.shares)]
    column = key_column(plan.proposal)
    if column and plan.shares and plan.quality.repeated and not plan.quality.known:
        why = f"{plan.quality.repeated:,} rows repeat a text: all rows with it are in one split"
        lines += _line(2, "group_by", Choice([column], why))
    return lines


def _validation(plan: Plan) -> list[str]:
    return [
        "validation:",
        *_lines(2, _of(plan, "validation", "max_quarantined")),
        "  # Columns and types are checked anyway, and each row as the objective needs it. `expectations` adds checks.",
    ]


def _tokenization(plan: Plan) -> list[str]:
    choice = plan.values["tokenizer"]
    own = choice.value
    lines = ["tokenization:", "  tokenizer:", f"    kind: {own.kind}"]
    if isinstance(own, PretrainedTokenizer):
        lines += _line(4, "path", Choice(own.path, choice.why))
        lines += _line(4, "revision", Choice(own.revision)) if own.revision else []
    else:
        lines += _line(4, "vocab_size", Choice(own.vocab_size, choice.why))
    return [*lines, *_lines(2, _of(plan, "tokenization", "max_length"))]


def _objective(plan: Plan) -> list[str]:
    lines = ["objective:", *_line(2, "name", Choice(plan.proposal.objective, plan.proposal.advice.meaning))]
    labels = plan.quality.labels
    for flag, column in plan.proposal.columns.items():
        facts = ""
        if flag == "label":
            (most, rows), (least, few) = labels.most_common()[0], labels.most_common()[-1]
            facts = f"{len(labels)} labels, from {few:,} rows ({least[:40]}) to {rows:,} ({most[:40]})"
        elif flag == "spans":
            listed = ", ".join(f"{label} {count:,}" for label, count in labels.most_common(5))
            facts = f"{len(labels)} labels: {listed}"
        lines += _line(2, plan.proposal.advice.columns[flag], Choice(column, facts))
    return [*lines, *_lines(2, plan.options)]


def _model(plan: Plan) -> list[str]:
    model = plan.model
    if model.config is not None:
        why = "random weights; for better results give a pretrained model (`pretrained`), and its tokenizer"
        return [
            "model:",
            f"  # {why}",
            "  config:",
            *(f"    {key}: {scalar(value)}" for key, value in model.config.items()),
        ]
    assert plan.facts
    lines = [
        "model:",
        *_line(2, "pretrained", Choice(model.pretrained, f"{plan.facts.model_type}, {plan.facts.size} parameters")),
    ]
    if model.revision:
        lines += _line(2, "revision", Choice(model.revision, "the commit of today"))
    if model.lora:
        lora = plan.values["model.lora"]
        lines += [f"  # Adapters instead of all weights: {lora.why}.", "  lora:"]
        lines += _lines(4, {"r": Choice(model.lora.r, "rank"), "alpha": Choice(model.lora.alpha, "twice the rank")})
    return lines


def _training(plan: Plan) -> list[str]:
    names = ("epochs", "global_batch_size", "learning_rate", "lr_scheduler")
    more = ("weight_decay", "precision", "group_by_length", "eval_steps", "save_steps", "logging_steps", "best_metric")
    warmup = {"warmup_steps": Choice(0.1, "a tenth of all steps")}
    return ["training:", *_lines(2, _of(plan, "training", *names) | warmup | _of(plan, "training", *more))]


def _launch(plan: Plan) -> list[str]:
    return ["launch:", *_lines(2, _of(plan, "launch", "micro_batch_size", "eval_batch_size"))]


def _evaluation(plan: Plan) -> list[str]:
    lines = [
        "evaluation:",
        "  split: test",
        *_line(2, "compare_untrained", Choice(value=True, why="the first release must be better")),
    ]
    label = plan.proposal.columns.get("label")
    if label and len(plan.quality.labels) <= _MAX_SLICES:
        lines += _line(2, "slices", Choice([label], "the accuracy within each label, which is its recall, too"))
    metric = plan.values["training.best_metric"]
    if plan.proposal.advice.gates_on_best_metric:
        lines += [
            "  gate:",
            *_line(4, "metric", Choice(metric.value, "a new model must be better by more than chance")),
        ]
    return lines


def _publish(repo_id: str) -> list[str]:
    return [
        "publish:",
        *_line(2, "repo_id", Choice(repo_id)),
        *_line(2, "endpoint", Choice("local", "the Hub in the folder .hub; or https://huggingface.co, with HF_TOKEN")),
        *_line(2, "private", Choice(value=True)),
        *_line(2, "license", Choice("other", "write that of data and model, such as cc-by-4.0 or apache-2.0")),
    ]


def _of(plan: Plan, section: str, *keys: str) -> dict[str, Choice]:
    return {key: plan.values[f"{section}.{key}"] for key in keys}
