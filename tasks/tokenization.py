"""tokenize: validated rows to the sequences that the model sees.

    validated/rows/<split>.parquet -> tokens/<split>.arrow   input_ids, labels, row_id; the train split as the objective
                                                             arranges it (packed), the others longest first
                                      tokens/tokenizer/      trained on the train split, or the pretrained one
                                      tokens/objective.json  what the objective learned from the train split
                                      tokens/statistics.json

Rows stream through in batches, so memory does not grow with their number; only the lengths of the sequences are kept,
to order them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError, ModelError, TransientError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.schema import ObjectiveChoice, Tokenization, TrainTokenizer
from tasks.progress import progress
from tasks.stages import Report, save_report
from trainer import objectives
from trainer.objectives import Example, Objective, Row, State
from trainer.tokens import STATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_BATCH = 1000
END_OF_TEXT = "<|endoftext|>"


class SplitStatistics(Report):
    """Counts of one split; lengths are in tokens."""

    rows: int
    sequences: int
    tokens: int
    longest: int
    mean_length: float
    learned_tokens: int
    """Tokens that the loss is computed on; for a class, one per sequence."""
    truncated_rows: int
    """Rows of which the sequences lack something: text, or a label that no token is left for."""
    unused_rows: int
    """Rows that become no sequence: nothing in their first `max_length` tokens could be learned."""


class TokenizationReport(Report):
    """What the tokenize stage made."""

    vocab_size: int
    max_length: int
    characters_per_token: float
    """Of the train split's text: how much a token says."""
    splits: dict[str, SplitStatistics]


def tokenize(artifacts: Artifacts, *, tokenization: Tokenization, objective: ObjectiveChoice) -> TokenizationReport:
    """Turn the validated rows into sequences.

    Raises:
        DataError: a split gives no sequence, or a label of it was never seen in training.
        ModelError: the tokenizer cannot be used.
        StorageError: the disk is full; the earlier tokens are as they were.
    """
    learned = objectives.build(objective)
    with whole_folder(artifacts.tokens) as folder:
        tokenizer = _tokenizer(artifacts, tokenization, learned)
        tokenizer.save_pretrained(folder / "tokenizer")
        state = learned.fit(_rows(artifacts, "train"))
        (folder / STATE).write_text(json.dumps(state, indent=1, ensure_ascii=False), encoding="utf-8")
        encoder = Encoder(learned, tokenizer, tokenization.max_length, state)
        counts = {split: write_split(artifacts, split, folder / f"{split}.arrow", encoder) for split in SPLITS}
        targets = counts["train"].learned_tokens if learned.has_targets else 0
        characters = sum(len(learned.text(row)) for row in _rows(artifacts, "train"))
        report = TokenizationReport(
            vocab_size=len(tokenizer),
            max_length=tokenization.max_length,
            characters_per_token=round(characters / (counts["train"].tokens + targets), 3),
            splits=counts,
        )
        save_report(report, folder / artifacts.report("tokenize").name)
    return report


@dataclass(frozen=True)
class Encoder:
    """How a row becomes sequences: an objective, with all that it needs."""

    objective: Objective[Any]
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    state: State

    def encode(self, row: Row) -> list[Example]:
        """The sequences of one row.

        Raises:
            DataError: the row cannot be encoded, for example because its label was never seen in training.
        """
        try:
            return self.objective.encode(row, self.tokenizer, self.max_length, self.state)
        except (ValueError, KeyError, TypeError) as error:
            what = f"cannot be encoded: {error}"
            raise DataError(f"row_id {row['row_id']}", what, "mend the row, or let a check set it aside") from error

    def truncates(self, row: Row, examples: list[Example]) -> bool:
        """Whether the row's sequences lack some of it."""
        return self.objective.truncates(row, examples, self.tokenizer, self.max_length)


def _tokenizer(artifacts: Artifacts, tokenization: Tokenization, objective: Objective[Any]) -> PreTrainedTokenizerBase:
    choice = tokenization.tokenizer
    if isinstance(choice, TrainTokenizer):
        logger.info("tokenize: training a tokenizer with %d tokens", choice.vocab_size)
        tokenizer = train_tokenizer((objective.text(row) for row in _rows(artifacts, "train")), choice)
    else:
        tokenizer = _pretrained_tokenizer(choice.path, choice.revision)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            what = "has neither a padding nor an end-of-text token"
            raise ModelError("tokenization.tokenizer", what, "use the tokenizer of a trained model")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = tokenization.max_length
    objective.prepare_tokenizer(tokenizer)
    return tokenizer


