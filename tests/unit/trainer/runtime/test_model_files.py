"""What the files of a model may name: only files of its own, and only safetensors as weights."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from params import ModelError
from params.schema import Model, ObjectiveChoice
from tasks.evaluation import champion
from tasks.inference.tried_model import AnsweringModel
from tasks.scaffold.model_facts import read_model_facts
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support.pretrained import POINTER, write_model
from trainer import objectives
from trainer.data.tokens import read_tokenizer
from trainer.iterative import configuration
from trainer.model.network import build_untrained_model, load_trained_model
from trainer.runtime.model_files import check_safe_to_load
from trainer.start import ReleaseReference

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("usual") / "model", "llama")


def changed(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_bytes()) if path.exists() else {}) | keys), encoding="utf-8")


def readers(folder: Path, tokens: Path) -> dict[str, Callable[[], object]]:
    published = ReleaseReference(endpoint="local", repo_id="a/b", commit="c" * 40, tag="release-1", weights="w")
    choice: Any = None  # it does not come that far
    return {
        "tried": lambda: AnsweringModel.load(folder, "bob/reader"),
        "tokenizer": lambda: load_tokenizer(str(folder), None),
        "champion": lambda: champion.build_champion_reader(
            folder, choice, max_length=8, champion=published, columns=[]
        ),
        "run": lambda: read_tokenizer(tokens),
        "script": lambda: configuration.load_tokenizer(str(folder)),
        "new": lambda: read_model_facts(str(folder)),
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
    assert check_safe_to_load(folder) is None, "nobody reads it"
    (folder / file).write_text(POINTER)
    with pytest.raises(ModelError, match=rf"{file} is a git-lfs pointer.*\n  fix: run `git -C \S+tokenizer lfs pull`"):
        readers(folder, tmp_path / "tokens")[reader]()


FOREIGN = {
    "a vocabulary": ("vocab.txt", "../secret"),
    "a chat template": ("chat_template.jinja", "SECRET"),
    "its folder": ("additional_chat_templates", "../secrets"),
    "settings": ("config.json", "/dev/zero"),
    "weights": ("model.safetensors", "../secret"),
    "a store that is not its own": ("vocab.txt", "../blobs/" + "a" * 40),
}


@pytest.mark.parametrize("reader", ["tried", "tokenizer", "champion", "run", "script", "new"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_no_link_makes_a_file_of_this_machine_part_of_a_model(
    usual: Path, tmp_path: Path, kind: str, reader: str
) -> None:
    folder = Path(shutil.copytree(usual, tmp_path / "tokens" / "tokenizer"))
    for private in ("tokens/secret", "tokens/secrets/a.jinja", "tokens/blobs/" + "a" * 40):
        (tmp_path / private).parent.mkdir(exist_ok=True)
        (tmp_path / private).write_text("PRIVATE")
    name, target = FOREIGN[kind]
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target.replace("SECRET", str(tmp_path / "tokens/secret")))
    with pytest.raises(ModelError, match=f"{name}: is a link that leads out of the model's folder"):
        readers(folder, tmp_path / "tokens")[reader]()


def test_what_is_no_file_is_refused(usual: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    os.mkfifo(folder / "chat_template.jinja")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: is no regular file"):
        check_safe_to_load(folder)


@pytest.mark.parametrize("kept", ["blobs", "all blobs", "DVC", "git-annex"])
def test_files_that_are_links_to_where_they_are_kept_are_read(usual: Path, tmp_path: Path, kept: str) -> None:
    """As the Hub's client makes a snapshot, and DVC and git-annex a folder."""
    folder = Path(shutil.copytree(usual, tmp_path / "models--a--b/snapshots/c"))
    (tmp_path / ".dvc").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        key = f"{number:02}" * 20
        place = {
            "blobs": f"models--a--b/blobs/{key}",
            "all blobs": f"blobs/{key[:2]}/{key}",
            "DVC": f".dvc/cache/files/md5/{key[:2]}/{key[:30]}",
            "git-annex": f".git/annex/objects/a/{key}/{key}",
        }[kept]
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        file.rename(tmp_path / place)
        file.symlink_to(tmp_path / place)
    assert load_tokenizer(str(folder), None)
    assert AnsweringModel.load(folder, "bob/reader")


def header(**changes: Any) -> bytes:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes
    return json.dumps({"a": tensor, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}).encode()


