"""What the files of a model may be and name, checked before transformers opens anything: files of the model's own folder, of usual sizes.

A link may lead anywhere, and a configuration may ask for 10**9 layers, of which Python then makes a list. transformers opens some of these values as they are. A tokenizer's `vocab` may be the path of any file on this machine, which the
model could then recite; an index of weights may name the model of somebody else, or a pickle under another name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from params import ModelError
from params.foundation.object_stores import copy_command, find_object_stores, is_kept

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
_KEYS_OF_LORA: Final = (
    *("task_type", "base_model_name_or_path", "revision", "peft_version", "bias", "init_lora_weights", "rank_pattern"),
    *(
        "target_modules",
        "target_parameters",
        "exclude_modules",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
    ),
    *("alpha_pattern", "layer_replication", "trainable_token_indices", "alora_invocation_tokens", *_ONLY_ADAPTER),
)
"""Keys of an adapter that may hold more than a number: names of layers, for example. peft opens nothing for them."""
_WEIGHTS: Final = ".safetensors"
_BLOB: Final = re.compile(r"([0-9a-f]{2}/)?[0-9a-f]{40,64}")
"""As the Hub's client names files in its cache, of one repository or of all: those of a snapshot are links to them."""
_ITEM: Final = ""
_OF_TOKENIZER: Final = ("*.json", "*.model", "*.txt", "*.jinja")
_OF_WEIGHTS: Final = ("model*.safetensors", "adapter*.safetensors")
_READ: Final = (*_OF_TOKENIZER, *_OF_WEIGHTS)
"""What may be read of a folder. Others, such as weights in other formats, may stay pointers."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/v1"
_MAX_SETTINGS_BYTES: Final = 64 << 20
_MAX_TOKENIZER_BYTES: Final = 512 << 20
_MAX_COUNTS: Final = (
    (re.compile(r".*(layers?|blocks|experts|heads?)"), 10_000),
    (re.compile(r".*labels"), 1_000_000),
)
"""The most of what is made one by one when a configuration is read, by the names of keys."""


def check_safe_to_load(
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
        ModelError: a file names a file that is not the model's own, or is a link to one, or names weights that are not safetensors,
            or is damaged, too large or a pointer of git-lfs; or the weights are those of an adapter, and should not be, or its
            settings are not plain LoRA.
        OSError: as transformers does, if the Hub cannot be reached or has no such repository.
    """
    name, is_whole_model = where or str(path), weights and not adapter
    if Path(path).is_dir():
        _check_folder(Path(path), name, weights=weights, is_whole_model=is_whole_model)
        return revision
    from transformers.utils.hub import cached_file, resolve_revision

    keys = ("token", "cache_dir", "local_files_only")
    pinned: str | None = resolve_revision(path, revision or "main", **{k: of_hub[k] for k in keys if k in of_hub})
    asked = {key: of_hub[key] for key in (*keys, "subfolder") if key in of_hub}
    for known in _NAMES_OF_HUB:
        found = cached_file(path, known, revision=pinned, _raise_exceptions_for_missing_entries=False, **asked)
        if found is None:
            continue
        if is_whole_model and known == _ADAPTER:
            raise _no_whole_model(name)
        check_settings(Path(found), f"{name}: {known}", is_whole=False)
    return pinned


def _check_folder(folder: Path, name: str, *, weights: bool, is_whole_model: bool) -> None:
    """Check the files of a folder as `check_safe_to_load` does."""
    _refuse_files_of_others(folder, name)
    for file in _matching(folder, _READ if weights else _OF_TOKENIZER):
        if file.is_file():
            _refuse_pointer_and_size(file, name)
    if is_whole_model and (folder / _ADAPTER).exists():
        raise _no_whole_model(name)
    for file in _matching(folder, _OF_WEIGHTS if weights else ()):
        _check_header(file, name)
    plain = (*_TOKENIZERS, "config.json", f"*{_WEIGHTS}.index.json")  # some tokenizers have parts in subfolders
    for pattern in (_ADAPTER, *plain, *(f"*/{known}" for known in plain)):
        for file in sorted(folder.glob(pattern)):
            check_settings(file, f"{name}: {file.relative_to(folder)}", is_whole=True)


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(pattern))


