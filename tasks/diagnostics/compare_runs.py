"""Compare two runs of the same training, bit for bit: what each step recorded, and the files that they leave.

A run's folder is as trainer.worker leaves it, with `steps-<rank>.jsonl` (trainer.reporting.callbacks). Components are compared in
the order in which one causes the next, so the first that differs is closest to the cause. A step that a killed run repeated
must be equal each time. Times, paths and hashes of other files are not compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Container, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from params import CheckpointError
from params.foundation.hashing import file_sha256
from params.sections.base import Direction
from trainer.checkpoints.sealed import IDENTITY, MANIFEST, POSITION, find_best_weights, list_checkpoints
from trainer.objectives.bases.lazy_imports import np, torch
from trainer.reporting.metrics_log import CLOCK_SUFFIXES

_STEP = "steps of a process"
_RECORDED = {
    "rows": ("rows", "micro-batches"),
    "random state": ("random_state", _STEP),
    "learning rate": ("learning_rate", _STEP),
    "loss": ("losses", "micro-batches"),
}
"""Components of a step: their names in its record, and what they are counted in."""
_SAVED = {
    "weights": ("tensors", "*.safetensors", "pytorch_model*", "global_step*"),
    "optimizer": ("tensors and values", "optimizer*"),
    "scheduler": ("tensors and values", "scheduler.pt", "scaler.pt"),
    "saved random state": ("tensors and values", "rng_state*.pth"),
    "position": ("values", POSITION),
    "trainer state": ("values", "trainer_state.json"),
    "other files": ("values", "*"),
}
"""Components of a checkpoint: what they are counted in, and their files and folders."""
_NOT_COMPARED = {MANIFEST, IDENTITY, "training_args.bin"}
"""Hashes of the other files, a text that is the same by construction, and arguments that contain the run's folder."""
_MAX_SHOWN_CHARACTERS = 96
_ABSENT = object()
Pair = tuple[str, Any, Any, int | None]
"""A place, what two runs have there (`_ABSENT` for nothing), and the optimizer step if it was recorded in one."""


class ComponentComparison(NamedTuple):
    """The result of comparing one component of two runs."""

    component: str
    compared: int
    unit: str
    """What was counted: steps, micro-batches, tensors, values, files."""
    differing: int
    first: str = ""
    """The first difference: its place and the two values, for people."""
    step: int | None = None
    """The optimizer step of it, if it was recorded in one."""

    def __str__(self) -> str:
        return f"{self.differing} differ; first {self.first}" if self.differing else "equal"


def compare_training_runs(one: Path, other: Path, direction: Direction) -> list[ComponentComparison]:
    """Compare the runs in two folders; `direction` tells which weights are the best.

    Raises:
        CheckpointError: a run has no checkpoint.
    """
    newest = []
    for folder in (one, other):
        if not (checkpoints := list_checkpoints(folder)):
            raise CheckpointError(str(folder), "the run has no checkpoint", "see the messages of the training above")
        newest.append(checkpoints[0])
    a, b = find_best_weights(one, direction), find_best_weights(other, direction)
    if a and b and a.step == b.step:
        pairs = _file_pairs(a.folder, b.folder, _file_names(a.folder, b.folder))
        best = _comparison("best weights", "tensors and values", pairs)
    else:
        one_step, other_step = (f"at step {found.step}" if found else "none" for found in (a, b))
        best = _comparison("best weights", "evaluations", [("the best evaluation", one_step, other_step, None)])
    return [*_compare_steps(one, other), *_compare_checkpoints(*newest), best]


def earliest_differing_comparison(comparisons: Iterable[ComponentComparison]) -> ComponentComparison | None:
    """Return the comparison with the earliest difference: that of the lowest recorded step, then the first component."""
    differing = [comparison for comparison in comparisons if comparison.differing]
    return min(differing, key=lambda found: math.inf if found.step is None else found.step, default=None)


def _comparison(component: str, unit: str, pairs: Iterable[Pair]) -> ComponentComparison:
    texts = [(_difference(*values), step) for *values, step in pairs]
    differences = [(text, step) for text, step in texts if text]
    return ComponentComparison(component, len(texts), unit, len(differences), *(differences[0] if differences else ()))


def _compare_steps(one: Path, other: Path) -> Iterator[ComponentComparison]:
    """Compare every record of each step and rank with the first one of the run `one`."""
    expected, actual = _records(one), _records(other)
    keys = sorted(expected.keys() | actual.keys())
    yield _comparison("steps", _STEP, [(_place(key), *_presence(key, expected, actual), key[0]) for key in keys])
    for component, (name, unit) in _RECORDED.items():
        pairs: list[Pair] = []
        for key in sorted(expected.keys() & actual.keys()):
            reference, *again = expected[key]
            for i, record in enumerate([*again, *actual[key]]):
                where = _place(key) + (" (repeated)" if i > len(again) else "")
                a, b = ([found[name]] if unit == _STEP else found[name] for found in (reference, record))
                for n, both in enumerate(zip_longest(a, b, fillvalue=_ABSENT), start=1):
                    part = "" if unit == _STEP else f", micro-batch {n}"
                    pairs.append((where + part, *map(_number, both), key[0]))
        yield _comparison(component, unit, pairs)


