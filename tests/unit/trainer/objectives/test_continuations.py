"""The answer behind a prompt: together their tokens say the text that both make, whatever kind the tokenizer is of."""

from __future__ import annotations

import random
import string

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.objectives.bases.conversations.chat import ConversationTokenizer
from trainer.objectives.bases.texts.tokenizing import tokenize_prompts

PIECES = [
    "total", " = ", "1", "23", "it", "It", " is", "so", "if", ":", "Answer", "\n", "    ", "  ", " ", "'t", "don", "(", ").",
    "naïve", "日本", "e", "\u0301", "👩‍🚀", "ﬁ", "\t", "x", "xy", "<", ">", "#", "hel", "lo",
]  # fmt: skip
ALPHABET = sorted({*"".join(PIECES), *string.ascii_letters, *string.digits, "▁"})
CHANCE = random.Random(1)
TEXTS = ["".join(CHANCE.choices(PIECES, k=12)) for _ in range(300)]
SPLIT_DIGITS = pre_tokenizers.Split(Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")


def byte_level(splits=None, **options):
    own = pre_tokenizers.ByteLevel(use_regex=splits is None, **{"add_prefix_space": False, **options})
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence([splits, own]) if splits else own
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend


def metaspace(scheme, *, split=True, model=models.BPE, normalizer=None):
    backend = Tokenizer(model(byte_fallback=True) if model is models.BPE else model())
    if normalizer:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme, split=split)]
    )
    if model is models.BPE:
        tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256))]
        trainer = trainers.BpeTrainer(
            vocab_size=700, initial_alphabet=ALPHABET, special_tokens=tokens, show_progress=False
        )
    else:
        trainer = trainers.UnigramTrainer(
            vocab_size=400, initial_alphabet=ALPHABET, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def as_llama_2():
    """Without a pre-tokenizer: its normalizer writes the space."""
    backend = metaspace("first", split=False)
    prepend, replace = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
    backend.normalizer, backend.pre_tokenizer = normalizers.Sequence([prepend, replace]), None
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def word_piece():
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, initial_alphabet=ALPHABET, special_tokens=["<unk>"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


KINDS = {
    "byte-level": byte_level,
    "byte-level, as Llama 3": lambda: byte_level(SPLIT_DIGITS),
    "byte-level, begins with a space": lambda: byte_level(add_prefix_space=True),
    "begins with a space": lambda: metaspace("first", split=False),
    "each word begins with a space": lambda: metaspace("always"),
    "begins with no space": lambda: metaspace("never"),
    "as Llama 2": as_llama_2,
    "Unigram": lambda: metaspace("always", model=models.Unigram),
    "Unigram, normalized": lambda: metaspace("always", model=models.Unigram, normalizer=normalizers.NFKC()),
    "WordPiece": word_piece,
}


def build(kind, *, ends=False):
    """Return a tokenizer that begins each text with <s>, and ends it with </s>, too, if it `ends` texts."""
    backend = KINDS[kind]()
    backend.add_special_tokens(["<s>", "</s>"])
    special = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    own = processors.TemplateProcessing(single="<s> $A </s>" if ends else "<s> $A", special_tokens=special)
    old = backend.post_processor
    backend.post_processor = processors.Sequence([old, own]) if old else own
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<s>")


def pairs(chance, count):
    for _ in range(count):
        prompt, answer = ("".join(chance.choices(PIECES, k=chance.randint(1, 5))) for _ in range(2))
        if prompt.strip() and answer.strip():
            yield prompt, answer


def encoded(tokenizer, prompt, answer):
    """What each objective makes of a prompt with an answer: the tokens of both, without the end of the text."""
    row = {
        "row_id": 0,
        "prompt": prompt,
        "completion": answer,
        "chosen": answer,
        "rejected": f"{answer}x",
        "liked": True,
    }
    options = {
        "iterative_sft": {"prompt": "{prompt}", "reference_completion_column": "completion", "reference_columns": []}
    }
    for name in ("sft", "dpo", "kto", "iterative_sft"):
        objective = objectives.build_objective(ObjectiveChoice(name=name, **options.get(name, {})))
        objective.prepare_tokenizer(tokenizer)
        (example,) = objective.encode([row], tokenizer, 1000, {})[0].examples
        if name == "iterative_sft":
            yield name, example["input_ids"], example["reference_completion"][:-1]
        else:
            size = sum(label == -100 for label in example["labels"])
            yield name, example["input_ids"][:size], example["input_ids"][size:-1]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_and_its_answer_have_the_tokens_of_their_text(kind, ends):
    tokenizer, chance = build(kind, ends=ends), random.Random(kind)
    count_whole = count_crossed = 0
    for prompt, answer in pairs(chance, 40):
        whole = tokenizer(prompt + answer)["input_ids"][: -1 if ends else None]
        (own,) = tokenize_prompts([prompt], tokenizer)
        is_cut_between_tokens = whole[: len(own)] == own and len(whole) > len(own)
        count_whole += is_cut_between_tokens
        count_crossed += not is_cut_between_tokens
        for name, asked, said in encoded(tokenizer, prompt, answer):
            assert asked == own, (name, "as at inference")
            if is_cut_between_tokens:
                assert asked + said == whole, (name, prompt, answer)
            assert tokenizer.decode(asked + said) == tokenizer.decode(whole), (name, prompt, answer)
    assert count_whole > 5
    assert count_crossed > 1


def test_an_answer_of_a_conversation_gets_no_space():
    """Also where the template writes no token of its own before it, so that a token of the whole text would cross its beginning."""
    for kind in ("begins with a space", "each word begins with a space", "as Llama 2"):
        tokenizer = build(kind)
        tokenizer.chat_template = (
            "{% for m in messages %}{{ 'A: ' if m.role == 'assistant' else 'U: ' }}{{ m.content }}{{ eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}A: {% endif %}"
        )
        read = ConversationTokenizer(tokenizer)
        turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It is"}] * 2
        ((ids, labels),) = read.tokenize([read.read(turns)])[0]
        whole = tokenizer.apply_chat_template(turns, tokenize=False)
        assert tokenizer.decode(ids) == tokenizer.decode(tokenizer(whole, add_special_tokens=False)["input_ids"])
        assert tokenizer.decode([own for own in labels if own != -100]) == "It is</s>It is</s>"
