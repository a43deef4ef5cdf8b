"""A published model of every objective: the snippets on its card run, and it answers, in a shell and on its page."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi, snapshot_download

from tasks.commands import main
from tasks.hub_server.server import LocalHub
from tasks.hub_server.trials import TrialError
from tasks.inference.hub_trials import HubModelAnswerer
from tasks.publishing import served
from tests.support import base_models, forked, releases, tiny_releases
from tests.support.browser import needs_browser, open_page
from tests.support.html import Outline
from tests.support.hub_browser import hub_browser
from trainer import objectives

TOKEN, OTHER = "hf_" + "1" * 40, "hf_" + "2" * 40
TEXT = "The king likes the rain: number 7."
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"  # a file of safetensors that holds none
ADAPTERS = [
    "sft-adapter",
    "sequence_classification-adapter",
    "regression-adapter",
    "sft-both",
    "sequence_classification-both",
]
"""Models with adapters that are published by themselves."""
OTHER_ADAPTERS = [name for kind in base_models.KINDS if (name := f"{kind}-adapter") not in ADAPTERS]
"""Those that only the slow tests publish."""
LIKE_OTHERS = {"sft", "kto", "iterative_sft", "multi_label_classification", "regression-adapter", "sft-both"}
"""Their cards have the code of another model's, which all releases are tried with before they are sent."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[LocalHub]:
    """A Hub with a model of every kind, and the environment of its user."""
    root = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch, LocalHub(root / ".hub", tokens={TOKEN: "tests"}) as running:
        base_models.use_hub(patch, running.endpoint, TOKEN, root / "cache")
        patch.setattr(releases, "ASKED_ROWS", served.ROWS)
        for kind in tiny_releases.KINDS:
            tiny_releases.publish(root / kind, kind, private=kind == "dpo")
        for model_type in ("llama", "bert", "t5"):
            base_models.upload(HfApi(endpoint=running.endpoint, token=TOKEN), root / model_type)
        for name in ADAPTERS:
            kind, _, form = name.partition("-")
            tiny_releases.publish_adapters(root / name, kind, form)
        patch.chdir(root / "sequence_classification")
        running.root = root
        yield running


def test_every_objective_is_here():
    known = {sections.get("objective", {}).get("name", "causal_lm") for _, sections in tiny_releases.KINDS.values()}
    assert known == set(objectives.objective_names())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 causes it
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in {*LIKE_OTHERS, *OTHER_ADAPTERS} else name
        for name in (*tiny_releases.KINDS, *ADAPTERS, *OTHER_ADAPTERS)
    ],
)
def test_snippets_of_the_card_run(hub, name, capsys, monkeypatch, tmp_path):
    """Here, and not in a process of its own, whose imports take long."""
    base_models.use_hub(monkeypatch, hub.endpoint, TOKEN, tmp_path / "cache")
    kind, _, form = name.partition("-")
    if name in OTHER_ADAPTERS:
        tiny_releases.publish_adapters(hub.root / name, kind, form)
    card = Path(HfApi().hf_hub_download(f"tests/{name}", "README.md", local_dir=tmp_path))
    snippets = re.findall(r"^```python\n(.*?)^```$", card.read_text(), re.MULTILINE | re.DOTALL)
    assert any("PeftModel" in snippet for snippet in snippets) == bool(form)
    capsys.readouterr()
    for snippet in snippets:
        exec(compile(snippet, str(card), "exec"), {})
    said = capsys.readouterr().out.strip()
    begins = {
        "causal_lm": "Once upon a time",
        "sft": "Once upon a time",
        "dpo": "Once upon a time =>",
        "kto": "Once upon a time =>",
        "grpo": "Who? Once upon a time Answer:",
        "iterative_sft": "Who? Once upon a time Answer:",
    }
    assert said.startswith(begins.get(kind, ""))
    match kind:
        case "sequence_classification":
            assert re.match(r"\[\{'label': '(cat|dog|friend|king)', 'score': [01]\.\d+\}\]$", said)
        case "multi_label_classification":
            assert re.match(r"\[(\{'label': '(again|cat|rain)', 'score': [01]\.\d+\}(, )?)*\]$", said)
        case "reward":
            assert re.match(r"\[\{'label': 'reward', 'score': -?\d+\.\d+(e-\d+)?\}\]$", said)
        case "token_classification":
            assert re.match(r"\[(\{'entity_group': 'who', |\]$)", said)
        case "question_answering":
            assert said in "The book was written by Ada in 1843."
        case "multiple_choice":
            assert sum(json.loads(said)) == pytest.approx(1, abs=1e-5)
        case "masked_lm":
            assert re.match(r"\[\{'score': [01]\.\d+", said)
        case "regression":
            assert re.match(r"\{'label': 'number', 'score': \d{2,3}\.\d+\}$", said), "in its units"
        case "ranking":
            assert re.match(r"\{'label': 'relevance', 'score': 0\.\d+\}$", said)
        case "conversations":
            assert "[user]" not in said, "only the answer"
            assert not said.startswith("Once upon a time"), "it is asked a question"
        case "seq2seq":
            assert "The input text" not in said
        case "embedding":
            assert re.match(r"tensor\(\[\[-?[01]\.\d+, +-?[01]\.\d+\]\]\)$", said)


