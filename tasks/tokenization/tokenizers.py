"""The tokenizer of a run: trained on its rows, or taken from a pretrained model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from params import ModelError, TransientError
from params.schema import TrainTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


END_OF_TEXT = "<|endoftext|>"


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
