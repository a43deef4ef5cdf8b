"""tokenize: validated rows in, sequences of tokens out.

    validated/rows/<split>/ -> tokens/<split>/         Arrow shards with input_ids and labels, one for each shard of rows
    validated/rows/corpus/  -> tokens/corpus/          the documents of `data.corpus`, for the validation during training
                               tokens/tokenizer/       trained on the train split, or the pretrained one
                               tokens/evergreen-known-rows.dat    hashes of the train rows, for what the model will know
                               tokens/objective.json   what the objective learned from the train split
                               tokens/statistics.json  the report

Rows stream through in batches, so memory does not grow with their number. The train rows are read once to train a tokenizer, once to
collect their labels, and once to encode them; what a recipe does not need is not read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from params.foundation.artifacts import CORPUS, SPLITS, Artifacts, replace_folder_atomically
from params.foundation.hashing import file_sha256
from params.schema import Launch, ObjectiveChoice, Start
from params.sections.rows import Tokenization, TrainTokenizer
from tasks.lineage.training_record import record_train_rows
from tasks.shards.kept_work import ShardWorkers, hash_settings
from tasks.shards.split_rows import SplitRows
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stages import save_report
from tasks.tokenization.encoding import RowEncoder, collect_state, encode_and_write_splits, find_documents, read_rows
from tasks.tokenization.report import TokenizationReport
from tasks.tokenization.tokenizers import check_same_tokens, sample_texts, train_or_load_tokenizer
from trainer import objectives
from trainer.data.shards import folder_sha256
from trainer.data.tokens import STATE
from trainer.start import read_known_row_ids, start_model_folder

logger = logging.getLogger(__name__)


def tokenize(
    artifacts: Artifacts,
    *,
    tokenization: Tokenization,
    objective: ObjectiveChoice,
    launch: Launch,
    start: Start = "base",
    inputs: StageInputsSnapshot | None = None,
) -> TokenizationReport:
    """Turn the validated rows into sequences of tokens.

    Raises:
        DataError: a split gives no sequence, or a row cannot be encoded.
        ModelError: the tokenizer cannot be used.
        TransientError: the Hub of a pretrained tokenizer cannot be reached.
        StorageError: the disk is full; the earlier tokens are unchanged.
    """
    method = objectives.build_objective(objective)
    rows = {split: SplitRows(artifacts.rows / split) for split in SPLITS}
    documents = find_documents(artifacts.rows, method)
    rows |= {CORPUS: documents} if documents else {}
    texts: Iterable[str] = (text for row in read_rows(rows["train"]) for text in method.texts(row))
    from_published = start_model_folder(artifacts, start)
    if isinstance(tokenization.tokenizer, TrainTokenizer) and not from_published:
        logger.info("tokenize: training a tokenizer with %d tokens", tokenization.tokenizer.vocab_size)
        texts = sample_texts(texts, len(rows["train"]), tokenization.tokenizer.sample_rows)
    imports = ["transformers", "tasks.tokenization.encoding"]
    with (
        replace_folder_atomically(artifacts.tokens) as folder,
        ShardWorkers(artifacts, "tokenize", launch, inputs, imports=imports) as workers,
    ):
        workers.expect(sum(len(one.manifest.shards) for one in rows.values()))
        tokenizer = train_or_load_tokenizer(tokenization, texts, from_published)
        method.prepare_tokenizer(tokenizer)
        if from_published:
            check_same_tokens(tokenizer, from_published)
        tokenizer.save_pretrained(folder / "tokenizer")
        options = objective.model_dump(mode="json")
        state = collect_state(rows["train"], method, workers, settings=hash_settings(objective=options))
        (folder / STATE).write_text(json.dumps(state, indent=1, ensure_ascii=False), encoding="utf-8")

        settings = hash_settings(
            tokenizer=folder_sha256(folder / "tokenizer"),
            state=file_sha256(folder / STATE),
            objective=options,
            max_length=tokenization.max_length,
        )
        encoder = RowEncoder(method, tokenizer, tokenization.max_length, state)
        record_train_rows(folder, rows, method, workers)
        known = read_known_row_ids(from_published)
        encoded = encode_and_write_splits(rows, folder, encoder, workers, settings=settings, known=known)
        train, characters = encoded["train"]
        target_tokens = train.learned_tokens if method.has_target_text else 0
        report = TokenizationReport(
            vocab_size=len(tokenizer),
            max_length=tokenization.max_length,
            characters_per_token=round(characters / (train.tokens + target_tokens), 3),
            splits={split: encoded[split][0] for split in SPLITS},
        )
        save_report(report, folder / artifacts.report("tokenize").name)
    return report
