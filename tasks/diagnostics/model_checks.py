"""Checks of the model and the tokenizer that a recipe starts from, for `check`: nothing is loaded."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from params import EvergreenError, HubRefusedError, ModelError, Problem, TransientError
from params.dvc_files import RECIPES
from params.foundation.artifacts import Artifacts, fix_missing_model
from params.foundation.errors import see_limits
from params.problems import Key
from params.schema import Model, ObjectiveChoice, Publish, Training
from params.sections.base import repo_id_problem
from params.sections.evaluation import Evaluation
from params.sections.rows import PretrainedTokenizer, Tokenization, Validation
from tasks.tokenization.tokenizers import train_or_load_tokenizer
from trainer.model.adapters import CONFIG as ADAPTER_CONFIG
from trainer.model.adapters import BaseModelReference, add_lora_adapters
from trainer.model.causality import CLASS_FOR_NEXT_TOKENS, READ_AHEAD, decoder_settings
from trainer.objectives.bases.lazy_imports import torch, transformers
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.texts.tokenizing import OTHER_TOKENIZER, READ_AT_END_OF_TEXT, why_end_is_not_found
from trainer.runtime.imports import unhide_package
from trainer.runtime.library_errors import panics_as_errors
from trainer.runtime.model_files import check_safe_to_load, check_settings, has_only_unsafe_weights

logger = logging.getLogger(__name__)
_USUAL_POSITIONS: Final = 512
"""The fewest positions that a type of models has, unless its configuration says otherwise."""
_HUB_S = 10.0
"""How long to wait for a Hub."""


def _starts(sections: Mapping[str, Any]) -> dict[Key, str]:
    """Return the folders or repositories of the tokenizer and the model that a recipe starts from, by the keys that name them."""
    found: dict[Key, str] = {}
    tokenizer = sections["tokenization"].tokenizer if "tokenization" in sections else None
    if isinstance(tokenizer, PretrainedTokenizer):
        found["tokenization", "tokenizer", "path"] = tokenizer.path
    if "model" in sections and sections["model"].pretrained is not None:
        found["model", "pretrained"] = sections["model"].pretrained
    return found


def find_unusable_start_models(sections: Mapping[str, Any]) -> Iterator[Problem]:
    """Find folders and repositories that a training cannot start from."""
    for key, path in _starts(sections).items():
        folder, is_model = Path(path), key[0] == "model"
        required = "config.json" if is_model else "tokenizer.json"
        if folder.is_dir():
            if is_model:
                _warn_if_unpublished(path)
            if is_model and has_only_unsafe_weights(folder):
                what = f"{path} has weights only as pickle files, which are never loaded"
                yield Problem(key, what, "load them where you trust them, and write safetensors with `save_pretrained`")
                continue
            try:
                check_safe_to_load(folder, weights=is_model)
            except ModelError as error:
                yield Problem.of(error, key)
                continue
            if not (folder / required).exists():
                yield Problem(key, f"{path} has no {required}", "check the folder")
        elif how := fix_missing_model(path):
            yield Problem(key, f"there is no folder {path}", how)
        elif path.startswith((".", "/", "~")) or path.count("/") != 1:
            fix = "give a local folder, or owner/name for a repository on the Hub"
            yield Problem(key, f"there is no folder {path}", fix)
        elif problem := repo_id_problem(path):
            yield Problem(key, f"the Hub refuses {path!a}: {problem}", "write another `owner/name`")


def _warn_if_unpublished(path: str) -> None:
    from tasks.evaluation.report import Blessing
    from tasks.stages import read_report

    if not (made := Artifacts.of_model(path)):
        return
    with contextlib.suppress(ModelError):  # it may not be evaluated yet, or here
        blessing = read_report(made, Blessing)
        if blessing.verdict != "publish" and not blessing.is_champion:
            what = "check: runs/%s/model: the last model of %s that was evaluated was not published (%s: %s)"
            logger.warning(what, made.recipe, made.recipe, blessing.verdict, "; ".join(blessing.reasons))


def find_unwatched_models(
    root: Path, name: str, item: Mapping[str, str], sections: Mapping[str, Any]
) -> Iterator[Problem]:
    """Find folders of models that a recipe reads, and DVC does not watch for it, by its `item` in recipes.yaml.

    One that it starts from is its `base`. Others are read where its own code is, and so may be its `code`, too.
    """
    further: dict[Key, str] = dict(sections["method"].models()) if "method" in sections else {}
    for path, key in {path: key for key, path in (further | _starts(sections)).items()}.items():
        folder = (root / path).resolve()
        if folder.is_relative_to((root / "runs" / name).resolve()):
            what = f"{path} is what this recipe makes, and is deleted before it trains"
            yield Problem(key, what, "copy it out of its folder in runs/, and name the copy")
            continue
        if not folder.is_dir() and not fix_missing_model(path, root):
            continue  # it is on a Hub, or another check misses it
        watched = [item["base"], *([item["code"]] if key in further else [])]
        if not any(folder.is_relative_to((root / place).resolve()) for place in watched):
            lacks = "neither of which contains" if key in further else "which does not contain"
            what = f"{RECIPES} watches {' and '.join(watched)} for this recipe, {lacks} {path}"
            other = f", or `code: {path}` if `base` is another model" if key in further else ""
            yield Problem(key, what, f"set `base: {path}` there{other}: then a new model in that folder is noticed")


def find_position_limit_problem(model: Model, tokenization: Tokenization) -> Iterator[Problem]:
    """Find a length in tokens that a model has no positions for. Of one on a Hub, only if the configuration is here already."""
    config = _read_config(model)
    stated = config.get("max_position_embeddings", config.get("n_positions", _USUAL_POSITIONS))
    padding = config.get("pad_token_id") or 0  # from behind which RoBERTa and its kin count positions
    if not config or not isinstance(stated, int) or tokenization.max_length < stated - 2 - padding:
        return
    from trainer.objectives.bases.network.position_limits import find_position_limits

    try:
        with panics_as_errors():
            limits = find_position_limits(transformers.AutoConfig.for_model(**config))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):  # which another check says
        return
    positions = limits.most if model.config else limits.table
    if positions is not None and positions < tokenization.max_length:
        what = f"{tokenization.max_length} tokens exceed the model's {positions} positions"
        yield Problem(("tokenization", "max_length"), what, f"use at most {positions}{see_limits('tokenization')}")


def find_lora_problem(model: Model, method: Objective[Any]) -> Iterator[Problem]:
    """Find layers that cannot have the adapters that they are to have. No weights are made."""
    config = _read_config(model)
    if not config or model.lora is None:
        return
    unhide_package("peft")
    try:
        with torch.device("meta"), panics_as_errors():
            full = transformers.AutoConfig.for_model(**config)
            network = method.model_class().from_config(full, trust_remote_code=False)
            add_lora_adapters(network, model.lora, method, [])
    except ModelError as error:
        yield Problem(("model", "lora"), error.what, error.fix)
    except (EvergreenError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):  # which another check says
        return


def find_unfit_model_problem(model: Model, objective: ObjectiveChoice, method: Objective[Any]) -> Iterator[Problem]:
    """Find a type of models whose releases publish would refuse with this objective."""
    kind = str(_read_config(model).get("model_type"))
    if reason := method.unfit_model_types.get(kind):
        what = f"{kind} does not fit the objective {objective.name}: {reason}, and publish would refuse the model"
        key = "config" if model.config else "pretrained"
        yield Problem(("model", key), what, "use a model of another type, such as bert")


def find_model_that_reads_ahead(model: Model, method: Objective[Any]) -> Iterator[Problem]:
    """Find a model that sees the token that it is to tell. A training becomes sure of any other one by a forward pass."""
    config = _read_config(model)
    kind = str(config.get("model_type"))
    if method.auto_class != CLASS_FOR_NEXT_TOKENS:
        return
    if kind in READ_AHEAD:
        what = f"{kind} reads in both directions, so it would see the token that it is to tell"
        yield Problem(
            ("model", "config" if model.config else "pretrained"), what, "use a decoder, such as llama or gpt2"
        )
    elif model.config and config.get("is_decoder") is False and decoder_settings(kind, method):
        what = f"with it, {kind} reads in both directions, and would see the token that it is to tell"
        yield Problem(("model", "config", "is_decoder"), what, "remove it: then the training sets it to true")


def find_unmarked_ends_of_texts(model: Model, tokenization: Tokenization, method: Objective[Any]) -> Iterator[Problem]:
    """Find a tokenizer that does not mark the ends of texts, where the model's head reads them. Of one on a Hub, training finds it."""
    config, choice = _read_config(model), tokenization.tokenizer
    is_read_there = config.get("model_type") in READ_AT_END_OF_TEXT
    if not is_read_there or getattr(method, "auto_class", "") != "AutoModelForSequenceClassification":
        return
    # without a model, the token is that of the tokenizer to come
    end = None if model.config else transformers.AutoConfig.for_model(**config).eos_token_id
    padding, ids = None, list[int]()
    if isinstance(choice, PretrainedTokenizer):
        if not Path(choice.path).is_dir():
            return
        texts = {name: [name] if kind == "labels" else name for name, kind in method.columns().items()}
        numbers = [name for name, kind in method.columns().items() if kind == "number"]
        try:
            tokenizer = train_or_load_tokenizer(tokenization, ())
            method.prepare_tokenizer(tokenizer)
            rows = [{"row_id": i, **texts, **dict.fromkeys(numbers, float(i))} for i in range(2)]
            encoded = method.encode(rows, tokenizer, tokenization.max_length, method.collect_state(rows))
            ids = encoded[0].examples[0]["input_ids"]
            end, padding = tokenizer.eos_token_id if end is None else end, tokenizer.pad_token_id
        except (EvergreenError, ValueError, TypeError, KeyError, IndexError):  # which another check says
            return
    if why := why_end_is_not_found(end, ids, padding):
        yield Problem(("tokenization", "tokenizer"), why, OTHER_TOKENIZER)


