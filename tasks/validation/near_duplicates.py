"""Find training rows that say nearly the same as a held-out row, or as an earlier training row.

Two rows are near if each part of their texts is: each column, and in a conversation what each role says. Two texts are near if the Jaccard
index of their shingles, the sets of five characters in a row that they have, is at least the threshold (Broder 1997,
https://doi.org/10.1109/SEQUEN.1997.666900). Only letters and digits count, in lower case.

MinHash finds pairs that may be near: the rows whose smallest hashes of shingles are equal in a band of them (locality-sensitive hashing;
Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3). The index is then computed from the shingles themselves, so no other
row is ever set aside. Of the pairs that are just at the threshold, 99 % are found, and more of those above it.

Each shard gives a file with the hashes of its bands, which is kept for the next run. As for equal rows (by_key.py), they are compared
in buckets, so memory does not grow with them; for each row with a candidate, 8 bytes per candidate are in memory.
"""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import write_array
from params.sections.rows import Expectation, NearDuplicates
from tasks.known_rows.rows import ComparedColumns, join_texts_in_value
from tasks.shards.split_rows import values_of_rows
from tasks.validation.by_key import bucket_ranges, read_bucket, with_row_ids
from tasks.validation.check_results import CheckResult, objective_identity
from tasks.validation.expectations import ExpectationResult
from tasks.validation.raw_rows import Positions, RawRows, RawShardWork, positions_in_range
from trainer import objectives
from trainer.objectives.bases.objective import Objective

ROW_IS_NEW: Final = "row_is_no_near_duplicate"
"""The check of a row against others; not an expectation of Great Expectations."""
_SHINGLE: Final = 5
_MOST_HASHES: Final = 128
_FOUND: Final = 0.99
"""Share of the pairs just at the threshold that are found."""
_COMPARED: Final = 4
"""Of the rows with the same band, a row is compared with so many at their beginning, and so many just before it."""
_PAIRS: Final = 1 << 15
"""Pairs whose shingles are compared in one piece of work."""
_PART_BITS: Final = np.uint64(48)
_MARKS: Final = "".join(one for one in map(chr, range(0x300, 0xFE00)) if unicodedata.category(one)[0] == "M")
"""Vowels and tones of scripts such as Devanagari and Thai, which belong to letters."""
_NO_WORD: Final = re.compile(rf"(?:[^\w{_MARKS}]|_)+")
_BATCH_ROWS: Final = 1000

Hashes = NDArray[np.uint64]


def check_near_duplicates(
    method: Objective[Any], settings: NearDuplicates, rows: RawRows, set_aside: Positions
) -> CheckResult:
    """Look for training rows that nearly repeat another of the rows that are not at the positions in `set_aside`."""
    compared = ComparedColumns.of(rows.splits["train"], method, ())
    texts = RowTexts(method, [name for name in compared.texts if name != compared.listed])
    columns = texts.columns
    more: Any = {"column_list": columns, "threshold": settings.threshold}
    expectation = Expectation(type=ROW_IS_NEW, on_failure=settings.action, **more)
    train = rows.span("train")
    with rows.folder() as folder:
        pairs = _find_candidates(texts, settings.threshold, rows, set_aside, folder) if columns else np.zeros((2, 0))
        near = _keep_near(texts, settings.threshold, rows, pairs.astype(np.int64), folder)
    order = np.lexsort(near)
    failing, first = np.unique(near[1, order], return_index=True)
    stays = near[0, order][first]
    result = ExpectationResult(
        success=not len(failing), failing=failing, considered=len(train), repeats=with_row_ids(rows, stays)
    )
    held_out = int((stays < train.start).sum())
    sentence = f"{len(failing):,} of {len(train):,} training rows nearly repeat another (Jaccard index of"
    sentence += f" {settings.threshold:g} or more): {held_out:,} a held-out row, {len(failing) - held_out:,} an earlier training row"
    return CheckResult("recipe", expectation, result, sentence=sentence if len(failing) else "")


def bands_for_threshold(threshold: float) -> tuple[int, int]:
    """Return how many bands of how many hashes find a pair just at the threshold with the chance `_FOUND`.

    b bands of r hashes find a pair of index s with the chance 1 - (1 - s^r)^b. The longest bands that so many hashes allow find the
    fewest pairs below the threshold.
    """
    for length in range(_MOST_HASHES, 1, -1):
        bands = math.ceil(math.log(1 - _FOUND) / math.log1p(-(threshold**length)))
        if bands * length <= _MOST_HASHES:
            return bands, length
    raise AssertionError(f"no bands for {threshold}")


