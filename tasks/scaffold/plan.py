"""Everything that a recipe says, with the reasons: chosen from what the rows, the model and this machine are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple, Self

from params import DataError, RecipeError
from params.problems import suggestion
from params.schema import Model, ObjectiveChoice
from params.sections.rows import Tokenization
from tasks.scaffold import choices
from tasks.scaffold.choices import Keys
from tasks.scaffold.look import Row, RowSample
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.scaffold.quality import SampleQuality, assess_sample_quality, input_columns
from tasks.scaffold.request import OPTION_FLAGS, NewRecipeRequest, option_flag
from tasks.scaffold.sources import FoundSource
from tasks.tokenization.encoding import RowEncoder
from tasks.tokenization.tokenizers import train_or_load_tokenizer
from trainer import objectives
from trainer.objectives.advice.base import AdvisedValue, NewRecipeAdvice
from trainer.objectives.bases.conversations.chat import conversation_template
from trainer.objectives.bases.conversations.messages import MARKS, count_unread_keys
from trainer.objectives.bases.lazy_imports import PreTrainedTokenizerBase, transformers
from trainer.objectives.bases.metrics.metric import directions_in_training
from trainer.objectives.bases.network.position_limits import NO_LIMIT, find_position_limits
from trainer.objectives.bases.objective import Example, Objective, ObjectiveState

SEED: Final = 17
_TRIED_ROWS: Final = 2000
"""Rows, about, that are encoded as training sees them."""
_MEASURED_ROWS: Final = 5_000
"""The most rows that are tokenized for their lengths."""
_BATCH_ROWS: Final = 500
_MAX_SLICES: Final = 100
_FEW_ROWS: Final = 20
"""With fewer rows, all of a label may be held out by chance."""
_NO_EXAMPLES: Final = (
    "mend or leave out what the rows say, or name other columns; or, if the chat template changes messages once more follow: in a copy of the model's folder, put"
    " {% generation %} and {% endgeneration %} around the assistant's text in its chat template, and give that folder with"
    " --model"
)
_MARK: Final = re.compile(r"<\|[^\s|<>{}'\"]+\|>")
_SCHEDULERS: Final = {"linear": "down to 0, usual for fine-tuning", "cosine": "usual for language models"}
_NEW_DECAY: Final = AdvisedValue(0.1, "usual for training from random weights")
_TUNING_DECAY: Final = AdvisedValue(0.01, "usual for fine-tuning")


class RecipePlan(NamedTuple):
    """A recipe before it is written, and what its choices follow from."""

    sections: Keys
    quality: SampleQuality
    encoder: RowEncoder
    """Makes the training sequences."""
    example: tuple[Row, list[Example]]
    """A row of usual length, and what becomes of it."""


def plan_recipe(
    found: FoundSource,
    proposal: ObjectiveProposal,
    sample: RowSample,
    facts: ModelFacts | None,
    request: NewRecipeRequest,
    *,
    documents: int,
    more: Mapping[str, AdvisedValue],
) -> RecipePlan:
    """Choose everything that a recipe says, beside some options of the objective. `facts` are None for a model from random weights.

    An evaluation during training encodes `documents` of a corpus. The errors are those of `create_recipe`.
    """
    advice, model = proposal.advice, choices.choose_model_keys(proposal, facts)
    prepared = _prepare(proposal, sample, facts, request, model=model, more=more)
    sample, objective, inputs = prepared.sample, prepared.objective, prepared.inputs
    shares = choices.choose_split_shares(
        sample.estimated("train"), has_validation="validation" in sample.rows, has_test="test" in sample.rows
    )
    rows = round(sample.estimated("train") * (1 - sum(share.value for share in shares.values())))
    mean = sum(inputs) / len(inputs)
    positions = facts.positions if facts else _positions_of_new_model(model["config"])
    quality = prepared.quality
    if advice.reads_running_text:
        max_length = choices.choose_packed_sequence_length(mean * rows, positions, is_new=facts is None)
    else:
        how = "are split" if objective.reader_strides else "are cut"
        max_length = choices.choose_max_length(inputs, positions, how)
        quality = _saying_what_is_cut(quality, "max_length", max_length, inputs)
    tried = _TriedRows.of(quality, RowEncoder(objective, prepared.tokenizer, max_length.value, prepared.state))
    batch = choices.choose_global_batch_size(proposal, tried.sequences_of(rows))
    epochs = choices.choose_epochs(proposal, rows, mean * rows, is_new=facts is None)
    steps = max(1, epochs.value * (tried.sequences_of(rows) // batch.value))
    evaluated = choices.estimate_rows("validation", sample, shares) * tried.sequences // len(tried.per_row) + documents
    eval_steps = choices.choose_eval_steps(steps, epochs.value, batch.value, evaluated)
    micro = choices.choose_micro_batch_size(batch.value, max_length.value, "gpu" if choices.has_gpu() else "cpu")
    best_metric = _best_metric(advice, objective, quality)
    sections = {
        "seed": SEED,
        "data": _data_keys(found, proposal, quality, shares, objective.group_columns),
        "validation": {
            "max_quarantined": choices.choose_max_quarantined(quality.set_aside_share, request.max_quarantined),
            **_checks_of_labels(quality),
            "# Columns and types are checked anyway, and each row as the objective needs it. `expectations` adds checks.": "",
        },
        "tokenization": {"tokenizer": prepared.tokenizer_keys, "max_length": max_length},
        "objective": {**_objective_keys(proposal, quality), **prepared.options},
        "model": model,
        "training": {
            "epochs": epochs,
            "global_batch_size": batch,
            "learning_rate": choices.choose_learning_rate(
                proposal, facts.parameters if facts else None, batch.value, lora="lora" in model
            ),
            "lr_scheduler": AdvisedValue(advice.scheduler, _SCHEDULERS[advice.scheduler]),
            "warmup_steps": AdvisedValue(0.1, "a tenth of all steps"),
            "weight_decay": advice.weight_decay or (_TUNING_DECAY if facts else _NEW_DECAY),
            "precision": choices.choose_precision(),
            "group_by_length": _group_by_length(advice, prepared.options),
            "eval_steps": eval_steps,
            "save_steps": AdvisedValue(eval_steps.value, "an interrupted run loses no more than these steps"),
            "logging_steps": AdvisedValue(choices.round_to_readable_number(steps / 100)),
            "best_metric": best_metric,
        },
        "launch": {
            "micro_batch_size": micro,
            "eval_batch_size": AdvisedValue(min(64, 2 * micro.value), "evaluations need no gradients"),
        },
        "evaluation": _evaluation_keys(proposal, quality, best_metric, choices.estimate_rows("test", sample, shares)),
        "publish": {
            "repo_id": request.published_repo_id,
            "endpoint": AdvisedValue("local", "the Hub in the folder .hub; or https://huggingface.co, with HF_TOKEN"),
            "private": True,
            "license": AdvisedValue("other", "write that of data and model, such as cc-by-4.0 or apache-2.0"),
        },
    }
    more_remarks = [
        *_keys_that_nothing_reads(proposal, sample, prepared.tokenizer),
        *choices.find_few_test_rows(sample, shares),
        *choices.propose_time_split(sample, shares),
    ]
    quality = quality._replace(remarks=[*quality.remarks, *more_remarks])
    return RecipePlan(sections, quality, tried.encoder, tried.usual(mean))


class _Prepared(NamedTuple):
    """The objective with all its options, and the rows as it reads them."""

    objective: Objective[Any]
    options: Keys
    sample: RowSample
    quality: SampleQuality
    tokenizer_keys: Keys
    tokenizer: PreTrainedTokenizerBase
    state: ObjectiveState
    inputs: Sequence[int]
    """Lengths of usable rows in tokens."""


def _prepare(
    proposal: ObjectiveProposal,
    sample: RowSample,
    facts: ModelFacts | None,
    request: NewRecipeRequest,
    *,
    model: Keys,
    more: Mapping[str, AdvisedValue],
) -> _Prepared:
    options = {**_options(proposal, sample, facts), **more, **_given_options(proposal, request)}
    objective = _build(proposal, options)
    sample = sample.reading(objective.columns())
    quality = assess_sample_quality(sample, proposal, objective)
    texts = [objective.text(row) for row in quality.usable]
    tokenizer_keys, tokenizer = _tokenizer(facts, objective, texts)
    options |= _ask_for_options(proposal, tokenizer, request)
    objective = _build(proposal, options)
    objective.prepare_tokenizer(tokenizer)
    state = objective.collect_state(quality.usable)
    quality, inputs, targets = _lengths(quality, RowEncoder(objective, tokenizer, NO_LIMIT, state))
    if targets:
        length = choices.choose_max_length(targets, None)
        options |= dict.fromkeys(sorted(objective.limits), length)
        quality = _saying_what_is_cut(quality, "the limit of targets,", length, targets)
        if "max_new_tokens" in objective.options_class.model_fields:
            options["max_new_tokens"] = AdvisedValue(length.value, "as long as a target may be")
    if "packing" in options and not _can_train(model, objective, state, tokenizer):
        options["packing"] = AdvisedValue(value=False, why="this model lets packed examples attend to each other")
    objective = _build(proposal, options)
    return _Prepared(objective, options, sample, quality, tokenizer_keys, tokenizer, state, inputs)


class _TriedRows(NamedTuple):
    """Some usable rows, and their training sequences."""

    encoder: RowEncoder
    rows: Sequence[Row]
    per_row: Sequence[list[Example]]
    sequences: int
    """How many sequences training makes of them, packed if it packs."""

    @classmethod
    def of(cls, quality: SampleQuality, encoder: RowEncoder) -> Self:
        rows = quality.usable[:: max(1, len(quality.usable) // _TRIED_ROWS)]
        per_row = list(_encoded(rows, encoder))
        sequences = len(list(encoder.objective.pack(chain.from_iterable(per_row), encoder.max_length)))
        if not sequences:
            raise DataError(
                "the training rows", f"they give no sequence of {encoder.max_length} tokens", "give more rows"
            )
        return cls(encoder, rows, per_row, sequences)

    def sequences_of(self, rows: int) -> int:
        """Return how many sequences so many rows give, about."""
        return max(1, round(rows * self.sequences / len(self.per_row)))

    def usual(self, mean: float) -> tuple[Row, list[Example]]:
        """Return a row of about the mean length in tokens, and its sequences."""
        encoded = ((row, own) for row, own in zip(self.rows, self.per_row, strict=True) if own)
        return min(encoded, key=lambda pair: abs(sum(len(example["input_ids"]) for example in pair[1]) - mean))


def _group_by_length(advice: NewRecipeAdvice, options: Keys) -> AdvisedValue:
    packs = advice.reads_running_text or ("packing" in options and options["packing"].value)
    why = "packed sequences are full" if packs else "batches rows of similar length, which need less padding"
    return AdvisedValue(not packs, why)


def _keys_that_nothing_reads(
    proposal: ObjectiveProposal, sample: RowSample, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Return a remark that names keys of messages that neither Evergreen nor the chat template reads, if there are some."""
    columns = [sample.columns[name] for name in proposal.read_columns() if sample.columns[name].kind == "messages"]
    template = conversation_template(tokenizer) or ""
    counts = count_unread_keys(chain.from_iterable(column.filled for column in columns), template)
    said = ", ".join(f"`{key}` of {count:,} messages" for key, count in counts.most_common(5))
    marks = ", ".join(f"`{mark}`" for mark in MARKS)
    what = f"neither the chat template nor Evergreen reads {said}; what says which answers are not learned is {marks}"
    return [what] if counts else []


