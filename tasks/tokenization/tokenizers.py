"""The tokenizer of a run: trained on its rows, or loaded from a pretrained model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from params import ModelError, TransientError
from params.sections.rows import Tokenization, TrainTokenizer
from trainer.objectives.bases.lazy_imports import PreTrainedTokenizerBase, transformers
from trainer.runtime.library_errors import as_remote_code_error, is_hub_away, panics_as_errors
from trainer.runtime.model_files import check_safe_to_load

END_OF_TEXT = "<|endoftext|>"


def train_or_load_tokenizer(
    tokenization: Tokenization, texts: Iterable[str], start: Path | None = None
) -> PreTrainedTokenizerBase:
    """Return the recipe's tokenizer, which always has a padding token. Its limit is its own: the recipe's is for training.

    `texts` are read only if the tokenizer is trained. It is not where a training starts from the published model in the folder `start`,
    whose weights know the tokens of its own tokenizer.

    Raises:
        ModelError: the pretrained tokenizer cannot be used.
        TransientError: the Hub cannot be reached.
    """
    choice = tokenization.tokenizer
    if isinstance(choice, TrainTokenizer):
        tokenizer = load_tokenizer(str(start), None) if start else train_tokenizer(texts, choice)
    else:
        tokenizer = load_tokenizer(choice.path, choice.revision)
        if choice.added_tokens:
            from tokenizers import AddedToken

            tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in choice.added_tokens])
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            what = "has neither a padding nor an end-of-text token"
            raise ModelError.at("tokenization.tokenizer", what, "use the tokenizer of a trained model")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return how a tokenizer splits a text: its `tokenizer.json`, without what its last call has set."""
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rule for name, rule in rules.items() if name not in {"truncation", "padding"}}


def check_same_tokens(tokenizer: PreTrainedTokenizerBase, start: Path) -> None:
    """Raise a ModelError if the model in the folder `start` knows other tokens than a tokenizer, which may have added some."""
    known = load_tokenizer(str(start), None)
    (theirs, numbers), (rules, own) = ((tokenizer_rules(one), one.get_vocab()) for one in (known, tokenizer))
    if theirs | {"added_tokens": None} != rules | {"added_tokens": None} or not numbers.items() <= own.items():
        what = "gives other tokens than that of the published model, from which the training starts"
        fix = "name the tokenizer that the published model was trained with, or set model.start: base for one run"
        raise ModelError.at("tokenization.tokenizer", what, fix)


def sample_texts(texts: Iterable[str], rows: int, sample_rows: int | None) -> Iterable[str]:
    """Yield about `sample_rows` of the texts of `rows` rows, whatever their order: those with a small hash; by default, all."""
    if sample_rows is None or rows <= sample_rows:
        return texts
    limit = (sample_rows << 64) // rows
    return (text for text in texts if int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") < limit)


def train_tokenizer(texts: Iterable[str], choice: TrainTokenizer) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer; its only special token marks start, end and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
    tokenizer: PreTrainedTokenizerBase = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    return tokenizer


def load_tokenizer(path: str, revision: str | None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a pretrained model from a folder or a Hub.

    Raises:
        ModelError: there is no tokenizer, or only a slow one, or its settings name other files.
        TransientError: the Hub cannot be reached.
    """
    try:
        revision = check_safe_to_load(path, revision, weights=False)
        with panics_as_errors():
            tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
                path, revision=revision or "main", trust_remote_code=False
            )
    except (OSError, ValueError) as error:
        if is_hub_away(error):
            fix = "check the network, then run the stage again"
            raise TransientError(path, f"the tokenizer cannot be downloaded: {error}", fix) from error
        fix = "check the path and revision in tokenization.tokenizer"
        raise as_remote_code_error(path, error) or ModelError(
            path, f"no tokenizer can be loaded: {error}", fix
        ) from error
    tokenizer.loaded_revision = revision  # of other files in its repository; not saved
    tokenizer.init_kwargs.pop("auto_map", None)  # what is saved must not ask others to run code
    if not tokenizer.is_fast:
        raise ModelError(path, "has only a slow tokenizer", "use a model whose repository holds tokenizer.json")
    return tokenizer
