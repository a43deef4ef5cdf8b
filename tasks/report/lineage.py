"""The last section of the report page: everything that decided the model, by hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.evaluation.report import Champion
from tasks.hub_client.receipt import Receipt
from tasks.report.formatting import number, one_line, truncate
from tasks.report.run_results import RunResults

Entry = tuple[str, str]
"""A label and a value."""


def lineage_section(results: RunResults, receipt: Receipt | None) -> dict[str, Any]:
    """Return the section's entries, the recipe's text, and what dvc.lock recorded; `receipt` is of this run."""
    return {
        "lead": "Everything that decided this model, by hash.",
        "entries": [(label, truncate(value, 300)) for label, value in _entries(results, receipt)],
        "recipe_text": truncate(results.recipe_text, 60_000),
        "outputs": [entry for stage, body in results.dvc_lock.items() for entry in _outputs(stage, body)][:200],
    }


def release_link(repo_id: str, endpoint: str, commit: str | None) -> tuple[str, str]:
    """Return the name of a release, and its address if its Hub is on a network, else an empty string."""
    if endpoint.startswith(("https://", "http://")) and repo_id and commit:
        return f"{repo_id} on {endpoint}", f"{endpoint}/{repo_id}/tree/{commit}"
    return f"{repo_id} on {'the Hub in .hub' if endpoint == 'local' else endpoint}", ""


def _entries(results: RunResults, receipt: Receipt | None) -> Iterator[Entry]:
    trained, ingested, blessing = results.trained, results.ingested, results.blessing
    yield "recipe", f"params/{results.recipe_name}.yaml"
    if blessing:
        yield "recipe, SHA-256", blessing.recipe
    if trained:
        yield "run", trained.run
        commit = trained.git_commit or "not in git"
        yield "code", f"{commit[:-1]} with uncommitted changes" if commit.endswith("+") else commit
    if blessing:
        yield "weights, SHA-256", blessing.model
    if trained:
        yield "parameters", number(trained.parameters)
    if ingested:
        yield "data", f"{ingested.source}, {ingested.revision}"
        for split, digest in ingested.data_sha256.items():
            yield f"{split} rows, SHA-256", digest
    if blessing:
        yield "validated rows, SHA-256", blessing.data
        if blessing.champion:
            yield "champion", _release(blessing.champion)
    if receipt:
        yield "release", _release(receipt)
        if receipt.publish_id:
            yield "release, SHA-256", receipt.publish_id
    if trained:
        yield "versions", ", ".join(f"{name} {version}" for name, version in trained.versions.items())


def _release(release: Receipt | Champion) -> str:
    name, _ = release_link(release.repo_id, release.endpoint, release.commit)
    return ", ".join(part for part in (name, release.tag, release.commit) if part)


def _outputs(stage: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for out in body.get("outs") or ():
        name = stage.partition("@")[0]
        yield name, one_line(out.get("path"), 120), one_line(out.get("md5"), 60), number(out.get("size"))
