"""The head of a base model for a run's outputs: rows that both have are kept, and the others are new.

Rows of classes are found by their names. A single number needs no name to be found: a model for rankings, rewards or regression goes on from
any head with one output, and regression on several numbers from a head with as many outputs without names.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from params import ModelError
from trainer.objectives.bases.labels.names import are_unnamed, list_labels, match_labels
from trainer.objectives.bases.lazy_imports import PreTrainedConfig, PreTrainedModel, torch, transformers
from trainer.objectives.bases.preferences.answer_form import KEY
from trainer.objectives.bases.texts.tokenizing import Tokenizer

logger = logging.getLogger(__name__)
_OF_A_TASK: Final = frozenset({"problem_type", "function_to_apply", "task_specific_params", "finetuning_task", KEY})
"""Keys of a configuration that say what a base model was made for; the first two decide what a pipeline makes of logits."""
_OF_CROSS_ENCODER: Final = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Keys by which sentence-transformers knows what it makes of logits. It cannot read them if they are null."""


def keep_rows_of_known_labels(
    network: PreTrainedModel,
    base: str,
    lacking: Collection[str],
    mismatched: Collection[str],
    *,
    problem_type: str | None,
) -> set[str]:
    """Arrange the head of a model that was loaded from `base` by the labels of its configuration; return its weights if it is another one.

    Of the model's weights, the base has not those in `lacking`, and those in `mismatched` only for another number of labels.
    `problem_type` is the objective's.

    Raises:
        ModelError: a weight of another size is not part of the head.
    """
    places = _label_dimensions(network)
    if other := sorted(set(mismatched) - set(places)):
        what = f"cannot be loaded: its configuration fits another size of {', '.join(other[:5])}"
        raise ModelError(base, what, "use a model whose config.json belongs to its weights")
    folder = _folder_of_configuration(base, network)
    if set(places) <= set(lacking):
        return set()  # there is no head
    known, labels = _read_labels(folder, base), _labels(network.config)
    if known == labels and not mismatched:
        return set()  # it is for these very labels
    stored = _weights_of_base(network, folder, places, mismatched)
    kept = match_rows(known, labels, problem_type)
    why_new = _why_new(known, kept, set(mismatched) - stored.keys())
    if why_new:
        kept = [None] * len(labels)
    elif {*kept} - {None}:
        named = {name: weight for name, weight in stored.items() if name not in lacking}
        _refuse_unnamed_rows(network, base, named, places, len(known))
    _renew_head(network, places)
    _copy_rows(network, {name: weight for name, weight in stored.items() if name in places}, places, kept)
    told = f"{why_new}, so the head for all {len(labels)} labels is new" if why_new else _described(known, labels, kept)
    logger.log(logging.WARNING if set(kept) == {None} else logging.INFO, "train: the head of %s: %s", base, told)
    return set(places)


def _folder_of_configuration(base: str, network: PreTrainedModel) -> Path:
    """Return the folder of a base model, also of one that was loaded from the Hub."""
    from transformers.utils.hub import cached_file

    if Path(base).is_dir():
        return Path(base)
    found = Path(cached_file(base, "config.json", revision=getattr(network.config, "_commit_hash", None)))
    return found if found.is_dir() else found.parent


def _weights_of_base(
    network: PreTrainedModel, folder: Path, places: Collection[str], mismatched: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return weights of the base's head, those of another size from its files, where these have them by the same names."""
    loaded = {name: network.get_parameter(name).detach().clone() for name in places if name not in mismatched}
    return loaded | _read_weights(folder, mismatched)


def _refuse_unnamed_rows(
    network: PreTrainedModel, base: str, stored: Mapping[str, torch.Tensor], places: Mapping[str, int], known: int
) -> None:
    """Raise a ModelError if a weight that is `stored` of the base's head has not a row for each of its `known` labels."""
    wanted = len(_labels(network.config))
    for name, weight in stored.items():
        own, dimension = network.get_parameter(name), places[name]
        if weight.shape[dimension] - known != own.shape[dimension] - wanted:
            what = f"its id2label has {known} labels, and {name} has {weight.shape[dimension]}"
            raise ModelError(base, what, "write the names of all rows of its head into config.json")


def _renew_head(network: PreTrainedModel, places: Collection[str]) -> None:
    """Draw the weights in `places` anew."""
    for module in sorted({name.rpartition(".")[0] for name in places}):
        layer = network.get_submodule(module)
        for name, weight in list(layer.named_parameters(recurse=False)):
            if f"{module}.{name}".lstrip(".") in places:
                setattr(layer, name, torch.nn.Parameter(torch.zeros_like(weight)))
        network._init_weights(layer)  # noqa: SLF001 - as transformers itself does for weights that a base lacks


def match_rows(known: Sequence[str], wanted: Sequence[str], problem_type: str | None) -> list[int | None]:
    """Return for each wanted output the row of a head with the `known` ones that it goes on from, or None."""
    is_one, are_nameless = len(known) == len(wanted) == 1, are_unnamed(known)
    is_other_class = problem_type == "multi_label_classification" and not are_nameless
    is_of_numbers = problem_type == "regression" and are_nameless and len(known) == len(wanted)
    if (is_one and not is_other_class) or is_of_numbers:
        return [*range(len(known))]
    return match_labels(known, wanted)


def put_trained_layers(
    network: PreTrainedModel, folder: Path, layers: Mapping[str, torch.Tensor], problem_type: str | None
) -> set[str]:
    """Give a base model the `layers` that were trained beside the adapter in a folder, and return their names; for rows of a head see `match_rows`.

    Raises:
        ModelError: one has another size.
    """
    places, kept = _label_dimensions(network), list[int | None]()
    if (folder / "config.json").exists():
        known, labels = _read_labels(folder, str(folder)), _labels(network.config)
        kept = match_rows(known, labels, problem_type)
        logger.info("train: the head of %s: %s", folder, _described(known, labels, kept))
    _copy_rows(network, {name: weight for name, weight in layers.items() if name in places}, places, kept)
    with torch.no_grad():
        for name, weight in layers.items():
            own = network.get_parameter(name)
            if name not in places and own.shape != weight.shape:
                what = f"{name} has the size {tuple(weight.shape)} there, and {tuple(own.shape)} in the model"
                raise ModelError(str(folder), what, "set model.start: base for one run")
            if name not in places:
                own.copy_(weight)
    return {*layers}


def _read_labels(folder: Path, base: str) -> list[str]:
    """Return the labels of the rows of the head of a model, whose files are in a folder and whose name is `base`; ModelError if they lack some."""
    names = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False).id2label
    if sorted(names) != [*range(len(names))]:
        what = f"its id2label numbers {len(names)} labels {', '.join(map(str, sorted(names)[:5]))}"
        raise ModelError(base, what, "number them in config.json from 0 on, as the rows of its head")
    return [str(names[number]) for number in range(len(names))]


