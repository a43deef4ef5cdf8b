"""docs/limits.md cannot drift: each of its lines is an error that a user meets, which leads to the page or says the way round itself.

A row is `| what | what you see | the way round |`. What you see has words of the error in backticks. The error names the page with the
section of the row, or it has the words in backticks of the way round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import EvergreenError, Recipe
from params.foundation.errors import see_limits
from tasks.diagnostics.check import check
from tasks.scaffold.new import create_recipe
from tasks.scaffold.request import NewRecipeRequest
from tests.support import tiny
from tests.support.pretrained import write_model
from tests.support.project import ROOT, item, write_lists_of_recipes
from tests.support.settings_check import check_settings_in_this_process

PAGE = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
ROWS: dict[str, tuple[str, str, str]] = {}
for heading, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
    for line in body.splitlines():
        if line.startswith("|") and not line.startswith(("| what |", "| --- |")):
            what, seen, around = re.split(r" (?<!\\)\| ", line.strip("| "))
            ROWS[what] = (heading.lower(), seen, around)
"""The section, what you see and the way round, by what cannot be done."""


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return [double.strip() or single for double, single in re.findall(r"``(.+?)``|`([^`]+)`", text)]


def new(rows: list[dict[str, Any]] | None = None, model: str = "bert", **flags: Any) -> None:
    """`evergreen new`, with rows in a file and a model of a type."""
    if rows:
        Path("data/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    folder = model if Path(model).exists() else model_folder(model)
    create_recipe(NewRecipeRequest("another", **{"data": "data/rows.jsonl", "model": folder, **flags}))


def model_folder(model_type: str) -> str:
    """The folder of a model of a type."""
    return str(write_model(Path("models", model_type), model_type))


def checks(changes: dict[str, Any], **sections: Any) -> None:
    """`evergreen check` of a recipe with some changes."""
    check(tiny.write(Path("params/x.yaml"), tiny.recipe(changes, **sections)))


def texts(**more: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Rows of a text and other columns."""
    return [
        {"text": f"what about the rain {i}?", **{name: value(i) for name, value in more.items()}} for i in range(120)
    ]


def answers(**more: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Rows of a prompt, a completion and other columns."""
    pairs = ({"prompt": f"How much is {i} plus 1?", "completion": f"It is {i + 1}, I think."} for i in range(120))
    return [pair | {name: value(i) for name, value in more.items()} for i, pair in enumerate(pairs)]


def file(path: str, content: bytes = b"{}") -> str:
    """A file, with its folders; the path of its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return str(Path(path).parent)


def without(path: str, *names: str) -> str:
    """A folder without some files."""
    for name in names:
        Path(path, name).unlink()
    return path


def pictures() -> None:
    pq.write_table(pa.table({"text": ["a", "b"] * 60, "picture": [b"\x89PNG", b"\x89"] * 60}), "data/rows.parquet")
    new(data="data/rows.parquet")


def loads_code() -> None:
    folder = Path(model_folder("bert"))
    content = json.loads((folder / "config.json").read_bytes())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(content | own))
    new(texts(label=lambda i: CLASSES[i % 2]), model=str(folder))


