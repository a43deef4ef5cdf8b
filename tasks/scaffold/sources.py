"""Where the rows are: local files, a dataset on a Hub, or a query; which of the files are train, validation and test."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self

from params import DataError, RecipeError
from params.foundation.artifacts import SPLITS
from params.foundation.errors import see_limits
from params.sections.base import repo_id_problem
from params.sections.data import RowsFromFiles, RowsFromHubDataset, RowsFromSql
from tasks.ingestion.encodings import COMPRESSIONS, format_suffix
from tasks.ingestion.formats import find_format, readable_suffixes
from tasks.ingestion.links import refuse_linked_folders, refuse_links_out_of_folder
from tasks.scaffold import hub
from tasks.scaffold.file_heads import is_format_named, refuse_misreadable_file
from tasks.scaffold.request import NewRecipeRequest

_NAMES: Final = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
}
"""What a file or its folder is called that has the rows of a split."""
_HUB: Final = re.compile(r"(?:hub:)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_WILD: Final = re.compile(r"[*?\[]")


_FEW: Final = 0.1
"""The share of files that may stand beside folders of texts."""


class FoundSource(NamedTuple):
    """The source of a recipe, and what DVC watches for it."""

    keys: Mapping[str, str]
    """The keys of a recipe's `data.source`, in the order in which they are written."""
    source: RowsFromFiles | RowsFromHubDataset | RowsFromSql
    watched: str
    """The file or folder that DVC watches."""
    notes: Sequence[str] = ()
    """What else was found, for people."""
    corpus: str | None = None
    """The path or glob of `data.corpus`."""


def find_source(request: NewRecipeRequest, root: Path = Path()) -> FoundSource:
    """Return the source that `--data`, `--query`, `--test` and `--validation` describe.

    Raises:
        RecipeError: flags do not fit together.
        DataError: there is no such file or dataset, or its files cannot be told apart.
    """
    data = request.data
    if "://" in data:
        return _sql(request)
    if request.query:
        raise RecipeError("--query", f"needs a database, and --data is {data}", "write --data sqlite:///rows.db")
    match = _HUB.fullmatch(data)
    if data.startswith("hub:") and not match:
        fix = "write hub:owner/name, or hub:owner/name@revision"
        raise RecipeError("--data", f"{data} names no dataset", fix)
    path = PurePosixPath(data)
    is_local = (  # even if there is no such file or folder
        (root / data).exists()
        or is_glob(data)
        or is_format_named(path)
        or (len(path.parts) > 1 and (root / path.parts[0]).is_dir())
    )
    if match and (data.startswith("hub:") or not is_local):
        return _hub(request, match["repo"], match["revision"] or "main")
    return _files(request, root)


def _sql(request: NewRecipeRequest) -> FoundSource:
    if request.test or request.validation:
        raise RecipeError("--test", "a query has no further files", "remove it: a share of the rows is held out")
    if not request.query:
        fix = f'add --query "SELECT ... ORDER BY ..."{see_limits("data")}'
        raise RecipeError("--query", "is needed for a database", fix)
    url = request.data
    if re.search(r"://[^/@:]*:(?!\$\{)[^@/]+@", url):
        fix = "write `${NAME}` for it, and set that variable: the recipe is published with the model"
        raise RecipeError("--data", "the address holds a password", fix)
    database = url.removeprefix("sqlite:///")
    watched = database if url.startswith("sqlite:///") and database else "tasks/ingestion/sql.py"
    is_ordered = re.search(r"\border\s+by\b", request.query, re.IGNORECASE)
    notes = [] if is_ordered else ["the query has no ORDER BY: training depends on the order of the rows"]
    keys = {"kind": "sql", "url": url, "query": request.query}
    return FoundSource(keys, RowsFromSql.model_validate(keys), watched, notes)


def _hub(request: NewRecipeRequest, repo_id: str, revision: str) -> FoundSource:
    if problem := repo_id_problem(repo_id):
        what = f"there is no such file, and the Hub refuses {repo_id!a}: {problem}"
        raise DataError("--data", what, "check the path")
    patterns, notes = _patterns(request, hub.list_dataset_files(repo_id, revision), where=f"dataset {repo_id}")
    keys = {"kind": "hub", "repo_id": repo_id, "revision": revision, **_in_order(patterns)}
    return FoundSource(keys, RowsFromHubDataset.model_validate(keys), "tasks/ingestion/hub_dataset.py", notes)


