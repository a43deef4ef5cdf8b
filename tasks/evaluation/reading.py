"""How a model reads rows: as its own release says, whatever the other model and the recipe of the day are.

Candidate and champion are compared on the same text of each row. Each reads a row in its own form (prompt, template, prefix) with
its own tokenizer, up to one limit: the larger one of the two, unless a network has fewer positions. Where the two do not read the
same tokens, a row counts only if both read all of it, and for some metrics only if the labels of both say all of it.

A classifier is asked for the same label however much of a text it reads. There each model reads as much as its release does, and all
rows count. So does, by itself, every model whose call on the card cuts or splits a long text: it is judged as it is published. The limit
of training (`tokenization.max_length`) is that of the others, of which each row's beginning is scored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from params import DataError, ModelError
from params.foundation.artifacts import Artifacts
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.stages import read_report
from tasks.tokenization.encoding import IS_CUT, SAYS_ALL, RowEncoder, encode_and_write_splits
from tasks.tokenization.report import TokenizationReport
from tasks.tokenization.tokenizers import tokenizer_rules
from trainer.data.shards import ROW_ID, Manifest
from trainer.data.tokens import Sequences, read_tokenizer
from trainer.model.limits import find_position_limits_in, find_reading_limit
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedTokenizerBase
from trainer.objectives.bases.metrics.metric import names_where
from trainer.objectives.bases.objective import Objective, ObjectiveState, Row
from trainer.runtime.memory import import_network_code

_MAX_LEFT_OUT = 0.1
"""Share of the rows that may be left out of a comparison; those that remain would be others than the split."""


@dataclass(frozen=True)
class ModelTokenization:
    objective: Objective[Any]
    """With the model's own options."""
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    """The model's files."""
    max_length: int
    """Most tokens of a text that its release reads; of one that cuts no text, those of `tokenization.max_length` when it learned."""
    where: str
    """The model in messages."""

    @classmethod
    def of_candidate(cls, artifacts: Artifacts, objective: Objective[Any]) -> ModelTokenization:
        """Return how the model of a run reads rows."""
        import_network_code()
        limit = read_report(artifacts, TokenizationReport).max_length
        if objective.reads_as_its_release:
            limit = find_reading_limit(artifacts.model)
        return cls(objective, read_tokenizer(artifacts.tokens), artifacts.model, limit, "the candidate")

    @property
    def limits(self) -> list[int]:
        """Most tokens of each of a row's texts."""
        own = (getattr(self.objective.options, name) for name in sorted(self.objective.limits))
        return [self.max_length, *(limit or self.max_length for limit in own)]

    @cached_property
    def positions(self) -> int | None:
        """Most tokens that the network can read; None without a limit."""
        try:
            found = find_position_limits_in(self.folder).most
        except (OSError, ValueError) as error:
            what = f"its configuration, or that of its base model, cannot be read: {error}"
            raise ModelError(self.where, what, "check the network, and that the files are there") from error
        reserved = self.objective.reserved_positions()
        if found and found <= reserved:
            what = f"has {found} positions and generates up to {reserved} tokens, so a prompt has no room"
            fix = f"set objective.max_new_tokens to less than {found}"
            raise ModelError(self.where, what, f"{fix}, or publish to another repository (publish.repo_id)")
        return found and found - reserved

    @cached_property
    def rules(self) -> dict[str, Any]:
        """How the tokenizer splits a text: its `tokenizer.json`."""
        return tokenizer_rules(self.tokenizer)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What else the tokenizer saves, such as its special tokens and the side that it cuts: its `tokenizer_config.json`."""
        with TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder, save_jinja_files=False)
            settings: dict[str, Any] = json.loads((Path(folder) / "tokenizer_config.json").read_bytes())
        return settings | {"model_max_length": None, "chat_template": None}  # which are compared by themselves

    def has_tokens_of(self, other: ModelTokenization) -> bool:
        """Whether both split every text into the same tokens, because their tokenizers are the same in all that they save."""
        has_template = self.tokenizer.chat_template == other.tokenizer.chat_template
        has_template = has_template or not self.objective.renders_conversations()
        return self.rules == other.rules and self.settings == other.settings and has_template

    def is_alike(self, other: ModelTokenization) -> bool:
        """Whether both read the same tokens of each row, up to their limits."""
        prompt = self.objective.prompt_option
        names = self.objective.own_options | ({prompt} if prompt else set())
        own, theirs = ({name: getattr(each.objective.options, name) for name in names} for each in (self, other))
        return self.has_tokens_of(other) and own == theirs

    def encode(self, rows: SplitRows, encoder: RowEncoder, folder: Path, workers: ShardWorkers) -> Path:
        """Encode the rows of a split, and return the folder of the sequences.

        Raises:
            ModelError: the model cannot read a row as it learned to read.
        """
        folder.mkdir(parents=True)
        try:
            encode_and_write_splits({"rows": rows}, folder, encoder, workers)
        except DataError as error:
            what = f"cannot read the held-out rows as it learned to read: {error.where}: {error.what}"
            fix = "set such rows aside by validation.expectations, or publish to another repository (publish.repo_id)"
            raise ModelError(self.where, what, fix) from error
        return folder / "rows"

    def encoder(self, limit: int | None, state: ObjectiveState, *, marks_rows: bool = False) -> RowEncoder:
        """Return what encodes rows as this model reads them, with its own limits or with one for all of a row's texts."""
        if limit is None:
            return RowEncoder(self.objective, self.tokenizer, self.max_length, state, marks_rows)
        objective = self.objective.with_options(dict.fromkeys(self.objective.limits))
        return RowEncoder(objective, self.tokenizer, limit, state, marks_rows)

    def readable(self, wanted: int) -> int:
        """Return how many of the tokens that are wanted this model can read; those of its own limits it can."""
        positions = self.positions if max(self.limits) < wanted else None
        return min(wanted, positions or wanted)


