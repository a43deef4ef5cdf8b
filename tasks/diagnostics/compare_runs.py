"""Compare two runs of one training, bit for bit: what each step saw, and what is left when they end.

A run's folder is as trainer.worker leaves it, with `steps-<rank>.jsonl` (trainer.reporting.step_record). It is compared in parts, in
the order in which one follows from another, so that the first that differs is nearest to the cause. A step that a killed
run made twice must be the same both times. Left out is only what a clock, a path or a hash of another file says.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import CheckpointError
from params.hashing import file_sha256
from params.schema import Direction
from trainer.checkpoints.position import POSITION
from trainer.checkpoints.sealed import IDENTITY, MANIFEST, all_checkpoints, best_weights
from trainer.reporting.clock import CLOCK_SUFFIXES

if TYPE_CHECKING:
    import torch

_RECORDED = {"rows": "rows", "random state": "random_state", "learning rate": "learning_rate", "loss": "losses"}
"""Parts of a step, and their names in its record; rows and loss are lists, one item a micro-batch."""
_SAVED = {
    "weights": ("*.safetensors", "pytorch_model*", "global_step*"),
    "optimizer": ("optimizer*",),
    "schedule": ("scheduler.pt", "scaler.pt"),
    "random state, saved": ("rng_state*.pth",),
    "place in the data": (POSITION,),
    "trainer's state": ("trainer_state.json",),
}
"""Parts of a checkpoint, and the files and folders that hold them."""
_NOT_COMPARED = (MANIFEST, IDENTITY, "training_args.bin")
"""Hashes of the other files, the same text by construction, and the run's folder among arguments that the job holds."""
_LONGEST = 96
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Difference:
    """Where two runs part, and what each has there."""

    where: str
    values: tuple[str, str]
    step: int | None = None
    """The optimizer step, if it was recorded in one."""
    largest: float | None = None
    """Largest absolute difference, of numbers."""

    def __str__(self) -> str:
        by = f", up to {self.largest:.3g} apart" if self.largest is not None else ""
        return f"{self.where}: {' and '.join(self.values)}{by}"


@dataclass(frozen=True)
class Part:
    """What a comparison says of one part of the runs."""

    name: str
    compared: int
    unit: str
    """What was counted: steps, micro-batches, tensors, values, files."""
    differing: int
    first: Difference | None
    """None when all is equal."""

    @property
    def result(self) -> str:
        """`equal`, or how many differ, and where the first of them is."""
        return f"{self.differing} differ; first {self.first}" if self.first else "equal"


class _Tally:
    """Counts what is compared in one part."""

    def __init__(self, name: str, unit: str) -> None:
        self._name, self._unit = name, unit
        self._compared = self._differing = 0
        self._first: Difference | None = None

    def add(self, difference: Difference | None) -> None:
        self._compared += 1
        if difference:
            self._differing += 1
            self._first = self._first or difference

    def part(self) -> Part:
        return Part(self._name, self._compared, self._unit, self._differing, self._first)


def compare(one: Path, other: Path, direction: Direction) -> list[Part]:
    """Compare the runs in the folders `one` and `other`, part by part.

    Args:
        one: folder of a run that was left alone, in which each step is recorded once.
        other: folder of the other run.
        direction: whether the best metric is the smallest (`min`) or the largest (`max`), to find the best weights.

    Raises:
        CheckpointError: a run has left no checkpoint.
    """
    return [*steps(one, other), *states(one, other), _best(one, other, direction)]


def first(parts: Iterable[Part]) -> Part | None:
    """The part with the earliest difference: of recorded steps the lowest one, then in order of the parts."""
    odd = [part for part in parts if part.first]
    return min(
        odd,
        key=lambda part: math.inf if part.first is None or part.first.step is None else part.first.step,
        default=None,
    )