def _files(request: NewRecipeRequest, root: Path) -> FoundSource:
    data = path_in_project(request.data, root)
    if (root / data).is_file():
        patterns, notes = {"train": data}, [] if request.test else _unused_beside(data, root)
    else:
        names = _local_names(data, root)
        if (root / data).is_dir() and not request.objective:
            refuse_folders_of_classes(data, names)
        patterns, notes = _patterns(request, names, where=data)
    patterns |= {split: path_in_project(path, root) for split, path in _named(request).items()}
    files = _check_files(patterns, root)
    keys = {"kind": "files", **_in_order(patterns)}
    if own_format := find_format(files["train"][0]):  # others are refused when they are opened
        options, why = own_format.guess_options([root / name for name in files["train"]])
        keys |= options
        notes = [*notes, *why]
    return FoundSource(keys, RowsFromFiles.model_validate(keys), watched_path(patterns.values(), root), notes)


def _unused_beside(data: str, root: Path) -> list[str]:
    """Return notes on files of held-out rows that stand beside a file of training rows."""
    if _split_of(Path(data).name) != "train":
        return []
    beside = [path for path in sorted((root / data).parent.iterdir()) if path.suffix == Path(data).suffix]
    held_out = [path for path in beside if _split_of(path.name) == "test"]
    return [f"{one} is not used: add --test {one}, or give the folder as --data" for one in held_out]


def _check_files(patterns: Mapping[str, str], root: Path) -> dict[str, list[str]]:
    """Return the files of each split; DataError if there are none, or one would be misread."""
    files = {split: list_matching_files(pattern, root) for split, pattern in patterns.items()}
    for split, names in files.items():
        if not names:
            raise DataError(_flag_of(split), f"{patterns[split]}: there is no such file", "check the path")
        for name in names:
            refuse_misreadable_file(root / name)
    return files


def names_unlabelled(name: str) -> bool:
    """Whether a folder has texts of no class, as that of the films whose reviews nobody has read."""
    return name.lower() in {"unsup", "unlabeled", "unlabelled"}


def refuse_folders_of_classes(data: str, names: Sequence[str]) -> None:
    """Refuse a folder that has a folder of texts for each class, below those of splits, if there are some.

    Raises:
        DataError: it has; with the commands that write the rows.
    """
    found = _ClassFolders.of(data, names)
    if found is None or not found.may_be_classes:
        return
    to = f"{data.rstrip('/')}-clean"
    new = {split: f"{to}/{split or 'train'}.jsonl" for split in found.splits}
    commands = [
        f"evergreen convert {shlex.join([str(own[0].parent), new[split]])}" for split, own in found.splits.items()
    ]
    flags = [f"{_flag_of(split)} {shlex.quote(path)}" for split, path in new.items()]
    classes = sorted({name for own in found.classes.values() for name in own})
    listed = f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}"
    running = shlex.quote(f"{data.rstrip('/')}/**/*.txt")
    fix = f"if they are: {' && '.join(commands)}; then give {' '.join(flags)}; if not, give --data {running}"
    raise DataError(data, f"has a folder of texts for each of {listed}, which may be classes", fix)


def _flag_of(split: str) -> str:
    return "--data" if split in ("", "train") else f"--{split}"