def _positions_of_new_model(config: Mapping[str, Any]) -> int | None:
    return find_position_limits(transformers.AutoConfig.for_model(**config)).most


def _tokenizer(
    facts: ModelFacts | None, objective: Objective[Any], texts: Sequence[str]
) -> tuple[Keys, PreTrainedTokenizerBase]:
    """Return the tokenizer with its keys; a comment among them proposes tokens for the marks of a chat template that it splits."""
    keys: dict[str, Any] = {"kind": "train", "vocab_size": choices.choose_vocabulary_size(sum(map(len, texts)))}
    if facts:
        keys = {"kind": "pretrained", "path": AdvisedValue(facts.path, "the model's own")}
        keys |= {"revision": facts.revision} if facts.revision else {}
    tokenization = Tokenization.model_validate({"tokenizer": strip_reasons(keys), "max_length": NO_LIMIT})
    tokenizer = train_or_load_tokenizer(tokenization, texts)
    template = (conversation_template(tokenizer) or "") if objective.renders_conversations() else ""
    marks = dict.fromkeys(_MARK.findall(template))
    if split := [mark for mark in marks if len(tokenizer(mark, add_special_tokens=False)["input_ids"]) > 1]:
        keys[
            "# The template's marks are several tokens each. If the model has not learned them so, make them one each:"
        ] = ""
        keys[f"# added_tokens: {json.dumps(split)}"] = ""
    return keys, tokenizer


