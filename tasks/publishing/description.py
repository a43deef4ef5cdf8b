"""The description of the pull request that proposes a release: the gate's reasons and the metrics, for the person who decides."""

from __future__ import annotations

import re

from params.artifacts import Artifacts
from tasks.evaluation.report import Blessing, EvaluationReport
from tasks.report.formatting import metrics_table


def describe(artifacts: Artifacts, blessing: Blessing, evaluated: EvaluationReport) -> str:
    """Return the description in Markdown. The reasons may quote the data, so they stand in a code block."""
    reasons = "\n".join(blessing.reasons)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", reasons)), default=0))
    champion = blessing.champion
    replaces = f"It replaces {champion.tag or champion.commit}." if champion else "No model is published yet."
    return f"""\
A new model of the recipe `{artifacts.recipe}` passed the gate. {replaces} **Merge this pull request to publish it; close it to
reject it.** Do not change its files: the release must be what was evaluated. They include the model card (README.md) and the
full report of the run (report.html).

{fence}text
{reasons}
{fence}

{metrics_table(evaluated)}
"""
