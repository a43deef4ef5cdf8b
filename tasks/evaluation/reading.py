"""How a model reads rows: as its own release says, whatever the other model and the recipe of the day are.

Candidate and champion are compared on the same text of each row. Each reads a row in its own form (prompt, template, prefix) with
its own tokenizer, up to one limit: the larger one of the two, unless a network has fewer positions. Where the two do not read the
same tokens, a row counts only if both read all of it, and for some metrics only if the labels of both say all of it.

A classifier is asked for the same label however much of a text it reads. There each model reads as much as its release does, and all
rows count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from params import DataError, ModelError
from tasks.shard_work import ShardWorkers
from tasks.split_rows import SplitRows
from tasks.tokenization.encoding import IS_CUT, Encoder, encode_splits, read_batches
from trainer.data.shards import ROW_ID
from trainer.data.tokens import Sequences
from trainer.model import adapters
from trainer.runtime.model_files import check_model_files

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Objective, ObjectiveState

NO_LIMIT = 1_000_000
"""A tokenizer without a maximum length has a `model_max_length` above this."""
_MAX_LEFT_OUT = 0.1
"""Share of the rows that may be left out of a comparison; those that remain would be others than the split."""


@dataclass(frozen=True)
class Reading:
    """How one model reads rows."""

    objective: Objective[Any]
    """With the model's own options."""
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    """The model's files."""
    max_length: int
    """The limit of `tokenization.max_length` when the model was released."""
    where: str
    """The model in messages."""

    @property
    def limits(self) -> list[int]:
        """Most tokens of each of a row's texts."""
        own = (getattr(self.objective.options, name) for name in sorted(self.objective.limits))
        return [self.max_length, *(limit or self.max_length for limit in own)]

    @cached_property
    def positions(self) -> int | None:
        """Most tokens that the network can read; None without a limit."""
        try:
            found = _positions(self.folder)
        except (OSError, ValueError) as error:
            what = f"its configuration, or that of its base model, cannot be read: {error}"
            raise ModelError(self.where, what, "check the network, and that the files are there") from error
        return found and found - self.objective.reserved_positions()

    def has_tokens_of(self, other: Reading) -> bool:
        """Whether both split every text into the same tokens."""
        one, two = self.tokenizer, other.tokenizer
        has_template = one.chat_template == two.chat_template or not self.objective.renders_conversations()
        return _rules(one) == _rules(two) and one.eos_token_id == two.eos_token_id and has_template

    def is_alike(self, other: Reading) -> bool:
        """Whether both read the same tokens of each row, up to their limits."""
        names = self.objective.own_options
        own, theirs = ({name: getattr(each.objective.options, name) for name in names} for each in (self, other))
        return self.has_tokens_of(other) and own == theirs

    def encode(self, rows: SplitRows, encoder: Encoder, folder: Path, workers: ShardWorkers) -> Path:
        """Encode the rows of a split, and return the folder of the sequences.

        Raises:
            ModelError: the model cannot read a row as it learned to read.
        """
        folder.mkdir()
        try:
            encode_splits({"rows": rows}, folder, encoder, workers)
        except DataError as error:
            what = f"cannot read the held-out rows as it learned to read: {error.where}: {error.what}"
            fix = "set such rows aside by validation.expectations, or publish to another repository (publish.repo_id)"
            raise ModelError(self.where, what, fix) from error
        return folder / "rows"

    def encoder(self, limit: int | None, state: ObjectiveState, *, marks_cut: bool = False) -> Encoder:
        """Return what encodes rows as this model reads them, with its own limits or with one for all of a row's texts."""
        if limit is None:
            return Encoder(self.objective, self.tokenizer, self.max_length, state, marks_cut)
        objective = self.objective.with_options(dict.fromkeys(self.objective.limits))
        return Encoder(objective, self.tokenizer, limit, state, marks_cut)

    def readable(self, wanted: int) -> int:
        """Return how many of the tokens that are wanted this model can read; those of its own limits it can."""
        positions = self.positions if max(self.limits) < wanted else None
        return min(wanted, positions or wanted)


