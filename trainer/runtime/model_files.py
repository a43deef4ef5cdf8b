"""What the JSON files of a model may name, checked before transformers opens anything: files of the model's own folder.

transformers opens some of these values as they are. A tokenizer's `vocab` may be the path of any file on this machine, which the
model could then recite; an index of weights may name the model of somebody else, or a pickle under another name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from params import ModelError

_INDEX: Final = "model.safetensors.index.json"
_TOKENIZERS: Final = ("tokenizer_config.json", "special_tokens_map.json", "processor_config.json")
_ADAPTER: Final = "adapter_config.json"
_NAMES_OF_HUB: Final = (_ADAPTER, *_TOKENIZERS, "config.json", _INDEX)
_FILE_KEYS: Final = ("vocab", "merges", "init_inputs")
"""Like those that end with `_file`: transformers opens a text that is given for them."""
_NEVER_OPENED: Final = ("name_or_path", "special_tokens_map_file")
"""Old versions of transformers wrote the paths of their own machine for these into tokenizer_config.json."""
_ONLY_ADAPTER: Final = {"peft_type": "LORA", "megatron_core": "megatron.core"}
"""peft's other kinds of adapters load other models, with their code, or pickles. It imports `megatron_core`."""
_KEYS_OF_LORA: Final = {
    *("task_type", "base_model_name_or_path", "revision", "peft_version", "bias", "init_lora_weights"),
    *(
        "target_modules",
        "target_parameters",
        "exclude_modules",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
    ),
    *("rank_pattern", "alpha_pattern", "layer_replication", "trainable_token_indices", "alora_invocation_tokens"),
}
"""Keys of an adapter that may hold more than a number: names of layers, for example. peft opens nothing for them."""
_WEIGHTS: Final = ".safetensors"
_OF_TOKENIZER: Final = ("*.json", "*.model", "*.txt", "*.jinja")
_READ: Final = (*_OF_TOKENIZER, "model*.safetensors", "adapter*.safetensors")
"""What may be read of a folder. Others, such as weights in other formats, may stay pointers."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/v1"


def check_model_files(
    path: str | Path,
    revision: str | None = None,
    *,
    where: str | None = None,
    weights: bool = True,
    adapter: bool = False,
    **of_hub: Any,
) -> str | None:
    """Check the files of a model before anything is loaded from it; return the revision to load.

    Args:
        path: a folder, whose subfolders are checked too; else a repository on the Hub, of which the files with known names are.
        revision: of the repository. What is returned stays at the commit that was checked.
        where: the model in messages; its path by default.
        weights: whether they are loaded, too.
        adapter: whether they may be those of a LoRA adapter. transformers would follow the name of its base model, unchecked.
        of_hub: further arguments of transformers for a repository.

    Raises:
        ModelError: a file names a file that is not the model's own, or weights that are not safetensors, or is not JSON, or is
            a pointer of git-lfs; or the weights are those of an adapter, and should not be, or its settings are not plain LoRA.
        OSError: as transformers does, if the Hub cannot be reached or has no such repository.
    """
    name = where or str(path)
    folder = Path(path)
    if folder.is_dir():
        _check_is_whole(folder, name, _READ if weights else _OF_TOKENIZER)
        if weights and not adapter and (folder / _ADAPTER).exists():
            raise _no_whole_model(name)
        for file in _known_files(folder):
            _check(file, f"{name}: {file.relative_to(folder)}", is_whole=True)
        return revision
    from transformers.utils.hub import cached_file, resolve_revision

    keys = ("token", "cache_dir", "local_files_only")
    pinned = resolve_revision(path, revision or "main", **{key: of_hub[key] for key in keys if key in of_hub})
    asked = {key: of_hub[key] for key in (*keys, "subfolder") if key in of_hub}
    for known in _NAMES_OF_HUB:
        found = cached_file(path, known, revision=pinned, _raise_exceptions_for_missing_entries=False, **asked)
        if found is not None:
            if weights and not adapter and known == _ADAPTER:
                raise _no_whole_model(name)
            _check(Path(found), f"{name}: {known}", is_whole=False)
    resolved: str | None = pinned
    return resolved


def _no_whole_model(name: str) -> ModelError:
    fix = "use its base model, or the folder that `merge_and_unload().save_pretrained(folder)` of peft writes"
    return ModelError(name, f"holds adapters, not a whole model: it has {_ADAPTER}", fix)


def _known_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob(_ADAPTER)
    for pattern in (*_TOKENIZERS, "config.json", f"*{_WEIGHTS}.index.json"):
        yield from sorted(folder.glob(pattern))
        yield from sorted(folder.glob(f"*/{pattern}"))  # some tokenizers have parts in subfolders


def _check_is_whole(folder: Path, name: str, patterns: Iterable[str]) -> None:
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file()):
        with file.open("rb") as content:
            if content.read(len(_POINTER)) == _POINTER:
                what = f"{file.name} is a git-lfs pointer, not the file itself"
                raise ModelError(name, what, f"run `git -C {folder} lfs pull`, or download the model again")


def _check(file: Path, where: str, *, is_whole: bool) -> None:
    try:
        content = json.loads(file.read_bytes())
        if file.name == "config.json":
            _check_configuration(content, where)
        elif file.name in _TOKENIZERS:
            _check_tokenizer(content, file, where)
        elif file.name == _ADAPTER:
            _check_adapter(content, where)
        else:
            _check_index(content, file.parent, where, is_whole=is_whole)
    except (ValueError, RecursionError) as error:
        what = f"cannot be read as JSON: {str(error) or type(error).__name__}"
        raise ModelError(where, what, "write the file with `save_pretrained`") from error


def _check_adapter(content: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise ModelError(where, "is no mapping", "write the adapter with peft")
    for key, value in {"peft_type": None, **content}.items():
        if value != _ONLY_ADAPTER.get(key, value):
            what = f"{key} is {str(value)[:200]!r}, and only {_ONLY_ADAPTER[key]} is read"
            raise ModelError(where, what, "use a LoRA adapter as peft's LoraConfig writes it")
        if value and not isinstance(value, int | float) and key not in (*_ONLY_ADAPTER, *_KEYS_OF_LORA):
            what = f"{key} is {str(value)[:200]!r}; peft may load a file or code for it"
            raise ModelError(where, what, f"remove {key}, or use an adapter without it")


def _check_configuration(content: Any, where: str) -> None:
    if isinstance(content, dict) and "configuration_files" in content:
        what = "configuration_files names a configuration to read instead of this one"
        raise ModelError(where, what, "remove that key, or use a model without it")
    for kernel in _kernels(content, is_asked=False):
        what = f"asks for {kernel[:200]!r}, code of a repository, which Evergreen never runs"
        raise ModelError(where, what, "remove attn_implementation, or use a model without it")
    weights = content.get("transformers_weights") if isinstance(content, dict) else None
    if weights is not None and weights != _INDEX and not _is_weights(weights):
        what = f"transformers_weights is {weights!r}, which is no safetensors file of the model's own folder"
        raise ModelError(where, what, "remove that key")


def _kernels(value: Any, *, is_asked: bool) -> Iterator[str]:
    """Yield the repositories whose attention kernels transformers would run, if the library `kernels` is there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _kernels(inner, is_asked=is_asked or key.endswith("attn_implementation"))
    elif is_asked and isinstance(value, str) and "/" in value:
        yield value