def _records(folder: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the records of each step and rank in order of time, without the torn last line of a killed process."""
    records: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("steps-*.jsonl")):
        rank = int(path.stem.removeprefix("steps-"))
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                records.setdefault((record["step"], rank), []).append(record)
    return records


def _place(key: tuple[int, int]) -> str:
    return f"step {key[0]}, rank {key[1]}"


def _presence(key: Any, *runs: Container[Any]) -> list[Any]:
    return [True if key in run else _ABSENT for run in runs]


def _number(value: Any) -> Any:
    """Return a recorded number, which is hexadecimal to keep every bit, as a float, and anything else as it is."""
    is_hex = isinstance(value, str) and (value.lstrip("-").startswith("0x") or value.lstrip("-") in {"inf", "nan"})
    return float.fromhex(value) if is_hex else value


def _compare_checkpoints(a: Path, b: Path) -> Iterator[ComponentComparison]:
    """Compare every tensor and value in two checkpoints."""
    rest = _file_names(a, b)
    for component, (unit, *patterns) in _SAVED.items():
        names = {name for name in rest if any(Path(name).match(pattern) for pattern in patterns)}
        rest -= names
        yield _comparison(component, unit, _file_pairs(a, b, names))


def _file_names(*folders: Path) -> set[str]:
    return {path.name for folder in folders for path in folder.iterdir()} - _NOT_COMPARED


def _file_pairs(a: Path, b: Path, names: Iterable[str]) -> Iterator[Pair]:
    """Yield what the files and folders of these names hold in the folders `a` and `b`."""
    for name in sorted(names):
        present = _presence(name, _file_names(a), _file_names(b))
        if _ABSENT in present:
            yield (name, *present, None)
            continue
        one, other = (dict(_leaves(_content(folder / name))) for folder in (a, b))
        for key in dict.fromkeys([*one, *other]):
            yield f"{name} {key}".rstrip(), one.get(key, _ABSENT), other.get(key, _ABSENT), None


def _content(path: Path) -> Any:
    """Return what a file or folder holds: tensors and values, or hashes."""
    from safetensors.torch import load_file

    if (path / ".metadata").exists():
        return _sharded_content(path)
    if path.is_dir():
        return {file.relative_to(path).as_posix(): _digest(file) for file in sorted(path.rglob("*")) if file.is_file()}
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8").replace(str(path.parents[1]), ""))
    if path.suffix in {".pt", ".pth", ".bin"}:
        from transformers.trainer_pt_utils import safe_globals

        with safe_globals():  # NumPy's random state
            return torch.load(path, map_location="cpu", weights_only=True)
    return _digest(path)


def _sharded_content(folder: Path) -> dict[str, Any]:
    """The same for a checkpoint of torch.distributed, as FSDP writes. Its index holds a random number, so it is not compared."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    state: dict[str, Any] = {}
    for name, kind in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        state[name] = None
        if isinstance(kind, TensorStorageMetadata):
            state[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
    with warnings.catch_warnings(action="ignore"):  # that there is only one process
        load(state, checkpoint_id=folder, no_dist=True)
    return state


def _digest(path: Path) -> str:
    return f"SHA-256 {file_sha256(path)[:16]}"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested dictionaries and lists with their paths, except those that depend on the clock."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if not (isinstance(key, str) and key.endswith(CLOCK_SUFFIXES)):
                yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value:
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{i}]")
    else:
        yield name, value


def _difference(where: str, a: Any, b: Any) -> str | None:
    """Return how two values differ, if they do. Tensors are compared bit for bit; NaN equals NaN."""
    if a is _ABSENT or b is _ABSENT:
        return f"{where}: {' and '.join('missing' if value is _ABSENT else 'present' for value in (a, b))}"
    a, b = (torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value for value in (a, b))
    index, distance = "", None
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{where}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
        bits_a, bits_b = (x.contiguous().reshape(-1, 1).view(torch.uint8) for x in (a, b))
        differing = (bits_a != bits_b).any(dim=1).nonzero()
        if not len(differing):
            return None
        first = int(differing[0])
        index = str([int(i) for i in torch.unravel_index(torch.tensor(first), a.shape)] or "")
        wide = torch.complex128 if a.is_complex() else torch.float64
        distance = float((a.to(wide) - b.to(wide)).abs().reshape(-1)[differing].max())
        a, b = (x.reshape(-1)[first].item() for x in (a, b))
    elif type(a) is type(b) and (a == b or (a != a and b != b)):  # noqa: PLR0124 (only NaN is unequal to itself)
        return None
    elif isinstance(a, float) and isinstance(b, float):
        distance = abs(a - b)
    apart = "" if distance is None else f", up to {distance:.3g} apart"
    return f"{where}{index}: {_shown(a)} and {_shown(b)}{apart}"


def _shown(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
