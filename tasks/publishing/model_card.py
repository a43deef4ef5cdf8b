"""The model card: what the model is, how to use it, how well it does, what it was made from, and how to make it again.

Nothing in it depends on when it is written: the same model, data and recipe give the same card, so that publishing
again finds nothing to publish. The metadata at its top is what the Hub reads (https://huggingface.co/docs/hub/model-cards);
names that come from the data are shown as text, whatever is in them.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import Recipe, load
from params.artifacts import Artifacts
from params.schema import HubDataset, Publish
from tasks.publishing.provenance import FILE, provenance

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

Json = Mapping[str, Any]

PICTURES = {
    "comparison.png": "Figures of this model, of the release before it and of the model before training, with intervals",
    "slices.png": "The figure that decides, on each slice of the held-out rows, with intervals",
    "calibration.png": "How often the model is right, against how sure it is",
    "curves.png": "Loss and figures over the steps of training",
}
"""What the charts of a run show, by file name."""
_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
_MOST_SLICES = 12
"""Slices of a division that the card lists, the worst first."""
_LONGEST_NAME = 80
_LONGEST_SENTENCE = 600
"""Characters."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class _Metric:
    """How the Hub calls a metric."""

    type: str
    """As in https://huggingface.co/metrics."""
    name: str
    """For people."""
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class _Run:
    """What the metadata is made from."""

    artifacts: Artifacts
    publish: Publish
    recipe: Recipe
    ingested: Json
    evaluation: Json
    details: Json


_ON_THE_HUB = {
    **{
        name: _Metric(name, name, {}) for name in ("accuracy", "precision", "recall", "f1", "perplexity", "exact_match")
    },
    "macro_f1": _Metric("f1", "macro F1", {"average": "macro"}),
    "rouge1": _Metric("rouge", "ROUGE-1", {"rouge_type": "rouge1"}),
    "rouge2": _Metric("rouge", "ROUGE-2", {"rouge_type": "rouge2"}),
    "rougeL": _Metric("rouge", "ROUGE-L", {"rouge_type": "rougeL"}),
    "rougeLsum": _Metric("rouge", "ROUGE-Lsum", {"rouge_type": "rougeLsum"}),
}


def write_card(
    artifacts: Artifacts,
    publish: Publish,
    *,
    pipeline_tag: str,
    auto_class: str,
    pictures: Sequence[str] = (),
    has_report: bool = False,
    record: Json | None = None,
) -> str:
    """The text of README.md: metadata as the Hub reads it, then the card.

    Args:
        artifacts: of a run that has been evaluated.
        publish: where the model goes.
        pipeline_tag: the Hub's name of the task.
        auto_class: the transformers class that loads the model.
        pictures: paths in the release of the charts that the card shows, see `PICTURES`.
        has_report: whether the release holds report.html, to link to it.
        record: the run's provenance, if it has been made already.

    Raises:
        RecipeError: the recipe cannot be read, or holds a password.
    """
    import jinja2

    recipe = load(artifacts.recipe_path)
    record = provenance(artifacts) if record is None else record
    reports = {name: _read(artifacts.report(name)) for name in ("ingest", "tokenize", "train", "evaluate")}
    details, blessing = _read(artifacts.evaluation / "details.json"), _read(artifacts.blessing)
    evaluation = _ordered(reports["evaluate"])
    run = _Run(artifacts, publish, recipe, reports["ingest"], evaluation, details)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 (Markdown)
    )
    environment.filters.update(text=_text, sentence=_sentence, code=_code, number=_number)
    body = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        repo_id=publish.repo_id,
        pipeline_tag=pipeline_tag,
        auto_class=auto_class,
        is_chat=_has_chat_template(artifacts.model),
        recipe_name=artifacts.recipe,
        base=recipe.model,
        base_repository=_base_repository(run),
        details=details,
        blessing=blessing,
        comparisons=[one for one in details["comparisons"] if one["metric"] == evaluation["metric"]],
        divisions=_divisions(details),
        picture={Path(path).name: f"![{PICTURES.get(Path(path).name, Path(path).stem)}]({path})" for path in pictures},
        has_report=has_report,
        record=record,
        record_file=FILE,
        outs=list(_outs(record)),
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", record["recipe"]["text"])), default=0)),
        **{**reports, "evaluate": evaluation},
    )
    return f"---\n{_metadata(run, pipeline_tag).to_yaml()}\n---\n\n{body}"


def _ordered(evaluation: Json) -> dict[str, Any]:
    """The report with the metric that decides before the others."""
    names = sorted(evaluation["model"], key=lambda name: name != evaluation["metric"])
    return {**evaluation, "model": {name: evaluation["model"][name] for name in names}}


