"""The model card: what the model is, how to use it, its metrics, what it was made from, and how to reproduce it.

The card does not depend on when it is written: the same model, data and recipe give the same card, so that publishing again
finds nothing to do. The Hub reads the metadata at its top (https://huggingface.co/docs/hub/model-cards). Names that come
from the data are escaped.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from params.foundation.artifacts import Artifacts
from params.schema import Model, Publish, Recipe
from params.sections.base import Direction
from params.sections.data import RowsFromHubDataset
from tasks.evaluation.report import EvaluationDetails, EvaluationReport, SliceResult
from tasks.hub_client.connection import LOCAL
from tasks.ingestion.report import IngestReport
from tasks.measurement import list_measurements
from tasks.publishing.candidate import Candidate
from tasks.publishing.provenance import FILE
from tasks.recipes.loading import load
from tasks.report.markdown import code_block_fence, render_markdown, shorten_to_line
from tasks.report.run_results import RunResults
from tasks.report.sections import all_slices
from tasks.stages import Report, read_report
from tasks.tokenization.report import TokenizationReport
from tasks.training.report import TrainingReport
from trainer import objectives
from trainer.data import tokens
from trainer.model.adapters import BaseModelReference
from trainer.model.limits import window_overlap
from trainer.model.use_settings import read_number_format
from trainer.objectives.bases.objective import Objective
from trainer.start import ReleaseReference

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

PICTURES = {
    "comparison.png": "Metrics of this model, the previous release and the model before training, with intervals",
    "slices.png": "The metric that decides, on each slice of the held-out rows, with intervals",
    "curves.png": "Loss and metrics over the steps of training",
}
"""Alternative texts of a run's charts, by file name."""
_KNOWN = """afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl
lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib"""
_LICENSES = frozenset(_KNOWN.split())
"""The licenses that the Hub accepted in May 2026 (https://github.com/huggingface/huggingface_hub/issues/4218). The Hub refuses a
card with another one, so that is named beside `other`."""
_MAX_SLICES = 12
"""Slices of one column or function that the card lists, the worst first."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


_HUB_METRICS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    **{name: (name, name, {}) for name in ("accuracy", "precision", "recall", "f1", "perplexity", "exact_match")},
    **{f"{average}_f1": ("f1", f"{average} F1", {"average": average}) for average in ("micro", "macro")},
    **{name: (f"{name}r", f"{name.title()} correlation", {}) for name in ("pearson", "spearman")},
    **{f"rouge{kind}": ("rouge", f"ROUGE-{kind}", {"rouge_type": f"rouge{kind}"}) for kind in ("1", "2", "L", "Lsum")},
}
"""Type (from https://huggingface.co/metrics), name for readers and arguments of a metric on the Hub, by our name."""


def render_model_card(
    candidate: Candidate,
    record: Mapping[str, Any],
    replaced: ReleaseReference | None,
    *,
    pictures: Collection[str] = (),
) -> str:
    """Return the text of README.md: metadata for the Hub, then the card.

    `record` is the provenance of the model, `replaced` the one that the release replaces, and `pictures` are the names in the
    release of the charts that the card shows, see `PICTURES`.
    """
    artifacts, publish, evaluated = candidate.artifacts, candidate.publish, candidate.evaluated
    recipe, objective = load(artifacts.recipe_path), objectives.build_objective(candidate.objective)
    own_format = objective.release_format
    ingested, details = read_report(artifacts, IngestReport), read_report(artifacts, EvaluationDetails)
    run = RunResults(artifacts, local=False)
    charts = {one.card_chart.file: one.card_chart.told for one in list_measurements() if one.card_chart}
    metrics = dict(sorted(evaluated.model.items(), key=lambda one: one[0] != evaluated.metric))  # what decides first
    base = _base_repository(recipe.model, artifacts)
    body = render_markdown(
        "publishing/model_card.md.jinja",
        publish=publish,
        is_local=candidate.endpoint == LOCAL,
        objective=objective,
        own_code=own_format.code(publish.repo_id, artifacts.model) if own_format else None,
        read_tokenizer=functools.partial(tokens.read_tokenizer, artifacts.tokens),
        call=", ".join(f"{name}={value!r}" for name, value in objective.call_arguments.items()),
        form=objectives.prompt_form(record["objective"], has_template=_has_chat_template(artifacts.model)),
        recipe_name=artifacts.recipe,
        adapted=BaseModelReference.of(artifacts.adapter) if publish.adapter != "merged" else None,
        dtype=read_number_format(artifacts.model),
        has_thresholds="label_thresholds" in _read_settings(artifacts.model / "config.json"),
        overlap=window_overlap(candidate.reading_limit),
        has_own_config=(artifacts.adapter / "config.json").exists(),
        has_own_generation=(artifacts.adapter / "generation_config.json").exists(),
        base=recipe.model,
        base_repository=base,
        ingest=ingested,
        tokenize=read_report(artifacts, TokenizationReport),
        train=read_report(artifacts, TrainingReport),
        evaluate=evaluated,
        of_fewer=evaluated.champion_rows not in (None, evaluated.rows),
        metrics={"model": metrics, "champion": evaluated.champion, "untrained": evaluated.untrained},
        details=details,
        blessing=candidate.blessing,
        replaced=replaced,
        data_sentences=[told for one in list_measurements() for told in one.card_sentences(run)],
        comparisons=[one for one in details.comparisons if one.metric == evaluated.metric],
        slices=_slices(all_slices(run), details.directions),
        measured_sections=_measured_sections(details, is_private=publish.private),
        measured_pictures=list(charts),
        picture={name: f"![{told}]({name})" for name, told in {**PICTURES, **charts}.items() if name in pictures},
        record=record,
        record_file=FILE,
        outs=list(_outputs_of_stages(record["dvc_lock"])),
        fence=code_block_fence(record["recipe"]["text"]),
    )
    results = _evaluation_results(candidate, recipe, metrics, ingested, details)
    metadata = _metadata(publish, recipe, objective, base=base, metrics=_kinds_on_hub(metrics), results=results)
    return f"---\n{metadata.to_yaml()}\n---\n\n{body}"


def _measured_sections(details: EvaluationDetails, *, is_private: bool) -> list[str]:
    sections = (one.card_section(details.findings(one.kind), is_private=is_private) for one in list_measurements())
    return [section for section in sections if section]


def _base_repository(model: Model, artifacts: Artifacts) -> str | None:
    """Return the Hub repository that training started from; None for random weights or a folder."""
    base = model.pretrained
    if not base or (artifacts.root / base).exists() or not _REPOSITORY.fullmatch(base):
        return None
    return base


def _outputs_of_stages(dvc_lock: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the path and the hash of each output that the stages have recorded."""
    stages = (dvc_lock or {}).get("stages") or {}
    for entry in stages.values():
        for out in entry.get("outs") or ():
            yield out["path"], out["md5"]


def _metadata(
    publish: Publish,
    recipe: Recipe,
    objective: Objective[Any],
    *,
    base: str | None,
    metrics: list[str],
    results: list[EvalResult],
) -> ModelCardData:
    from huggingface_hub import ModelCardData

    is_adapter, is_listed = publish.adapter == "adapter", publish.license in _LICENSES
    library = objective.release_format.library if objective.release_format else "transformers"
    datasets = [one.repo_id for one in _hub_datasets(recipe) if not one.endpoint]
    tags = ["evergreen", recipe.objective.name.replace("_", "-")]
    if recipe.model.lora:
        tags.append("lora")
    return ModelCardData(
        license=publish.license if is_listed else "other",
        license_name=None if is_listed else publish.license,
        library_name="peft" if is_adapter else library,
        pipeline_tag=objective.pipeline_tag,
        base_model=base,
        base_model_relation="adapter" if is_adapter else None,
        datasets=datasets or None,
        tags=tags,
        metrics=metrics or None,
        model_name=publish.repo_id.split("/")[1],
        eval_results=results,
    )


def _kinds_on_hub(metrics: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(_HUB_METRICS[name][0] for name in metrics if name in _HUB_METRICS))


def _hub_datasets(recipe: Recipe) -> list[RowsFromHubDataset]:
    return [one for one in recipe.data.row_sources.values() if isinstance(one, RowsFromHubDataset)]


def _evaluation_results(
    candidate: Candidate,
    recipe: Recipe,
    metrics: Mapping[str, float],
    ingested: IngestReport,
    details: EvaluationDetails,
) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    name, datasets = candidate.artifacts.recipe, _hub_datasets(recipe)
    task = objectives.build_objective(candidate.objective).pipeline_tag
    # in the form that the Hub accepts for a dataset
    dataset = re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)
    if len(datasets) == len(recipe.data.row_sources) == 1:
        dataset = datasets[0].repo_id
    return [
        EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=shorten_to_line(f"{name} ({ingested.source})"),
            dataset_split=candidate.evaluated.split,
            dataset_revision=ingested.revision,
            metric_value=round(value, 6),
            **_hub_metric(metric, candidate.evaluated, details),
        )
        for metric, value in metrics.items()
    ]


def _hub_metric(name: str, evaluated: EvaluationReport, details: EvaluationDetails) -> dict[str, Any]:
    """Return a metric in the Hub's form. Intervals and other models' values go into the arguments: the form has no fields for them."""
    kind, shown, own = _HUB_METRICS.get(name, (re.sub(r"[^\w.-]", "_", name), shorten_to_line(name), {}))
    arguments: dict[str, Any] = {**own, "rows": evaluated.rows}
    interval = details.intervals["model"].get(name)
    if interval and isfinite(interval.low) and isfinite(interval.high):
        arguments["interval"] = {**_rounded(interval, "low", "high"), "confidence": details.confidence}
    if evaluated.champion and name in evaluated.champion:
        arguments["champion"] = round(evaluated.champion[name], 6)
        if evaluated.champion_rows not in (None, evaluated.rows):
            arguments["champion_rows"] = evaluated.champion_rows
    if evaluated.untrained and name in evaluated.untrained:
        arguments["base"] = round(evaluated.untrained[name], 6)
    return {"metric_type": kind, "metric_name": shown, "metric_args": arguments | _gains(name, evaluated, details)}


def _gains(name: str, evaluated: EvaluationReport, details: EvaluationDetails) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in details.comparisons:
        if one.metric == name and one.has_interval:
            label = "champion" if one.against == "champion" else "base"
            found[f"gain_over_{label}"] = _rounded(one, "gain", "low", "high")
            if one.rows != evaluated.rows:
                found[f"gain_over_{label}"]["rows"] = one.rows
    return found


def _rounded(report: Report, *names: str) -> dict[str, float]:
    return {name: round(getattr(report, name), 6) for name in names}


def _slices(
    slices: Sequence[SliceResult], directions: Mapping[str, Direction]
) -> list[tuple[str, list[SliceResult], int]]:
    """For each column or function to slice by: its name, the slices to show, the worst first, and how many are left out."""
    by_name: dict[str, list[SliceResult]] = {}
    for one in slices:
        by_name.setdefault(one.slice_by, []).append(one)
    shown = []
    for name, own in by_name.items():
        sign = 1 if directions[own[0].metric] == "max" else -1
        ordered = sorted(own, key=lambda one: (sign * one.value, one.slice))
        shown.append((name, ordered[:_MAX_SLICES], max(0, len(ordered) - _MAX_SLICES)))
    return shown


def _has_chat_template(model: Path) -> bool:
    in_config = _read_settings(model / "tokenizer_config.json").get("chat_template")
    return bool(in_config) or (model / "chat_template.jinja").is_file()


def _read_settings(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found
