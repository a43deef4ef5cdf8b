"""The model card: what the model is, how to use it, its metrics, what it was made from, and how to reproduce it.

The card does not depend on when it is written: the same model, data and recipe give the same card, so that publishing again
finds nothing to do. The Hub reads the metadata at its top (https://huggingface.co/docs/hub/model-cards). Names that come
from the data are escaped.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import Recipe, load
from params.foundation.artifacts import Artifacts
from params.schema import HubDataset, Publish
from tasks.drift.report import DriftReport
from tasks.evaluation.report import Blessing, Champion, Details, EvaluationReport, SliceResult, confidence_text
from tasks.ingestion.report import IngestReport
from tasks.publishing.prompt_form import PromptForm
from tasks.publishing.provenance import FILE, provenance
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from tasks.training.report import TrainingReport
from tasks.validation.report import ValidationReport
from trainer.model.adapters import BaseModel

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

PICTURES = {
    "comparison.png": "Metrics of this model, the previous release and the model before training, with intervals",
    "slices.png": "The metric that decides, on each slice of the held-out rows, with intervals",
    "calibration.png": "How often the model is right, by its confidence",
    "curves.png": "Loss and metrics over the steps of training",
}
"""Alternative texts of a run's charts, by file name."""
_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
_MAX_SLICES = 12
"""Slices of one column or function that the card lists, the worst first."""
_MAX_CHANGED = 5
"""Rows that the card of a private repository quotes."""
_MAX_NAME = 80
_MAX_QUOTE = 160
_MAX_SENTENCE = 600
"""Characters."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class _HubMetric:
    """A metric under the Hub's name."""

    type: str
    """From https://huggingface.co/metrics."""
    name: str
    """For readers."""
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class _Run:
    """What a card is made from."""

    artifacts: Artifacts
    publish: Publish
    recipe: Recipe
    ingested: IngestReport
    tokenized: TokenizationReport
    trained: TrainingReport
    evaluated: EvaluationReport
    details: Details
    blessing: Blessing
    drift: DriftReport | None

    @classmethod
    def read(cls, artifacts: Artifacts, publish: Publish) -> _Run:
        return cls(
            artifacts,
            publish,
            load(artifacts.recipe_path),
            read_report(artifacts, IngestReport),
            read_report(artifacts, TokenizationReport),
            read_report(artifacts, TrainingReport),
            read_report(artifacts, EvaluationReport),
            read_report(artifacts, Details),
            read_report(artifacts, Blessing),
            read_report(artifacts, ValidationReport).drift if artifacts.report("validate").exists() else None,
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The model's metrics, the one that decides first."""
        known = self.evaluated.model
        return {name: known[name] for name in sorted(known, key=lambda name: name != self.evaluated.metric)}


_HUB_METRICS = {
    **{
        name: _HubMetric(name, name, {})
        for name in ("accuracy", "precision", "recall", "f1", "perplexity", "exact_match")
    },
    "macro_f1": _HubMetric("f1", "macro F1", {"average": "macro"}),
    "rouge1": _HubMetric("rouge", "ROUGE-1", {"rouge_type": "rouge1"}),
    "rouge2": _HubMetric("rouge", "ROUGE-2", {"rouge_type": "rouge2"}),
    "rougeL": _HubMetric("rouge", "ROUGE-L", {"rouge_type": "rougeL"}),
    "rougeLsum": _HubMetric("rouge", "ROUGE-Lsum", {"rouge_type": "rougeLsum"}),
}


def write_card(
    artifacts: Artifacts,
    publish: Publish,
    *,
    pipeline_tag: str,
    auto_class: str,
    call: Mapping[str, Any] | None = None,
    cuts: bool = False,
    replaced: Champion | None = None,
    pictures: Sequence[str] = (),
    has_report: bool = False,
    record: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of README.md: metadata for the Hub, then the card.

    `call` are the arguments of the call that the card shows, with which the model answers as it was evaluated, and `cuts` says
    whether it cuts long texts. `pictures` are the paths in the release of the charts that the card shows, see `PICTURES`. `replaced` is the model that the
    release replaces, by default the champion that it was compared with.

    Raises:
        RecipeError: the recipe cannot be read, or holds a password.
        ModelError: a report of the run cannot be read.
    """
    import jinja2

    run = _Run.read(artifacts, publish)
    record = provenance(artifacts, publish.adapter) if record is None else record
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 (Markdown)
    )
    environment.filters.update(text=_text, sentence=_sentence, code=_code, number=_number, quote=_quote)
    environment.filters.update(notes=_notes, python=_python)
    evaluated = run.evaluated
    body = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        repo_id=publish.repo_id,
        pipeline_tag=pipeline_tag,
        auto_class=auto_class,
        call=", ".join(f"{name}={value!r}" for name, value in (call or {}).items()),
        cuts=cuts,
        form=PromptForm.of(record["objective"], has_template=_has_chat_template(artifacts.model)),
        recipe_name=artifacts.recipe,
        adapter=publish.adapter,
        adapted=BaseModel.of(artifacts.adapter) if publish.adapter != "merged" else None,
        has_own_config=(artifacts.adapter / "config.json").exists(),
        base=run.recipe.model,
        base_repository=_base_repository(run),
        ingest=run.ingested,
        tokenize=run.tokenized,
        train=run.trained,
        evaluate=evaluated,
        metrics={"model": run.metrics, "champion": evaluated.champion, "untrained": evaluated.untrained},
        details=run.details,
        confidence=confidence_text(run.details.confidence),
        blessing=run.blessing,
        replaced=replaced or run.blessing.champion,
        drift=[one.sentence for one in (run.drift, run.details.champion_confidence) if one],
        comparisons=[one for one in run.details.comparisons if one.metric == evaluated.metric],
        slices=_slices(run.details),
        changed=run.details.changed[:_MAX_CHANGED] if publish.private else [],
        picture={Path(path).name: f"![{PICTURES.get(Path(path).name, Path(path).stem)}]({path})" for path in pictures},
        has_report=has_report,
        record=record,
        record_file=FILE,
        outs=list(_outs(record)),
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", record["recipe"]["text"])), default=0)),
    )
    return f"---\n{_metadata(run, pipeline_tag).to_yaml()}\n---\n\n{body}"


def _metadata(run: _Run, pipeline_tag: str) -> ModelCardData:
    from huggingface_hub import ModelCardData

    from tasks.hub_server.card_metadata import LICENSES

    is_listed = run.publish.license in LICENSES
    known = [_HUB_METRICS[name].type for name in run.metrics if name in _HUB_METRICS]
    source = run.recipe.data.source
    lora = ["lora"] if run.recipe.model.lora else []
    is_adapter = run.publish.adapter == "adapter"
    return ModelCardData(
        license=run.publish.license if is_listed else "other",
        license_name=None if is_listed else run.publish.license,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag=pipeline_tag,
        base_model=_base_repository(run),
        base_model_relation="adapter" if is_adapter else None,
        datasets=[source.repo_id] if isinstance(source, HubDataset) and not source.endpoint else None,
        tags=["evergreen", run.recipe.objective.name.replace("_", "-"), *lora],
        metrics=list(dict.fromkeys(known)) or None,
        model_name=run.publish.repo_id.split("/")[1],
        eval_results=list(_results(run, pipeline_tag)),
    )


def _results(run: _Run, pipeline_tag: str) -> Iterator[EvalResult]:
    """The metrics in the Hub's form. Intervals and other models' values go into `args`: the form has no fields for them."""
    from huggingface_hub import EvalResult

    source = run.recipe.data.source
    intervals = run.details.intervals["model"]
    for name, value in run.metrics.items():
        metric = _HUB_METRICS.get(name, _HubMetric(re.sub(r"[^\w.-]", "_", name), _plain(name), {}))
        arguments: dict[str, Any] = {**metric.arguments, "rows": run.evaluated.rows}
        if name in intervals and isfinite(intervals[name].low) and isfinite(intervals[name].high):
            ends = {"low": round(intervals[name].low, 6), "high": round(intervals[name].high, 6)}
            arguments["interval"] = {**ends, "confidence": run.details.confidence}
        for label, other in (("champion", run.evaluated.champion), ("base", run.evaluated.untrained)):
            if other and name in other:
                arguments[label] = round(other[name], 6)
        for one in run.details.comparisons:
            if one.metric == name and one.has_interval:
                label = "champion" if one.against == "champion" else "base"
                gain = {"gain": round(one.gain, 6), "low": round(one.low, 6), "high": round(one.high, 6)}
                arguments[f"gain_over_{label}"] = gain
        yield EvalResult(
            task_type=pipeline_tag,
            dataset_type=source.repo_id if isinstance(source, HubDataset) else _identifier(run.artifacts.recipe),
            dataset_name=_plain(f"{run.artifacts.recipe} ({run.ingested.source})"),
            dataset_split=run.evaluated.split,
            dataset_revision=run.ingested.revision,
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
    """A name in the form that the Hub accepts for a dataset."""
    return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)


def _slices(details: Details) -> list[tuple[str, list[SliceResult], int]]:
    """For each column or function to slice by: its name, the slices to show, the worst first, and how many are left out."""
    by_name: dict[str, list[SliceResult]] = {}
    for one in details.slices:
        by_name.setdefault(one.slice_by, []).append(one)
    shown = []
    for name, slices in by_name.items():
        sign = 1 if details.directions[slices[0].metric] == "max" else -1
        ordered = sorted(slices, key=lambda one: (sign * one.value, one.slice))
        shown.append((name, ordered[:_MAX_SLICES], max(0, len(ordered) - _MAX_SLICES)))
    return shown


def _outs(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and MD5 of each output of the run in dvc.lock."""
    for entry in ((record["dvc_lock"] or {}).get("stages") or {}).values():
        for out in entry.get("outs") or ():
            yield out["path"], out["md5"]


def _has_chat_template(model: Path) -> bool:
    config = model / "tokenizer_config.json"
    in_config = config.is_file() and json.loads(config.read_bytes()).get("chat_template")
    return bool(in_config) or (model / "chat_template.jinja").is_file()


def _plain(value: object, limit: int = _MAX_NAME) -> str:
    """One line without control characters."""
    shown = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str(value))
    line = " ".join(shown.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _text(value: object, limit: int = _MAX_NAME) -> str:
    """Text from the data or the recipe, escaped for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|~&#!$@]|:(?=//)|(?<=www)\.)", r"\\\1", _plain(value, limit))


def _sentence(value: object) -> str:
    """The same for a longer text."""
    return _text(value, _MAX_SENTENCE)


def _quote(value: object) -> str:
    """The same for the text of a row."""
    return _text(value, _MAX_QUOTE)


def _notes(notes: Mapping[str, str]) -> str:
    """What a model's scores of a row say, before another fact."""
    return "".join(f"{_text(name)} {_text(note)}, " for name, note in notes.items())


def _python(value: str) -> str:
    """A text as Python code, on one line; JSON writes printable text as Python does, in double quotes."""
    return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)


def _code(value: object) -> str:
    """Text from the data or the recipe as a code span."""
    line = _plain(value).replace("|", "\\|")
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{marks}{line}{marks}" if len(marks) == 1 else f"{marks} {line} {marks}"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"
