"""What a release holds: the model, the record of how it was made, its data's profile, the card with charts, the report.

And what the person reads who is asked to approve it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from params.foundation.artifacts import ADAPTER, KNOWN_ROWS, Artifacts, replace_folder_atomically
from params.schema import AdapterForm
from tasks.lineage.ancestors import find_base
from tasks.publishing import served
from tasks.publishing.candidate import Candidate
from tasks.publishing.model_card import render_model_card
from tasks.publishing.provenance import FILE, collect_provenance
from tasks.publishing.release_plan import ReleasePlan, plan_release
from tasks.recipes.loading import load
from tasks.report.formatting import metrics_markdown_table
from tasks.report.markdown import code_block_fence
from tasks.report.page import render_report_page
from tasks.report.sections import draw_card_charts
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stages import read_report
from tasks.training.report import TrainingReport
from trainer.model.limits import write_reading_limit
from trainer.start import ReleaseReference


def assemble_and_plan_release(
    candidate: Candidate, replaced: ReleaseReference | None, inputs: StageInputsSnapshot
) -> ReleasePlan:
    """Assemble the files of the release that replaces a model, and plan it; whoever reads it gets the answers that were judged."""
    blessing, publish = candidate.blessing, candidate.publish
    record = collect_provenance(candidate.artifacts, publish.adapter)
    folder = assemble_release_folder(candidate, record, replaced)
    inputs.check()  # the release holds the recipe as it is now
    made_from = {
        "run": record["run"],
        "data_sha256": record["data"]["sha256"],
        "git_commit": record["git_commit"],
        "replaces": replaced.commit if replaced else None,
    }
    planned = plan_release(folder, repo_id=publish.repo_id, private=publish.private, made_from=made_from)
    served.check_same_answers(candidate, planned)
    reasons = blessing.reasons if blessing.verdict == "publish" else ()
    if replaced and blessing.is_in_release(replaced.weights):
        reasons += (f"the model was published in another form; publish.adapter is `{publish.adapter}`",)
    return replace(
        planned,
        replaces=replaced.weights if replaced else None,
        reasons=reasons,
        description=pull_request_description(candidate, reasons, replaced),
        forms=frozenset() if blessing.is_champion else frozenset(candidate.forms.values()),
    )


def assemble_release_folder(candidate: Candidate, record: Mapping[str, Any], replaced: ReleaseReference | None) -> Path:
    """Collect the files of a release that replaces a model, with its provenance as `record`, and return their folder.

    Rows of the data are quoted only if the repository is private.
    """
    artifacts, publish = candidate.artifacts, candidate.publish
    pictures = draw_card_charts(artifacts)
    recipe = load(artifacts.recipe_path)
    has_profile = recipe.validation.releases_profile(private=publish.private)
    texts = {
        FILE: json.dumps(record, indent=1) + "\n",
        "report.html": render_report_page(artifacts, timings=None, quote_rows=publish.private),
        "README.md": render_model_card(candidate, record, replaced, pictures=pictures),
    }
    with replace_folder_atomically(artifacts.staged_release) as folder:
        copy_model_for_release(artifacts, publish.adapter, folder, limit=candidate.reading_limit)
        if has_profile:
            if artifacts.data_profile.exists():
                shutil.copy(artifacts.data_profile, folder)
            if artifacts.known_rows.exists():
                shutil.copy(artifacts.known_rows, folder)
        for name, content in {**pictures, **{name: text.encode() for name, text in texts.items()}}.items():
            (folder / name).write_bytes(content)
    return artifacts.staged_release


def pull_request_description(candidate: Candidate, reasons: Sequence[str], replaced: ReleaseReference | None) -> str:
    """Return the description of a pull request: the gate's reasons, which may quote the data, as a code block, and the metrics."""
    text, recipe = "\n".join(reasons), candidate.artifacts.recipe
    marks = code_block_fence(text)
    start = f"A new model of the recipe `{recipe}` passed the gate."
    if trained := read_report(candidate.artifacts, TrainingReport).start_sentence:
        start += f" {trained}"
    if base := find_base(candidate.artifacts):
        start += f" Its base model, {base}, is one that Evergreen has made."
    if replaced and candidate.blessing.is_in_release(replaced.weights):
        start = f"The published model of the recipe `{recipe}` in another form."
    replaces = f"It replaces {replaced.tag or replaced.commit}." if replaced else "No model is published yet."
    return f"""\
{start} {replaces} **Merge this pull request to publish it; close it to
reject it.** Do not change its files: the release must be what was evaluated. They include the model card (README.md) and the
full report of the run (report.html).

{marks}text
{text}
{marks}

{metrics_markdown_table(candidate.evaluated)}
"""


def copy_model_for_release(artifacts: Artifacts, form: AdapterForm, folder: Path, *, limit: int) -> None:
    """Copy the model that a release in a form holds into `folder`, with its tokenizer, which cuts a text at `limit` tokens."""
    sources = (artifacts.adapter, artifacts.tokenizer) if form == "adapter" else (artifacts.model,)
    ignored = shutil.ignore_patterns(KNOWN_ROWS, *([ADAPTER] if form == "merged" else []))
    for source in sources:
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
    write_reading_limit(folder, limit)
