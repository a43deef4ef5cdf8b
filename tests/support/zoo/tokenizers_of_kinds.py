"""Tokenizers as the usual models have them, learned from a few sentences: what they add to a text, and which tokens they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.support import tiny

CHAT: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZE: Final = 400
_TYPES: Final = ["input_ids", "token_type_ids", "attention_mask"]
"""What a tokenizer gives a model that tells the texts of a pair apart."""


def _train(tokenizer: Tokenizer, kind: type[Any], special: Sequence[str], **options: Any) -> Tokenizer:
    trainer = kind(vocab_size=_SIZE, special_tokens=list(special), show_progress=False, **options)
    tokenizer.train_from_iterator(tiny.sentences(200, seed=5), trainer)
    return tokenizer


def _add(tokenizer: Tokenizer, one: str, pair: str) -> None:
    """Let a tokenizer add special tokens to every text, as in `<s> $A </s>`, and to every pair of texts."""
    special = [part.partition(":")[0] for part in one.split() if not part.startswith("$")]
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(special)]
    tokenizer.post_processor = processors.TemplateProcessing(single=one, pair=pair, special_tokens=ids)


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's: lower case, [CLS] and [SEP], types of the tokens of a pair."""
    return _wordpiece(model_input_names=_TYPES)


def wordpiece_without_types() -> PreTrainedTokenizerFast:
    """As BERT's, for models that do not tell the texts of a pair apart."""
    return _wordpiece()


def _wordpiece(**more: Any) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    _train(made, trainers.WordPieceTrainer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    _add(made, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]", model_max_length=64, **names, **more)


def _byte_level(special: Sequence[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return _train(made, trainers.BpeTrainer, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def gpt2() -> PreTrainedTokenizerFast:
    """Bytes, and one special token, which is not for padding."""
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=_byte_level([end]), bos_token=end, eos_token=end, unk_token=end)


def qwen() -> PreTrainedTokenizerFast:
    """Bytes, no begin of text, padding on the left, and a chat template."""
    made = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=CHAT, model_max_length=131072, **names)


def roberta() -> PreTrainedTokenizerFast:
    """Bytes, `<s>` and `</s>`, a limit that is not said."""
    made = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    _add(made, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", mask_token="<mask>", **names)


def opt() -> PreTrainedTokenizerFast:
    """Bytes, and the end of a text before every text."""
    made = _byte_level(["<s>", "<pad>", "</s>", "<unk>"])
    _add(made, "</s> $A", "</s> $A </s> $B")
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _sentencepiece(special: Sequence[str], unknown: str) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _train(made, trainers.UnigramTrainer, special, unk_token=unknown)


def t5() -> PreTrainedTokenizerFast:
    """SentencePiece, `</s>` behind every text, nothing before it."""
    made = _sentencepiece(["<pad>", "</s>", "<unk>"], "<unk>")
    _add(made, "$A </s>", "$A </s> $B </s>")
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=512, **names)


def xlnet() -> PreTrainedTokenizerFast:
    """SentencePiece, `<sep>` and `<cls>` behind every text, padding on the left, types of the tokens of a pair."""
    made = _sentencepiece(["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"], "<unk>")
    _add(made, "$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2")
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<cls>", "sep_token": "<sep>", "pad_token": "<pad>"}
    more = {"unk_token": "<unk>", "mask_token": "<mask>", "padding_side": "left"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token_type_id=3, model_input_names=_TYPES, **names, **more
    )


def xlm_roberta() -> PreTrainedTokenizerFast:
    """SentencePiece, `<s>` and `</s>`."""
    made = _sentencepiece(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<unk>")
    _add(made, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    more = {"unk_token": "<unk>", "mask_token": "<mask>", "model_max_length": 64}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names, **more)


def llama() -> PreTrainedTokenizerFast:
    """SentencePiece's BPE with bytes for what it lacks, `<s>` before every text, no padding."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    _train(made, trainers.BpeTrainer, ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    _add(made, "<s> $A", "<s> $A <s>:1 $B:1")
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def gemma() -> PreTrainedTokenizerFast:
    """SentencePiece, `<bos>` before every text, padding on the left, and several ends."""
    made = _sentencepiece(["<pad>", "<eos>", "<bos>", "<unk>"], "<unk>")
    made.add_special_tokens([AddedToken("<end_of_turn>", special=True)])
    _add(made, "<bos> $A", "<bos> $A <bos>:1 $B:1")
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **names)


KINDS: Final[dict[str, Callable[[], PreTrainedTokenizerFast]]] = {
    made.__name__: made
    for made in (wordpiece, wordpiece_without_types, gpt2, qwen, roberta, opt, t5, xlnet, xlm_roberta, llama, gemma)
}