def _given_options(proposal: ObjectiveProposal, request: NewRecipeRequest) -> dict[str, AdvisedValue]:
    """Return the options of the objective that the user gives, beside those with flags of their own; RecipeError for others than it has."""
    known = objectives.import_objective_class(proposal.objective).options_class.model_fields
    flags = {option: flag for flag, option in proposal.advice.columns.items()}
    given = {name: value for name, value in request.options.items() if name not in OPTION_FLAGS}
    for name in given:
        if name in flags:
            raise RecipeError(option_flag(name), "names a column", f"use --{flags[name]}")
        if name not in known:
            what = f"{proposal.objective} has no such option"
            raise RecipeError(option_flag(name), what, suggestion(name, sorted(known), "options"))
    return {name: AdvisedValue(value, "as you say") for name, value in given.items()}


def _ask_for_options(
    proposal: ObjectiveProposal, tokenizer: PreTrainedTokenizerBase, request: NewRecipeRequest
) -> dict[str, AdvisedValue]:
    questions, given = proposal.advice.asked_options(tokenizer), request.options
    for name in (given.keys() & OPTION_FLAGS.keys()) - questions.keys():
        what = f"has no effect on {proposal.objective} with this tokenizer"
        raise RecipeError(option_flag(name), what, "remove it")
    lacking = [
        option_flag(name) + (" CODE" if name in OPTION_FLAGS else "=VALUE") for name in questions if name not in given
    ]
    fix = f"add {' '.join(lacking)}"
    answers = {
        name: given[name] if name in given else request.ask(option_flag(name), question, fix)
        for name, question in questions.items()
    }
    return {name: AdvisedValue(value, questions[name].partition(",")[0].lower()) for name, value in answers.items()}