@dataclass(frozen=True)
class ComparableInputs:
    """What candidate and champion read of the rows of a split."""

    limit: int | None = None
    """Most tokens of a text that both read; None if each keeps its own limits."""
    own: Path | None = None
    """The candidate's sequences; None if they are those of the tokenize stage."""
    champion: Path | None = None
    """The champion's; None if they are the candidate's."""
    left_out: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The `row_id`s of which one model reads only a part, and not the same one as the other, or nothing."""
    unwritten: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The `row_id`s of which one model's labels do not say all (`Objective.says_all`), such as their upper case."""
    incomparable: frozenset[str] = frozenset()
    """Metrics that cannot be compared."""
    is_cut: bool = False
    """Whether the champion's network has fewer positions than the candidate reads by itself."""

    def skipped(self, *, written: bool) -> NDArray[np.int64]:
        """Return the `row_id`s that do not count; with `written`, also those of which one model's labels do not say all."""
        return np.union1d(self.left_out, self.unwritten) if written else self.left_out

    @classmethod
    def find(
        cls,
        own: ModelTokenization,
        champion: ModelTokenization,
        rows: SplitRows,
        state: ObjectiveState,
        *,
        folder: Path,
        workers: ShardWorkers,
    ) -> ComparableInputs:
        """Find out what both read, and encode the rows once more into `folder` where that is not what is there already.

        Raises:
            ModelError: one of the models cannot read many of the rows as a whole.
        """
        is_alike, objective = own.is_alike(champion), own.objective
        if is_alike and own.limits == champion.limits:
            return cls()
        has_tokens = own.has_tokens_of(champion)
        incomparable = frozenset[str]() if has_tokens else names_where(objective.metrics, "per_tokenizer")
        if not objective.cut_texts_are_easier:
            two = champion.encode(rows, champion.encoder(None, state), folder / "champion", workers)
            return cls(champion=two, incomparable=incomparable)
        wanted = max(own.limits + champion.limits)
        limit = min(own.readable(wanted), champion.readable(wanted))
        encoders = [reading.encoder(limit, state, marks_rows=True) for reading in (own, champion)]
        one = two = own.encode(rows, encoders[0], folder / "own", workers)
        if not is_alike:
            two = champion.encode(rows, encoders[1], folder / "champion", workers)
            # Settings may differ and change none of the rows.
            if is_alike := Manifest.read(one).shards == Manifest.read(two).shards:
                two, incomparable = one, frozenset() if own.rules == champion.rules else incomparable
        written = [Sequences(path) for path in (one, two)]
        left_out = unwritten = np.zeros(0, np.int64)
        every = np.concatenate([batch[ROW_ID].to_numpy() for batch in rows.batches([ROW_ID])])
        if not is_alike or limit < wanted:
            whole = (_whole_rows(sequences, one_window=limit < wanted) for sequences in written)
            left_out = np.setdiff1d(every, np.intersect1d(next(whole), next(whole)))
        if len(left_out) > _MAX_LEFT_OUT * len(every):
            what = f"{len(left_out)} of {len(every)} held-out rows are not read as a whole by both candidate and"
            what += f" champion with {limit} tokens, so they cannot be compared"
            fix = "set tokenization.max_length to a number of tokens that nearly all rows fit into"
            if limit < wanted:
                fix = f"use a model with {wanted} positions or more, which the other model reads"
            if refusal := _refusal(rows.pick(left_out.tolist()), encoders):
                what, fix = f"{what}; {refusal}", "set such rows aside by validation.expectations"
            raise ModelError("evaluation", what, f"{fix}, or publish to another repository (publish.repo_id)")
        restated = names_where(objective.metrics, "restated")
        if restated and not has_tokens and not is_alike:
            said = (ids[says_all > 0] for ids, says_all in (sequences.numbers(SAYS_ALL) for sequences in written))
            unwritten = np.setdiff1d(every, np.intersect1d(next(said), next(said)))
            if len(unwritten) > _MAX_LEFT_OUT * len(every):
                incomparable |= restated
        cut, other = limit < max(own.limits), None if two == one else two
        return cls(limit, one, other, left_out, unwritten, incomparable=incomparable, is_cut=cut)


def _whole_rows(sequences: Sequences, *, one_window: bool) -> NDArray[np.int64]:
    """Return the ids of the rows that are not cut and, with `one_window`, are a single sequence each."""
    ids, is_cut = sequences.numbers(IS_CUT)
    found, counts = np.unique(ids, return_counts=True)
    whole = ~np.isin(found, ids[is_cut > 0])
    return found[whole & (counts == 1)] if one_window else found[whole]


def _refusal(rows: Iterable[Row], encoders: Sequence[RowEncoder]) -> str:
    """Return why one of the models cannot read the first of some rows that it cannot read at all; empty if there is none."""
    try:
        for row in rows:
            for encoder in encoders:
                replace(encoder, marks_rows=False).encode([row])
    except DataError as error:
        return f"{error.where} {error.what}"
    return ""