def tried(capsys, *arguments: str) -> str:
    assert main(["try", *arguments]) == 0
    return capsys.readouterr().out


def test_recipe_and_repository_answer(hub, capsys):
    by_name = tried(capsys, "tiny", TEXT)
    assert tried(capsys, "tests/sequence_classification@main", TEXT) == by_name
    question, best, *others = by_name.splitlines()
    assert question == f"> {TEXT}"
    assert re.fullmatch(r"king +0\.\d{3}", best)
    assert {line.split()[0] for line in others if line} == {"cat", "dog", "friend"}
    probabilities = [float(line.split()[1]) for line in (best, *others) if line]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=0.003)


def test_spans_are_marked_and_listed(hub, capsys):
    out = tried(capsys, "tests/token_classification", TEXT)
    assert "The [king](who) likes the rain: number 7." in out
    assert re.search(r"who: 4 to 8, 'king', 0\.\d{3}", out)


PAIR = json.dumps({"text": TEXT, "text_pair": "king"})


def test_a_pair_is_written_as_json_and_a_number_is_in_its_units(hub, capsys):
    question, answer, *_ = tried(capsys, "tests/regression", PAIR).splitlines()
    assert question == f"> {PAIR}"
    assert re.fullmatch(r"number  \d{2,3}\.?\d*", answer)
    ours, adapters = (
        json.loads(tried(capsys, name, PAIR, "--against", "main", "--json"))
        for name in ("tests/regression", "tests/regression-adapter")
    )
    assert ours["differ"] is False
    assert [one["name"] for one in ours["answers"][0]["numbers"]] == ["number"]
    assert 0 < adapters["answers"][0]["numbers"][0]["value"] < 700
    assert main(["try", "tests/regression", TEXT]) != 0
    said = capsys.readouterr().err
    assert 'is one text, and the model reads two together\n  fix: write \'{"text": "...", "text_pair": "..."}\'' in said


@pytest.mark.parametrize(
    "kind", ["causal_lm", "sft", "conversations", "seq2seq", "dpo", "kto", "grpo", "iterative_sft"]
)
def test_generated_text_repeats_unless_drawn(hub, capsys, kind):
    first = json.loads(tried(capsys, f"tests/{kind}", TEXT, "--json", "--max-new-tokens", "12"))
    assert first["text"] == TEXT
    (answer,) = first["answers"]
    assert answer["repo_id"] == f"tests/{kind}"
    assert answer["tag"].startswith("release-")
    assert TEXT not in answer["generated"], "the answer without the prompt"
    assert json.loads(tried(capsys, f"tests/{kind}", TEXT, "--json", "--max-new-tokens", "12")) == first
    if kind == "causal_lm":
        hot = ("--json", "--max-new-tokens", "12", "--temperature", "5")
        drawn = {json.loads(tried(capsys, f"tests/{kind}", TEXT, *hot))["answers"][0]["generated"] for _ in range(3)}
        assert len(drawn) > 1