def _refuse_pointer_and_size(file: Path, name: str) -> None:
    """Raise ModelError for a pointer in the place of a file, and for a tokenizer that is too large to read."""
    with file.open("rb") as content:
        is_pointer = content.read(len(_POINTER)) == _POINTER
    if is_pointer:
        what = f"{file.name} is a git-lfs pointer, not the file itself"
        raise ModelError(name, what, f"run `git -C {file.parent} lfs pull`, or download the model again")
    if file.suffix != _WEIGHTS and file.stat().st_size > _MAX_TOKENIZER_BYTES:
        what = f"{file.name} has more than {_MAX_TOKENIZER_BYTES >> 20} MiB, the most that is read"
        raise ModelError(name, what, "use a model whose tokenizer is smaller")


def has_only_unsafe_weights(folder: Path) -> bool:
    """Return whether a local model folder has weights, but none that are safe to load."""
    suffixes = {path.suffix for path in folder.iterdir()}
    return ".safetensors" not in suffixes and bool(suffixes & {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"})


def _refuse_files_of_others(folder: Path, name: str) -> None:
    """Raise ModelError for a link that leads out of a model's folder, and for what is no file: an archive can hold both."""
    here = folder.resolve()
    stores = find_object_stores(folder)
    for snapshot in (here, *here.parents):
        if snapshot.parent.name == "snapshots":  # of the Hub's client
            repository = snapshot.parent.parent
            stores += [(repository / "blobs", _BLOB), (repository.parent / "blobs", _BLOB)]
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        target = path.resolve()
        shown = f"{name}: {path.relative_to(folder)}"
        if path.is_symlink() and not target.is_relative_to(here) and not is_kept(target, stores):
            what = f"is a link that leads out of the model's folder, to {str(target)!a}: it may be a private file"
            command = copy_command(str(path), target)
            fix = f"`{command}` puts a copy there, if the file is yours" if command else "put a copy of the file there"
            raise ModelError(shown, what, f"{fix}; else remove the link")
        if target.exists() and not target.is_file() and not target.is_dir():
            raise ModelError(shown, "is no regular file", "remove it, or copy the model again")


def _check_header(file: Path, name: str) -> None:
    """Raise ModelError if the header of weights does not fit the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            pass
    except (OSError, SafetensorError) as error:
        raise ModelError(name, f"{file.name} is no safetensors file: {error}", "copy or download it again") from error


def _no_whole_model(name: str) -> ModelError:
    fix = "use its base model, or the folder that `merge_and_unload().save_pretrained(folder)` of peft writes"
    return ModelError(name, f"holds adapters, not a whole model: it has {_ADAPTER}", fix)


def check_settings(file: Path, where: str, *, is_whole: bool) -> None:
    """Raise ModelError if one of the JSON files of a model, `where` in messages, is not safe to load.

    `is_whole`: the files that it names must be beside it.
    """
    if not file.is_file():
        raise ModelError(where, "is no file", "write it with `save_pretrained`")
    if file.stat().st_size > _MAX_SETTINGS_BYTES:
        what = f"has more than {_MAX_SETTINGS_BYTES >> 20} MiB, the most that is read"
        raise ModelError(where, what, "write the file with `save_pretrained`")
    try:
        content = json.loads(file.read_bytes())
        if file.name == "config.json":
            problem = _configuration_problem(content)
        elif file.name in _TOKENIZERS:
            problem = _tokenizer_problem(content, file)
        elif file.name == _ADAPTER:
            problem = _adapter_problem(content)
        else:
            problem = _index_problem(content, file.parent, is_whole=is_whole)
    except (ValueError, RecursionError) as error:
        problem = (
            f"cannot be read as JSON: {str(error) or type(error).__name__}",
            "write the file with `save_pretrained`",
        )
    if problem:
        raise ModelError(where, *problem)


def _adapter_problem(content: Any) -> tuple[str, str] | None:
    if not isinstance(content, dict):
        return "is no mapping", "write the adapter with peft"
    for key, value in {"peft_type": None, **content}.items():
        if value != _ONLY_ADAPTER.get(key, value):
            what = f"{key} is {str(value)[:200]!r}, and only {_ONLY_ADAPTER[key]} is read"
            return what, "use a LoRA adapter as peft's LoraConfig writes it"
        if value and not isinstance(value, int | float) and key not in _KEYS_OF_LORA:
            what = f"{key} is {str(value)[:200]!r}; peft may load a file or code for it"
            return what, f"remove {key}, or use an adapter without it"
    return None


def _configuration_problem(content: Any) -> tuple[str, str] | None:
    given = content if isinstance(content, dict) else {}
    if "configuration_files" in given:
        what = "configuration_files names a configuration to read instead of this one"
        return what, "remove that key, or use a model without it"
    for path, text in _texts(content):  # transformers would run it, if the library `kernels` is there
        if "/" in text and any(key.endswith("attn_implementation") for key in path):
            what = f"asks for {text[:200]!r}, code of a repository, which Evergreen never runs"
            return what, "remove attn_implementation, or use a model without it"
    if too_many := _first_count_above_most(content):
        return f"{too_many} is read", "use a model of a usual size"
    weights = given.get("transformers_weights")
    if weights is not None and weights != _INDEX and not _is_weights(weights):
        what = f"transformers_weights is {weights!r}, which is no safetensors file of the model's own folder"
        return what, "remove that key"
    return None


def _first_count_above_most(content: Any) -> str | None:
    for key, number in _numbers(content):
        for counted, most in _MAX_COUNTS:
            if number > most and counted.fullmatch(key):
                return f"{key} is {number:g}, and at most {most:,}"
    return None


def _tokenizer_problem(content: Any, file: Path) -> tuple[str, str] | None:
    for path, text in _texts(content):
        key = next((key for key in reversed(path) if key != _ITEM), "")
        is_opened = key in _FILE_KEYS or key.endswith("_file")
        if path[-1:] == (_ITEM,):
            is_opened = key == "init_inputs"
        if file.name == "tokenizer_config.json" and key in _NEVER_OPENED:
            continue
        if (is_opened and text) or _leads_out(text, file.parent):
            what = f"{key} names a file, {text[:200]!r}; transformers would read it, wherever it is"
            return what, f"remove {key}; transformers finds the files of a tokenizer by their names"
    return None


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each text with the keys that lead to it, `_ITEM` for those of a list."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else ((_ITEM, item) for item in value):
            yield from _texts(inner, (*path, key))


def _numbers(value: Any, key: str = _ITEM) -> Iterator[tuple[str, float]]:
    """Yield each number with its key, that of their list for numbers in one."""
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, name)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, key)


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


def _index_problem(content: Any, folder: Path, *, is_whole: bool) -> tuple[str, str] | None:
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        return "has no weight_map", "write the model with `save_pretrained`"
    for name in sorted({str(name) for name in weights.values()}):
        if not _is_weights(name):
            what = f"names {name[:200]!r}, which is no safetensors file of the model's own folder"
            return what, "write the model with `save_pretrained`, which names plain files"
        if is_whole and not (folder / name).is_file():
            return f"names {name[:200]!r}, which is not in the folder", "add the missing file"
    return None


def _is_weights(name: object) -> bool:
    """Whether a name is that of a safetensors file, without a folder."""
    return isinstance(name, str) and name.endswith(_WEIGHTS) and PurePosixPath(name).name == name