@dataclass(frozen=True)
class _ClassFolders:
    """Folders in a folder, or in those of its splits, and the files that are there."""

    names: Sequence[str]
    splits: Mapping[str, Sequence[PurePosixPath]]
    """The folders of each split; of an empty one, if there are no splits."""
    files: Counter[PurePosixPath]
    """How many files each folder has."""
    loose: int
    """Files beside these folders, such as a list of addresses."""

    @classmethod
    def of(cls, data: str, names: Sequence[str]) -> Self | None:
        """Return what is in a folder; None if it has folders of another depth."""
        files = Counter(PurePosixPath(name).parent for name in names)
        splits = defaultdict[str, list[PurePosixPath]](list)
        loose = 0
        for folder, count in files.items():
            inside = folder.relative_to(data).parts
            split = _split_of(inside[0]) if inside else ""
            if not inside or (len(inside) == 1 and split):
                loose += count
            elif len(inside) == 1:
                splits[""].append(folder)
            elif len(inside) == 2 and split:
                splits[split].append(folder)
            else:
                return None
        return cls(names, splits, files, loose)

    @property
    def classes(self) -> dict[str, set[str]]:
        """The names of the folders of each split whose texts have a class."""
        return {
            split: {one.name for one in own if not names_unlabelled(one.name)} for split, own in self.splits.items()
        }

    @property
    def may_be_classes(self) -> bool:
        folders = {folder for own in self.splits.values() for folder in own}
        return (
            bool(folders)
            and self._are_texts(folders)
            and min(self.files[folder] for folder in folders) > 1
            and self.loose <= _FEW * self.files.total()
            and not any(_split_of(folder.name) for folder in folders)
            and all(len(own) > 1 for own in self.classes.values())
        )

    def _are_texts(self, folders: Collection[PurePosixPath]) -> bool:
        inside = [name for name in self.names if PurePosixPath(name).parent in folders]
        return all(format_suffix(name) == ".txt" for name in inside)


def _in_order(patterns: Mapping[str, str]) -> dict[str, str]:
    return {split: patterns[split] for split in SPLITS if split in patterns}


def _named(request: NewRecipeRequest) -> dict[str, str]:
    given = {"test": request.test, "validation": request.validation}
    return {split: path for split, path in given.items() if path}


def _refuse_saved_data_set(data: str, names: Sequence[str]) -> None:
    """Refuse a folder that `save_to_disk` of `datasets` has written: its rows are in Arrow files, and its JSON files describe them."""
    folder = data.rstrip("/")
    of_splits = f"{folder}/dataset_dict.json" in names
    if not (of_splits or f"{folder}/state.json" in names) or not any(format_suffix(n) == ".arrow" for n in names):
        return
    new = f"{folder}-clean"
    given = shlex.quote(new if of_splits else f"{new}/*.parquet")
    fix = f"make Parquet files of them: evergreen convert {shlex.quote(f'{folder}/**/*.arrow')} {shlex.quote(new)}; then give --data {given}"
    raise DataError(data, "is a data set as `datasets` saves it, whose rows are in Arrow files", fix)


def _local_names(data: str, root: Path) -> list[str]:
    """Return the files in a folder, or that match a glob, relative to `root`."""
    is_folder = (root / data).is_dir()
    names = list_matching_files(f"{data.rstrip('/')}/**" if is_folder else data, root)
    if is_folder:
        _refuse_saved_data_set(data, names)
        others, names = names, [name for name in names if find_format(name)]
        for other in [] if names else others[:1]:
            refuse_misreadable_file(root / other)  # says how to convert it
    if not names:
        what = f"{data}: there are no files that can be read" if is_folder else f"{data}: there is no such file"
        raise DataError("--data", what, f"check the path; files end in {', '.join(readable_suffixes())}")
    return names


def _patterns(request: NewRecipeRequest, names: Sequence[str], *, where: str) -> tuple[dict[str, str], list[str]]:
    """Return a path or glob for each split that files are named after, and notes about the others."""
    readable = [name for name in names if find_format(name) and name != request.corpus]
    by_split, unnamed = _divide_by_name(readable, where)
    suffixes = sorted({format_suffix(name) for name in by_split["train"]})
    if len(suffixes) > 1:
        raise DataError("--data", f"{where} has files of several formats: {', '.join(suffixes)}", "name one, or a glob")
    notes = [f"not used: {', '.join(unnamed[:5])}{' ...' if len(unnamed) > 5 else ''}"] if unnamed else []
    patterns = {split: _pattern(files, readable) for split, files in sorted(by_split.items(), reverse=True)}
    if request.test and where.startswith("dataset"):
        patterns |= _named(request)
    notes += [f"{split} rows: {pattern}" for split, pattern in patterns.items() if split != "train"]
    return patterns, notes


