"""A tokenizer whose ids can be read."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, BEGIN, END, UNKNOWN = range(4)
LETTERS = {letter: 4 + i for i, letter in enumerate("abcdefghijklmnop?")}


def letters() -> PreTrainedTokenizerFast:
    """Each letter is a token, `a` is 4; [CLS] and [SEP] stand around a text, and between two."""
    vocabulary = {"[PAD]": PAD, "[CLS]": BEGIN, "[SEP]": END, "[UNK]": UNKNOWN, **LETTERS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", END), ("[CLS]", BEGIN))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, model_input_names=inputs)
