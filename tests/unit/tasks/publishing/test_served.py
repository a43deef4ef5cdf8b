"""What is published answers as it was judged, or nothing is sent: every objective, every form, and faults put into a release."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from tasks.hub_server.server import LocalHub
from tasks.publishing import assembly, served
from tasks.publishing.candidate import Candidate
from tasks.publishing.provenance import collect_provenance
from tasks.recipes.loading import load
from tasks.shards.split_rows import SplitRows
from tests.support import base_models, releases, tiny, tiny_releases
from tests.support.tiny_releases import CHAT
from trainer import objectives

pytestmark = [
    pytest.mark.usefixtures("no_hub_settings"),
    pytest.mark.filterwarnings(
        "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
    ),  # peft 0.21.2 causes it
]
TOKEN = "hf_" + "1" * 40
FAST = {"sequence_classification"}
"""The kinds of the tests that always run; tests/e2e/test_published_models.py publishes all others untouched, and adapters of some."""
SCORED = [
    "causal_lm",
    "sft",
    "conversations",
    "sequence_classification",
    "token_classification",
    "seq2seq",
    "dpo",
    "kto",
    "reward",
]
"""The kinds whose evaluation scores probabilities; those of the others depend on generated text alone."""
STEPS = 10
"""Most steps of the training: a model that is sure of everything hides small faults."""
COARSE = [kind for kind in SCORED if kind not in {"dpo", "kto"}]
"""These tiny models of dpo and kto are untrained, and so even that rounding does not change any probability of it by one in ten thousand."""
Prepared = Callable[[str], tuple[Artifacts, Recipe]]


def kinds(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def _all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "ASKED_ROWS", served.ROWS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """An evaluated model of a kind, which the gate blesses."""
    found: dict[str, tuple[Artifacts, Recipe]] = {}

    def prepare(kind: str) -> tuple[Artifacts, Recipe]:
        if kind not in found:
            steps = min(STEPS, tiny_releases.KINDS[kind][0])
            found[kind] = tiny_releases.evaluated(tmp_path_factory.mktemp(kind), kind, steps=steps)
        return found[kind]

    return prepare


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Put a fault into the files of a release, after the evaluation."""
    copy_model = assembly.copy_model_for_release

    def put(fault: Callable[[Path], None]) -> None:
        def copy(artifacts: Artifacts, form: Any, folder: Path, **options: Any) -> None:
            copy_model(artifacts, form, folder, **options)
            fault(folder)

        monkeypatch.setattr(assembly, "copy_model_for_release", copy)

    return put


def change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def permute_labels(folder: Path) -> None:
    names = list(json.loads((folder / "config.json").read_text())["id2label"].values())
    names.append(names.pop(0))
    change(
        folder / "config.json",
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )


def give_several_labels(folder: Path) -> None:
    change(folder / "config.json", problem_type="multi_label_classification")


def shorten(folder: Path) -> None:
    change(folder / "tokenizer_config.json", model_max_length=6)


def read_coarsely(folder: Path) -> None:
    change(folder / "config.json", dtype="bfloat16")


def use_another_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(CHAT.replace("[{{ m.role }}]", "<{{ m.role }}>"))


def disturb(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = max((name for name in weights if weights[name].dim() == 2), key=lambda name: weights[name].numel())
    weights[name] = weights[name] + 0.2 * torch.randn(weights[name].shape, generator=torch.manual_seed(1))
    save_file(weights, path, metadata={"format": "pt"})


def round_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(path).items()}, path, metadata={"format": "pt"})
    read_coarsely(folder)


def refusal(of: tuple[Artifacts, Recipe], **changes: Any) -> str:
    """The error with which the publish stage refuses a release, as a dry run."""
    artifacts, recipe = of
    with pytest.raises(ModelError) as raised:
        releases.publish(artifacts, recipe, dry_run=True, **changes)
    assert not artifacts.served_release.exists()
    assert artifacts.staged_release.exists(), "to look at"
    return str(raised.value)


@pytest.mark.parametrize("kind", kinds(*tiny_releases.KINDS))
def test_untouched_release_answers_as_it_was_judged(prepared, kind):
    artifacts, recipe = prepared(kind)
    assert releases.publish(artifacts, recipe, dry_run=True).status == "dry-run"
    assert artifacts.served_release.exists()
    artifacts.served_release.unlink()


def marks(fault: Callable[[Path], None], kind: str) -> Any:
    return () if kind in FAST or fault is use_another_template else pytest.mark.slow


