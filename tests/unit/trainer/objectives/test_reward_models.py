"""Reward models as rewards: as the objective that made them evaluates them, refused in time, and exact over kills and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import AutoConfig, AutoTokenizer

from params import DataError, ModelError
from params.schema import ObjectiveChoice
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tasks.shards.split_rows import SplitRows
from tests.support import releases, reward_models
from tests.support.pretrained import write_model
from tests.support.reward_models import write_classifier
from tests.support.tiny_releases import CHAT
from trainer import objectives
from trainer.objectives.bases.preferences.answer_form import AnswerForm
from trainer.objectives.bases.rewards.reward_models import PROMPT, RewardModel


def grpo(*rewards: Any, **options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="grpo", rewards=list(rewards), **options))


@pytest.mark.parametrize("kind", [pytest.param("texts", marks=pytest.mark.slow), "texts with a separator", "messages"])
def test_rewards_are_those_of_the_objectives_evaluation(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "texts": {},
        "texts with a separator": {"separator": "\n\n"},
        "messages": {"chat": True},
    }[kind]
    artifacts, recipe = reward_models.made(tmp_path, **options)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    scores = pq.read_table(artifacts.evaluation / "scores" / "model.parquet").to_pylist()
    rows = {row["row_id"]: row for row in SplitRows(artifacts.rows / "test").rows()}

    def text(value: Any) -> str:
        return value if isinstance(value, str) else value[0]["content"]

    asked, said, expected = [], [], []
    for one in scores:
        row = rows[one["row_id"]]
        for answer in ("chosen", "rejected"):
            asked.append({"row_id": row["row_id"], PROMPT: text(row["prompt"])})
            said.append(text(row[answer]))
            expected.append(one[f"{answer}_reward"])
    found = RewardModel(str(artifacts.model))(said, asked)
    assert found == pytest.approx(expected, abs=1e-6)
    assert len({round(value, 4) for value in found}) > len(found) / 2, "they differ"
    config = json.loads((artifacts.model / "config.json").read_bytes())
    assert config["answer_form"] == {"chat": kind == "messages", "separator": options.get("separator", "")}


@pytest.mark.parametrize("chat", [False, True], ids=["texts", "messages"])
def test_a_release_is_tried_as_it_was_evaluated(chat: bool, tmp_path: Path) -> None:
    artifacts, _ = reward_models.made(tmp_path, chat=chat, **({} if chat else {"separator": " "}))
    model = AnsweringModel.load(artifacts.model, "here")

    def tried(written: Any) -> float:
        answer = model.answer(written if isinstance(written, str) else json.dumps(written), AnswerOptions())
        assert answer.numbers is not None
        return answer.numbers[0].value

    (expected,) = RewardModel(str(artifacts.model))(["It is 11."], [{"row_id": 0, PROMPT: "After 10?"}])
    assert tried({"prompt": "After 10?", "completion": "It is 11."}) == pytest.approx(expected, abs=1e-6)
    asked, said = {"role": "user", "content": "After 10?"}, {"role": "assistant", "content": "It is 11."}
    if chat:
        assert (
            tried([asked, said])
            == tried({"prompt": [asked], "completion": [said]})
            == pytest.approx(expected, abs=1e-6)
        )
        refused = "It is 11.", [asked], {"prompt": "After 10?", "completion": 3}
    else:
        assert tried("After 10? It is 11.") == pytest.approx(expected, abs=1e-6), "it ends as in training"
        refused = ({"prompt": "After 10?", "completion": [said]},)
    for written in refused:
        with pytest.raises(DataError, match=r"is no prompt with its answer.*\n.*\"prompt\""):
            tried(written)


# Refused before a training starts


def problem_of(folder: Path, **options: Any) -> str:
    """What is wrong with a reward model, as `check` says it."""
    built = grpo({"model": str(folder)}, **options)
    found = [*built.find_model_problems()]
    assert [problem.key for problem in found] in ([], [("objective", "rewards", 0)])
    return "; ".join(f"{problem.what}; {problem.fix}" for problem in found)


def test_models_that_give_no_rewards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_of(write_classifier(tmp_path / "sound")) == ""
    two = problem_of(write_classifier(tmp_path / "two", 2))
    assert "is no reward model: it gives 2 numbers for a text" in two
    assert "use a model with one output for a text" in two
    generative = problem_of(write_model(tmp_path / "generative", "llama"))
    assert "it is a LlamaForCausalLM, which gives a text no number" in generative
    assert "there is no folder" in problem_of(tmp_path / "missing")
    monkeypatch.chdir(tmp_path)
    assert "give a local folder" in problem_of(Path("runs/answers/model")), "no recipe makes it"
    (tmp_path / "params").mkdir()
    (tmp_path / "params/answers.yaml").touch()
    assert "makes it: `evergreen run answers --no-publish`" in problem_of(Path("runs/answers/model"))
    (empty := tmp_path / "empty").mkdir()
    assert "config.json" in problem_of(empty)


def test_pickles_and_code_of_a_repository_are_never_loaded(tmp_path: Path) -> None:
    pickled = write_classifier(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert "weights only as pickle files" in problem_of(pickled)
    coded = write_classifier(tmp_path / "coded")
    config = json.loads((coded / "config.json").read_bytes())
    own = {"model_type": "theirs", "auto_map": {"AutoConfig": "code.C", "AutoModelForSequenceClassification": "code.M"}}
    (coded / "config.json").write_text(json.dumps(config | own))
    (coded / "code.py").write_text("raise SystemExit('ran')")
    assert "needs code of its own repository, which Evergreen never runs" in problem_of(coded)


def test_a_head_of_random_weights_is_refused(tmp_path: Path) -> None:
    """As of a model for something else whose config.json claims one output."""
    folder = write_model(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_bytes())
    claims = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "reward"}}
    (folder / "config.json").write_text(json.dumps(config | claims))
    with pytest.raises(ModelError, match=r"its weights lack score.weight, so rewards would be random"):
        RewardModel(str(folder)).load()


def test_how_a_model_reads_is_said_once(tmp_path: Path) -> None:
    """By the model, else by the recipe, else it is as the prompts are."""
    silent = write_classifier(tmp_path / "silent")
    assert problem_of(silent) == ""
    assert "no chat template" in problem_of(silent, chat=True)
    assert "set `reads: {chat: false}`" in problem_of(silent, chat=True)
    reads = [{"model": str(silent), "reads": {"separator": how}} for how in (" ", "\n")]
    rows = [{"row_id": 0, PROMPT: "After 10?"}]
    one, other = (grpo(how, chat=True).rewards(["11"], rows) for how in reads)
    assert one != other
    whole = RewardModel(str(silent))(["After 10? 11"], [{"row_id": 0, PROMPT: ""}])
    assert one == pytest.approx(whole, abs=1e-6)
    said = write_classifier(tmp_path / "said", answer_form={"chat": False, "separator": " "})
    assert RewardModel(str(said), chat=True)._form(*settings(said)).separator == " "
    with pytest.raises(ModelError, match=r"`reads` says .*\n  fix: remove `reads`"):
        RewardModel(str(said), AnswerForm(separator="\n")).check()


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """As of a later version: read as one text without a separator, it would give other rewards."""
    later = write_classifier(tmp_path, answer_form={"chat": False, "separator": " ", "system": "Be kind."})
    said = problem_of(later)
    assert "'system': 'Be kind.'}, of which chat and separator are known" in said
    assert "load it with the version of Evergreen that made it" in said
    with pytest.raises(ModelError, match="answer_form in its config"):
        AnsweringModel.load(later, "here").answer("After 10? 11", AnswerOptions())


def test_a_folder_is_not_read_in_place_of_the_repository_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would, whatever the commit."""
    write_classifier(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert "there is a folder owner/name here" in problem_of(Path("owner/name@" + "1" * 40))
    assert problem_of(Path("owner/name")) == ""


def settings(folder: Path) -> tuple[Any, Any]:
    return AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"model": "a/b@"}, "names no commit"),
        ({"model": "a--b/c@" + "1" * 40}, "the Hub refuses"),
        ({}, "needs exactly one of `name` and `model`"),
        ({"model": "a/b@" + "1" * 40, "name": "trainer.rewards:matches"}, "needs exactly one of `name` and `model`"),
        ({"model": "x", "arguments": {"a": 1}}, "`arguments` has no effect on a model"),
        ({"name": "trainer.rewards:matches", "reads": {}}, "`reads` has no effect on a function"),
    ],
)
def test_a_reward_is_a_function_or_a_model(given: dict[str, Any], what: str) -> None:
    (found,) = objectives.find_option_problems(ObjectiveChoice(name="iterative_sft", rewards=[given]))
    assert what in found.what


