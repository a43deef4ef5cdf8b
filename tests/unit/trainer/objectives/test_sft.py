"""Supervised fine-tuning: which tokens are learned, and packing."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from params import ModelError, RecipeError
from params.foundation.artifacts import Artifacts
from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import Tokenization, TrainTokenizer
from tasks.tokenization.stage import tokenize
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny
from tests.support.in_process import job, losses, trained, trainer_of
from trainer import objectives
from trainer.objectives.bases.conversations import chat
from trainer.objectives.bases.texts import packing

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
ENDED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
CHANGING = "{{ messages | length }}" + PLAIN
TALK = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


@pytest.fixture
def letters():
    """A tokenizer with one token per letter."""
    return train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))


def build(**options):
    return objectives.build_objective(ObjectiveChoice(name="sft", **options))


def encode(objective, tokenizer, *rows, max_length=200):
    objective.prepare_tokenizer(tokenizer)
    encoded = objective.encode([{"row_id": i, **row} for i, row in enumerate(rows)], tokenizer, max_length, {})
    return [example for examples, _ in encoded for example in examples]


def learned(tokenizer, example):
    """The learned text, with `|` for the end-of-text token and `_` for each token that is not learned."""
    pieces = [
        "_" if label == -100 else tokenizer.decode([token])
        for token, label in zip(example["input_ids"], example["labels"], strict=True)
    ]
    return "".join(pieces).replace(tokenizer.eos_token, "|")


def test_completion_and_end_of_text_are_learned(letters):
    (example,) = encode(build(), letters, {"prompt": "ab", "completion": " c"})
    assert letters.decode(example["input_ids"]) == "ab c<|endoftext|>"
    assert learned(letters, example) == "__ c|"
    (example,) = encode(build(completion_only=False), letters, {"prompt": "ab", "completion": " c"})
    assert learned(letters, example) == "_b c|", "nothing predicts the first token"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PLAIN, "_" * 6 + "_" * 4 + "_" * 11 + "two" + "_" * 6 + "_" * 5 + "_" * 11 + "yes|"),
        (MARKED, "_" * 6 + "_" * 4 + "_" * 11 + "two" + "_" * 6 + "_" * 5 + "_" * 11 + "yes|"),
        (ENDED, "_" * 6 + "_" * 4 + "_" * 11 + "two|" + "_" * 6 + "_" * 5 + "_" * 11 + "yes|"),
    ],
    ids=["prefixes", "markers", "an end that is not within the markers"],
)
def test_assistant_turns_are_learned(letters, template, expected):
    (example,) = encode(build(messages_column="talk", chat_template=template), letters, {"talk": TALK})
    assert learned(letters, example) == expected
    assert letters.chat_template == template, "the template is published with the tokenizer"


def test_prompt_is_tokenized_as_at_inference():
    """Also where a token of the whole text would span the prompt and the answer."""
    tokenizer = train_tokenizer(["] two"] * 9, TrainTokenizer(kind="train", vocab_size=262))
    template = PLAIN.replace("<assistant>", "[assistant] ").replace("<{{ m.role }}>", "[{{ m.role }}] ")
    (example,) = encode(build(messages_column="talk", chat_template=template), tokenizer, {"talk": TALK[:2]})
    prompt_ids = tokenizer.apply_chat_template(TALK[:1], add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(prompt_ids).endswith("[assistant] ")
    assert example["input_ids"][: len(prompt_ids)] == prompt_ids
    assert learned(tokenizer, example) == "_" * len(prompt_ids) + "two|"
    whole = tokenizer(tokenizer.decode(example["input_ids"][:-1]))["input_ids"]
    assert whole[: len(prompt_ids)] != prompt_ids, "a token spans both"


def test_conversation_ending_with_a_user_turn_has_no_end_of_text(letters):
    (example,) = encode(build(messages_column="talk", chat_template=PLAIN), letters, {"talk": TALK[:3]})
    assert learned(letters, example) == "_" * 21 + "two" + "_" * 11


def test_template_that_changes_earlier_messages_is_an_error(letters):
    with pytest.raises(ValueError, match=r"renders the messages before message 1 differently .* generation"):
        encode(build(messages_column="talk", chat_template=CHANGING), letters, {"talk": TALK})


WITHOUT_EARLIER_THOUGHTS = PLAIN.replace(
    "{{ m.content }}", "{{ m.content if loop.last else m.content.split('|') | last }}"
)
TRIMMED = PLAIN.replace("{{ m.content }}", "{{ m.content | trim }}")
TAGGED_FIRST = PLAIN.replace("{{ m.content }}", "{% if loop.first %}[{{ m.role }}] {% endif %}{{ m.content }};")


def talk(*contents):
    """A conversation of a user and the assistant."""
    return {"talk": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]}


TALKS = [
    talk("1+1?", "two"),
    talk("1+1?", "two", "sure?", "yes"),
    talk("1", "1", "1", "1", "1"),
    talk("", " a ", " b", "c\n", "d", "e"),
    talk("\ue0000\ue001", "two", "1+1?", "\ue000"),
    {"talk": [{"role": "system", "content": "Be brief."}, *TALK, {"role": "assistant", "content": "really"}]},
    {"talk": [TALK[0] | {"name": "Ada"}, TALK[1] | {"name": None}]},
]


@pytest.mark.parametrize("template", [PLAIN, TRIMMED, TAGGED_FIRST], ids=["plain", "trimmed", "first turn differs"])
def test_spans_around_known_messages_are_those_of_rendered_prefixes(letters, template, monkeypatch):
    objective = build(messages_column="talk", chat_template=template)
    fast = encode(objective, letters, *TALKS, *TALKS)
    with monkeypatch.context() as patched:
        patched.setattr(chat.ConversationTokenizer, "_frame", lambda self, roles: None)
        assert encode(build(messages_column="talk", chat_template=template), letters, *TALKS, *TALKS) == fast


def test_a_template_renders_once_for_each_sequence_of_roles(letters, monkeypatch):
    """Up to each of its turns; after that, only as a whole, all conversations in one call."""
    rendered, render = [], type(letters).apply_chat_template

    def counted(self, conversation, **options):
        rendered.append(len(conversation))
        return render(self, conversation, **options)

    monkeypatch.setattr(type(letters), "apply_chat_template", counted)
    objective = build(messages_column="talk", chat_template=PLAIN)
    first = encode(objective, letters, TALKS[1])
    rendered.clear()
    again = encode(objective, letters, *[TALKS[1]] * 50)
    assert rendered == [50]
    assert [e["labels"] for e in again] == [first[0]["labels"]] * 50


def test_template_that_drops_some_of_earlier_answers_gives_a_sequence_for_each(letters):
    """Also after conversations with the same roles, of which it drops nothing."""
    objective = build(messages_column="talk", chat_template=WITHOUT_EARLIER_THOUGHTS)
    rows = [talk("1+1?", "two", "sure?", "yes"), talk("2+2?", "hm|four", "sure?", "yes"), talk("1?", "hm|one", "2?")]
    examples = encode(objective, letters, *rows)
    assert [example["row_id"] for example in examples] == [0, 1, 1, 2]
    user, end = "_" * len("<user>1+1?<assistant>"), "|"
    assert [learned(letters, example) for example in examples[1:3]] == [
        user + "hm|four" + end,
        "_" * len("<user>2+2?<assistant>four<user>sure?<assistant>") + "yes" + end,
    ]
    assert [example["bytes"] for example in examples] == [6, 7, 3, 6]
    everything = build(messages_column="talk", chat_template=WITHOUT_EARLIER_THOUGHTS, completion_only=False)
    encode(everything, letters, rows[0])
    with pytest.raises(ValueError, match=r"set objective\.completion_only to true"):
        encode(everything, letters, rows[2])


def test_conversation_that_the_template_refuses_is_an_error(letters):
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}" + PLAIN
    objective = build(messages_column="talk", chat_template=template)
    with pytest.raises(ValueError, match="the chat template refuses the conversation: begin with the user"):
        encode(objective, letters, TALKS[0], {"talk": TALK[1:]})
    with pytest.raises(ValueError, match="the conversation is empty"):
        encode(objective, letters, {"talk": []})


def test_missing_template_and_end_of_text_token_are_refused(letters):
    with pytest.raises(RecipeError, match="no chat template, which messages need"):
        encode(build(messages_column="talk"), letters, {"talk": TALK})
    letters.chat_template = {"tool_use": "{{ tools }}"}
    with pytest.raises(RecipeError, match="of several, it is `default`"):
        encode(build(messages_column="talk"), letters, {"talk": TALK})
    letters.eos_token = None
    with pytest.raises(ModelError, match="no end-of-text token"):
        encode(build(), letters, {"prompt": "a", "completion": "b"})


def test_long_completion_is_truncated_and_unusable_rows_are_counted(tmp_path, letters, caplog):
    rows = {"prompt": ["ab", "abcdefgh", "abcdefg"], "completion": ["cdefghijk", "x", "y"]}
    examples = encode(build(), letters, *({k: v[i] for k, v in rows.items()} for i in range(3)), max_length=8)
    assert [(e["row_id"], learned(letters, e)) for e in examples] == [(0, "__cdefgh"), (2, "_______y")]

    artifacts = Artifacts("tiny", tmp_path)
    tiny.write_rows(artifacts, train=rows, validation=rows, test=rows)
    report = tokenize(
        artifacts,
        tokenization=Tokenization(
            tokenizer=TrainTokenizer(kind="train", vocab_size=260, min_frequency=9), max_length=8
        ),
        objective=ObjectiveChoice(name="sft"),
        launch=Launch(micro_batch_size=1),
    )
    assert report.splits["train"].sequences == 2
    assert report.splits["train"].unused_rows == 1
    assert report.splits["train"].truncated_rows == 2, "the last row loses its end"
    assert "1 of 3 train rows are not used" in caplog.text


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        (TALK, None),
        (TALK[:1], "nothing to learn"),
        ([], "nothing to learn"),
        ([{"role": "assistant", "content": " "}], "message 0, of the assistant, is empty"),
        ([*TALK, {"role": "user", "content": None}], "message 4 is not"),
        (["hello"], "message 0 is not"),
    ],
)
def test_unusable_conversation_is_rejected(talk, reason):
    found = build(messages_column="talk").reject_reason({"talk": talk})
    assert (found is None) if reason is None else (reason in found)


# Packing


def examples_of(*sizes):
    """Examples of the given lengths, whose tokens are their index."""
    return [{"row_id": i, "input_ids": [i] * n, "labels": [i] * n} for i, n in enumerate(sizes)]


def test_pack_puts_each_example_into_the_fullest_sequence_with_room():
    packed = list(packing.pack_examples(examples_of(5, 3, 4, 3, 2), 8))
    assert [p["input_ids"] for p in packed] == [
        [0, 0, 0, 0, 0, 1, 1, 1],  # full, so it comes first
        [2, 2, 2, 2, 3, 3, 3],
        [4, 4],
    ]
    assert [p["lengths"] for p in packed] == [[5, 3], [4, 3], [2]]
    assert [p["row_id"] for p in packed] == [0, 2, 4]
    assert packed[0]["labels"] == [-100, 0, 0, 0, 0, -100, 1, 1], "no example predicts the first token of the next"


def test_pack_loses_nothing_with_bounded_memory_and_is_reproducible():
    rng = random.Random(1)
    examples = examples_of(*(rng.randint(2, 40) for _ in range(2000)))
    read = 0

    def counted():
        nonlocal read
        for example in examples:
            read += 1
            yield example

    packed, returned = [], 0
    for sequence in packing.pack_examples(counted(), 40):
        returned += len(sequence["lengths"])
        packed.append(sequence)
        assert read - returned <= packing.OPEN * 20, "memory does not grow with the rows"
    assert packed == list(packing.pack_examples(examples, 40))
    found = sorted(i for p in packed for i in p["input_ids"])
    assert found == sorted(i for e in examples for i in e["input_ids"])
    assert sum(len(p["input_ids"]) for p in packed) / (40 * len(packed)) > 0.97


TYPES = {
    "llama": {"num_key_value_heads": 2},
    "llama, eager": {"num_key_value_heads": 1, "attn_implementation": "eager"},
    "gpt2": {},
    "qwen2": {"num_key_value_heads": 2},
    "qwen2, a sliding window": {
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention"],
    },
}


def model_of(name, **more):
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(name.split(",")[0], **(small | special | TYPES.get(name, {}) | more))
    config.use_cache = False  # as Trainer sets it
    return AutoModelForCausalLM.from_config(config).eval()  # dropout would draw other masks


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = model.double()(**batch).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def batches():
    """A batch of single examples and a batch of packed ones, one of which ends with padding."""
    chance = torch.Generator().manual_seed(4)
    tokenizer = train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))
    examples = []
    for i, size in enumerate((9, 5, 7, 6, 3)):
        ids = torch.randint(1, 60, (size,), generator=chance).tolist()
        examples.append({"row_id": i, "input_ids": ids, "labels": [-100, -100, *ids[2:]]})
    objective = build(packing=True)
    packed = list(objective.pack(examples, 16))
    assert [p["lengths"] for p in packed] == [[7, 6, 3], [9, 5]]
    return objective.collate(examples, tokenizer), objective.collate(packed, tokenizer)


@pytest.mark.parametrize("name", TYPES)
def test_packed_and_unpacked_have_the_same_loss_and_gradients(name):
    model = model_of(name)
    single, packed = batches()
    loss, gradients = loss_and_gradients(model, single)
    found, found_gradients = loss_and_gradients(model, packed)
    assert found == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(found_gradients, gradients, rtol=1e-6, atol=1e-8)  # logits are cast to float32
    assert (packed["labels"] != -100).sum() == (single["labels"] != -100).sum()

    for changes in ({"position_ids": None}, {"attention_mask": torch.ones_like(packed["input_ids"])}):
        other, other_gradients = loss_and_gradients(model, packed | changes)
        assert abs(other - loss) > 1e-5, "the boundaries have an effect"
        assert (other_gradients - gradients).abs().max() > 1e-5
    assert packing.find_packing_problem(model) is None


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}, "lets a token attend"),
        ("bloom", {}, "lets a token attend"),
        ("mamba", {"state_size": 4}, "lets a token attend"),
    ],
)
def test_model_that_attends_across_packed_examples_is_refused(name, more, why):
    model = model_of(name, **more).train()
    with pytest.raises(
        RecipeError, match=rf"(?s)this {name} model cannot be trained on packed.*{why}.*objective.packing to false"
    ):
        build(packing=True).check_model(model)
    assert model.training
    build().check_model(model)


def test_model_whose_positions_do_not_restart_is_refused():
    model = model_of("gpt2")
    table = model.transformer.wpe
    table.forward = lambda places: functools.partial(type(table).forward, table)(torch.arange(places.shape[1])[None])
    assert "numbers the positions" in packing.find_packing_problem(model)


def test_model_that_computes_nan_is_not_trained_on_packed_sequences():
    model = model_of("gpt2")
    torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
    assert "not finite" in packing.find_packing_problem(model)


def test_packed_training_takes_the_steps_of_unpacked_training(tmp_path):
    """A step's loss and gradient average over the learned tokens of the global batch, packed or not."""
    single = sft_job(tmp_path / "single", {"training.global_batch_size": 64, "launch.micro_batch_size": 8})
    trainers = {"single": trained(single)}
    rows = len(trainers["single"].train_dataset)
    for micro_batch in (1, 5):
        root = tmp_path / f"packed-{micro_batch}"
        probe = sft_job(root / "probe", {"objective.packing": True, "training.global_batch_size": 1})
        count = len(trainer_of(probe).train_dataset)
        assert count < rows / 2
        changes = {"training.global_batch_size": count, "launch.micro_batch_size": micro_batch}
        trainers[root.name] = trained(sft_job(root, {"objective.packing": True, **changes}))
    for found in trainers.values():
        assert losses(found) == pytest.approx(losses(trainers["single"]), rel=1e-5)
        norms = [entry["grad_norm"] for entry in found.state.log_history if "grad_norm" in entry]
        assert norms == pytest.approx(
            [entry["grad_norm"] for entry in trainers["single"].state.log_history if "grad_norm" in entry], rel=1e-4
        )