WRONG_HEADERS = {
    "longer than the file": (1 << 62, b"{}"),
    "shorter than its length": (0, b""),
    "overlapping": (None, header(data_offsets=[4, 8])),
    "behind the end": (None, header(data_offsets=[0, 1 << 62])),
    "a shape of too many": (None, header(shape=[1 << 62, 1 << 62])),
    "a shape that is none": (None, header(shape="x")),
    "a list": (None, b"[]"),
    "deep": (None, b"[" * 100_000),
}


@pytest.mark.parametrize("reader", ["tried", "champion", "new"])
@pytest.mark.parametrize("kind", WRONG_HEADERS)
def test_weights_with_a_wrong_header_are_no_weights(usual: Path, tmp_path: Path, kind: str, reader: str) -> None:
    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    length, content = WRONG_HEADERS[kind]
    content = (len(content) if length is None else length).to_bytes(8, "little") + content + bytes(8)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is no safetensors file"):
        readers(folder, folder)[reader]()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1e.09, and at most 10,000 is read"),
        ({"text_config": {"n_layer": 10**9}}, "n_layer is 1e.09"),
        ({"num_local_experts": float("inf")}, "num_local_experts is inf"),
        ({"num_labels": 10**9}, "num_labels is 1e.09"),
        ({"hidden_size": 2 * 10**9}, "cannot be used|cannot be loaded"),
        ({"hidden_size": float("inf")}, "cannot be used|(cannot|can) be loaded"),
        ({"hidden_size": "much"}, "cannot be used|(cannot|can) be loaded"),
    ],
)
@pytest.mark.parametrize("reader", ["tried", "tokenizer", "new"])
def test_sizes_that_no_model_has_are_refused(
    usual: Path, tmp_path: Path, keys: dict[str, Any], what: str, reader: str
) -> None:
    """Before a list of them is made, or with what transformers says."""
    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    changed(folder / "config.json", **keys)
    read = readers(folder, folder)[reader]
    if reader != "tried" and keys.get("hidden_size") == 2 * 10**9:
        read()  # it makes no weights
        return
    with pytest.raises(ModelError, match=what):
        read()


