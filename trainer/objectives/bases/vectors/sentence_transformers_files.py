"""The format of sentence-transformers: how a model's tokens become a vector, and what stands before a text.

    modules.json                       the parts: a transformer, a pooling, and perhaps a normalization to length 1
    1_Pooling/config.json              how the vectors of all tokens become one
    sentence_bert_config.json          where a text is cut; releases leave that to the tokenizer
    config_sentence_transformers.json  the prompts: text before each query and each document

What a base model says there is kept: the parts in config.json, the prompts in tokenizer_config.json, both under `KEY`, and so a
release is scored as it says itself. Other parts, such as a dense layer, would be lost, and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from params import ModelError, TransientError
from trainer.objectives.bases.lazy_imports import F, PreTrainedConfig, PreTrainedModel, torch
from trainer.objectives.bases.network.position_limits import NO_LIMIT
from trainer.objectives.bases.release_reading import ReleaseFormat
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch, token_column_names
from trainer.objectives.bases.texts.tokenizing import MODEL_INPUTS, Tokenizer

Pooling = Literal["mean", "cls", "lasttoken", "max"]
KEY: Final = "sentence_transformers"
Activation = Literal["linear.Identity", "activation.Sigmoid"]
"""What `CrossEncoder` makes of the output of a model that reads pairs, as a class in `torch.nn.modules`."""
_FLAGS: Final[Mapping[str, str]] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Ways to pool, and the keys that all versions of the library read."""
_DOCUMENT_PROMPTS: Final = ("document", "passage", "corpus")
"""Names of the prompt before documents, in the order in which the library looks for them."""
MODULES: Final = "modules.json"
"""The file that a repository of this format has."""
_CONFIGURATION: Final = "config_sentence_transformers.json"
_LIMIT: Final = "max_seq_length"
_BATCH: Final = 32
"""Texts that are embedded at a time."""


def read_parts(base: str, revision: str | None) -> dict[str, Any] | None:
    """Return how a base model makes a vector, `{"pooling": "mean", "normalize": True}`; None if it is not of this format.

    Args:
        base: a folder, or a repository on the Hub.
        revision: of the repository.

    Raises:
        ModelError: it has parts that would be lost.
        TransientError: the Hub cannot be reached.
    """
    modules = _read(base, MODULES, revision)
    if modules is None:
        return None
    try:
        parts = {str(one["type"]).rpartition(".")[2]: str(one.get("path") or "") for one in modules}
    except (TypeError, AttributeError, KeyError) as error:
        raise ModelError(base, "its modules.json is no list of modules with types", "download it again") from error
    if others := [name for name in parts if name not in ("Transformer", "Pooling", "Normalize")]:
        what = f"its modules.json has {', '.join(others)}, which is not trained here and would be lost"
        raise ModelError(base, what, "use a model that consists of Transformer, Pooling and Normalize only")
    if folder := parts.get("Transformer"):
        raise ModelError(base, f"its transformer is in the folder {folder}", f"use {Path(base) / folder} as the base")
    settings = _read(base, "sentence_bert_config.json", revision) or {}
    if settings.get("do_lower_case"):
        what = "its sentence_bert_config.json says do_lower_case, and texts are read here as the tokenizer does"
        raise ModelError(base, what, "use a model whose tokenizer lowers texts itself, or set do_lower_case to false")
    pooling = _read(base, f"{parts['Pooling']}/config.json", revision) if "Pooling" in parts else None
    return {"pooling": _pooling(pooling or {}, base), "normalize": "Normalize" in parts}


def parts_of(config: PreTrainedConfig, pooling: Pooling | None = None) -> Mapping[str, Any]:
    """Return how a loaded model makes a vector, and keep it in its configuration.

    It is what the repository says that the model was loaded from, else its config.json, else the mean of its tokens' vectors.
    `pooling` takes the place of theirs. Errors are those of `read_parts`.
    """
    base, revision = str(config.name_or_path or ""), getattr(config, "_commit_hash", None)
    own = getattr(config, KEY, None) or {}
    parts = (read_parts(base, revision) if base else None) or (own if "pooling" in own else None)
    parts = dict(parts or {"pooling": "mean", "normalize": False}) | ({"pooling": pooling} if pooling else {})
    setattr(config, KEY, parts | {"dimension": config.get_text_config().hidden_size})
    found: Mapping[str, Any] = getattr(config, KEY)
    return found