def _check_tokenizer(content: Any, file: Path, where: str) -> None:
    for key, opened, text in _texts(content, "", is_opened=False):
        if file.name == "tokenizer_config.json" and key in _NEVER_OPENED:
            continue
        if (opened and text) or _leads_out(text, file.parent):
            what = f"{key} names a file, {text[:200]!r}; transformers would read it, wherever it is"
            raise ModelError(where, what, f"remove {key}; transformers finds the files of a tokenizer by their names")


def _texts(value: Any, key: str, *, is_opened: bool) -> Iterator[tuple[str, bool, str]]:
    """Yield each text with its key, and whether transformers opens what that key holds."""
    if isinstance(value, str):
        yield key, is_opened, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, name, is_opened=name in _FILE_KEYS or name.endswith("_file"))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key, is_opened=is_opened and key == "init_inputs")


def _leads_out(text: str, folder: Path) -> bool:
    """Whether a text is the path of a file outside of a folder. Whether there is such a file should not show in the answer."""
    parts = PurePosixPath(text).parts
    is_path = not text.endswith("/") and not any(char.isspace() for char in text)
    if is_path and ((text.startswith("/") and len(parts) > 2) or (".." in parts and len(parts) > 1)):
        return True
    if ".." in parts:
        return _is_file(text) or _is_file(folder / text)
    # seen from the working directory, as transformers sees it
    return _is_file(text) and not (Path.cwd() / text).is_relative_to(folder.resolve())


def _is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - a Path raises for a text that is too long for one


def _check_index(content: Any, folder: Path, where: str, *, is_whole: bool) -> None:
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise ModelError(where, "has no weight_map", "write the model with `save_pretrained`")
    for name in sorted({str(name) for name in weights.values()}):
        if not _is_weights(name):
            what = f"names {name[:200]!r}, which is no safetensors file of the model's own folder"
            raise ModelError(where, what, "write the model with `save_pretrained`, which names plain files")
        if is_whole and not (folder / name).is_file():
            raise ModelError(where, f"names {name[:200]!r}, which is not in the folder", "add the missing file")


def _is_weights(name: object) -> bool:
    """Whether a name is that of a safetensors file, without a folder."""
    return isinstance(name, str) and name.endswith(_WEIGHTS) and PurePosixPath(name).name == name
