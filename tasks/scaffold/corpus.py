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
from trainer.objectives.bases.advice import AdvisedValue


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


def choose_document_column(found: FoundSource, proposal: ObjectiveProposal, root: Path) -> dict[str, AdvisedValue]:
    """Return the option that names the column of a corpus with the documents, if that is not called as the answers of the rows are.

    Raises:
        RecipeError: the objective ranks no documents, or it is not clear which column has them.
    """
    if found.corpus is None:
        return {}
    if "document_column" not in objectives.import_objective_class(proposal.objective).options_class.model_fields:
        what = f"has no effect: {proposal.objective} ranks no documents"
        raise RecipeError("--corpus", what, "remove it, or add --objective embedding")
    columns = read_source_sample(RowsFromFiles(kind="files", train=found.corpus), root).columns
    if proposal.columns.get("completion", "positive") in columns:
        return {}
    texts = [column for column in columns.values() if column.can_be_text and column.kind == "text"]
    named = columns_named(columns, USUAL_NAMES["text"])
    if len(chosen := [column for column in named if column in texts][:1] or texts) != 1:
        what = f"which column of {found.corpus} has the documents is not clear: {', '.join(columns)}"
        raise RecipeError("--corpus", what, "call it `text` there")
    return {"document_column": AdvisedValue(chosen[0].name, f"the documents in {found.corpus}")}