def set_activation(config: PreTrainedConfig, activation: Activation) -> None:
    """Let `CrossEncoder` give what the evaluation measured: by default it takes the sigmoid of a single output, also of a number."""
    setattr(config, KEY, {"activation_fn": f"torch.nn.modules.{activation}"})


def _pooling(config: Mapping[str, Any], base: str) -> str:
    given = config.get("pooling_mode") or [name for name, flag in _FLAGS.items() if config.get(flag)] or ["mean"]
    modes = [given] if isinstance(given, str) else list(given)
    if len(modes) > 1 or modes[0] not in get_args(Pooling):
        what = f"its vectors are pooled by {' and '.join(map(str, modes))}"
        raise ModelError(base, what, f"use a model that pools by one of {', '.join(get_args(Pooling))}")
    if config.get("include_prompt") is False:
        what = "its pooling leaves the prompt out (include_prompt: false), which is not done here"
        raise ModelError(base, what, "use a model whose pooling includes the prompt")
    return str(modes[0])


def set_prompts(tokenizer: Tokenizer, query: str | None, document: str | None) -> None:
    """Let a tokenizer keep what stands before each query and each document, and cut texts where its model's repository says.

    None stands for the prompt of that repository, which may be empty.
    """
    config = _read_of_model(tokenizer, _CONFIGURATION)
    prompts = {name: text or "" for name, text in (config.get("prompts") or {}).items()}
    default = prompts.get(str(config.get("default_prompt_name")), "")
    of_query = prompts.get("query") or default
    of_document = next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), default)
    prompts |= {
        "query": of_query if query is None else query,
        "document": of_document if document is None else document,
    }
    limit = _read_of_model(tokenizer, "sentence_bert_config.json").get("max_seq_length")
    if isinstance(limit, int):
        tokenizer.model_max_length = min(limit, tokenizer.model_max_length)
    own = {"prompts": prompts, "default_prompt_name": config.get("default_prompt_name")}
    is_limited = tokenizer.model_max_length < NO_LIMIT
    tokenizer.init_kwargs[KEY] = own | ({_LIMIT: tokenizer.model_max_length} if is_limited else {})


def _read_of_model(tokenizer: Tokenizer, name: str) -> Mapping[str, Any]:
    """Return a file of the model that a tokenizer was loaded from; empty if it has none."""
    base, revision = str(tokenizer.name_or_path or ""), getattr(tokenizer, "loaded_revision", None)
    return (_read(base, name, revision) if base else None) or {}