def test_files_that_are_too_large_are_not_read(usual: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        folder = Path(shutil.copytree(usual, tmp_path / name))
        os.truncate(folder / name, 1 << 40)
        with pytest.raises(ModelError, match=r"has more than \d+ MiB, the most that is read"):
            check_safe_to_load(folder)


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
        ("config.json", {"attn_implementation": "kernels-community/flash-attn2@0123456"}),
        ("config.json", {"text_config": {"_attn_implementation": {"": "bob/kernel"}}}),
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
        check_safe_to_load(folder)


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
    assert check_safe_to_load(folder) is None


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
    for load in (
        lambda: load_trained_model(folder, AutoModelForCausalLM),
        lambda: AnsweringModel.load(folder, "bob/evil"),
    ):
        with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
            load()


def test_weights_in_parts_are_loaded_from_links_too(usual: Path, tmp_path: Path) -> None:
    """The client of the Hub keeps files elsewhere in its cache."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder = Path(shutil.copytree(usual, tmp_path / "snapshots/a"))
    blob = tmp_path / "blobs" / ("b" * 64)
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    (folder / "model-00001-of-00001.safetensors").symlink_to(blob)
    weight_map = dict.fromkeys(load_file(blob), "model-00001-of-00001.safetensors")
    changed(folder / INDEX, metadata={}, weight_map=weight_map)
    assert load_trained_model(folder, AutoModelForCausalLM)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '{"weight_map": []}'])
def test_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"cannot be read as JSON|has no weight_map"):
        check_safe_to_load(tmp_path)


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
    assert check_safe_to_load("owner/name", "main") == "c" * 40
    assert set(asked) == {("owner/name", "c" * 40)}
    changed(tmp_path / file, **content)
    with pytest.raises(ModelError, match="owner/name: "):
        check_safe_to_load("owner/name", "main")


# Adapters


@pytest.fixture
def adapter(usual: Path, tmp_path: Path) -> Path:
    """An adapter as peft writes it, with the tokenizer of its base model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj"], rank_pattern={"q_proj": 3})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # by peft 0.21.2
        get_peft_model(AutoModelForCausalLM.from_pretrained(usual), lora).save_pretrained(str(tmp_path / "adapter"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(usual / name, tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    "keys",
    [
        {"peft_type": None},
        {"peft_type": "SHADOW", "shadow_model": "bob/code"},
        {"peft_type": "XLORA", "adapters": {"0": "/any/folder"}},
        {"peft_type": "MULTITASK_PROMPT_TUNING", "prompt_tuning_init_state_dict_path": "/any/file"},
        {"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "/any/folder"},
        {"megatron_core": "bob"},
        {"megatron_config": {"a": 1}},
        {"corda_config": {"cache_file": "/any/file"}},
        {"lora_ga_config": {"cache_file": "/any/file"}},
        {"auto_mapping": {"parent_library": "bob"}},
        {"key_of_a_later_peft": ["/any/file"]},
    ],
    ids=str,
)
def test_adapters_are_lora_and_name_no_file_and_no_code(
    adapter: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils import hub

    changed(adapter / "adapter_config.json", **keys)
    named = rf"adapter_config\.json: {next(iter(keys))} is .*\n  fix: "
    for load in (
        lambda: AnsweringModel.load(adapter, "bob/adapter"),
        lambda: load_trained_model(adapter, AutoModelForCausalLM),
        lambda: load_tokenizer(str(adapter), None),
    ):
        with pytest.raises(ModelError, match=named):
            load()
    monkeypatch.setattr(hub, "resolve_revision", lambda *_, **__: "c" * 40)
    monkeypatch.setattr(hub, "cached_file", lambda _, name, **__: str(adapter / name) if "adapter" in name else None)
    with pytest.raises(ModelError, match=named):
        check_safe_to_load("bob/adapter", adapter=True)


def test_usual_adapters_are_accepted(adapter: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert load_trained_model(adapter, AutoModelForCausalLM)
    assert AnsweringModel.load(adapter, "bob/adapter")
    assert load_tokenizer(str(adapter), None)
    of_other_versions: dict[str, Any] = {"merge_weights": False, "enable_lora": None, "later": {}, "number": 0.5}
    changed(adapter / "adapter_config.json", **of_other_versions)
    assert check_safe_to_load(adapter, adapter=True) is None


def test_adapters_are_no_base_model(
    adapter: Path, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would follow the name of their base model, which nobody checked, and train nothing."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import hub

    objective = objectives.build_objective(ObjectiveChoice.model_validate({"name": "causal_lm"}))
    tokenizer = load_tokenizer(str(usual), None)
    above = Path(shutil.copytree(adapter, tmp_path / "above"))
    changed(above / "adapter_config.json", base_model_name_or_path=str(adapter))
    both = Path(shutil.copytree(usual, tmp_path / "both"))
    shutil.copy(adapter / "adapter_config.json", both)
    loads: tuple[Callable[[], object], ...] = (
        lambda: build_untrained_model(
            Model(pretrained=str(adapter)), objective=objective, state={}, tokenizer=tokenizer, seed=1
        ),
        lambda: build_untrained_model(
            Model(pretrained=str(both)), objective=objective, state={}, tokenizer=tokenizer, seed=1
        ),
        lambda: configuration.load_model_unless_loaded(str(adapter), None),
        lambda: load_trained_model(above, AutoModelForCausalLM),
    )
    for load in loads:
        with pytest.raises(ModelError, match=r"holds adapters, not a whole model.*\n  fix: .*merge_and_unload"):
            load()
    monkeypatch.setattr(hub, "resolve_revision", lambda *_, **__: "c" * 40)
    monkeypatch.setattr(hub, "cached_file", lambda _, name, **__: str(adapter / name) if "adapter" in name else None)
    with pytest.raises(ModelError, match="owner/name: holds adapters"):
        check_safe_to_load("owner/name")


def test_configuration_by_another_name_is_refused(usual: Path, tmp_path: Path) -> None:
    """transformers would read that one instead, and its `transformers_weights`."""
    from transformers import AutoModelForCausalLM

    folder = Path(shutil.copytree(usual, tmp_path / "model"))
    other = Path(shutil.copytree(usual, tmp_path / "other"))
    index = folder / "a" / "b" / INDEX
    index.parent.mkdir(parents=True)
    names = load_trained_model(other, AutoModelForCausalLM).state_dict()
    changed(index, metadata={}, weight_map=dict.fromkeys(names, "../other/model.safetensors"))
    (folder / "model.safetensors").unlink()
    shutil.copy(folder / "config.json", folder / "config.4.0.0.json")
    changed(folder / "config.4.0.0.json", transformers_weights=f"a/b/{INDEX}")
    changed(folder / "config.json", configuration_files=["config.4.0.0.json"])
    with pytest.raises(ModelError, match="configuration_files"):
        load_trained_model(folder, AutoModelForCausalLM)
