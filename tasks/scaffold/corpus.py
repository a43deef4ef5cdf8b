"""`evergreen new --corpus`: the documents that the queries of a recipe search, in files of their own."""

from __future__ import annotations

from pathlib import Path

from params import DataError, RecipeError
from params.sections.data import RowsFromFiles
from tasks.scaffold.file_heads import refuse_misreadable_file
from tasks.scaffold.look import columns_named, read_source_sample
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import FoundSource, list_matching_files, path_in_project, watched_path
from tasks.scaffold.usual_names import USUAL_NAMES
from trainer import objectives
from trainer.objectives.advice.base import AdvisedValue


def add_corpus(found: FoundSource, request: NewRecipeRequest, root: Path) -> FoundSource:
    """Return a source with the documents of `--corpus`; DataError if there is no such file."""
    if not request.corpus:
        return found
    path = path_in_project(request.corpus, root)
    names = list_matching_files(path, root)
    if not names:
        raise DataError("--corpus", f"{path}: there is no such file", "name a file or a glob")
    for name in names:
        refuse_misreadable_file(root / name)
    patterns = [path]
    if not found.watched.startswith("tasks/") and (root / found.watched).exists():  # else DVC cannot watch the source
        patterns.append(f"{found.watched}/*" if (root / found.watched).is_dir() else found.watched)
    return found._replace(watched=watched_path(patterns, root), corpus=path)


def read_corpus(found: FoundSource, proposal: ObjectiveProposal, root: Path) -> tuple[int, dict[str, AdvisedValue]]:
    """Return how many documents an evaluation during training encodes, and the option that names their column, if it is not the answers'.

    Raises:
        RecipeError: the objective searches no corpus, or it is not clear which column has them.
    """
    if found.corpus is None:
        return 0, {}
    options = objectives.import_objective_class(proposal.objective).options_class.model_fields
    if "validation_documents" not in options:  # rankings have a `document_column`, too
        what = f"has no effect: {proposal.objective} searches no corpus"
        raise RecipeError("--corpus", what, "remove it, or add --objective embedding")
    sample = read_source_sample(RowsFromFiles(kind="files", train=found.corpus), root)
    columns, documents = sample.columns, min(sample.estimated("train"), options["validation_documents"].default)
    if proposal.columns.get("completion", "positive") in columns:
        return documents, {}
    texts = [column for column in columns.values() if column.can_be_text and column.kind == "text"]
    named = columns_named(columns, USUAL_NAMES["text"])
    if len(chosen := [column for column in named if column in texts][:1] or texts) != 1:
        what = f"which column of {found.corpus} has the documents is not clear: {', '.join(columns)}"
        raise RecipeError("--corpus", what, "call it `text` there")
    return documents, {"document_column": AdvisedValue(chosen[0].name, f"the documents in {found.corpus}")}
