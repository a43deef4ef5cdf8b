"""`evergreen review`: the rows of review.csv that wait for people, and their answers, taken into the recipe's `data.corrections`.

Answers are added to one CSV file, which is replaced as a whole. Those that are there already are left out, so a file can be taken again.
"""

from __future__ import annotations

import csv
import glob
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from params import DataError, Recipe, RecipeError
from params.dvc_files import RECIPES, read_recipes_yaml_item
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from params.problems import suggestion
from tasks.ingestion.formats.csv_tables import is_table, read_cells
from tasks.ingestion.links import refuse_linked_folders, refuse_links_out_of_folder
from tasks.ingestion.row_limit import size_of_row
from tasks.recipes.loading import load
from tasks.validation.corrections import ROW_HASH, WHY, Correction, is_wrong, read_corrections
from trainer import objectives
from trainer.data.tokens import read_objective_state
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import format_row_hash

_MAX_BYTES: Final = 1 << 30
"""Of a table of answers, all of which are in memory: few bytes of a compressed one can stand for very many."""
_CELL_BYTES: Final = 64
"""What a cell takes without its text."""
_Rows = list[tuple[str, dict[str, str]]]
"""The address of each row, and its cells by column."""


def print_queue(recipe_path: Path, out: Path | None) -> None:
    """Say which rows wait for people, and write them to `out`, if that is given.

    Raises:
        DataError: the recipe was not evaluated here, or `out` exists.
    """
    recipe, artifacts = load(recipe_path), Artifacts(recipe_path.stem)
    name, queue = artifacts.recipe, artifacts.review
    if not queue.exists():
        fix = f"run it: `evergreen run {name} --no-publish`"
        raise DataError(str(queue), "does not exist; the evaluate stage writes it", fix)
    if out and out.exists():
        raise DataError(str(out), "exists, and may hold answers", "name another file")
    rows = [row for _, row in _read_table(queue, str(queue))]
    waiting = _without_answered(rows, recipe)
    print(f"{queue}: {_describe_queue(waiting, len(rows))}")
    if not rows:
        print("only objectives that give whole rows a label have a review: docs/own-data.md, Labels that look wrong")
    if out and waiting:
        write_text_atomically(out, _as_csv(rows[0], waiting))
    if waiting:
        where = f"in {out}" if out else "in a copy"
        print(f"fill in `corrected_label` {where}, then: evergreen review {name} --take {out or 'COPY.csv'}")


def _without_answered(rows: Sequence[dict[str, str]], recipe: Recipe) -> list[dict[str, str]]:
    kept = _read_kept(recipe)
    known = _corrections(kept, objectives.build_objective(recipe.objective)) if kept else {}
    done = {*map(format_row_hash, known)}
    return [row for row in rows if row[ROW_HASH] not in done]


def _describe_queue(waiting: Sequence[Mapping[str, str]], rows: int) -> str:
    """Return, for example, `30 rows wait for people: 25 random, 5 suspect; 3 have an answer`; `rows` are all."""
    counts = Counter(why for row in waiting for why in row[WHY].split("; "))
    text = f"{len(waiting):,} rows wait for people"
    if counts:
        text += ": " + ", ".join(f"{count:,} {why}" for why, count in counts.most_common())
    if len(waiting) < rows:
        text += f"; {rows - len(waiting):,} have an answer"
    return text


def take_answers(recipe_path: Path, file: Path, *, may_be_new: bool) -> None:
    """Add the answers in a file to the recipe's `data.corrections`.

    Raises:
        RecipeError: the recipe does not say where corrections are, or its rows have no label.
        DataError: an answer is unusable, contradicts another one, or has a label that no training row has, unless these `may_be_new`.
    """
    recipe, artifacts = load(recipe_path), Artifacts(recipe_path.stem)
    target, method = _find_target(recipe, recipe_path, artifacts), objectives.build_objective(recipe.objective)
    with hold_file_lock(artifacts.scratch / "review.lock", f"`evergreen review {artifacts.recipe} --take`"):
        refuse_links_out_of_folder(Path(), str(file), [str(file)], "--take")
        kept, rows = _read_kept(recipe), [*_read_table(file, str(file))]
        answers, known = _corrections(rows, method), _corrections(kept, method) if kept else {}
        new = [one for key, one in _corrections([*kept, *rows], method).items() if key not in known]
        unknown = [] if may_be_new else [*_find_unknown_labels(answers.values(), method, artifacts)]
        if unknown:
            fix = "correct them; if they are new labels, add --new-labels"
            raise DataError(str(file), "\n".join(["has labels that no training row has:", *unknown]), fix)
        if new:
            _append_answers(target, new)
    wrong = sum(is_wrong(one, method.columns()) for one in new)
    print(
        f"{file}: {len(answers):,} of {len(rows):,} rows have an answer, {len(answers) - len(new):,} were taken before"
    )
    if new:
        print(
            f"{target}: {len(new):,} new answers, {wrong:,} with another label and {len(new) - wrong:,} that confirm it"
        )
        print(f"`evergreen run {artifacts.recipe}` learns and judges by them from now on; the source stays as it is")


