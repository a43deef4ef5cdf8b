"""Compare two runs of the same training, bit for bit: what each step recorded, and the files that they leave.

A run's folder is as trainer.worker leaves it, with `steps-<rank>.jsonl` (trainer.reporting.callbacks). Components are compared in
the order in which one causes the next, so the first that differs is closest to the cause. A step that a killed run repeated
must be equal each time. Times, paths and hashes of other files are not compared.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import CheckpointError
from params.foundation.hashing import file_sha256
from params.schema import Direction
from trainer.checkpoints.sealed import IDENTITY, MANIFEST, POSITION, all_checkpoints, best_weights
from trainer.reporting.metrics_log import CLOCK_SUFFIXES

if TYPE_CHECKING:
    import torch

_RECORDED = {"rows": "rows", "random state": "random_state", "learning rate": "learning_rate", "loss": "losses"}
"""Components of a step, and their names in its record; rows and losses have one item per micro-batch."""
_SAVED = {
    "weights": ("*.safetensors", "pytorch_model*", "global_step*"),
    "optimizer": ("optimizer*",),
    "scheduler": ("scheduler.pt", "scaler.pt"),
    "saved random state": ("rng_state*.pth",),
    "position": (POSITION,),
    "trainer state": ("trainer_state.json",),
}
"""Components of a checkpoint, and their files and folders."""
_NOT_COMPARED = {MANIFEST, IDENTITY, "training_args.bin"}
"""Hashes of the other files, a text that is the same by construction, and arguments that contain the run's folder."""
_MAX_SHOWN_CHARACTERS = 96


@dataclass(frozen=True)
class Difference:
    """One place in which two runs differ, and the two values there."""

    where: str
    values: tuple[str, str]
    step: int | None = None
    """The optimizer step, if it was recorded in one."""
    distance: float | None = None
    """The distance of two numbers; the largest one of two tensors."""

    def __str__(self) -> str:
        distance = f", up to {self.distance:.3g} apart" if self.distance is not None else ""
        return f"{self.where}: {' and '.join(self.values)}{distance}"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing one component of two runs."""

    component: str
    compared: int
    unit: str
    """What was counted: steps, micro-batches, tensors, values, files."""
    differences: list[Difference]

    def __str__(self) -> str:
        return f"{len(self.differences)} differ; first {self.differences[0]}" if self.differences else "equal"


def compare(one: Path, other: Path, direction: Direction) -> list[Comparison]:
    """Compare the runs in the folders `one` and `other`, component by component.

    Args:
        one: folder of an uninterrupted run.
        other: folder of the other run.
        direction: whether the best metric is the smallest (`min`) or the largest (`max`); tells the best weights.

    Raises:
        CheckpointError: a run has no checkpoint.
    """
    return [*_compare_steps(one, other), *_compare_checkpoints(one, other), _compare_best(one, other, direction)]


def earliest_differing_comparison(comparisons: Iterable[Comparison]) -> Comparison | None:
    """Return the comparison with the earliest difference: that of the lowest recorded step, then the first component."""

    def step(comparison: Comparison) -> float:
        first = comparison.differences[0].step
        return math.inf if first is None else first

    return min((comparison for comparison in comparisons if comparison.differences), key=step, default=None)


def _compare_steps(one: Path, other: Path) -> Iterator[Comparison]:
    """Compare every record of each step and rank with the first one of the run `one`."""
    expected, found = _records(one), _records(other)
    missing = [
        _missing(f"step {step}, rank {rank}", ((step, rank) in expected, (step, rank) in found), step)
        for step, rank in sorted(expected.keys() | found.keys())
    ]
    yield _comparison("steps", "steps of a process", missing)
    for component, name in _RECORDED.items():
        results = []
        for step, rank in sorted(expected.keys() & found.keys()):
            reference, *again = expected[step, rank]
            for i, record in enumerate([*again, *found[step, rank]]):
                where = f"step {step}, rank {rank}" + (" (repeated)" if i > len(again) else "")
                for suffix, a, b in _micro_batches(reference[name], record[name]):
                    results.append(_difference(where + suffix, _number(a), _number(b), step))
        yield _comparison(component, "micro-batches" if name in {"rows", "losses"} else "steps of a process", results)


def _compare_checkpoints(one: Path, other: Path) -> Iterator[Comparison]:
    """Compare every tensor and value in the newest checkpoints of two runs."""
    a, b = _newest(one), _newest(other)
    rest = {path.name for folder in (a, b) for path in folder.iterdir()} - _NOT_COMPARED
    for component, patterns in _SAVED.items():
        names = {name for name in rest if any(Path(name).match(pattern) for pattern in patterns)}
        rest -= names
        unit = "values" if all(name.endswith(".json") for name in names) else "tensors and values"
        yield _compare_files(component, "tensors" if component == "weights" else unit, a, b, names)
    yield _compare_files("other files", "values", a, b, rest)


def _compare_best(one: Path, other: Path, direction: Direction) -> Comparison:
    """Compare the best weights, and the steps that they are from."""
    a, b = best_weights(one, direction), best_weights(other, direction)
    if a is None or b is None or a.step != b.step:
        steps = (f"at step {a.step}" if a else "none", f"at step {b.step}" if b else "none")
        return _comparison("best weights", "evaluations", [_difference("the best evaluation", *steps)])
    names = {path.name for best in (a, b) for path in best.folder.iterdir()} - _NOT_COMPARED
    return _compare_files("best weights", "tensors and values", a.folder, b.folder, names)


def _compare_files(component: str, unit: str, a: Path, b: Path, names: Iterable[str]) -> Comparison:
    """Compare the files and folders of these names in the folders `a` and `b`."""
    results: list[Difference | None] = []
    for name in sorted(names):
        if missing := _missing(name, ((a / name).exists(), (b / name).exists())):
            results.append(missing)
            continue
        one, other = _readers(a / name), _readers(b / name)
        for key in dict.fromkeys([*one, *other]):
            where = f"{name} {key}".rstrip()
            missing = _missing(where, (key in one, key in other))
            results.append(missing or _difference(where, one[key](), other[key]()))
    return _comparison(component, unit, results)


def _comparison(component: str, unit: str, results: list[Difference | None]) -> Comparison:
    return Comparison(component, len(results), unit, [difference for difference in results if difference])


def _records(folder: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the records of each step and rank in order of time, without the torn last line of a killed process."""
    records: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("steps-*.jsonl")):
        rank = int(path.stem.removeprefix("steps-"))
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            records.setdefault((record["step"], rank), []).append(record)
    return records