FAULTS: list[tuple[Callable[[Path], None], list[str], str]] = [
    (
        permute_labels,
        ["sequence_classification", "token_classification"],
        "id2label in its config.json names the outputs",
    ),
    (give_several_labels, ["sequence_classification"], "problem_type in its config.json is multi_label_classification"),
    # a tagger's code strides, which fails
    (
        shorten,
        [kind for kind in SCORED if kind != "token_classification"],
        "its tokenizer cuts texts at 6 tokens, and the evaluation at",
    ),
    (use_another_template, ["conversations"], "its tokenizer has another chat template"),
    (read_coarsely, COARSE, "its weights are read as bfloat16"),
]


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        pytest.param(fault, kind, reason, marks=marks(fault, kind), id=f"{fault.__name__}-{kind}")
        for fault, of, reason in FAULTS
        for kind in of
    ],
)
def test_release_that_answers_otherwise_is_refused(prepared, plant, fault, kind, reason):
    plant(fault)
    said = refusal(prepared(kind))
    assert "the release would answer otherwise than it was judged: row_id " in said
    assert f"likely because {reason}" in said
    assert "nothing was sent" in said


@pytest.mark.parametrize("kind", kinds(*(kind for kind in COARSE if kind != "token_classification"), "dpo"))
def test_release_that_answers_nan_is_refused(prepared, plant, kind):
    def divide_by_nan(folder: Path) -> None:
        keys = json.loads((folder / "config.json").read_text())
        change(folder / "config.json", **{key: float("nan") for key in keys if re.search("_(eps|epsilon)$", key)})

    plant(divide_by_nan)
    assert re.search(r"row_id \d+: \w+ is nan, and was ", refusal(prepared(kind)))


@pytest.mark.parametrize("kind", kinds(*tiny_releases.KINDS))
def test_other_weights_than_the_judged_ones_are_refused(prepared, plant, kind):
    plant(disturb)
    assert "the release holds other weights than those that were evaluated" in refusal(prepared(kind))


@pytest.mark.parametrize("fault", [disturb, round_weights])
@pytest.mark.parametrize("kind", kinds(*COARSE))
def test_answers_show_other_weights_by_themselves(prepared, plant, monkeypatch, kind, fault):
    check = served.check_same_answers

    def trusting(candidate: Candidate, release: Any) -> None:
        candidate.forms[candidate.publish.adapter] = release.weights
        check(candidate, release)

    monkeypatch.setattr(served, "check_same_answers", trusting)
    plant(fault)
    said = refusal(prepared(kind))
    assert re.search(r"row_id \d+: \w+ is -?[\d.e+-]+, and was -?[\d.e+-]+ in the evaluation", said)
    assert ("its weights are read as bfloat16" in said) == (fault is round_weights)


@pytest.mark.parametrize("kind", kinds("sequence_classification", "seq2seq", "token_classification", "dpo", "reward"))
def test_row_that_training_cut_is_asked_if_it_was_judged_whole(tmp_path, monkeypatch, kind):
    """Where the release decides how much of a text is read; of others, the tokens of the beginning are compared."""
    of = tiny_releases.evaluated(tmp_path, kind, steps=STEPS, max_length=8)
    asked: list[int] = []
    answers = served.AnswerChecker._answer_scores

    def count(self: served.AnswerChecker, reader: served.ModelLoadedByCard, one: served.EvaluatedRow) -> Any:
        scores = answers(self, reader, one)
        if scores:
            asked.append(len(one.encoded.examples[0]["input_ids"]))
        return scores

    monkeypatch.setattr(served.AnswerChecker, "_answer_scores", count)
    assert releases.publish(*of, dry_run=True).status == "dry-run"
    assert bool(asked) == objectives.build_objective(of[1].objective).reads_as_its_release
    assert all(length > 8 for length in asked), "as all rows are"


def test_a_tagger_reads_a_long_text_in_windows_to_its_end(prepared):
    artifacts, recipe = prepared("token_classification")
    folder = assembly.assemble_release_folder(releases.candidate(artifacts), collect_provenance(artifacts), None)
    card = (folder / "README.md").read_text()
    reader = next(served.load_with_card_code(folder, recipe.publish.repo_id, card))
    limit, text = reader.tokenizer.model_max_length, " ".join(tiny.sentences(120))
    ids, seen = reader.tokenizer(text)["input_ids"], list[list[int]]()
    reader.network.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"][0].tolist()), with_kwargs=True
    )
    (call,) = (line for line in card.splitlines() if line.startswith("print(tagger("))
    asked = call.replace('"The text to find spans in."', "text")
    exec(asked, {"tagger": reader.pipeline, "text": text, "print": lambda _: None})
    assert len(seen) > len(ids) / limit > 3
    assert ids[-1] in seen[-1], "it reads to the end"
    shared = limit // 4
    assert all(one[-shared:] == other[:shared] for one, other in itertools.pairwise(seen)), "they overlap"