def find_generation_problem(model: Model) -> Iterator[Problem]:
    """Find a generation_config.json that transformers reads, but with which it would not save the trained model."""
    path = Path(model.pretrained or "") / "generation_config.json"
    if model.pretrained is None or not path.is_file():
        return
    from trainer.model.use_settings import repair_generation_settings

    try:
        settings = transformers.GenerationConfig.from_dict(json.loads(path.read_bytes()))
        repair_generation_settings(settings, model.pretrained)
    except ModelError as error:
        yield Problem.of(error, ("model", "pretrained"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        what = f"its generation_config.json cannot be read: {error}"
        yield Problem(("model", "pretrained"), what, "correct that file, or remove it")


def _read_config(model: Model) -> dict[str, Any]:
    """Return the model's configuration; empty if it is not on this machine."""
    if model.config is not None or model.pretrained is None:
        return dict(model.config or {})
    path = Path(model.pretrained) / "config.json"
    if not path.parent.is_dir():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        with contextlib.suppress(HFValidationError):  # which another check says
            found = try_to_load_from_cache(model.pretrained, "config.json", revision=model.revision)
            path = Path(found) if isinstance(found, str) else path
    try:
        check_settings(path, str(path), is_whole=False)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, ModelError):  # which another check says
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("model_type"), str) else {}


