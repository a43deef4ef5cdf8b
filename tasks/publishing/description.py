"""The description of the pull request that proposes a release: the gate's reasons and the metrics, for the person who decides."""

from __future__ import annotations

import re
from collections.abc import Sequence

from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Blessing, Champion, EvaluationReport
from tasks.report.formatting import metrics_table


def describe(
    artifacts: Artifacts,
    blessing: Blessing,
    evaluated: EvaluationReport,
    *,
    reasons: Sequence[str],
    replaced: Champion | None,
) -> str:
    """Return the description in Markdown. The reasons may quote the data, so they stand in a code block."""
    text = "\n".join(reasons)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    start = f"A new model of the recipe `{artifacts.recipe}` passed the gate."
    if replaced and blessing.is_in_release(replaced.weights):
        start = f"The published model of the recipe `{artifacts.recipe}` in another form."
    replaces = f"It replaces {replaced.tag or replaced.commit}." if replaced else "No model is published yet."
    return f"""\
{start} {replaces} **Merge this pull request to publish it; close it to
reject it.** Do not change its files: the release must be what was evaluated. They include the model card (README.md) and the
full report of the run (report.html).

{fence}text
{text}
{fence}

{metrics_table(evaluated)}
"""
