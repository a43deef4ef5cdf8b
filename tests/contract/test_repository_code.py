"""No code of a repository ever runs: not by default, and not when somebody at a terminal says yes."""

from __future__ import annotations

import ast
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from params.schema import Model, ObjectiveChoice
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support import forked
from tests.support.pretrained import write_model
from tests.support.project import ROOT
from tests.support.terminal import terminal
from trainer import objectives
from trainer.model.network import build_untrained_model

LOADERS = {"from_pretrained", "from_config", "pipeline", "load_dataset", "load_dataset_builder"}
"""What reads a repository and can run its code."""
NO_CODE = {"PeftModel.from_pretrained", "load_dataset_builder", "load_dataset"}
"""These take no `trust_remote_code`: peft puts LoRA weights on a model that is loaded, and datasets has run no code since 4.0."""
OF_A_SCRIPT = Path("trainer/iterative/configuration.py")
"""Here a person's own script may say that it trusts a model."""

CHECKED_BY_CALLER = {
    "tasks/inference/model_loading.py:load_network": "AnsweringModel.load checks the folder",
    "tasks/inference/tried_model.py:_find_task": "AnsweringModel.load checks the folder",
    "tasks/inference/tried_model.py:_load_tokenizer": "AnsweringModel.load checks the folder",
    "trainer/objectives/bases/network/standardization.py:restore_units": "the train stage has written the folder",
    "trainer/model/network.py:_settings_as_decoder": "_load has checked the files",
    "trainer/model/label_head.py:_read_labels": "network._load or adapters.read_trained_layers has checked the folder before it loaded from it",
}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file of the product, for several tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Every call in the product that may load from a repository, and the name of what it calls."""
    for package in ("params", "trainer", "tasks", "flows"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS:
                    yield path.relative_to(ROOT), node, ast.unparse(node.func)


def test_every_call_that_loads_says_that_it_runs_no_code():
    found = {"from_pretrained": 0, "from_config": 0, "pipeline": 0}
    wrong = []
    for path, call, name in calls():
        found[name.rpartition(".")[2]] = found.get(name.rpartition(".")[2], 0) + 1
        said = {one.arg: ast.unparse(one.value) for one in call.keywords}.get("trust_remote_code")
        if name not in NO_CODE and said != "False" and not (path == OF_A_SCRIPT and said == "trusted"):
            wrong.append(f"{path}:{call.lineno}: {name} has trust_remote_code={said}")
    assert not wrong, "\n".join(wrong)
    assert all(found.values()), f"the walk finds what there is: {found}"


def test_every_function_that_loads_first_checks_what_the_files_name():
    wrong, loading = [], 0
    for path in {path for path, _, name in calls() if name.endswith("from_pretrained")}:
        for function in ast.walk(parsed(ROOT / path)):
            if not isinstance(function, ast.FunctionDef):
                continue
            lines: dict[str, list[int]] = {"from_pretrained": [], "check_safe_to_load": []}
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    lines.get(ast.unparse(node.func).rpartition(".")[2], []).append(node.lineno)
            loads, checks = lines.values()
            loading += bool(loads)
            is_checked = min(checks, default=10**6) < min(loads, default=10**6)
            if loads and not is_checked and f"{path}:{function.name}" not in CHECKED_BY_CALLER:
                wrong.append(f"{path}:{function.name}")
    assert loading > len(CHECKED_BY_CALLER)
    assert not wrong


def test_transformers_is_given_no_callable_that_loads():
    """A loader that is handed on instead of called would escape the walk."""
    for path in (path for package in ("trainer", "tasks") for path in (ROOT / package).rglob("*.py")):
        tree = parsed(path)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in {"from_pretrained", "from_config"}:
                assert id(node) in called, f"{path}:{node.lineno}"


ROLES = """
import json, shutil, sys
from pathlib import Path

from huggingface_hub import constants
from params.foundation.errors import EvergreenError
from params.schema import Model, ObjectiveChoice
from tasks.evaluation import champion
from tasks.inference.tried_model import AnsweringModel
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support.pretrained import write_model
from trainer import objectives
from trainer.data import tokens
from trainer.iterative import configuration
from trainer.model import network
from trainer.start import ReleaseReference
from transformers import dynamic_module_utils

root = Path(sys.argv[1])
constants.HF_HUB_OFFLINE = True
dynamic_module_utils.HF_MODULES_CACHE = str(root / "modules")
own, usual = root / "own", write_model(root / "usual", "llama")
shutil.copytree(usual, own)
code = f"from pathlib import Path\\nPath({str(root / 'ran')!r}).touch()\\n"
code += "from transformers import *\\nclass Config(LlamaConfig):\\n    model_type = 'own'\\n"
code += "class Model(LlamaForCausalLM):\\n    config_class = Config\\nclass Tokenizer(PreTrainedTokenizerFast):\\n    pass\\n"
(own / "own.py").write_text(code)

def change(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))