# What is scored


@pytest.mark.parametrize(
    ("model_type", "config"),
    [("bert", {}), ("llama", {}), ("llama", {"pad_token_id": None}), ("llama", {"pad_token_id": -1})],
    ids=str,
)
def test_each_text_is_read_once_and_alike_in_every_batch(
    model_type: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """An encoder sees padding that is not masked; a decoder reads the end of a text, which it finds by its padding token."""
    folder = write_classifier(tmp_path, model_type=model_type, **config)
    reward = RewardModel(str(folder))
    said = [f"{'so ' * (i % 7)}{i}" for i in range(40)]
    rows = [{"row_id": i, PROMPT: "Say a number:"} for i in range(40)]
    alone = [reward([text], [row])[0] for text, row in zip(said, rows, strict=True)]
    assert reward(said, rows) == pytest.approx(alone, abs=1e-6)
    twice = reward(said + said[::-1], rows + rows[::-1])
    assert twice[:40] == twice[40:][::-1]
    assert reward([], []) == []


def test_rewards_of_functions_and_models_are_weighted_together(tmp_path: Path) -> None:
    folder = str(write_classifier(tmp_path))
    rows = [{"row_id": 7, "prompt": "a", "answer": "1", PROMPT: "a"}]
    (own,) = RewardModel(folder)(["1"], rows)
    both = grpo("trainer.rewards:numeric_answer", {"model": folder}, reward_weights=[1.0, -2.0])
    assert both.rewards(["1"], rows) == pytest.approx([1 - 2 * own])
    assert both.models() == {("objective", "rewards", 1, "model"): folder}


def test_a_model_gets_the_prompt_before_the_chat_template(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama", chat_template=CHAT)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = {"row_id": 0, "question": "After 10?", "prompt": "a column", "answer": "11"}
    options = {"prompt": "Q: {question}", "reference_columns": ["answer", "prompt"], "chat": True}
    for rewards, expected in ((["trainer.rewards:numeric_answer"], None), ([{"model": str(folder)}], "Q: After 10?")):
        (((example,), _),) = grpo(*rewards, **options).encode([row], tokenizer, 50, {})
        assert json.loads(example["reward_row"]).get(PROMPT) == expected
        assert json.loads(example["reward_row"])["prompt"] == "a column", "functions get what they got"


def test_a_text_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path, answer_form={"chat": True, "separator": ""})
    refusing = "{% if 'bad' in messages[0].content %}{{ raise_exception('no bad words') }}{% endif %}" + CHAT
    (folder / "chat_template.jinja").write_text(refusing)
    reward = RewardModel(str(folder))
    assert len(reward(["11"], [{"row_id": 3, PROMPT: "fine"}])) == 1
    with pytest.raises(DataError, match=r"row 4: .*no bad words"):
        reward(["11", "11"], [{"row_id": 3, PROMPT: "fine"}, {"row_id": 4, PROMPT: "bad"}])


@pytest.mark.parametrize("chat", [False, True], ids=["texts", "messages"])
def test_a_model_that_reads_the_end_of_a_text_is_refused_if_no_text_has_one(chat: bool, tmp_path: Path) -> None:
    template = CHAT.replace("<|endoftext|>", "").replace("{{ eos_token }}", "")
    folder = write_classifier(tmp_path, model_type="t5", eos_token_id=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = RewardModel(str(folder), chat=chat)
    with pytest.raises(ModelError, match="at the end-of-text token, 1 in its config") as raised:
        model.check()
    assert ("chat template" if chat else "own tokenizer") in raised.value.fix


def test_a_model_that_reads_the_end_of_a_text_gives_a_reward_where_its_tokenizer_writes_it(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path, model_type="t5", eos_token_id=0)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 0
    assert len(RewardModel(str(folder))(["It is 11.", "No."], [{PROMPT: "7 + 4?"}] * 2)) == 2