def _metadata(run: _Run, pipeline_tag: str) -> ModelCardData:
    from huggingface_hub import ModelCardData

    from tasks.hub_server.card_metadata import LICENSES

    is_listed = run.publish.license in LICENSES
    known = [_ON_THE_HUB[name].type for name in run.evaluation["model"] if name in _ON_THE_HUB]
    source = run.recipe.data.source
    lora = ["lora"] if run.recipe.model.lora else []
    return ModelCardData(
        license=run.publish.license if is_listed else "other",
        license_name=None if is_listed else run.publish.license,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        base_model=_base_repository(run),
        datasets=[source.repo_id] if isinstance(source, HubDataset) and not source.endpoint else None,
        tags=["evergreen", run.recipe.objective.name.replace("_", "-"), *lora],
        metrics=list(dict.fromkeys(known)) or None,
        model_name=run.publish.repo_id.split("/")[1],
        eval_results=list(_results(run, pipeline_tag)),
    )


def _results(run: _Run, pipeline_tag: str) -> Iterator[EvalResult]:
    """The figures in the Hub's form. It has no place for an interval or for another model's figure but `args`."""
    from huggingface_hub import EvalResult

    source = run.recipe.data.source
    intervals = run.details["intervals"]["model"]
    for name, value in run.evaluation["model"].items():
        metric = _ON_THE_HUB.get(name, _Metric(re.sub(r"[^\w.-]", "_", name), _plain(name), {}))
        arguments: dict[str, Any] = {**metric.arguments, "rows": run.evaluation["rows"]}
        if name in intervals:
            ends = {end: round(intervals[name][end], 6) for end in ("low", "high")}
            arguments["interval"] = {**ends, "confidence": run.details["confidence"]}
        for label, model in (("champion", "champion"), ("base", "untrained")):
            if name in (run.evaluation[model] or {}):
                arguments[label] = round(run.evaluation[model][name], 6)
        for one in run.details["comparisons"]:
            if one["metric"] == name:
                label = "champion" if one["against"] == "champion" else "base"
                arguments[f"gain_over_{label}"] = {key: round(one[key], 6) for key in ("gain", "low", "high")}
        yield EvalResult(
            task_type=pipeline_tag,
            dataset_type=source.repo_id if isinstance(source, HubDataset) else _identifier(run.artifacts.recipe),
            dataset_name=_plain(f"{run.artifacts.recipe} ({run.ingested['source']})"),
            dataset_split=run.evaluation["split"],
            dataset_revision=run.ingested["revision"],
            metric_type=metric.type,
            metric_name=metric.name,
            metric_value=round(value, 6),
            metric_args=arguments,
        )


def _base_repository(run: _Run) -> str | None:
    """The Hub repository that training started from; None for random weights or a folder."""
    name = run.recipe.model.pretrained
    if name is None or (run.artifacts.root / name).exists() or not _REPOSITORY.fullmatch(name):
        return None
    return name


def _identifier(name: str) -> str:
    """A name as the Hub takes it for a dataset."""
    return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)


def _divisions(details: Json) -> list[tuple[str, list[Json], int]]:
    """For each way to divide the rows: its name, the parts that are shown, the worst first, and how many are not."""
    found: dict[str, list[Json]] = {}
    for part in details["slices"]:
        found.setdefault(part["slice_by"], []).append(part)
    divisions = []
    for name, parts in found.items():
        sign = 1 if details["directions"][parts[0]["metric"]] == "max" else -1
        ordered = sorted(parts, key=lambda part: (sign * part["value"], str(part["slice"])))
        divisions.append((name, ordered[:_MOST_SLICES], max(0, len(ordered) - _MOST_SLICES)))
    return divisions


def _outs(record: Json) -> Iterator[tuple[str, str]]:
    """What dvc.lock has recorded of the run: paths and MD5."""
    for entry in ((record["dvc_lock"] or {}).get("stages") or {}).values():
        for out in entry.get("outs") or ():
            yield out["path"], out["md5"]


def _has_chat_template(model: Path) -> bool:
    settings = model / "tokenizer_config.json"
    said = settings.is_file() and _read(settings).get("chat_template")
    return bool(said) or (model / "chat_template.jinja").is_file()


def _plain(value: object, longest: int = _LONGEST_NAME) -> str:
    """One line without control characters."""
    shown = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str(value))
    line = " ".join(shown.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _text(value: object, longest: int = _LONGEST_NAME) -> str:
    """Text of the data or the recipe in Markdown, in which it can be nothing but text."""
    return re.sub(r"([\\`*_{}\[\]<>|~&#!$@]|:(?=//)|(?<=www)\.)", r"\\\1", _plain(value, longest))


def _sentence(value: object) -> str:
    """The same, longer."""
    return _text(value, _LONGEST_SENTENCE)


def _code(value: object) -> str:
    """The same as a code span."""
    line = _plain(value).replace("|", "\\|")
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{marks}{line}{marks}" if len(marks) == 1 else f"{marks} {line} {marks}"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report