def _divide_by_name(readable: Sequence[str], where: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files that are named after each split, and those that are not used; without a name of their own, training rows."""
    by_split = defaultdict[str, list[str]](list)
    for name in readable:
        by_split[_split_of(name, where)].append(name)
    unnamed = by_split.pop("", [])
    if "train" in by_split:
        return by_split, unnamed
    if not unnamed:
        what = f"{where} has no file of training rows: {', '.join(readable) or 'no file that can be read'}"
        raise DataError("--data", what, "name the file of the training rows")
    return {**by_split, "train": unnamed}, []


def _split_of(name: str, where: str = "") -> str:
    """Return the split that a file or a folder inside of `where` is named after; empty if there is none."""
    for part in reversed(PurePosixPath(name.removeprefix(where).lstrip("/")).parts):
        words = set(re.split(r"[._\W]+", part.lower()))
        for split, known in _NAMES.items():
            if words & set(known):
                return split
    return ""


def _pattern(files: Sequence[str], readable: Sequence[str]) -> str:
    """Return the path of one file, or a glob that matches these and no other file."""
    if len(files) == 1:
        return files[0]
    suffix = PurePosixPath(files[0]).suffix
    prefix = os.path.commonprefix(files)  # noqa: RUF071 - the beginning of their names, not only of their folders
    folder = f"{prefix.rpartition('/')[0]}/" if "/" in prefix else ""
    for pattern in (f"{prefix}*{suffix}", f"{prefix}**/*{suffix}", f"{folder}*{suffix}", f"{folder}**/*{suffix}"):
        as_glob = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if [name for name in readable if re.fullmatch(as_glob, name)] == list(files):
            return pattern
    raise DataError("--data", f"no single pattern matches {files[0]} and {files[-1]} only", "move them into a folder")


def list_matching_files(pattern: str, root: Path) -> list[str]:
    """Return the files of a path or glob, relative to `root`; DataError if one is a link out of its folder."""
    if (root / pattern).is_file():
        names = [pattern]
    else:
        refuse_linked_folders(root, pattern, pattern)
        found = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207 - takes absolute paths too
        names = sorted(name for name in found if (root / name).is_file())
    refuse_links_out_of_folder(root, pattern, names, pattern)
    return names


def path_in_project(path: str, root: Path) -> str:
    """Return a path in the project relative to its root; another path as it is given."""
    absolute = Path(os.path.normpath((root / path).absolute()))
    inside = absolute.is_relative_to(root.absolute())
    return absolute.relative_to(root.absolute()).as_posix() if inside else path


def watched_path(patterns: Iterable[str], root: Path) -> str:
    """Return the file that DVC watches, or the folder of the files; DataError if that would hold the whole project."""
    listed = list(patterns)
    if len(listed) == 1 and (root / listed[0]).is_file():
        return listed[0]
    common = common_folder(listed)
    if root.absolute().resolve().is_relative_to((root / common).resolve()):
        what = f"{', '.join(listed)} have no folder of their own, which DVC could watch"
        raise DataError("--data", what, "move them into a folder, for example data/rows")
    return common


def is_glob(pattern: str) -> bool:
    """Whether a pattern may match several files."""
    return bool(_WILD.search(pattern))


def common_folder(patterns: Iterable[str]) -> str:
    """Return the folder that holds all files of some patterns; empty if they have none in common."""
    try:
        return os.path.commonpath([os.path.dirname(_WILD.split(pattern)[0]) for pattern in patterns])  # noqa: PTH120 - of a text with a glob
    except ValueError:
        return ""


def converted_name(name: str, patterns: Iterable[str], to: str, suffix: str = ".jsonl") -> str:
    """Return what a file of these patterns, or one of the patterns, is called once it is converted into the folder `to`, and not above it."""
    path, folder = PurePosixPath(name), common_folder(patterns)
    path = path.relative_to(folder) if folder else path
    path = PurePosixPath(*(part for part in path.parts[path.is_absolute() :] if part != ".."))
    stem = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return str(to / stem.with_suffix(suffix))