def prompt_before(tokenizer: Tokenizer, name: Literal["query", "document"]) -> str:
    """Return what stands before each query, or each document."""
    known: Mapping[str, Any] = tokenizer.init_kwargs.get(KEY) or {}
    return str((known.get("prompts") or {}).get(name) or "")


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return one vector (B, D) of those of B texts' tokens (B, T, D); the mask (B, T) is 0 where there is none, before or behind a text."""
    rows = torch.arange(len(states), device=states.device)
    if pooling == "cls":
        return states[rows, mask.argmax(1)]
    if pooling == "lasttoken":
        return states[rows, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    marked = mask[..., None].to(states.dtype)
    if pooling == "max":
        return states.masked_fill(marked == 0, float("-inf")).amax(1)
    return (states * marked).sum(1) / marked.sum(1)


def _known_parts(config: PreTrainedConfig) -> Mapping[str, Any]:
    """Return the parts in the configuration of a model that was trained here; of another one, those of its repository."""
    known: Mapping[str, Any] = getattr(config, KEY, None) or {}
    return known if "pooling" in known else parts_of(config)


def embed_batch(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the vectors of the M texts of B rows of a batch, (B, M, D), by a model that may be wrapped for several processes."""
    config = getattr(model, "module", model).config
    parts = _known_parts(config)
    texts = [name.removesuffix("input_ids") for name in token_column_names(batch)]
    inputs = [{name: batch[text + name] for name in MODEL_INPUTS if text + name in batch} for text in texts]
    if hasattr(model, "module"):  # of several processes, whose gradients come from one forward pass
        inputs = [concatenate_texts_along_batch(batch, model)]
    found = [pool(model(**own).last_hidden_state.float(), own["attention_mask"], parts["pooling"]) for own in inputs]
    return torch.stack(torch.cat(found).chunk(len(texts)), 1)


def embed_texts(
    network: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str], kind: Literal["query", "document"]
) -> torch.Tensor:
    """Return vectors of length 1 of N texts, (N, D), as `SentenceTransformer.encode_query` and `encode_document` do.

    Padding is behind texts, as where the vectors are judged, whatever the tokenizer says: so no vector depends on the texts beside it.
    """
    parts, found = _known_parts(network.config), []
    for start in range(0, len(texts), _BATCH):
        batch = [prompt_before(tokenizer, kind) + text for text in texts[start : start + _BATCH]]
        inputs = tokenizer(batch, truncation=True, padding=True, padding_side="right", return_tensors="pt").to(
            network.device
        )
        given = {name: inputs[name] for name in MODEL_INPUTS if name in inputs}
        states = network(**given).last_hidden_state.float()
        found.append(F.normalize(pool(states, given["attention_mask"], parts["pooling"]), dim=-1))
    return torch.cat(found)


def write_files(folder: Path) -> None:
    """Add the files of the format to the folder of a model, whose tokenizer cuts each text where it did before training."""
    config = json.loads((folder / "config.json").read_bytes())
    tokenizer = json.loads((folder / "tokenizer_config.json").read_bytes())
    of_tokenizer = dict(tokenizer.get(KEY) or {})
    if limit := of_tokenizer.pop(_LIMIT, None):
        _write(folder / "tokenizer_config.json", tokenizer | {"model_max_length": limit})
    parts = config[KEY]
    names = ["Transformer", "Pooling", *(["Normalize"] if parts["normalize"] else [])]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    pooling = {flag: name == parts["pooling"] for name, flag in _FLAGS.items()}
    _write(folder / MODULES, modules)
    _write(folder / paths[1] / "config.json", {"word_embedding_dimension": parts["dimension"], **pooling})
    _write(folder / "sentence_bert_config.json", {"do_lower_case": False})
    own: dict[str, Any] = {"similarity_fn_name": "cosine", "prompts": {}, "default_prompt_name": None}
    _write(folder / _CONFIGURATION, own | of_tokenizer)


def card_code(repo_id: str, folder: Path) -> str:
    """Return the code of a model card: two texts, and how alike they are."""
    prompts = (json.loads((folder / _CONFIGURATION).read_bytes()).get("prompts") or {}).values()
    query, document = ("encode_query", "encode_document") if any(prompts) else ("encode", "encode")
    return f"""\
from sentence_transformers import SentenceTransformer

# Vectors of two releases cannot be compared: with a new one, compute those of all documents again.
model = SentenceTransformer("{repo_id}")
queries = model.{query}(["The text to find others for."])
documents = model.{document}(["A text that may be found.", "Another one."])
print(model.similarity(queries, documents))"""


FORMAT: Final = ReleaseFormat("sentence-transformers", write_files, card_code)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(base: str, name: str, revision: str | None) -> Any:
    """Return what a JSON file of a base model says; None if there is no such file."""
    path: str | Path | None = Path(base) / name
    if not Path(base).is_dir():
        from transformers.utils.hub import cached_file, is_offline_mode

        try:
            path = cached_file(base, name, revision=revision)
        except OSError as error:
            if _is_answer(error) or is_offline_mode():  # there, the cache is all that is loaded
                return None  # no such file, or no such repository: whoever loads the model says so
            fix = "try again when the Hub is reachable"
            raise TransientError(base, f"{name} cannot be downloaded: {error}", fix) from error
    try:
        return json.loads(Path(path).read_bytes()) if path and Path(path).is_file() else None
    except ValueError as error:
        raise ModelError(base, f"its {name} cannot be read as JSON: {error}", "download the model again") from error


def _is_answer(error: OSError) -> bool:
    """Whether it is a Hub that has not given a file, and not that nobody could ask it; of an error of transformers."""
    if error.__cause__ is None:
        return not isinstance(error, ConnectionError | TimeoutError)
    status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
    return status is not None and status < 500