@pytest.mark.parametrize("kind", ["sft", "sequence_classification"])
def test_adapters_answer_like_the_merged_model(hub, capsys, kind):
    told = tried(capsys, f"tests/{kind}-adapter", TEXT, "--against", f"tests/{kind}-both@main", "--json")
    body = json.loads(told)
    assert body["differ"] is False
    ours, merged = ({name: one.get(name) for name in ("generated", "labels")} for one in body["answers"])
    if kind == "sft":
        assert ours == merged
    else:
        assert [one["name"] for one in ours["labels"]] == [one["name"] for one in merged["labels"]]
        assert ours["labels"][0]["probability"] == pytest.approx(merged["labels"][0]["probability"], abs=1e-5)
        assert ours["labels"][0]["name"] in {"cat", "dog", "friend", "king"}


def test_lines_of_standard_input(hub, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\n\n A dog hears a bird.\n"))
    lines = tried(capsys, "tiny", "--json").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [TEXT, "A dog hears a bird."]
    assert [json.loads(line)["answers"][0]["labels"][0]["name"] for line in lines] == ["king", "dog"]


def test_long_text_is_read_in_windows_or_said_to_be_cut(hub, capsys):
    text = " ".join([TEXT] * 90)
    assert re.search(r"note: the model read the first 512 of \d+ tokens", tried(capsys, "tiny", text)), "its positions"
    spans = json.loads(tried(capsys, "tests/token_classification", text, "--json"))["answers"][0]["spans"]
    assert spans[-1]["start"] > len(text) / 2, "of all windows"
    assert all(text[one["start"] : one["end"]] == one["text"] for one in spans)
    assert [one["start"] for one in spans] == sorted(one["start"] for one in spans)


def test_two_revisions_side_by_side(hub, capsys, monkeypatch):
    api, repo_id, folder = HfApi(endpoint=hub.endpoint, token=TOKEN), "tests/renamed", hub.root / "renamed"
    api.create_repo(repo_id)
    api.snapshot_download("tests/sequence_classification", local_dir=folder)
    old = api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=["*.json", "*.safetensors"]).oid
    config = json.loads((folder / "config.json").read_text())
    names = {number: f"not {name}" for number, name in config["id2label"].items()}
    (folder / "config.json").write_text(
        json.dumps(config | {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}})
    )
    api.upload_file(path_or_fileobj=folder / "config.json", path_in_repo="config.json", repo_id=repo_id)
    monkeypatch.setenv("COLUMNS", "80")
    out = tried(capsys, repo_id, TEXT, "--against", old)
    assert re.search(r"^not king +0\.\d+ +\|  king +0\.\d+$", out, re.MULTILINE)
    assert f"{repo_id}@{old[:12]}" in out
    assert "the answers differ" in out
    body = json.loads(tried(capsys, "tiny", TEXT, "--against", f"{repo_id}@main", "--json"))
    assert body["differ"] is True
    assert [answer["labels"][0]["name"] for answer in body["answers"]] == ["king", "not king"]
    assert "the answers are the same" in tried(
        capsys, f"{repo_id}@{old}", TEXT, "--against", "tests/sequence_classification@main"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tests/nothing", TEXT), "nothing is published there\n  fix: check the name"),
        (("tiny@v9", TEXT), "there is no revision v9\n  fix: choose one that `evergreen releases tiny` lists"),
        (("tiny", TEXT, "--against", "v9"), "there is no revision v9"),
        (("tiny", " "), "the text: is empty"),
        (("missing", TEXT), "params/missing.yaml"),
        (("a/b/c", TEXT), "a/b/c: names no repository"),
        (("tiny@", TEXT), "is not a revision"),
        (("tests/empty", TEXT), "the revision main has no weights as safetensors"),
        (("tests/odd", TEXT), "its config.json names BertForPreTraining, for which there is no way to try it"),
        (("tests/half", TEXT), "its weights lack classifier.bias, classifier.weight, so its answers would be random"),
        (("tests/mute", TEXT), "has no tokenizer, which reads the text"),
        (("tests/code", TEXT), "needs code of its own repository, which Evergreen never runs"),
        (("tests/prompts", TEXT), "its adapter_config.json names no task, for which there is no way to try it"),
        (("tests/orphan", TEXT), "tests/gone: cannot be loaded"),
    ],
)
def test_errors_name_the_fix(hub, capsys, arguments, message):
    api = HfApi(endpoint=hub.endpoint, token=TOKEN)
    repo_id = arguments[0]
    if repo_id in {f"tests/{name}" for name in ("empty", "odd", "half", "mute", "code", "prompts", "orphan")}:
        api.create_repo(repo_id)
        if repo_id != "tests/empty":
            _upload_broken(api, repo_id, hub.root)
    assert main(["try", *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not (hub.root / "ran").exists(), "code of a repository"


def _upload_broken(api, repo_id, root):
    from safetensors.torch import load_file, save_file

    folder = root / repo_id
    if repo_id in ("tests/prompts", "tests/orphan"):
        api.snapshot_download("tests/sft-adapter", local_dir=folder)
        changed = {"task_type": None} if repo_id == "tests/prompts" else {"base_model_name_or_path": "tests/gone"}
        adapter = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(adapter | changed))
        api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=["*.json", "*.safetensors"])
        return
    api.snapshot_download("tests/sequence_classification", local_dir=folder)
    config = json.loads((folder / "config.json").read_text())
    if repo_id == "tests/odd":
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForPreTraining"]}))
    if repo_id == "tests/half":
        weights = load_file(folder / "model.safetensors")
        left = {name: weight for name, weight in weights.items() if not name.startswith("classifier")}
        save_file(left, folder / "model.safetensors", {"format": "pt"})
    if repo_id == "tests/code":
        auto_map = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": auto_map}))
        (folder / "own.py").write_text(f"open({str(root / 'ran')!r}, 'w')")
    if repo_id == "tests/mute":
        for path in folder.glob("*token*"):
            path.unlink()
    api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=["*.json", "*.safetensors", "*.py"])