def hash_shingles(texts: Sequence[Mapping[str, str]]) -> tuple[Hashes, NDArray[np.int64], NDArray[np.int64]]:
    """Return the hashed shingles of N rows one behind another, (S,), where each row with some begins, (M,), and its number, (M,).

    `texts` are the parts of each row by name. The first 16 bits of a hash say the part. A shingle that a text has twice is there twice.
    """
    names, owners, pieces = list[int](), list[int](), list[str]()
    for number, parts in enumerate(texts):
        for name, text in parts.items():
            if words := _NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip():
                names.append(zlib.crc32(name.encode()) & 0xFFFF)
                owners.append(number)
                pieces.append(words.ljust(_SHINGLE))
    if not pieces:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    codes = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    lengths = np.array([*map(len, pieces)])
    hashes = np.zeros(len(codes) - _SHINGLE + 1, np.uint64)
    for place in range(_SHINGLE):
        hashes = hashes * np.uint64(0x100000001B3) + codes[place : place + len(hashes)]
    piece = np.repeat(np.arange(len(pieces)), lengths)
    is_inside = piece[: len(hashes)] == piece[_SHINGLE - 1 :]
    piece, hashes = piece[: len(hashes)][is_inside], _mixed(hashes[is_inside])
    hashes = hashes >> (np.uint64(64) - _PART_BITS) | np.array(names, np.uint64)[piece] << _PART_BITS
    numbers, starts = np.unique(np.array(owners)[piece], return_index=True)
    return hashes, starts, numbers


def _mixed(hashes: Hashes) -> Hashes:
    """Spread the bits of hashes over all 64 (the finalizer of MurmurHash3)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes = (hashes ^ hashes >> np.uint64(33)) * np.uint64(factor)
    return hashes ^ hashes >> np.uint64(33)


@dataclass(frozen=True)
class RowTexts:
    """The texts of a row that are compared, as the objective reads them."""

    objective: Objective[Any]
    columns: Sequence[str]

    @property
    def read(self) -> list[str]:
        """The columns that a row needs for it."""
        return [*self.objective.columns()]

    @property
    def identity(self) -> list[Any]:
        """What they depend on beside the objective's code, as JSON."""
        return [self.columns, objective_identity(self.objective)]

    def parts(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts that are compared by themselves: of each column, and in a conversation of each role."""
        return row_parts(objectives.content_of_row(self.objective, row), self.columns)


def row_parts(content: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return the texts in some columns of the content of a row: of each column, and in a conversation of each role."""
    found: dict[str, str] = {}
    for column in columns:
        value = content.get(column)
        for piece in value if isinstance(value, list) else [value]:
            role = (piece.get("role") or piece.get("from")) if isinstance(piece, Mapping) else ""
            name = f"{column} {role}"
            found[name] = f"{found.get(name, '')} {join_texts_in_value(piece)}"
    return found


def _find_candidates(
    texts: RowTexts, threshold: float, rows: RawRows, set_aside: Positions, folder: Path
) -> NDArray[np.uint64]:
    """Return the positions of pairs of rows that may be near, (2, P): the later one is a training row."""
    bands, length = bands_for_threshold(threshold)
    files = [folder / f"{number:05}.bands" for number in range(len(rows.parts))]
    work = partial(write_shard_bands, texts, bands, length)
    shards = {"what": "near duplicates", "columns": texts.read, "texts": texts.identity, "bands": [bands, length]}
    counts = list(rows.run(work, rows.parts, paths=files, **shards))  # type: ignore[arg-type]
    starts = [part.start for part in rows.parts]
    in_bucket = partial(_in_bucket, files, starts, set_aside, rows.span("train").start)
    found = rows.workers.map(in_bucket, bucket_ranges(sum(counts)), what="buckets (near duplicates)")
    packed = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)])


def write_shard_bands(texts: RowTexts, bands: int, length: int, work: RawShardWork) -> int:
    """Write the hash of each band of each row of a shard that has a text, as an array (2, N * bands) for `read_bucket`: hashes and places.

    A hash of a shingle x is (a x + b) mod 2^64, without its last 32 bits (Dietzfelbinger et al. 1997,
    https://doi.org/10.1006/jagm.1997.0873).
    """
    draw = np.random.Generator(np.random.PCG64(1))
    factors, addends = draw.integers(0, 1 << 64, (2, bands * length), np.uint64)
    factors |= np.uint64(1)
    keys, places, first = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], 0
    for batch in work.part.rows.batches(texts.read, _BATCH_ROWS):
        shingles, starts, numbers = hash_shingles([texts.parts(row) for row in values_of_rows(batch)])
        for band in range(bands if len(starts) else 0):
            key = np.full(len(starts), band, np.uint64)
            for i in range(band * length, (band + 1) * length):
                smallest = np.minimum.reduceat(shingles * factors[i] + addends[i] >> np.uint64(32), starts)
                key = _mixed(key ^ smallest)
            keys.append(key)
            places.append((numbers + first).astype(np.uint64))
        first += batch.num_rows
    found = np.stack([np.concatenate(keys), np.concatenate(places)])
    assert work.path
    write_array(work.path, found[:, np.argsort(found[0], kind="stable")], has_header=False)
    return int(found.shape[1])