change(own / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
change(own / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": [None, "own.Tokenizer"]})
adapter = root / "adapter"
shutil.copytree(usual, adapter)
for name in ("config.json", "own.py"):
    shutil.copy(own / name, adapter)
of_usual = {"peft_type": "LORA", "base_model_name_or_path": str(usual), "task_type": "CAUSAL_LM"}
(adapter / "adapter_config.json").write_text(json.dumps(of_usual))
shadow = root / "shadow"
shutil.copytree(usual, shadow)
(shadow / "model.safetensors").rename(shadow / "adapter_model.safetensors")
(shadow / "adapter_config.json").write_text(json.dumps(of_usual | {"peft_type": "SHADOW", "shadow_model": str(own)}))
shutil.copytree(own, root / "tokens" / "tokenizer")
objective = objectives.build_objective(ObjectiveChoice.model_validate({"name": "causal_lm"}))
published = ReleaseReference(endpoint="local", repo_id="a/b", commit="c" * 40, tag="release-1", weights="w")
usual_tokenizer = load_tokenizer(str(usual), None)
roles = {
    "base": lambda: network.build_untrained_model(
        Model(pretrained=str(own)), objective=objective, state={}, tokenizer=usual_tokenizer, seed=1
    ),
    "tokenizer": lambda: load_tokenizer(str(own), None),
    "tokenizer of the run": lambda: tokens.read_tokenizer(root / "tokens"),
    "trained": lambda: network.load_trained_model(own, objective.model_class()),
    "adapter": lambda: network.load_trained_model(adapter, objective.model_class()),
    "champion": lambda: champion.load_champion(own, objective, {}, published),
    "champion, an adapter": lambda: champion.load_champion(adapter, objective, {}, published),
    "try": lambda: AnsweringModel.load(own, "own"),
    "try, an adapter": lambda: AnsweringModel.load(adapter, "adapter"),
    "champion, another kind of adapter": lambda: champion.load_champion(shadow, objective, {}, published),
    "try, another kind of adapter": lambda: AnsweringModel.load(shadow, "shadow"),
    "base, another kind of adapter": lambda: network.build_untrained_model(
        Model(pretrained=str(shadow)), objective=objective, state={}, tokenizer=usual_tokenizer, seed=1
    ),
    "script": lambda: configuration.load_model_unless_loaded(str(own), None),
    "tokenizer of a script": lambda: configuration.load_tokenizer(str(own)),
}
for role, load in roles.items():
    try:
        load()
        print(f"<{role}>loaded</>", flush=True)
    except EvergreenError as error:
        print(f"<{role}>ours: {' '.join(str(error).split())}</>", flush=True)
    except Exception as error:
        print(f"<{role}>{type(error).__name__}: {' '.join(str(error).split())}</>", flush=True)
print("<end>", flush=True)
"""
OUR_ERROR = "needs code of its own repository, which Evergreen never runs"
FIX = "fix: use a model that transformers has the code of"
OURS = ("base", "tokenizer", "trained", "adapter", "champion", "champion, an adapter", "try", "try, an adapter")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bool]:
    """What each role says to somebody at a terminal who answers yes to everything, and whether the code ran."""
    root = tmp_path_factory.mktemp("code")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(root / "home")}
    with terminal(forked.python(), "-c", ROLES, str(root), folder=ROOT, environment=environment) as screen:
        for _ in range(20):
            screen.type("y\n")
        screen.wait_for("<end>", 120)
    return " ".join(screen.output.split()), (root / "ran").exists()


def test_code_of_a_repository_never_runs(answers):
    said, ran = answers
    assert not ran, said
    assert "[y/N]" not in said, "nobody is asked"


@pytest.mark.parametrize("role", OURS)
def test_every_role_says_what_to_do_instead(answers, role):
    (said,) = (part.partition("</>")[0] for part in answers[0].split(f"<{role}>")[1:])
    assert said.startswith("ours: ")
    assert OUR_ERROR in said
    assert FIX in said
    assert "trust_remote_code" not in said, "that is no way here"


@pytest.mark.parametrize(
    ("role", "error"),
    [
        ("champion", "peft_type is 'SHADOW'"),
        ("try", "peft_type is 'SHADOW'"),
        ("base", "holds adapters, not a whole model"),
    ],
)
def test_adapters_that_load_the_code_of_others_are_refused(answers, role, error):
    (said,) = (part.partition("</>")[0] for part in answers[0].split(f"<{role}, another kind of adapter>")[1:])
    assert said.startswith("ours: ")
    assert error in said


def test_script_that_trusts_nothing_is_refused(answers):
    for role in ("script", "tokenizer of a script"):
        assert f"<{role}>ValueError: " in answers[0]


def test_release_of_a_known_model_points_to_no_code(tmp_path):
    """Many repositories have code of their own beside a model that transformers has by now; publishing refuses such a pointer."""
    base = write_model(tmp_path / "base", "llama")
    for name, classes in (
        ("config.json", {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["own.Tokenizer", None]}),
    ):
        content = json.loads((base / name).read_text()) | {"auto_map": classes}
        (base / name).write_text(json.dumps(content))
    objective = objectives.build_objective(ObjectiveChoice.model_validate({"name": "causal_lm"}))
    tokenizer = load_tokenizer(str(base), None)
    network = build_untrained_model(
        Model(pretrained=str(base)), objective=objective, state={}, tokenizer=tokenizer, seed=1
    )
    network.save_pretrained(tmp_path / "out")
    tokenizer.save_pretrained(tmp_path / "out")
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((tmp_path / "out" / name).read_text())
