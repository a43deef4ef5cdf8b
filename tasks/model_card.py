"""The model card: what the model is, how to use it, how well it does, and what it was made from.

Nothing in it depends on when it is written: the same model, data and recipe give the same card, so that publishing
again finds nothing to publish.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from params.artifacts import Artifacts
from params.schema import Publish

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def write_card(artifacts: Artifacts, publish: Publish, *, pipeline_tag: str, auto_class: str) -> str:
    """The text of README.md: metadata as the Hub reads it, then the card.

    Args:
        artifacts: of a run that has been evaluated.
        publish: where the model goes.
        pipeline_tag: the Hub's name of the task.
        auto_class: the transformers class that loads the model.
    """
    import jinja2
    from huggingface_hub import EvalResult, ModelCardData

    reports = {stage: _read(artifacts.report(stage)) for stage in ("ingest", "tokenize", "train", "evaluate")}
    evaluation = reports["evaluate"]
    name = f"{artifacts.recipe} ({reports['ingest']['source']})"
    results = [
        EvalResult(
            task_type=pipeline_tag,
            dataset_type=artifacts.recipe,
            dataset_name=name,
            dataset_split=evaluation["split"],
            metric_type=metric,
            metric_value=round(value, 6),
        )
        for metric, value in evaluation["model"].items()
    ]
    data = ModelCardData(
        license=publish.license,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        tags=["evergreen"],
        model_name=publish.repo_id.split("/")[1],
        eval_results=results,
    )
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 (Markdown)
    )
    body = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        repo_id=publish.repo_id,
        pipeline_tag=pipeline_tag,
        auto_class=auto_class,
        recipe_name=artifacts.recipe,
        recipe=artifacts.recipe_path.read_text(encoding="utf-8") if artifacts.recipe_path.exists() else "",
        **reports,
    )
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report
