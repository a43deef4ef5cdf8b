"""The head of a base model for a run's labels: known rows stay, found by their names, for every kind of head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from params import ModelError
from params.schema import Model, ObjectiveChoice
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives
from trainer.model import label_head
from trainer.model.network import (
    build_model_to_train,
    build_untrained_model,
    load_trained_model,
    write_merged_and_adapter,
)

TOKENIZER = train_tokenizer(
    ["the rain in this place", "a train and a road"], TrainTokenizer(kind="train", vocab_size=270)
)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "electra", "deberta-v2"), SIZES),
    **dict.fromkeys(("llama", "qwen2"), SIZES | {"num_key_value_heads": 2}),
    "distilbert": {"dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    | {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
}
AUTO = {
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
}
TEXTS = ["the rain", "a train and a road in this place"]
LABELS = {
    "another order": ["c", "b", "a"],
    "fewer": ["c", "a"],
    "more": ["a", "b", "c", "d"],
    "as many others": ["b", "d", "e"],
    "none of them": ["x", "y", "z"],
}
CASES = [
    pytest.param(
        name,
        kind,
        LABELS[labels],
        id=f"{name}-{kind}-{labels}",
        marks=pytest.mark.slow if kind == "token_classification" and name not in ("bert", "roberta") else (),
    )
    for name in CONFIGS
    for kind in AUTO
    for labels in (LABELS if name == "bert" else ("more",) if kind == "token_classification" else ("as many others",))
    if (name, kind) != ("bart", "token_classification")
]


def write_base(folder: Path, model_type: str, kind: str, labels: list[str] | None, **config: Any) -> Path:
    """A classifier with these labels, from random weights; without, a model without a head."""
    ends = {"eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": TOKENIZER.bos_token_id}
    named = (
        {"id2label": dict(enumerate(labels)), "label2id": {one: i for i, one in enumerate(labels)}} if labels else {}
    )
    content = {"vocab_size": len(TOKENIZER), "pad_token_id": TOKENIZER.pad_token_id, **ends, **CONFIGS[model_type]}
    torch.manual_seed(1)
    made = AutoConfig.for_model(model_type, **content, **named, **config)
    network = (AUTO[kind] if labels else AutoModel).from_config(made)
    for name, weight in network.named_parameters():  # biases are zero otherwise
        if labels and weight.shape[0] == len(labels):
            torch.nn.init.normal_(weight)
            assert name.endswith((".weight", ".bias"))
    network.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def parts(kind: str, labels: list[str]) -> dict[str, Any]:
    state = objectives.build_objective(ObjectiveChoice(name=kind)).state_of(labels) | {"labels": labels}
    return {
        "objective": objectives.build_objective(ObjectiveChoice(name=kind)),
        "state": state,
        "tokenizer": TOKENIZER,
        "seed": 5,
    }


def built(folder: Path, kind: str, labels: list[str]) -> Any:
    return build_model_to_train(Model(pretrained=str(folder)), **parts(kind, labels)).eval()


def logits(network: Any) -> dict[str, torch.Tensor]:
    """The logits of each label, for two texts without padding."""
    with torch.no_grad():
        found = [
            network(**TOKENIZER(f"{text}{TOKENIZER.eos_token}", return_tensors="pt")).logits.flatten(0, -2)
            for text in TEXTS
        ]
    return {network.config.id2label[i]: torch.cat(found)[:, i] for i in range(network.config.num_labels)}


@pytest.mark.parametrize("labels", [["0", "1", "2"], ["0", "1"], ["1", "2", "3"]], ids=str)
def test_numbers_of_all_labels_without_names_keep_the_head(tmp_path, labels):
    folder = write_base(tmp_path, "bert", "sequence_classification", [f"LABEL_{i}" for i in range(3)])
    base = logits(AutoModelForSequenceClassification.from_pretrained(folder).eval())
    own = logits(built(folder, "sequence_classification", labels))
    is_kept = [torch.allclose(own[label], base.get(f"LABEL_{label}", own[label] + 1)) for label in labels]
    assert is_kept == [labels == ["0", "1", "2"]] * len(labels)


def said_of_head(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trainer.model.label_head"]


@pytest.mark.parametrize(("model_type", "kind", "labels"), CASES)
def test_known_labels_keep_their_rows(tmp_path, caplog, model_type, kind, labels):
    caplog.set_level("INFO", "trainer.model.label_head")
    folder = write_base(tmp_path, model_type, kind, ["a", "b", "c"])
    base = logits(AUTO[kind].from_pretrained(folder).eval())
    network = built(folder, kind, labels)
    own = logits(network)
    assert list(own) == labels
    for label, values in own.items():
        if label in base:
            torch.testing.assert_close(values, base[label], rtol=1e-5, atol=1e-6)
        else:
            assert all(not torch.allclose(values, other) for other in base.values()), "it is new"
    assert all(torch.equal(values, logits(built(folder, kind, labels))[label]) for label, values in own.items())
    (said,) = {message.partition(f"{folder}: ")[2] for message in said_of_head(caplog)}
    groups = {
        "kept are the rows of": [one for one in labels if one in base],
        "new are": [one for one in labels if one not in base],
        "dropped are": [one for one in base if one not in labels],
    }
    assert said == "; ".join(f"{what} {', '.join(map(repr, names))}" for what, names in groups.items() if names)
    network.save_pretrained(tmp_path / "trained")
    saved = logits(load_trained_model(tmp_path / "trained", AUTO[kind]).eval())
    assert all(torch.equal(saved[label], own[label]) for label in labels)


NUMBERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "ranking": (["relevance"], {"highest": 1.0}, {}),
    "reward": (["reward"], {}, {}),
    "regression": (["label"], {"numbers": ["label"], "mean": [0.5], "std": [2.0]}, {}),
    "regression on two numbers": (
        ["x", "y"],
        {"numbers": ["x", "y"], "mean": [0.5, 0.1], "std": [2.0, 3.0]},
        {"label_column": ["x", "y"]},
    ),
}
"""Objectives whose outputs are numbers: their names, what is known of the train split, and options."""


@pytest.mark.parametrize("what", NUMBERS)
@pytest.mark.parametrize(
    ("model_type", "named"),
    [("bert", "LABEL"), ("bert", "of another task"), ("llama", "LABEL"), ("roberta", "of another task")],
)
def test_a_head_of_numbers_is_kept_whatever_its_name(tmp_path, caplog, what, model_type, named):
    """As nearly all cross-encoders and reward models have it: the model before training answers what its base answers."""
    caplog.set_level("INFO", "trainer.model.label_head")
    names, state, options = NUMBERS[what]
    known = [f"{named}_{i}" for i in range(len(names))]
    folder = write_base(tmp_path, model_type, "sequence_classification", known)
    base = logits(AutoModelForSequenceClassification.from_pretrained(folder).eval())
    objective = objectives.build_objective(ObjectiveChoice(name=what.partition(" ")[0], **options))
    network = build_model_to_train(
        Model(pretrained=str(folder)), objective=objective, state=state, tokenizer=TOKENIZER, seed=5
    )
    own = logits(network.eval())
    assert list(own) == names
    are_same = [torch.allclose(own[name].float(), base[old], atol=1e-5) for name, old in zip(names, known, strict=True)]
    is_nameless = named == "LABEL"
    assert are_same == [is_nameless or len(names) == 1] * len(names)
    assert [record.levelname for record in caplog.records] == ["INFO" if all(are_same) else "WARNING"]


def test_a_class_does_not_go_on_from_the_head_of_another_class(tmp_path, caplog):
    caplog.set_level("INFO", "trainer.model.label_head")
    own = {"labels": ["spam"]}
    kind = objectives.build_objective(ObjectiveChoice(name="multi_label_classification"))
    for known, level in (("toxic", "WARNING"), ("LABEL_0", "INFO")):
        caplog.clear()
        folder = write_base(tmp_path / known, "bert", "sequence_classification", [known])
        network = build_model_to_train(
            Model(pretrained=str(folder)), objective=kind, state=own, tokenizer=TOKENIZER, seed=5
        )
        base = AutoModelForSequenceClassification.from_pretrained(folder)
        assert torch.equal(network.classifier.weight, base.classifier.weight) == (level == "INFO")
        assert [record.levelname for record in caplog.records] == [level]


@pytest.mark.parametrize("kind", AUTO)
@pytest.mark.parametrize("count", [2, 3])
def test_a_head_without_names_is_not_used_and_that_is_said(tmp_path, caplog, kind, count):
    caplog.set_level("INFO", "trainer.model.label_head")
    folder = write_base(tmp_path, "bert", kind, [f"LABEL_{i}" for i in range(count)])
    own, base = logits(built(folder, kind, ["a", "b"])), logits(AUTO[kind].from_pretrained(folder).eval())
    assert not any(torch.allclose(values, other) for values in own.values() for other in base.values())
    said = "its labels have no names (LABEL_0, ...), so the head for all 2 labels is new"
    assert said_of_head(caplog) == [f"train: the head of {folder}: {said}"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("labels", [["a", "b"], None], ids=["the same labels", "no head"])
@pytest.mark.parametrize("kind", AUTO)
def test_what_was_right_stays_bit_for_bit(tmp_path, caplog, kind, labels):
    """The weights are those that transformers gives, also the random ones."""
    caplog.set_level("INFO", "trainer.model.label_head")
    folder = write_base(tmp_path, "bert", kind, labels)
    found = built(folder, kind, ["a", "b"]).state_dict()
    torch.manual_seed(5)
    expected = AUTO[kind].from_pretrained(folder, num_labels=2, id2label={0: "a", 1: "b"}).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in found.items())
    assert not said_of_head(caplog)


def test_rows_under_another_name_are_not_called_kept(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", "trainer.model.label_head")
    folder = write_base(tmp_path, "bert", "sequence_classification", ["a", "b", "c"])
    monkeypatch.setattr(label_head, "_read_weights", lambda *_: {})
    network = built(folder, "sequence_classification", ["a", "b"])
    said = "its files hold classifier.bias, classifier.weight under other names, so the head for all 2 labels is new"
    assert said_of_head(caplog) == [f"train: the head of {folder}: {said}"]
    base = AutoModelForSequenceClassification.from_pretrained(folder)
    assert not torch.equal(network.classifier.weight, base.classifier.weight[:2])


def test_what_a_base_lacks_is_said_in_a_sentence_instead_of_a_table(tmp_path, caplog):
    caplog.set_level("INFO")
    folder = write_base(tmp_path, "bert", "sequence_classification", None)
    built(folder, "sequence_classification", ["a", "b"])
    assert [one.getMessage() for one in caplog.records if one.name.startswith(("trainer", "transformers"))] == [
        f"{folder} lacks weights of classifier (2 of 25): they are new"
    ]
    caplog.clear()
    build_untrained_model(Model(pretrained=str(folder)), **parts("sequence_classification", ["a", "b"]))
    assert not [one for one in caplog.records if one.name.startswith("trainer")], "the training has said it"
    weights = {f"other.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    built(folder, "sequence_classification", ["a", "b"])
    (lacking, unused) = (one for one in caplog.records if one.name == "trainer.model.network")
    assert {lacking.levelname, unused.levelname} == {"WARNING"}
    assert "(25 of 25): they are new" in lacking.getMessage()
    assert "has weights of other.embeddings" in unused.getMessage()


def test_a_trained_model_of_another_size_than_it_says_is_refused(tmp_path):
    folder = write_base(tmp_path, "bert", "sequence_classification", ["a", "b"])
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "intermediate_size": 24}))
    with pytest.raises(ModelError, match="fits another size of bert"):
        load_trained_model(folder, AutoModelForSequenceClassification)


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["in full", "lora"])
@pytest.mark.parametrize("how", ["pretrained", "new", "trained"])
def test_a_head_that_reads_the_last_position_finds_the_text_there(tmp_path, how, lora):
    """XLNet's: padding behind a text of a batch does not change its logits, and neither do the types of the tokens of a pair."""
    settings = {"model_type": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16, "vocab_size": 270}
    model = Model.model_validate({"config": settings} if how == "new" else {"pretrained": str(tmp_path), "lora": lora})
    if how != "new":
        AutoModel.from_config(AutoConfig.for_model(**settings)).save_pretrained(tmp_path)
    kind = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    network = build_model_to_train(model, objective=kind, state={"labels": ["a", "b"]}, tokenizer=TOKENIZER, seed=1)
    if how == "trained" and not lora:
        network.save_pretrained(tmp_path / "trained")
        network = load_trained_model(tmp_path / "trained", AutoModelForSequenceClassification)
    examples = [{"input_ids": TOKENIZER(text)["input_ids"], "labels": 0} for text in TEXTS]
    for one in examples:
        one["token_type_ids"] = [int(place > 1) for place in range(len(one["input_ids"]))]
    batch = {name: value for name, value in kind.collate(examples, TOKENIZER).items() if name != "labels"}
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.mul_(10)  # small ones hardly heed the types
        together = network.eval()(**batch).logits
        alone = torch.cat(
            [
                network(**{name: torch.tensor([one[name]]) for name in ("input_ids", "token_type_ids")}).logits
                for one in examples
            ]
        )
    torch.testing.assert_close(together, alone)