def _append_answers(target: Path, new: Iterable[Correction]) -> None:
    before = [row for _, row in _read_table(target, str(target))] if target.exists() else []
    table = [*before, *(one.row for one in new)]
    columns = dict.fromkeys(name for row in table for name in row)
    write_text_atomically(target, _as_csv(columns, table))


def _find_target(recipe: Recipe, path: Path, artifacts: Artifacts) -> Path:
    """Return the file that answers are added to."""
    if recipe.data.corrections is None:
        watched = Path(read_recipes_yaml_item(artifacts).get("data", "data"))
        folder = watched if watched.is_dir() else watched.parent
        fix = f"write this below `data:` in {path}, and take the file again:\n  corrections: {folder}/corrections/*.csv"
        fix += "" if folder == watched else f"\nand let `data` of its item in {RECIPES} be {folder}"
        raise RecipeError.at("data.corrections", "is missing, so nothing says where answers belong", fix)
    pattern = recipe.data.corrections.patterns["train"]
    target = Path(pattern.replace("**/", "").replace("*", "review"))
    if target.suffix != ".csv" or any(sign in str(target) for sign in "?["):
        fix = "name one .csv file, or a pattern such as data/corrections/*.csv, which can match other files, too"
        raise RecipeError.at("data.corrections", f"{pattern} does not say which CSV file gets answers", fix)
    return target


def _read_kept(recipe: Recipe) -> _Rows:
    """Read the corrections that the recipe has in CSV files; validate compares with those in other files."""
    patterns = recipe.data.corrections.patterns.values() if recipe.data.corrections else ()
    names = [name for pattern in patterns for name in _matching(pattern)]
    return [row for name in names if is_table(Path(name)) for row in _read_table(Path(name), name)]


def _read_table(path: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file as `read_cells` does; DataError if they are too large together."""
    size = 0
    for where, cells in read_cells(path, name):
        size += size_of_row(cells) + _CELL_BYTES * len(cells)
        if size > _MAX_BYTES:
            what = f"the rows up to here have more than {_MAX_BYTES >> 30} GiB together, the most that answers may have"
            raise DataError(where, what, "divide the file, or remove rows without an answer")
        yield where, cells


def _matching(pattern: str) -> list[str]:
    refuse_linked_folders(Path(), pattern, "data.corrections")
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    refuse_links_out_of_folder(Path(), pattern, names, "data.corrections")
    return names


def _corrections(rows: _Rows, method: Objective[Any]) -> dict[int, Correction]:
    return read_corrections(rows, [*dict.fromkeys(name for _, row in rows for name in row)], method)


def _find_unknown_labels(answers: Iterable[Correction], method: Objective[Any], artifacts: Artifacts) -> Iterator[str]:
    if not artifacts.tokens.exists():
        print(f"{artifacts.tokens} does not exist, so labels are not compared with those of the train split")
        return
    state = read_objective_state(artifacts.tokens)
    for one in answers:
        try:
            row = {**one.row, **one.labels}
            if why := method.unseen_label(row, state):
                near = (suggestion(label, state["labels"]) for label in method.row_labels(row))
                yield "; ".join([f"{one.where}: {why}", *(text for text in near if text.startswith("did"))])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(one.where, f"{one.labels} is no label: {error}", "write it as the source does") from error


def _as_csv(columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> str:
    written = io.StringIO(newline="")
    table = csv.DictWriter(written, [*columns], restval="")
    table.writeheader()
    table.writerows(rows)
    return "\ufeff" + written.getvalue()  # for spreadsheets, as review.csv