def steps(one: Path, other: Path) -> Iterator[Part]:
    """What was recorded at each optimizer step of each process; in `other`, every time that it was made."""
    expected, found = _records(one), _records(other)
    made = _Tally("steps", "steps of a process")
    for step, rank in sorted(expected.keys() | found.keys()):
        times = len(expected.get((step, rank), [])), len(found.get((step, rank), []))
        is_there = _presence(*times)
        made.add(None if all(times) else Difference(f"step {step}, rank {rank}", is_there, step))
    yield made.part()
    both = sorted(expected.keys() & found.keys())
    for name, key in _RECORDED.items():
        tally = _Tally(name, "micro-batches" if key in {"rows", "losses"} else "steps of a process")
        for step, rank in both:
            reference, *again = expected[step, rank]
            for at, line in enumerate([*again, *found[step, rank]], start=1):
                nth = at - len(again)
                where = f"step {step}, rank {rank}" + (" (repeated)" if nth > 1 else "")
                for place, a, b in _micro_batches(reference[key], line[key]):
                    tally.add(_unequal(where + place, _number(a), _number(b), step))
        yield tally.part()


def states(one: Path, other: Path) -> Iterator[Part]:
    """The newest checkpoint of each run: every tensor and every value in it."""
    a, b = _newest(one), _newest(other)
    names = {path.relative_to(place).parts[0] for place in (a, b) for path in place.iterdir()}
    left = names - set(_NOT_COMPARED)
    for part, patterns in _SAVED.items():
        own = {name for name in left if any(Path(name).match(pattern) for pattern in patterns)}
        left -= own
        unit = "values" if all(name.endswith(".json") for name in own) else "tensors and values"
        yield _files(part, "tensors" if part == "weights" else unit, a, b, own)
    yield _files("other files", "values", a, b, left)


def _best(one: Path, other: Path, direction: Direction) -> Part:
    """The best weights, and the evaluation that they are from."""
    a, b = best_weights(one, direction), best_weights(other, direction)
    if a is None or b is None or a.step != b.step:
        found = (f"at step {a.step}" if a else "none", f"at step {b.step}" if b else "none")
        tally = _Tally("best weights", "evaluations")
        tally.add(_unequal("the best evaluation", *found))
        return tally.part()
    names = {path.name for best in (a, b) for path in best.folder.iterdir()} - set(_NOT_COMPARED)
    return _files("best weights", "tensors and values", a.folder, b.folder, names)