@pytest.fixture(scope="module")
def open_hub(hub) -> Iterator[LocalHub]:
    """The same folder, served with boxes for texts."""
    tokens = {TOKEN: "tests", OTHER: "other"}
    with (
        pytest.MonkeyPatch.context() as patch,
        HubModelAnswerer(hub.root / ".hub") as answer,
        LocalHub(hub.root / ".hub", tokens=tokens, answer=answer) as running,
    ):
        patch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        patch.setattr("sys.executable", forked.python())  # the process of the answers loads what this one has loaded
        running.answer = answer
        yield running


@pytest.fixture
def browser(open_hub) -> Iterator[httpx2.Client]:
    with hub_browser(open_hub.endpoint, timeout=60) as client:
        yield client


def form_token(page: str) -> str:
    (found,) = [values for _, values in Outline(page).elements if values.get("name") == "form_token"]
    return str(found["value"])


def ask(browser, kind: str, text: str, revision: str = "main") -> httpx2.Response:
    token = form_token(browser.get(f"/tests/{kind}").text)
    return browser.post(f"/tests/{kind}/try/{revision}", data={"form_token": token, "text": text})


def sign_in(browser, token: str = TOKEN) -> None:
    assert browser.post("/-/sign-in", data={"token": token}).status_code == 200


def test_page_of_a_model_answers(open_hub, browser):
    sign_in(browser)
    page = ask(browser, "sequence_classification", TEXT)
    assert page.status_code == 200
    first = open_hub.answer._process.pid
    outline = Outline(page.text)
    assert re.search(r"king\s*0\.\d{3}", outline.text)
    assert TEXT in outline.text, "it stays in the box"
    assert "script" not in outline.tags
    assert "## Metrics" not in page.text
    assert "Metrics" in outline.text, "the card is below"
    marked = ask(browser, "token_classification", TEXT).text
    assert "<mark>king <b>who</b></mark>" in marked
    evil = ask(browser, "token_classification", "<script>alert(1)</script> & king").text
    assert "<script" not in evil
    assert "&lt;script&gt;alert(1)" in evil
    assert 'class="message">' in ask(browser, "causal_lm", TEXT).text
    tag = HfApi(endpoint=open_hub.endpoint, token=TOKEN).list_repo_refs("tests/causal_lm").tags[0].name
    assert ask(browser, "causal_lm", TEXT, tag).status_code == 200
    adapters = ask(browser, "sequence_classification-adapter", TEXT)
    assert re.search(r"king\s*0\.\d{3}", Outline(adapters.text).text)
    assert open_hub.answer._process.pid == first, "one process answers all, and keeps the last two models in memory"


