"""What the files of a model may name: only files of its own, and only safetensors as weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from params import ModelError
from tasks.evaluation import champion
from tasks.evaluation.report import Champion
from tasks.inference.tried_model import TriedModel
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support.pretrained import POINTER, write_model
from trainer.data.tokens import read_tokenizer
from trainer.iterative import loading
from trainer.model.network import trained_model
from trainer.runtime.model_files import check_model_files

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("usual") / "model", "llama")


def changed(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_bytes()) if path.exists() else {}) | keys), encoding="utf-8")


def readers(folder: Path, tokens: Path) -> dict[str, Callable[[], object]]:
    published = Champion(endpoint="local", repo_id="a/b", commit="c" * 40, tag="release-1", weights="w")
    choice: Any = None  # it does not come that far
    return {
        "tried": lambda: TriedModel.load(folder, "bob/reader"),
        "tokenizer": lambda: load_tokenizer(str(folder), None),
        "champion": lambda: champion.read_as_released(folder, choice, max_length=8, champion=published, columns=[]),
        "run": lambda: read_tokenizer(tokens),
        "script": lambda: loading.load_tokenizer(str(folder)),
    }


@pytest.mark.parametrize("reader", ["tried", "tokenizer", "champion", "run", "script"])
def test_no_file_of_this_machine_becomes_a_vocabulary(usual: Path, tmp_path: Path, reader: str) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("tokens:\n  secret: alice\n", encoding="utf-8")
    folder = Path(shutil.copytree(usual, tmp_path / "tokens" / "tokenizer"))
    (folder / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "BertTokenizer", "vocab": str(secret), "unk_token": "tokens:"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match="vocab names a file"):
        readers(folder, tmp_path / "tokens")[reader]()


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        *(("model.safetensors", reader) for reader in ("tried", "champion")),
        *(("tokenizer.json", reader) for reader in ("tried", "tokenizer", "champion", "run", "script")),
        ("tokenizer_config.json", "tokenizer"),
    ],
)
def test_pointer_of_git_lfs_is_named(usual: Path, tmp_path: Path, reader: str, file: str) -> None:
    folder = Path(shutil.copytree(usual, tmp_path / "tokens" / "tokenizer"))
    (folder / "pytorch_model.bin").write_text(POINTER)
    assert check_model_files(folder) is None, "nobody reads it"
    (folder / file).write_text(POINTER)
    with pytest.raises(ModelError, match=rf"{file} is a git-lfs pointer.*\n  fix: run `git -C \S+tokenizer lfs pull`"):
        readers(folder, tmp_path / "tokens")[reader]()


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("tokenizer_config.json", {"merges": "a.txt"}),
        ("tokenizer_config.json", {"vocab_file": "vocab.txt"}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../../tokenizer.4.0.json"]}),
        ("tokenizer_config.json", {"init_inputs": ["secret"]}),
        ("tokenizer_config.json", {"sp_model_kwargs": {"model_file": "a.model"}}),
        ("tokenizer_config.json", {"vocab": {"__type": "AddedToken", "content": "/nowhere/secret"}}),
        ("tokenizer_config.json", {"anything": "secret file"}),
        ("tokenizer_config.json", {"anything": "../secret file"}),
        ("special_tokens_map.json", {"tokenizer_file": "tokenizer.json"}),
        ("special_tokens_map.json", {"name_or_path": "/somewhere/else"}),
        ("processor_config.json", {"tokenizer": {"vocab": "/etc/hostname"}}),
        ("part/tokenizer_config.json", {"vocab": "/etc/hostname"}),
        ("config.json", {"transformers_weights": "../other/model.safetensors"}),
        ("config.json", {"transformers_weights": "part/model.safetensors.index.json"}),
        ("config.json", {"transformers_weights": "weights.bin"}),
    ],
)
def test_files_that_are_not_its_own_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, keys: dict[str, Any]
) -> None:
    folder = tmp_path / "models" / "model"
    (folder / "part").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("secret", "secret file", "models/secret file"):
        (tmp_path / name).touch()
    changed(folder / file, **keys)
    with pytest.raises(ModelError, match=file.replace(".", r"\.")):
        check_model_files(folder)


def test_usual_settings_are_accepted(usual: Path, tmp_path: Path) -> None:
    """Tokens and templates may look like paths; old versions of transformers wrote paths that nothing opens."""
    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    tokens = ["/", "//", "/think", "../", "../../", "..", "<|/a|>", "</s>", "a b/c"]
    changed(
        folder / "tokenizer_config.json",
        name_or_path="/home/somebody/model",
        special_tokens_map_file="/home/somebody/special_tokens_map.json",
        tokenizer_file=None,
        extra_special_tokens=tokens,
        added_tokens_decoder={str(1000 + number): {"content": token} for number, token in enumerate(tokens)},
        chat_template="/* {{ '../x' }} */ " * 1000,
    )
    changed(folder / "config.json", _name_or_path="/home/somebody/model")
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    assert check_model_files(folder) is None


@pytest.mark.parametrize(
    "name", ["{other}/model.safetensors", "../other/model.safetensors", "weights.txt", "gone.safetensors", 5]
)
def test_index_names_only_safetensors_of_its_folder(usual: Path, tmp_path: Path, name: str | int) -> None:
    """Otherwise a model of somebody else would answer, or a pickle would be loaded."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    shutil.copytree(usual, tmp_path / "other")
    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "unused.safetensors")
    torch.save(weights, folder / "weights.txt")
    named = name.format(other=tmp_path / "other") if isinstance(name, str) else name
    changed(folder / INDEX, metadata={}, weight_map=dict.fromkeys(weights, named))
    for load in (lambda: trained_model(folder, AutoModelForCausalLM), lambda: TriedModel.load(folder, "bob/evil")):
        with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
            load()


def test_weights_in_parts_are_loaded_from_links_too(usual: Path, tmp_path: Path) -> None:
    """The client of the Hub keeps files elsewhere in its cache."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model-00001-of-00001.safetensors").symlink_to(tmp_path / "blob")
    weight_map = dict.fromkeys(load_file(tmp_path / "blob"), "model-00001-of-00001.safetensors")
    changed(folder / INDEX, metadata={}, weight_map=weight_map)
    assert trained_model(folder, AutoModelForCausalLM)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '{"weight_map": []}'])
def test_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"cannot be read as JSON|has no weight_map"):
        check_model_files(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"), [("tokenizer_config.json", {"vocab": "/a/b"}), (INDEX, {"weight_map": {"a": "a.txt"}})]
)
def test_repository_on_the_hub_is_checked_at_the_commit_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: dict[str, Any]
) -> None:
    from transformers.utils import hub

    asked = []

    def cached_file(path: str, name: str, *, revision: str, **_: Any) -> str | None:
        asked.append((path, revision))
        return str(tmp_path / name) if (tmp_path / name).exists() else None

    monkeypatch.setattr(hub, "resolve_revision", lambda *_, **__: "c" * 40)
    monkeypatch.setattr(hub, "cached_file", cached_file)
    assert check_model_files("owner/name", "main") == "c" * 40
    assert set(asked) == {("owner/name", "c" * 40)}
    changed(tmp_path / file, **content)
    with pytest.raises(ModelError, match="owner/name: "):
        check_model_files("owner/name", "main")