def find_adapter_publishing_problems(model: Model, publish: Publish) -> Iterator[Problem]:
    """Find out whether others could load adapters that are published by themselves; asks the Hub only then."""
    if publish.adapter == "merged":
        return
    from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
    from tasks.hub_client.repository import RetryPolicy
    from tasks.publishing.candidate import require_readable_base_model, why_adapter_not_shareable

    key = ("publish", "adapter")
    try:
        resolve_hub_endpoint(publish.endpoint)
    except HubRefusedError:  # which another check says
        return
    if found := why_adapter_not_shareable(model):
        yield Problem(key, *found)
        return
    try:
        with open_repository(Artifacts("check"), repo_id=publish.repo_id, endpoint=publish.endpoint) as opened:
            hurried = replace(opened, timeout_s=_HUB_S, retries=RetryPolicy(attempts=2))
            base = BaseModelReference(str(model.pretrained), model.revision)
            require_readable_base_model(hurried, base, private=publish.private)
            head = hurried.head() if model.start != "base" else None
            if head and not any(path.endswith(ADAPTER_CONFIG) for path in hurried.tree(head.commit)):
                what = "the published model, from which the training starts, holds its adapters merged: new ones have no base model to share"
                yield Problem(key, what, "set model.start: base for one run, or `publish.adapter: merged`")
    except HubRefusedError as error:
        yield Problem.of(error, key)
    except TransientError as error:
        logger.warning("check: whether others can load %s was not checked: %s", model.pretrained, error.what)


def find_rows_that_no_release_names(
    validation: Validation, training: Training, evaluation: Evaluation, publish: Publish
) -> Iterator[Problem]:
    """Find what needs to tell known rows from new ones, although releases would never say which rows they know."""
    fix, is_kept_back = "set `validation.drift: report`, or remove this key", not publish.private
    is_kept_back &= "drift" not in validation.model_fields_set
    margin: Key = ("evaluation", "gate", "known_margin")
    needs = {margin: evaluation.gate.known_margin is not None, ("training", "replay"): training.replay is not None}
    if needs[margin] and validation.drift.on_drift == "off":
        yield Problem(margin, "needs the profile of the rows, which `validation.drift: off` leaves out", fix)
    for key, is_needed in needs.items():
        if is_needed and is_kept_back:
            what = "needs to know the rows of the published model, which a public release names only with `validation.drift`"
            yield Problem(key, what, fix)