def test_page_says_what_is_wrong(open_hub, browser):
    sign_in(browser)
    for text, message in ((" ", "Write a text first"), ("x" * 4001, "has 4001 characters, more than 4000")):
        page = ask(browser, "causal_lm", text)
        assert (page.status_code, message in page.text) == (422, True)
    assert ask(browser, "causal_lm", TEXT, "v9").status_code == 404
    api = HfApi(endpoint=open_hub.endpoint, token=TOKEN)
    api.create_repo("tests/nameless")
    config = b'{"model_type": "bert", "architectures": ["<b>Odd</b>"]}'
    api.upload_file(path_or_fileobj=config, path_in_repo="config.json", repo_id="tests/nameless")
    api.upload_file(path_or_fileobj=NO_TENSORS, path_in_repo="model.safetensors", repo_id="tests/nameless")
    page = ask(browser, "nameless", TEXT)
    assert page.status_code == 422
    assert "names &lt;b&gt;Odd&lt;/b&gt;, for which there is no way to try it" in page.text


def test_box_is_only_for_those_who_may_use_it(hub, open_hub, browser):
    assert "Try this model" not in httpx2.get(f"{hub.endpoint}/tests/causal_lm").text, "off unless asked for"
    assert "Sign in</a> to try this model" in browser.get("/tests/causal_lm").text
    assert browser.post("/tests/causal_lm/try/main", data={"text": TEXT}).status_code == 401
    sign_in(browser)
    token = form_token(browser.get("/tests/causal_lm").text)
    data = {"form_token": token, "text": TEXT}
    elsewhere = {"Origin": "https://evil.example"}
    assert browser.post("/tests/causal_lm/try/main", data=data, headers=elsewhere).status_code == 403
    assert browser.post("/tests/causal_lm/try/main", data=data | {"form_token": "x"}).status_code == 403
    assert browser.post("/tests/dpo/try/main", data=data).status_code == 200
    with hub_browser(open_hub.endpoint) as other:
        sign_in(other, OTHER)
        data["form_token"] = form_token(other.get("/tests/causal_lm").text)
        assert other.post("/tests/dpo/try/main", data=data).status_code == 404
    with hub_browser(hub.endpoint) as closed:
        sign_in(closed)
        refused = closed.post("/tests/causal_lm/try/main", data=data)
        assert refused.status_code in (403, 404)


@pytest.fixture(scope="module")
def others(hub) -> HfApi:
    """Models of another user: adapters that name base models which their author may not see, and a chat template that never ends."""
    folder = hub.root / "others"
    adapter = snapshot_download("tests/sequence_classification-adapter", local_dir=folder / "adapter")
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    chat = snapshot_download("tests/causal_lm", local_dir=folder / "chat")
    tokenizer = json.loads((folder / "chat/tokenizer_config.json").read_text())
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    (folder / "chat/tokenizer_config.json").write_text(json.dumps(tokenizer | {"chat_template": loop}))
    (folder / "chat/evergreen-provenance.json").write_text(
        json.dumps({"objective": {"name": "sft", "messages_column": "m"}})
    )
    api = HfApi(token=TOKEN)
    api.create_repo("tests/hidden", private=True)
    base = config["base_model_name_or_path"]
    api.upload_folder(repo_id="tests/hidden", folder_path=snapshot_download(base, local_dir=folder / "base"))
    with LocalHub(hub.root / ".hub", tokens={OTHER: "other"}) as running:
        other = HfApi(endpoint=running.endpoint, token=OTHER)
        bases = {
            "of-tests": "tests/hidden",
            "of-folder": str(folder / "base"),
            "of-adapter": "other/of-tests",
            "of-all": base,
        }
        for name, names in {**bases, "loops": ""}.items():
            other.create_repo(f"other/{name}", private=False)
            if names:
                changed = config | {"base_model_name_or_path": names, "revision": None}
                (folder / "adapter/adapter_config.json").write_text(json.dumps(changed))
            other.upload_folder(
                repo_id=f"other/{name}", folder_path=adapter if names else chat, ignore_patterns=[".cache/**"]
            )
    return api


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of-tests", "tests/hidden, is not on this Hub, or you may not see it"),
        ("of-folder", "is not on this Hub, or you may not see it"),
        ("of-adapter", "is an adapter itself"),
        ("of-all", ""),
    ],
)
def test_base_model_must_be_one_that_its_user_may_see(open_hub, others, browser, name, message):
    for token, may_see in ((OTHER, False), (TOKEN, name == "of-tests")):
        sign_in(browser, token)
        page = browser.post(
            f"/other/{name}/try/main", data={"form_token": form_token(browser.get(f"/other/{name}").text), "text": TEXT}
        )
        assert page.status_code == (200 if may_see or not message else 422), page.text
        assert may_see or message in page.text