def train_tokenizer(texts: Iterable[str], choice: TrainTokenizer) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer; its one special token begins, ends and pads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=choice.vocab_size,
        min_frequency=choice.min_frequency,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    return tokenizer


def _pretrained_tokenizer(path: str, revision: str | None) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, revision=revision or "main", trust_remote_code=False
        )
    except (ConnectionError, TimeoutError) as error:
        raise TransientError(path, f"cannot be downloaded: {error}", "try again when the Hub can be reached") from error
    except (OSError, ValueError) as error:
        raise ModelError(path, f"no tokenizer can be loaded: {error}", "check the path and the revision") from error
    if not tokenizer.is_fast:
        raise ModelError(path, "has only a slow tokenizer", "use a model whose repository holds tokenizer.json")
    return tokenizer


def _rows(artifacts: Artifacts, split: str) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(artifacts.rows / f"{split}.parquet") as file:
        for batch in file.iter_batches(_BATCH):
            yield from batch.to_pylist()


def write_split(artifacts: Artifacts, split: str, target: Path, encoder: Encoder) -> SplitStatistics:
    """Encode the validated rows of a split into the Arrow file `target`.

    Raises:
        DataError: they give no sequence.
    """
    source = artifacts.rows / f"{split}.parquet"
    with pq.ParquetFile(source) as file:
        total = file.metadata.num_rows
    truncated = unused = 0

    def encoded() -> Iterator[Example]:
        nonlocal truncated, unused
        for row in progress(_rows(artifacts, split), what=f"tokenize: {split} rows", total=total):
            examples = encoder.encode(row)
            truncated += encoder.truncates(row, examples)
            unused += not examples
            yield from examples

    if split == "train":
        lengths, learned = _write(encoder.objective.arrange(encoded(), encoder.max_length), target)
    else:
        lengths, learned = _write(encoded(), target)
        _sort_longest_first(target, lengths)
    if not lengths:
        raise DataError(
            str(source),
            f"{total} rows give no sequence of {encoder.max_length} tokens",
            "give more rows, or lower tokenization.max_length",
        )
    if unused:
        logger.warning(
            "tokenize: %d of %d %s rows give no sequence: nothing in them could be learned", unused, total, split
        )
    return SplitStatistics(
        rows=total,
        sequences=len(lengths),
        tokens=sum(lengths),
        longest=max(lengths),
        mean_length=round(sum(lengths) / len(lengths), 2),
        learned_tokens=learned,
        truncated_rows=truncated,
        unused_rows=unused,
    )


def _write(examples: Iterable[Example], target: Path) -> tuple[list[int], int]:
    """Write sequences as an Arrow stream; return their lengths, and how many labels the loss is computed on."""
    lengths: list[int] = []
    learned = 0
    writer: pa.RecordBatchStreamWriter | None = None
    schema: pa.Schema | None = None
    batch: list[Example] = []

    def flush() -> None:
        nonlocal writer, schema, batch
        if batch:
            schema = schema or _schema(batch[0])
            writer = writer or pa.ipc.new_stream(str(target), schema)
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            batch = []

    for example in examples:
        lengths.append(len(example["input_ids"]))
        labels = example.get("labels", 0)
        learned += sum(label != -100 for label in labels) if isinstance(labels, list) else 1
        batch.append(example)
        if len(batch) >= _BATCH:
            flush()
    flush()
    if writer:
        writer.close()
    return lengths, learned


def _schema(example: Example) -> pa.Schema:
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.list_(pa.int32())}
    return pa.schema(sorted((name, kinds[type(value)]) for name, value in example.items()))


def _sort_longest_first(target: Path, lengths: list[int]) -> None:
    """Order a split by length: least padding, and the largest batch, which may not fit, comes first."""
    if not lengths:
        return
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    with pa.memory_map(str(target)) as source:
        batches = pa.ipc.open_stream(source).read_all().to_batches()  # of _BATCH rows each, on disk until they are read
        ordered = target.with_suffix(".sorted")
        with pa.ipc.new_stream(str(ordered), batches[0].schema) as writer:
            for start in range(0, len(order), _BATCH):
                rows = [batches[i // _BATCH].slice(i % _BATCH, 1) for i in order[start : start + _BATCH]]
                writer.write_table(pa.Table.from_batches(rows).combine_chunks())
    ordered.rename(target)