def test_a_base_whose_weights_have_another_size_than_it_says_is_refused(tmp_path):
    folder = write_base(tmp_path, "bert", "sequence_classification", ["a", "b"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 32}))
    with pytest.raises(ModelError, match="its configuration fits another size of bert"):
        built(folder, "sequence_classification", ["a", "c"])


@pytest.mark.parametrize(
    "names",
    [
        pytest.param({"0": "a", "1": "b", "2": "c", "3": "d"}, id="more than it has"),
        pytest.param({"0": "b", "1": "a"}, id="fewer than it has"),
        pytest.param({"1": "a", "2": "b", "3": "c"}, id="not from 0"),
        pytest.param({"0": "a", "1": "b", "5": "c"}, id="with a gap"),
    ],
)
@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["b", "c"]], ids=len)
def test_a_base_whose_labels_do_not_belong_to_its_head_is_refused(tmp_path, names, labels):
    folder = write_base(tmp_path, "bert", "sequence_classification", ["a", "b", "c"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": names, "label2id": {}}))
    with pytest.raises(ModelError, match="id2label"):
        built(folder, "sequence_classification", labels)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 causes it
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_adapters_learn_the_whole_new_head(tmp_path, labels):
    """A merged model and the adapters by themselves have the head that was trained."""
    folder = write_base(tmp_path / "base", "bert", "sequence_classification", ["a", "b", "c"])
    own = parts("sequence_classification", labels)
    model = Model.model_validate({"pretrained": str(folder), "lora": {"r": 2, "alpha": 4}})
    network = build_model_to_train(model, **own)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.requires_grad:
                weight.add_(0.1 if "modules_to_save" in name else 0.01)
    trained = logits(network.eval())
    network.save_pretrained(tmp_path / "trained")
    write_merged_and_adapter(tmp_path / "trained", tmp_path / "merged", tmp_path / "adapter", model, **own)
    config = AutoConfig.from_pretrained(tmp_path / "adapter")
    as_on_card = AutoModelForSequenceClassification.from_pretrained(folder, config=config, ignore_mismatched_sizes=True)
    forms = [load_trained_model(tmp_path / form, AutoModelForSequenceClassification) for form in ("merged", "adapter")]
    for network in (*forms, PeftModel.from_pretrained(as_on_card, tmp_path / "adapter")):
        found = logits(network.eval())
        assert list(found) == labels
        for label in labels:
            torch.testing.assert_close(found[label], trained[label], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen2"])
@pytest.mark.parametrize("padding", [None, 7], ids=["none", "another than the tokenizer's"])
@pytest.mark.parametrize("kind", AUTO)
def test_padding_is_known_to_the_release(tmp_path, model_type, padding, kind):
    """A batch gives the answers of its texts one by one, on either side of which they are padded."""
    folder = write_base(tmp_path / "base", model_type, kind, None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": padding}))
    network = built(folder, kind, ["a", "b"])
    network.save_pretrained(tmp_path / "release")
    TOKENIZER.save_pretrained(tmp_path / "release")
    task = "text-classification" if kind == "sequence_classification" else "token-classification"
    for side in ("right", "left") if model_type != "gpt2" else ("right",):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "release", padding_side=side)
        answer = pipeline(task, model=str(tmp_path / "release"), tokenizer=tokenizer)
        together, alone = answer(TEXTS, batch_size=2), [answer(text) for text in TEXTS]
        flat = [
            [one for found in many for one in (found if isinstance(found, list) else [found])]
            for many in (together, alone)
        ]
        for one, other in zip(*flat, strict=True):
            assert [one.get(name) for name in ("label", "entity", "word")] == [
                other.get(name) for name in ("label", "entity", "word")
            ]
            assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def test_a_head_that_allows_one_number_of_outputs_only(tmp_path):
    """DistilBERT, the usual model of SQuAD, refuses any other; its own two outputs have no labels to find."""
    config = AutoConfig.for_model("distilbert", dim=16, n_layers=1, n_heads=2, hidden_dim=16, vocab_size=len(TOKENIZER))
    torch.manual_seed(0)
    base = AutoModelForQuestionAnswering.from_config(config)
    base.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    objective = objectives.build_objective(ObjectiveChoice.model_validate({"name": "question_answering"}))
    model = Model.model_validate({"pretrained": str(tmp_path)})
    found = build_untrained_model(model, objective=objective, state={}, tokenizer=TOKENIZER, seed=0)
    assert torch.equal(found.qa_outputs.weight, base.qa_outputs.weight)


def test_nothing_of_the_task_of_a_base_stays(tmp_path):
    of_task = {"problem_type": "multi_label_classification", "finetuning_task": "mnli", "function_to_apply": "sigmoid"}
    of_task["task_specific_params"] = {"text-classification": {"function_to_apply": "none"}}
    for kind, problem in (("sequence_classification", "single_label_classification"), ("token_classification", None)):
        folder = write_base(tmp_path / kind, "bert", kind, ["b", "a"], **of_task)
        config = built(folder, kind, ["a", "b"]).config
        assert config.problem_type == problem
        assert [getattr(config, name, None) for name in of_task if name != "problem_type"] == [None] * 3