def try_it(answer, api, repo_id):
    return answer(repo_id, api.model_info(repo_id).sha, TEXT, lambda _: True)


@pytest.mark.slow
def test_answer_that_never_ends_frees_the_box(hub, others):
    with HubModelAnswerer(hub.root / ".hub", timeout_s=30) as answer:
        started = time.monotonic()
        with pytest.raises(TrialError, match="took longer than 30 s"):
            try_it(answer, others, "other/loops")
        assert time.monotonic() - started < 90
        answer._timeout_s = 300
        assert try_it(answer, others, "tests/causal_lm").pieces, "the next one is answered"


@pytest.mark.slow
def test_answer_that_needs_too_much_memory_is_refused(hub, others):
    with (
        HubModelAnswerer(hub.root / ".hub", memory_bytes=300 << 20) as answer,
        pytest.raises(TrialError, match=r"memory|allocate|Memory"),
    ):
        try_it(answer, others, "tests/causal_lm")


def test_process_of_an_answer_has_no_secrets(open_hub, others):
    answer = open_hub.answer
    try_it(answer, others, "tests/causal_lm")
    assert os.environ["HF_TOKEN"] == TOKEN
    environment = Path(f"/proc/{answer._process.pid}/environ").read_bytes()
    assert TOKEN.encode() not in environment
    assert b"SECRET" not in environment
    assert b"HF_ENDPOINT" not in environment
    assert Path(f"/proc/{answer._process.pid}/cwd").resolve() == Path(answer._own.name).resolve()


def test_one_answer_at_a_time(hub, open_hub):
    started, end = threading.Event(), threading.Event()

    def slow(*asked):
        started.set()
        assert end.wait(30)
        return open_hub.answer(*asked)

    with (
        LocalHub(hub.root / ".hub", tokens={TOKEN: "tests"}, answer=slow) as running,
        hub_browser(running.endpoint, timeout=60) as client,
    ):
        sign_in(client)
        first: list[httpx2.Response] = []
        thread = threading.Thread(target=lambda: first.append(ask(client, "causal_lm", TEXT)))
        thread.start()
        assert started.wait(30)
        refused = ask(client, "causal_lm", TEXT)
        assert refused.status_code == 503
        assert "answering somebody else" in refused.text
        end.set()
        thread.join(60)
        assert first[0].status_code == 200
        assert ask(client, "causal_lm", TEXT).status_code == 200, "it is free again"


@needs_browser
def test_box_in_a_browser(open_hub, tmp_path):
    visit = open_page(
        "/tests/token_classification",
        by_way_of=open_hub.sign_in_link("tests"),
        width=400,
        screenshot=tmp_path / "page.png",
    )
    assert (visit.status, visit.console, visit.blocked) == (200, [], [])
    assert visit.content_width <= 400
    assert "Try this model" in visit.dom


@pytest.mark.parametrize(
    ("kind", "asked", "answer"),
    [
        ("question_answering", '{"question": "who?", "context": "The king likes the rain: number 7."}', "'king'"),
        (
            "multiple_choice",
            '{"context": "The king likes the rain.", "choices": ["king", "cat"]}',
            r"0\.\d{3} (king|cat)",
        ),
        ("masked_lm", "The<mask> likes the rain: number 7.", r".+0\.\d{3}"),
    ],
)
def test_rows_and_masks_are_answered(hub, capsys, kind, asked, answer):
    assert re.search(answer, tried(capsys, f"tests/{kind}", asked).partition("\n")[2])
    assert main(["try", f"tests/{kind}", TEXT]) != 0
    said = capsys.readouterr().err
    assert ("write <mask> once" if kind == "masked_lm" else "write them as JSON: {") in said