def _micro_batches(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the pairs of values to compare, and where in the step they are."""
    if not isinstance(a, list):
        yield "", a, b
    elif len(a) != len(b):
        yield "", f"{len(a)} micro-batches", f"{len(b)} micro-batches"
    else:
        for number, pair in enumerate(zip(a, b, strict=True), start=1):
            yield f", micro-batch {number}", *pair


def _number(value: Any) -> Any:
    """Return a recorded number, which is hexadecimal to keep every bit, as a float, and anything else as it is."""
    is_hex = isinstance(value, str) and (value.lstrip("-").startswith("0x") or value.lstrip("-") in {"inf", "nan"})
    return float.fromhex(value) if is_hex else value


def _newest(folder: Path) -> Path:
    if checkpoints := all_checkpoints(folder):
        return checkpoints[0]
    raise CheckpointError(str(folder), "the run has no checkpoint", "see the messages of the training above")


def _readers(path: Path) -> dict[str, Callable[[], Any]]:
    """Return a function to read each tensor or value in a file or folder, by name."""
    import torch
    from safetensors import safe_open

    if (path / ".metadata").exists():
        return _sharded_readers(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {file.relative_to(path).as_posix(): functools.partial(_digest, file) for file in files}
    if path.suffix == ".safetensors":
        tensors: Any = safe_open(path, framework="pt")
        return {name: functools.partial(tensors.get_tensor, name) for name in tensors.keys()}  # noqa: SIM118
    if path.suffix == ".json":
        value = json.loads(path.read_text(encoding="utf-8").replace(str(path.parents[1]), ""))
    elif path.suffix in {".pt", ".pth", ".bin"}:
        from transformers.trainer_pt_utils import safe_globals

        with safe_globals():  # NumPy's random state
            value = torch.load(path, map_location="cpu", weights_only=True)
    else:
        return {"": functools.partial(_digest, path)}
    return {name: functools.partial(lambda leaf: leaf, leaf) for name, leaf in _leaves(value)}


def _sharded_readers(folder: Path) -> dict[str, Callable[[], Any]]:
    """The same for a checkpoint of torch.distributed, as FSDP writes. Its index holds a random number, so it is not compared."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    def read(name: str, kind: Any) -> Any:
        is_tensor = isinstance(kind, TensorStorageMetadata)
        state = {name: torch.empty(kind.size, dtype=kind.properties.dtype) if is_tensor else None}
        with warnings.catch_warnings(action="ignore"):  # that there is only one process
            load(state, checkpoint_id=folder, no_dist=True)
        return state[name]

    kinds = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: functools.partial(read, name, kind) for name, kind in kinds.items()}


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


def _digest(path: Path) -> str:
    return f"SHA-256 {file_sha256(path)[:16]}"


def _missing(where: str, is_in: tuple[bool, bool], step: int | None = None) -> Difference | None:
    """Return the difference if something is missing in one of two runs."""
    one, other = ("present" if there else "missing" for there in is_in)
    return None if all(is_in) else Difference(where, (one, other), step)


def _difference(where: str, a: Any, b: Any, step: int | None = None) -> Difference | None:
    """Return the difference between two values, or None. Tensors are compared bit for bit; NaN equals NaN."""
    import numpy as np
    import torch

    a, b = (torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in (a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _tensor_difference(where, a, b)
    if type(a) is type(b) and (a == b or (a != a and b != b)):  # noqa: PLR0124 (only NaN is unequal to itself)
        return None
    are_numbers = isinstance(a, float) and isinstance(b, float)
    return Difference(where, (_shown(a), _shown(b)), step, abs(a - b) if are_numbers else None)


def _tensor_difference(where: str, a: torch.Tensor, b: torch.Tensor) -> Difference | None:
    import torch

    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return Difference(where, (f"{a.dtype} {tuple(a.shape)}", f"{b.dtype} {tuple(b.shape)}"))
    if not a.numel():
        return None
    bits_a, bits_b = (x.contiguous().reshape(-1).view(torch.uint8).reshape(x.numel(), -1) for x in (a, b))
    differs = (bits_a != bits_b).any(dim=1)
    if not differs.any():
        return None
    first = int(differs.nonzero()[0])
    index = [int(i) for i in torch.unravel_index(torch.tensor(first), a.shape)]
    values = (_shown(a.reshape(-1)[first].item()), _shown(b.reshape(-1)[first].item()))
    wide = torch.complex128 if a.is_complex() else torch.float64
    distances = (a.to(wide) - b.to(wide)).abs().reshape(-1)[differs]
    return Difference(f"{where}{index or ''}", values, distance=float(distances.max()))


def _shown(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