def _copy_rows(
    network: PreTrainedModel, stored: Mapping[str, torch.Tensor], places: Mapping[str, int], kept: Sequence[int | None]
) -> None:
    network.rows_of_base = [label for label, place in enumerate(kept) if place is not None]
    with torch.no_grad():
        for (name, weight), (label, place) in itertools.product(stored.items(), enumerate(kept)):
            if place is not None:
                network.get_parameter(name).select(places[name], label).copy_(weight.select(places[name], place))


def settle_configuration(network: PreTrainedModel, tokenizer: Tokenizer, own: Collection[str]) -> None:
    """Leave nothing of the base model's task in the configuration of a model with a head, and name the padding that it is trained with.

    `own` are the keys that the objective has set. Models that read the last token of a text find it by the padding token.
    """
    for name in _OF_A_TASK - set(own):
        if getattr(network.config, name, None) is not None:
            setattr(network.config, name, None)
    for name in _OF_CROSS_ENCODER:
        vars(network.config).pop(name, None)
    layers = ((name, getattr(layer, "padding_idx", None)) for name, layer in network.named_modules())
    counts_from_padding = any("position" in name and padding is not None for name, padding in layers)
    for config in (network.config, network.config.get_text_config()):
        if getattr(config, "pad_token_id", None) is None or not counts_from_padding:
            config.pad_token_id = tokenizer.pad_token_id


def _why_new(known: Sequence[str], kept: Sequence[int | None], unread: Collection[str]) -> str:
    """Return why no row of a base model's head can be kept; empty if some may be. Its files hold weights in `unread` under other names."""
    if are_unnamed(known) and not {*kept} - {None}:
        return f"its labels have no names ({known[0]}, ...)"
    return f"its files hold {', '.join(sorted(unread))} under other names" if unread else ""


def _described(known: Sequence[str], labels: Sequence[str], kept: Sequence[int | None]) -> str:
    parts = {
        "kept are the rows of": [label for label, place in zip(labels, kept, strict=True) if place is not None],
        "new are": [label for label, place in zip(labels, kept, strict=True) if place is None],
        "dropped are": [label for place, label in enumerate(known) if place not in kept],
    }
    return "; ".join(f"{what} {list_labels(names)}" for what, names in parts.items() if names)


def _labels(config: PreTrainedConfig) -> list[str]:
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def _label_dimensions(network: PreTrainedModel) -> dict[str, int]:
    """Return the weights of which each label has a part, and in which dimension; none where the model allows one number only."""
    shapes = []
    for more in (0, 1):
        config = copy.deepcopy(network.config)
        config.num_labels += more
        config.quantization_config = None
        try:
            with torch.device("meta"):
                shapes.append({name: weight.shape for name, weight in type(network)(config).named_parameters()})
        except ValueError:  # DistilBERT finds answers by two outputs, and says so
            return {}
    pairs = {name: zip(shape, shapes[1][name], strict=True) for name, shape in shapes[0].items()}
    changed = {name: [i for i, (one, other) in enumerate(pair) if one != other] for name, pair in pairs.items()}
    return {name: dimensions[0] for name, dimensions in changed.items() if dimensions}


def _read_weights(folder: Path, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return weights by name from the safetensors in a folder; others, under another name there, are left out."""
    from safetensors import safe_open

    found = dict[str, torch.Tensor]()
    for path in sorted(folder.glob("model*.safetensors")) if names else ():
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in set(names) & set(file.keys())}
    return found
