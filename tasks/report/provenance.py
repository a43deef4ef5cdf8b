"""Where a model comes from, as the page tells it: all that decided on it, by hash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.report.evidence import Evidence, Json
from tasks.report.wording import cut, line, number

Entry = tuple[str, str]
"""A label and a value."""


def provenance(evidence: Evidence, receipt: Json) -> dict[str, Any]:
    """The entries of the section, the recipe's text, and what dvc.lock has recorded; `receipt` is of this run."""
    return {
        "lead": "All that decided on this model, by hash.",
        "entries": [(label, cut(value, 300)) for label, value in _entries(evidence, receipt)],
        "recipe_text": cut(evidence.recipe_text, 60_000),
        "outputs": [entry for stage, body in evidence.lock.items() for entry in _outputs(stage, body)][:200],
    }


def destination(where: Json) -> tuple[str, str]:
    """A release in words, and its address if its Hub is on a network."""
    endpoint, repo_id, commit = (str(where.get(key) or "") for key in ("endpoint", "repo_id", "commit"))
    if endpoint.startswith(("https://", "http://")) and repo_id and commit:
        return f"{repo_id} on {endpoint}", f"{endpoint}/{repo_id}/tree/{commit}"
    return f"{repo_id} on {'the Hub in .hub' if endpoint == 'local' else endpoint}", ""


def _entries(evidence: Evidence, receipt: Json) -> Iterator[Entry]:
    training, source, blessing = evidence.training, evidence.source, evidence.blessing
    yield "recipe", f"params/{evidence.recipe}.yaml"
    if blessing.get("recipe"):
        yield "recipe, SHA-256", str(blessing["recipe"])
    if training:
        yield "run", str(training.get("run"))
        commit = str(training.get("git_commit") or "not in git")
        yield "code", f"{commit[:-1]} and changes that were not committed" if commit.endswith("+") else commit
    if blessing.get("model"):
        yield "weights, SHA-256", str(blessing["model"])
    if training.get("parameters"):
        yield "parameters", number(training["parameters"])
    if source:
        yield "data", f"{source.get('source')}, {source.get('revision')}"
    for split, digest in (source.get("data_sha256") or {}).items():
        yield f"{split} rows, SHA-256", str(digest)
    if blessing.get("data"):
        yield "data of the verdict, SHA-256", str(blessing["data"])
    if champion := blessing.get("champion"):
        yield "champion", _release(champion)
    if receipt:
        yield "release", _release(receipt)
        yield "release, SHA-256", str(receipt.get("publish_id"))
    if versions := training.get("versions"):
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())


def _release(where: Json) -> str:
    parts = [destination(where)[0], str(where.get("tag") or ""), str(where.get("commit") or "")]
    return ", ".join(part for part in parts if part)


def _outputs(stage: str, body: Json) -> Iterator[tuple[str, str, str, str]]:
    for out in body.get("outs") or ():
        yield stage.partition("@")[0], line(out.get("path"), 120), line(out.get("md5"), 60), number(out.get("size"))