@dataclass(frozen=True)
class CommonText:
    """What candidate and champion read of the rows of a split."""

    limit: int | None = None
    """Most tokens of a text that both read; None if each keeps its own limits."""
    own: Path | None = None
    """The candidate's sequences; None if they are those of the tokenize stage."""
    champion: Path | None = None
    """The champion's; None if they are the candidate's."""
    left_out: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The `row_id`s of which one model reads only a part, and not the same one as the other."""
    unwritten: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The `row_id`s of which one model's labels do not say all (`Objective.says_all`), such as their upper case."""
    incomparable: frozenset[str] = frozenset()
    """Metrics that cannot be compared."""

    @classmethod
    def find(
        cls,
        own: Reading,
        champion: Reading,
        rows: SplitRows,
        state: ObjectiveState,
        *,
        folder: Path,
        workers: ShardWorkers,
    ) -> CommonText:
        """Find out what both read, and encode the rows once more into `folder` where that is not what is there already.

        Raises:
            ModelError: one of the models cannot read many of the rows as a whole.
        """
        is_alike, objective = own.is_alike(champion), own.objective
        if is_alike and own.limits == champion.limits:
            return cls()
        incomparable = frozenset[str]() if own.has_tokens_of(champion) else objective.tokenizer_dependent
        if not objective.cut_texts_are_easier:
            two = champion.encode(rows, champion.encoder(None, state), folder / "champion", workers)
            return cls(champion=two, incomparable=incomparable)
        wanted = max(own.limits + champion.limits)
        own_limit, champion_limit = own.readable(wanted), champion.readable(wanted)
        limit = min(own_limit, champion_limit)
        encoders = [reading.encoder(limit, state, marks_cut=True) for reading in (own, champion)]
        one = two = own.encode(rows, encoders[0], folder / "own", workers)
        if not is_alike:
            two = champion.encode(rows, encoders[1], folder / "champion", workers)
        left_out = unwritten = np.zeros(0, np.int64)
        every = np.concatenate([batch[ROW_ID].to_numpy() for batch in rows.batches([ROW_ID])])
        if not is_alike or limit < wanted:
            whole = (_whole_rows(Sequences(path), one_window=limit < wanted) for path in (one, two))
            left_out = np.setdiff1d(every, np.intersect1d(next(whole), next(whole)))
        if len(left_out) > _MAX_LEFT_OUT * len(every):
            raise _too_long(len(left_out), len(every), limit, wanted)
        if objective.restated and not own.has_tokens_of(champion):
            unwritten = np.array(list(_unwritten(rows, encoders)), np.int64)
            if len(unwritten) > _MAX_LEFT_OUT * len(every):
                incomparable |= objective.restated
        return cls(limit, one, None if two == one else two, left_out, unwritten, incomparable)


def _whole_rows(sequences: Sequences, *, one_window: bool) -> NDArray[np.int64]:
    """Return the ids of the rows that are not cut and, with `one_window`, are a single sequence each."""
    ids, is_cut = sequences.numbers(IS_CUT)
    found, counts = np.unique(ids, return_counts=True)
    whole = ~np.isin(found, ids[is_cut > 0])
    return found[whole & (counts == 1)] if one_window else found[whole]


def _unwritten(rows: SplitRows, encoders: Sequence[Encoder]) -> Iterator[int]:
    """Yield the ids of the rows of which the labels of one of the models do not say all."""
    for batch in read_batches(rows):
        encoded = [[own.examples for own in encoder.encode(batch)] for encoder in encoders]
        for row, *both in zip(batch, *encoded, strict=True):
            pairs = zip(encoders, both, strict=True)
            if not all(encoder.objective.says_all(row, examples, encoder.tokenizer) for encoder, examples in pairs):
                yield int(row[ROW_ID])


def _too_long(left_out: int, rows: int, limit: int, wanted: int) -> ModelError:
    what = (
        f"{left_out} of {rows} held-out rows are not read as a whole by both candidate and champion with {limit} tokens"
    )
    fix = "set tokenization.max_length to a number of tokens that nearly all rows fit into"
    if limit < wanted:
        fix = f"use a model with {wanted} positions or more, which the other model reads"
    return ModelError("evaluation", f"{what}, so they cannot be compared", f"{fix}, or publish to another repository")


def _rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rule for name, rule in rules.items() if name not in {"truncation", "padding"}}  # of its last call


def _positions(folder: Path) -> int | None:
    """Return how many tokens the network in a folder can read; None if nothing limits it."""
    import torch
    from transformers import AutoConfig, AutoModel

    path: str = str(folder)
    revision: str | None = None
    if adapters.is_adapter(folder) and not (folder / "config.json").exists():
        base = adapters.BaseModel.of(folder)
        path, revision = base.name, base.revision
    revision = check_model_files(path, revision, weights=False)
    config = AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=False).get_text_config()
    found: int | None = getattr(config, "max_position_embeddings", None)
    if not found or found < 1:
        return None
    with torch.device("meta"):
        network = AutoModel.from_config(config, trust_remote_code=False)
    for name, layer in network.named_modules():
        # RoBERTa and its kin count positions from behind the padding token
        if "position" in name and getattr(layer, "padding_idx", None) is not None:
            return found - int(layer.padding_idx) - 1
    return found