def _saying_what_is_cut(
    quality: SampleQuality, name: str, chosen: AdvisedValue, lengths: Sequence[int]
) -> SampleQuality:
    said = [f"{name} {chosen.value} {chosen.why}"] if max(lengths) > chosen.value else []
    return quality._replace(remarks=[*quality.remarks, *said])


def _options(proposal: ObjectiveProposal, sample: RowSample, facts: ModelFacts | None) -> dict[str, AdvisedValue]:
    """Return options of the objective that name no column."""
    advice = proposal.advice
    options = advice.options(proposal.columns, has_template=bool(facts and facts.has_chat_template))
    options |= proposal.found
    messages = {name for name, column in sample.columns.items() if column.kind == "messages"}
    if any(proposal.columns.get(flag) in messages for flag in advice.conversations):
        options |= {name: AdvisedValue(value, "messages") for name, value in advice.conversation_options.items()}
    return options


def strip_reasons(keys: Keys) -> dict[str, Any]:
    """Return keys with their values alone, as the schema reads them."""
    values = {
        key: value.value if isinstance(value, AdvisedValue) else value for key, value in keys.items() if key[0] != "#"
    }
    return {key: strip_reasons(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _build(proposal: ObjectiveProposal, options: Keys) -> Objective[Any]:
    content = {"name": proposal.objective, **proposal.options, **strip_reasons(options)}
    return objectives.build_objective(ObjectiveChoice.model_validate(content))


def _encoded(rows: Sequence[Row], encoder: RowEncoder) -> Iterator[list[Example]]:
    """Yield the training sequences of each row; none for a row that cannot be encoded."""
    lenient = replace(encoder, marks_rows=True)
    numbered = [{**row, "row_id": i} for i, row in enumerate(rows)]
    for first in range(0, len(numbered), _BATCH_ROWS):
        yield from (row.examples for row in lenient.encode(numbered[first : first + _BATCH_ROWS]))


def _lengths(quality: SampleQuality, encoder: RowEncoder) -> tuple[SampleQuality, list[int], list[int]]:
    """Return the whole lengths of rows in tokens, of several sequences that of the longest, and those of second texts such as translations, if rows have them.

    Rows that cannot be encoded, for example because the chat template refuses them, are then no longer usable.
    """
    objective, (rows, step) = encoder.objective, quality.sample(_MEASURED_ROWS)
    of_rows = list(_encoded(rows, encoder))
    refused = {id(row): why for row, own in zip(rows, of_rows, strict=True) if (why := _refusal(row, own, encoder))}
    tried = [own for row, own in zip(rows, of_rows, strict=True) if id(row) not in refused]
    encoded = [examples for examples in tried if examples]
    if not encoded:
        why = next(iter(refused.values()), "none of their tokens has a loss")
        raise DataError("the training rows", f"none can be learned from: {why}", _NO_EXAMPLES)
    quality = quality.without(refused, step)
    remarks = [*quality.remarks, *_remarks_on_sequences(objective, tried, len(rows))]
    lengths = [max(map(objective.length, examples)) for examples in encoded]
    targets = [max(len(example["labels"]) for example in examples) for examples in encoded if objective.has_target_text]
    return quality._replace(remarks=remarks), lengths, targets


def _remarks_on_sequences(objective: Objective[Any], of_rows: Sequence[Sequence[Example]], rows: int) -> Iterator[str]:
    """Yield what a person should know of the sequences of some rows, `rows` with those that are refused."""
    if silent := sum(not own for own in of_rows):
        yield f"{silent:,} of {rows:,} rows have no token to learn, so training leaves them out"
    several = sum(len(own) > 1 for own in of_rows)
    if several and objective.renders_conversations():
        what = "are a sequence for each answer, as where templates drop earlier thoughts"
        yield f"{several:,} of {rows:,} conversations {what}"


def _refusal(row: Row, examples: Sequence[Example], encoder: RowEncoder) -> str | None:
    """Return why a row is set aside or cannot be encoded; None if it merely has no token to learn."""
    try:
        why = objectives.why_row_unusable(encoder.objective, row)
        if not why and not examples:
            encoder.encode([{**row, "row_id": 0}])
    except DataError as error:
        return error.what
    return why


def _can_train(
    model: Keys, objective: Objective[Any], state: ObjectiveState, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Whether the objective can train the model, with its options: not all models keep packed examples apart."""
    from trainer.model.network import build_model_to_train

    transformers.logging.set_verbosity_error()  # that a head is new is no news
    whole = Model.model_validate(strip_reasons({key: value for key, value in model.items() if key != "lora"}))
    network = build_model_to_train(whole, objective=objective, state=state, tokenizer=tokenizer, seed=SEED)
    try:
        objective.check_model(network)
    except RecipeError:
        return False
    return True


def _checks_of_labels(quality: SampleQuality) -> dict[str, AdvisedValue]:
    if not quality.unlabelled:
        return {}
    check = {
        "type": "expect_column_values_to_not_be_in_set",
        "column": quality.unlabelled,
        "value_set": [quality.no_label],
    }
    return {"expectations": AdvisedValue([check], f"`{quality.no_label}` stands for no label")}


def _best_metric(advice: NewRecipeAdvice, objective: Objective[Any], quality: SampleQuality) -> AdvisedValue:
    if (advised := advice.best_metric(quality.labels)).value in directions_in_training(objective.metrics):
        return advised
    return AdvisedValue(objective.main_metric, "what the gate compares")  # its options decide which metrics it has


def _data_keys(
    found: FoundSource, proposal: ObjectiveProposal, quality: SampleQuality, shares: Keys, groups: Sequence[str]
) -> Keys:
    source: dict[str, Any] = dict(found.keys)
    if len(source.get("revision", "")) in range(1, 40):
        source["revision"] = AdvisedValue(source["revision"], "a branch: every run asks whether it has a new commit")
    corpus = {"corpus": AdvisedValue(found.corpus, "what held-out queries search")} if found.corpus else {}
    data: dict[str, Any] = {"source": source, **corpus} | ({"split": shares} if shares else {})
    if shares:
        data |= _group_keys(proposal, quality, min(share.value for share in shares.values()), groups)
    label = proposal.columns.get("label")
    if label and shares and "group_by" not in data and min(quality.labels.values(), default=_FEW_ROWS) < _FEW_ROWS:
        data["split"] = {**shares, "stratify": AdvisedValue(label, "some labels have few rows: each has one in train")}
    return data


def _group_keys(
    proposal: ObjectiveProposal, quality: SampleQuality, smallest_share: float, groups: Sequence[str]
) -> dict[str, Any]:
    """Return by which columns rows belong into one split: those of texts that are repeated, or those that are judged together."""
    columns = input_columns(proposal)
    if not columns or not quality.repeated or quality.known:
        together = AdvisedValue([*groups], "rows that are judged together are in one split")
        return {"group_by": together} if groups else {}
    if quality.largest_group > smallest_share * len(quality.usable):
        why = "rows repeat a text, one of them so often that it would fill a split: the splits share texts"
        return {f"# {quality.repeated:,} {why}.": ""}
    why = f"{quality.repeated:,} rows repeat a text: all rows with it are in one split"
    if not quality.is_written_alike:
        why += " if they are written alike; some have other white space, so strip texts at the source"
    return {"group_by": AdvisedValue(columns, why)}


def _objective_keys(proposal: ObjectiveProposal, quality: SampleQuality) -> dict[str, Any]:
    keys = {"name": AdvisedValue(proposal.objective, proposal.advice.meaning)}
    for flag, column in proposal.columns.items():
        facts, labels = "", quality.labels.most_common()
        if flag in ("label", "labels") and labels:
            (most, rows), (least, few) = labels[0], labels[-1]
            facts = f"{len(labels)} labels, from {few:,} rows ({least[:40]}) to {rows:,} ({most[:40]})"
        elif flag == "spans":
            facts = f"{len(labels)} labels: {', '.join(f'{label} {count:,}' for label, count in labels[:5])}"
        keys[proposal.advice.columns[flag]] = AdvisedValue(column, facts)
    return keys


def _evaluation_keys(
    proposal: ObjectiveProposal, quality: SampleQuality, best_metric: AdvisedValue, test_rows: int
) -> Keys:
    keys = {"split": "test", "compare_untrained": AdvisedValue(value=True, why="the first release must be better")}
    label = proposal.columns.get("label")
    if label and len(quality.labels) <= _MAX_SLICES:
        keys["slices"] = AdvisedValue([label], "the accuracy within each label, which is its recall, too")
    if proposal.advice.gates_on_best_metric:
        keys["gate"] = {"metric": choices.choose_gate_metric(best_metric, quality.labels, test_rows)}
    return keys