def _in_bucket(
    files: Sequence[Path], starts: Sequence[int], set_aside: Positions, train: int, bucket: tuple[int, int]
) -> Hashes:
    """Return the pairs of a bucket that have a band in common, each as one number: 32 bits of each position."""
    keys, positions = read_bucket(files, starts, 2, bucket)
    counts = ~np.isin(positions, set_aside)
    keys, positions = keys[counts], positions[counts]
    order = np.lexsort((positions, keys))
    keys, positions = keys[order], positions[order]
    places = np.arange(len(keys))
    begins = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    begin = np.repeat(begins, np.diff(np.r_[begins, len(keys)]))
    found = [np.zeros(0, np.uint64)]
    for step in range(_COMPARED):
        for other in (begin + step, places - step - 1):
            is_pair = (other >= begin) & (other < places) & (positions >= np.uint64(train))
            found.append(positions[other[is_pair]] << np.uint64(32) | positions[is_pair])
    return np.unique(np.concatenate(found))


def _keep_near(
    texts: RowTexts, threshold: float, rows: RawRows, pairs: NDArray[np.int64], folder: Path
) -> NDArray[np.int64]:
    """Return those of the pairs, (2, P), whose texts are near."""
    wanted = np.unique(pairs)
    own = [(part, positions_in_range(wanted, part.start, part.stop)) for part in rows.parts]
    own = [each for each in own if len(each[1])]
    files = [folder / f"{number:05}.shingles.npy" for number in range(len(own))]
    work, parts = partial(write_shard_shingles, texts), [part for part, _ in own]
    # the rows at the positions in `skip` are those that are read
    shards = {"what": "rows that may be near duplicates", "columns": texts.read, "texts": texts.identity}
    for _ in rows.run(work, parts, skip=wanted, paths=files, **shards):  # type: ignore[arg-type]
        pass
    ends = np.cumsum([len(positions) for _, positions in own], dtype=np.int64)
    numbers = np.searchsorted(wanted, pairs)
    chunks = [numbers[:, start : start + _PAIRS] for start in range(0, pairs.shape[1], _PAIRS)]
    compare = partial(_are_near, files, ends, threshold)
    kept = list(rows.workers.map(compare, chunks, what="pairs of rows (near duplicates)"))
    return pairs[:, np.concatenate([np.zeros(0, np.bool_), *kept])]


def write_shard_shingles(texts: RowTexts, work: RawShardWork) -> None:
    """Write the different shingles of the rows that the others skip, ascending in each row: N + 1 places where rows begin, then all of them."""
    wanted = values_of_rows(work.part.table(texts.read).take(work.skip))
    shingles, starts, _ = hash_shingles([texts.parts(row) for row in wanted])
    found = [np.unique(own) for own in np.split(shingles, starts[1:])]
    sizes = np.cumsum([0, *map(len, found)]).astype(np.uint64)
    assert work.path
    write_array(work.path, np.concatenate([sizes + np.uint64(len(sizes)), *found]))


def _are_near(
    files: Sequence[Path], ends: NDArray[np.int64], threshold: float, numbers: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which pairs of rows, numbered over all files, are near, (P,)."""
    stored: dict[int, Hashes] = {}

    def read(number: int) -> Hashes:
        file = int(np.searchsorted(ends, number, side="right"))
        if file not in stored:
            stored[file] = np.load(files[file], mmap_mode="r")
        place = number - (int(ends[file - 1]) if file else 0)
        start, stop = stored[file][place : place + 2].tolist()
        return stored[file][start:stop]

    return np.array([rows_are_near(read(one), read(other), threshold) for one, other in numbers.T.tolist()], np.bool_)


def rows_are_near(one: Hashes, other: Hashes, threshold: float) -> bool:
    """Whether each part of two rows has a Jaccard index of at least the threshold; the shingles of a row are ascending, and each is there once."""
    if _jaccard(one, other) < threshold:  # then that of some part is, too
        return False
    own, others = one >> _PART_BITS, other >> _PART_BITS
    return all(_jaccard(one[own == part], other[others == part]) >= threshold for part in np.union1d(own, others))


def _jaccard(one: Hashes, other: Hashes) -> float:
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