CLASSES = ("left", "right")
SHARDED = {"launch.accelerate_config": str(ROOT / "params/accelerate/fsdp2.yaml")}
ERRORS: dict[str, Callable[[], object]] = {
    "several files as a list": lambda: checks({"data.source.train": ["data/a.csv", "data/b.csv"]}),
    "rows from S3, another bucket or a URL": lambda: checks({"data.source": {"kind": "s3", "url": "s3://bucket/a"}}),
    "the same, for `evergreen new --data s3://bucket/rows.csv`": lambda: new(data="s3://bucket/rows.csv"),
    "`.pkl` files": lambda: new(data=f"{file('data/rows.pkl')}/rows.pkl"),
    "weights of sources with `training.streaming`": lambda: checks(
        {
            "data.source": None,
            "data.sources": {"base": {"kind": "files", "train": "data/rows.csv", "weight": 2.0}},
            "training.streaming": True,
        }
    ),
    "texts that say the same in other words or in another language": lambda: checks(
        {"validation.paraphrases": "report"}
    ),
    "texts that are longer than the model's positions": lambda: checks(
        {"tokenization.max_length": 64, "model.config.max_position_embeddings": 48}
    ),
    "slow tokenizers": lambda: new(
        texts(label=lambda i: CLASSES[i % 2]), model=without(model_folder("bert"), "tokenizer.json")
    ),
    "recipes for `grpo` and `iterative_sft` by `evergreen new`": lambda: new(
        answers(), model="llama", objective="grpo"
    ),
    "reward models that follow a branch or a tag": lambda: checks(
        {}, objective={"name": "grpo", "rewards": [{"model": "tests/rewards@main"}]}
    ),
    "pictures and sound": pictures,
    "packing for models that cannot keep texts apart": lambda: checks(
        {"model.config.model_type": "bloom"},
        objective={"name": "sft", "prompt_column": "text", "completion_column": "label", "packing": True},
    ),
    "the folder of a recipe's own model as its base model": lambda: checks(
        {}, model={"pretrained": file("runs/x/model/config.json")}
    ),
    "weights that are pickles": lambda: checks(
        {}, model={"pretrained": (file("p/config.json"), file("p/pytorch_model.bin"))[0]}
    ),
    "models with code of their own (`trust_remote_code`)": loads_code,
    "adapters as the base model": lambda: checks(
        {}, model={"pretrained": (file("a/adapter_config.json"), file("a/adapter_model.safetensors"))[0]}
    ),
    "a search over values": lambda: checks({"training.search": "auto"}),
    "`grpo` and `iterative_sft` on models that one GPU does not hold": lambda: checks(
        SHARDED, objective={"name": "grpo", "rewards": ["trainer.rewards:numeric_answer"], "max_new_tokens": 4}
    ),
    "adapters with FSDP or DeepSpeed": lambda: checks(SHARDED | {"model.lora": {"r": 4}}),
    "suites with objectives that say of no row whether it is right, such as `causal_lm` or `embedding`": lambda: checks(
        {"evaluation.suites": [{"name": "greetings", "source": "data/rows.csv"}]}
    ),
    "ONNX, GGUF and other formats": lambda: checks({"publish.formats": ["onnx"]}),
    "adapters by themselves on a base model in a folder": lambda: checks(
        {"publish.adapter": "adapter"}, model={"pretrained": model_folder("llama"), "lora": {"r": 4}}
    ),
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project without recipes."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    check_settings_in_this_process(monkeypatch)
    write_lists_of_recipes(tmp_path)
    (tmp_path / "data/rows.csv").write_text("text,label\na fine text,good\nanother,bad\n")
    with (tmp_path / "recipes.yaml").open("a") as file:
        file.write(item("x", objective="causal_lm"))
    return tmp_path


@pytest.mark.parametrize("what", ROWS)
def test_the_error_leads_to_the_page_or_says_the_way_round(what: str) -> None:
    section, seen, around = ROWS[what]
    with pytest.raises((EvergreenError, AssertionError)) as caught:
        ERRORS[what]()
    what_and_fix = str(caught.value)
    assert quoted(seen)
    lines = [line for line in what_and_fix.splitlines() if all(words in line for words in quoted(seen))]
    assert lines, what_and_fix
    said = lines[0] if what_and_fix.startswith("params/") else what_and_fix  # a recipe may have more problems
    leads = f"docs/limits.md#{section}" in said
    assert leads or (quoted(around) and quoted(around)[0] in said), said


def test_every_line_has_its_error() -> None:
    assert list(ERRORS) == list(ROWS)


def test_every_place_on_the_page_is_there_and_no_error_leads_elsewhere() -> None:
    sections = {section for section, _, _ in ROWS.values()}
    assert sections == set(Recipe.model_fields) - {"seed"}, "an unknown key of a section leads to its heading"
    assert see_limits("data").endswith("docs/limits.md#data")
    with pytest.raises(EvergreenError, match="quantize: no such key") as caught:
        checks({"quantize": True})
    assert set(re.findall(r"docs/limits\.md(\S*)", str(caught.value))) == {""}, "a key of no section leads to the page"
    for name in ("tasks", "trainer", "params", "flows"):
        for path in (ROOT / name).rglob("*.py"):
            named = re.findall(r"see_limits\([\"'](\w+)[\"']\)", path.read_text(encoding="utf-8"))
            assert set(named) <= sections, path