def _records(folder: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The records of each step and rank, in the order in which they were made; a torn last line of a killed process is none."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("steps-*.jsonl")):
        rank = int(path.stem.removeprefix("steps-"))
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            found.setdefault((line["step"], rank), []).append(line)
    return found


def _micro_batches(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Pairs to compare, of one item a micro-batch, or of a single value."""
    if not isinstance(a, list):
        yield "", a, b
    elif len(a) != len(b):
        yield "", f"{len(a)} micro-batches", f"{len(b)} micro-batches"
    else:
        for at, pair in enumerate(zip(a, b, strict=True), start=1):
            yield f", micro-batch {at}", *pair


def _number(value: Any) -> Any:
    """A recorded number, which is written in hexadecimal to keep every bit; anything else as it is."""
    is_hex = isinstance(value, str) and (value.lstrip("-").startswith("0x") or value.lstrip("-") in {"inf", "nan"})
    return float.fromhex(value) if is_hex else value


def _newest(folder: Path) -> Path:
    found = all_checkpoints(folder)
    if not found:
        raise CheckpointError(
            str(folder), "the run has left no checkpoint", "look for the reason in what it wrote above"
        )
    return found[0]


def _files(part: str, unit: str, a: Path, b: Path, names: Iterable[str]) -> Part:
    """Compare files and folders of the same names in two folders."""
    tally = _Tally(part, unit)
    for name in sorted(names):
        if not ((a / name).exists() and (b / name).exists()):
            tally.add(Difference(name, _presence((a / name).exists(), (b / name).exists())))
            continue
        one, other = _content(a / name), _content(b / name)
        for key in _in_order(one, other):
            where = f"{name} {key}".rstrip()
            if key in one and key in other:
                tally.add(_unequal(where, one[key](), other[key]()))
            else:
                tally.add(Difference(where, _presence(key in one, key in other)))
    return tally.part()


def _presence(one: object, other: object) -> tuple[str, str]:
    return ("there" if one else "missing", "there" if other else "missing")


def _in_order(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [*one, *(key for key in other if key not in one)]


def _content(path: Path) -> dict[str, Callable[[], Any]]:
    """The tensors and values in a file or folder by name, each to be read when it is its turn."""
    import torch
    from safetensors import safe_open

    if (path / ".metadata").exists():
        return _sharded(path)
    if path.is_dir():
        inside = sorted(p for p in path.rglob("*") if p.is_file())
        return {p.relative_to(path).as_posix(): functools.partial(_digest, p) for p in inside}
    if path.suffix == ".safetensors":
        tensors: Any = safe_open(path, framework="pt")
        return {name: functools.partial(tensors.get_tensor, name) for name in tensors.keys()}  # noqa: SIM118
    if path.suffix == ".json":
        value = json.loads(path.read_text(encoding="utf-8").replace(str(path.parents[1]), ""))
    elif path.suffix in {".pt", ".pth", ".bin"}:
        from transformers.trainer_pt_utils import safe_globals

        with safe_globals():  # random states of numpy
            value = torch.load(path, map_location="cpu", weights_only=True)
    else:
        return {"": functools.partial(_digest, path)}
    return {name: functools.partial(lambda leaf: leaf, leaf) for name, leaf in _leaves(value)}


def _sharded(folder: Path) -> dict[str, Callable[[], Any]]:
    """The same of a checkpoint of torch.distributed, which FSDP writes. Its index holds a random number: read, not compared."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    def read(name: str, kind: Any) -> Any:
        is_tensor = isinstance(kind, TensorStorageMetadata)
        state = {name: torch.empty(kind.size, dtype=kind.properties.dtype) if is_tensor else None}
        with warnings.catch_warnings(action="ignore"):  # that this process is alone
            load(state, checkpoint_id=folder, no_dist=True)
        return state[name]

    kinds = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: functools.partial(read, name, kind) for name, kind in kinds.items()}


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested dictionaries and lists, named by the way to them; readings of a clock are left out."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if not (isinstance(key, str) and key.endswith(CLOCK_SUFFIXES)):
                yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value:
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{at}]")
    else:
        yield name, value


def _digest(path: Path) -> str:
    return f"SHA-256 {file_sha256(path)[:16]}"


def _unequal(where: str, a: Any, b: Any, step: int | None = None) -> Difference | None:
    """The difference between two values, or None; equal are the same bits, NaN among them."""
    import numpy as np
    import torch

    a, b = (torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in (a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _unequal_tensors(where, a, b)
    if type(a) is type(b) and (a == b or (a != a and b != b)):  # noqa: PLR0124 (only NaN is unequal to itself)
        return None
    numbers = isinstance(a, float) and isinstance(b, float)
    return Difference(where, (_shown(a), _shown(b)), step, abs(a - b) if numbers else None)


def _unequal_tensors(where: str, a: torch.Tensor, b: torch.Tensor) -> Difference | None:
    import torch

    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return Difference(where, (f"{a.dtype} {tuple(a.shape)}", f"{b.dtype} {tuple(b.shape)}"))
    bits_a, bits_b = (x.contiguous().reshape(-1).view(torch.uint8).reshape(x.numel(), -1) for x in (a, b))
    odd = (bits_a != bits_b).any(dim=1) if a.numel() else torch.zeros(0, dtype=torch.bool)
    if not odd.any():
        return None
    at = int(odd.nonzero()[0])
    place = [int(i) for i in torch.unravel_index(torch.tensor(at), a.shape)]
    one, other = (x.reshape(-1)[at].item() for x in (a, b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs().reshape(-1)[odd]
    return Difference(f"{where}{place or ''}", (_shown(one), _shown(other)), largest=float(apart.max()))


def _shown(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