SFT = {"name": "sft", "prompt_column": "text", "completion_column": "label"}


def sft_job(root, changes=None, **sections):
    """A job that learns the second word of a sentence; each global batch has all rows."""
    defaults = {"training.max_steps": 3, "training.warmup_steps": 0, "model.config.attention_dropout": 0.0}
    return job(root, defaults | {"tokenization.max_length": 96} | (changes or {}), **({"objective": SFT} | sections))


# Conflicts that `check` reports


def problems(changes=None, **options):
    content = tiny.recipe(changes, objective={"name": "sft", **options})
    sections = {
        "model": Model.model_validate(content["model"]),
        "training": Training.model_validate(content["training"]),
        "launch": Launch.model_validate(content["launch"]),
    }
    return {".".join(p.key): f"{p.what}; {p.fix}" for p in build(**options).conflicts(**sections)}


def test_conflicts_are_reported_with_a_fix():
    assert problems(packing=True) == {}
    assert "a row would have two texts" in problems(messages_column="m", prompt_column="p")["objective.messages_column"]
    assert "has no effect without messages" in problems(chat_template=PLAIN)["objective.chat_template"]
    assert problems(messages_column="m", chat_template="{% generation %}a{% endgeneration %}") == {}
    broken = "{% for m in messages %}\n{{ m.content }"
    found = problems(messages_column="m", chat_template=broken)["objective.chat_template"]
    assert found.startswith("is no Jinja template: line 2: ")
    for broken in (
        "{% generation %}a{% endif %}",
        "{% if true %}a{% endgeneration %}",
        "{% generation %}\na{% else %}{% endgeneration %}",
        "{{ messages | tojsn }}",
        "{% break %}",
        "(" * 5000,
    ):
        found = problems(messages_column="m", chat_template="{{ " + broken if broken[0] == "(" else broken)
        assert "is no Jinja template: " in found["objective.chat_template"], broken
    assert (
        "cannot be used with training.arguments.use_cache"
        in problems({"training.arguments": {"use_cache": True}}, packing=True)["objective.packing"]
    )
    for name in ("opt", "bloom", "mamba", "falcon"):
        found = problems({"model.config": {"model_type": name}}, packing=True)["objective.packing"]
        assert "would attend to each other; set objective.packing to false" in found
        assert problems({"model.config": {"model_type": name}}) == {}
    for name in ("gpt2", "qwen2", "mistral", "gemma2", "starcoder2", "not-a-model"):
        assert problems({"model.config": {"model_type": name}}, packing=True) == {}