@pytest.mark.parametrize("kind", kinds("grpo", "iterative_sft"))
def test_other_answers_are_found_by_generated_text(prepared, plant, kind):
    """No probability of these rows was judged, so the text has to tell."""
    plant(lambda folder: change(folder / "generation_config.json", eos_token_id=list(range(300))))
    said = refusal(prepared(kind))
    assert re.search(r"completion_length is 1, and was 4 in the evaluation; \d+ of 12 rows differ", said)


@pytest.mark.parametrize("kind", kinds("sft", "dpo", "grpo"))
def test_prompt_that_the_call_on_the_card_changes_is_refused(prepared, plant, kind):
    """Some tokenizers end every text: a reader's prompt then ends before the answer begins."""

    def end_every_text(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(content))

    plant(end_every_text)
    assert "the call on the card gives the model other tokens of the prompt" in refusal(prepared(kind))


def test_nothing_is_sent_and_a_retry_does_not_look_again(prepared, plant, monkeypatch):
    artifacts, recipe = prepared("sequence_classification")
    plant(permute_labels)
    with pytest.raises(ModelError, match="otherwise than it was judged"):
        releases.publish(artifacts, recipe)
    with LocalHub(artifacts.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        assert not HfApi(endpoint=hub.endpoint, token=TOKEN).repo_exists(recipe.publish.repo_id)
    plant(lambda _: None)
    assert releases.publish(artifacts, recipe, dry_run=True).status == "dry-run"

    def fail(*_: Any) -> Iterator[served.ModelLoadedByCard]:
        raise AssertionError

    monkeypatch.setattr(served, "load_with_card_code", fail)
    assert releases.publish(artifacts, recipe, dry_run=True).status == "dry-run"
    artifacts.served_release.unlink()


def test_card_code_that_fails_is_an_error(prepared, plant):
    plant(lambda folder: (folder / "tokenizer.json").write_text("{}"))
    said = refusal(prepared("sequence_classification"))
    assert "the code on its model card fails: " in said


@pytest.mark.parametrize("kind", kinds(*tiny_releases.KINDS))
def test_card_asks_in_the_form_that_was_judged(prepared, kind):
    """The prompt on the card and the input of the comparison are the same text."""
    artifacts, recipe = prepared(kind)
    objective = objectives.build_objective(recipe.objective)
    form = objectives.prompt_form(recipe.objective.model_dump(mode="json"), has_template=kind == "conversations")
    for row in SplitRows(artifacts.rows / "test").pick(range(1000)):
        asked = objective.reader_input(row)
        if kind == "conversations":
            assert asked == form.prompt(row["messages"][0]["content"])
        elif kind == "reward":
            assert asked == objective.text(row), "with an answer, which it judges"
        elif form.is_pair:
            assert [*asked.values()] == list(objective.texts(row))
        elif kind != "causal_lm" and asked is not None:  # else the card has code of its own
            assert asked == form.prompt(row["text"])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HfApi]:
    """A Hub with base models."""
    root = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch, LocalHub(root / ".hub", tokens={TOKEN: "tests"}) as running:
        base_models.use_hub(patch, running.endpoint, TOKEN, root / "cache")
        api = HfApi(endpoint=running.endpoint, token=TOKEN)
        for model_type in ("llama", "bert", "t5"):
            base_models.upload(api, root / model_type)
        yield api


@pytest.mark.slow
@pytest.mark.parametrize("form", ["merged", "adapter", "both"])
@pytest.mark.parametrize("kind", base_models.KINDS)
def test_every_form_answers_as_it_was_judged(hub, tmp_path, monkeypatch, kind, form):
    use(hub, monkeypatch)
    changes = {"publish.repo_id": f"tests/{kind}-{form}", "publish.adapter": form}
    artifacts, recipe = releases.tokenized(tmp_path, base_models.recipe(kind, changes), tiny_releases.SIZES)
    releases.learn(artifacts, recipe, tiny_releases.KINDS[kind][0])
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    assert releases.publish(artifacts, recipe, dry_run=True).status == "dry-run"
    assert artifacts.served_release.exists()


@pytest.mark.slow
def test_adapters_that_say_something_else_than_the_merged_model_are_refused(hub, tmp_path, monkeypatch):
    use(hub, monkeypatch)
    content = base_models.recipe("sft", {"publish.adapter": "adapter"})
    artifacts, recipe = releases.tokenized(tmp_path, content, tiny_releases.SIZES)
    releases.learn(artifacts, recipe, 20)
    releases.evaluate(artifacts, recipe)
    path = artifacts.adapter / "adapter_model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(path).items()}, path, metadata={"format": "pt"})
    said = refusal((artifacts, load(tiny.write(artifacts.recipe_path, content))))
    assert "its adapters by themselves compute something else than merged ones" in said


def use(hub: HfApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """`no_hub_settings` has taken the environment away."""
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
