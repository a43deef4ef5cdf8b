"""A model from a folder, ready to answer: by the pipelines of transformers, where they have one for its task.

The task follows from the architecture that config.json names, or from what an adapter says; an adapter is merged into its base
model, which comes from the Hub of HF_ENDPOINT. Weights are read from safetensors only, and no code of a repository is run. What a
release records of its objective says how a prompt is written (`Objective.prompt_form`). For a task without a pipeline, that objective
answers a row (`Objective.prediction_lines`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from params import DataError, ModelError, RecipeError
from params.schema import ObjectiveChoice
from tasks.digests import PROVENANCE
from tasks.inference.answer import ModelAnswer, NearText, PredictedLabel, PredictedNumber, PredictedSpan
from trainer import objectives
from trainer.model.adapters import TASKS, BaseModelReference, is_adapter_folder
from trainer.model.limits import window_overlap
from trainer.model.network import load_trained_model
from trainer.objectives.bases.answer_form import AnswerForm
from trainer.objectives.bases.objective import Objective, PromptForm
from trainer.objectives.bases.position_limits import NO_LIMIT, find_position_limits
from trainer.objectives.bases.sentence_transformers_files import MODULES, embed_texts, set_prompts
from trainer.objectives.bases.text_pairs import read_pair
from trainer.objectives.bases.texts import strip_repeated_special_tokens
from trainer.runtime.library_errors import as_remote_code_error
from trainer.runtime.model_files import check_safe_to_load

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NEAREST: Final = "sentence-similarity"
_TASKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "text-generation": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "_continue"),
    "text2text-generation": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "_rewrite"),
    "text-classification": (
        *("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "_classify"),
    ),
    "token-classification": (
        *("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "_find_spans"),
    ),
    "fill-mask": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "_fill"),
    _NEAREST: ("AutoModel", "", "_find_near"),
}
"""For each task the class that loads a model, transformers' table of the architectures that it knows, and the method that answers."""
_MAX_LABELS: Final = 5
"""Labels that are shown; more only if more of several labels are predicted."""
_NEAR: Final = 10
"""Texts that are shown of those that were searched."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.*", "*.model")


@dataclass(frozen=True)
class AnswerOptions:
    """How to answer."""

    max_new_tokens: int = 64
    """Maximum length of a generated text, in tokens."""
    temperature: float = 0.0
    """Logits are divided by it before a token is drawn; 0 takes the likeliest token, so that an answer repeats."""
    among: tuple[str, ...] = ()
    """Texts of which an embedding finds the nearest; by default the lines of the text after its first."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The arguments of generation that say how a token is chosen."""
        return {"do_sample": True, "temperature": self.temperature} if self.temperature > 0 else {"do_sample": False}


@dataclass(frozen=True)
class AnsweringModel:
    """A model in memory."""

    where: str
    """The model in messages."""
    task: str
    """One of `_TASKS`, or that of the objective which answers."""
    form: PromptForm
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    positions: int | None
    """Most tokens that the model can read and write together; None without a limit."""
    _pipeline: Any
    """transformers' own; None for sequence to sequence, for embeddings and where the objective answers, for which it has none."""
    _objective: Objective[Any] | None = None
    """That of the release, if it answers: its task is none of `_TASKS`."""
    _vectors: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Those of the texts that were searched."""

    @classmethod
    def load(cls, folder: Path, where: str) -> AnsweringModel:
        """Load the model in a folder.

        Raises:
            ModelError: it has no weights, no tokenizer or no task that can be used here, or names files that are not its own.
        """
        from transformers import AutoConfig, AutoTokenizer, pipeline

        check_safe_to_load(folder, where=where, adapter=True)
        section = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a release need not record its objective
            section = dict(json.loads((folder / PROVENANCE).read_bytes())["objective"])
        objective = _objective_that_answers(section)
        if objective:
            task = objective.pipeline_tag
        elif (folder / MODULES).exists():
            task = _NEAREST
        elif is_adapter_folder(folder):
            named = BaseModelReference.of(folder).task
            task = _task([named] if named else [], where, "adapter_config.json")
        else:
            with _load_errors(where):
                config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            task = _task(config.architectures or [], where, "config.json")
        network = _load_network(folder, objective or task, where)
        if not any(file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)):
            what = "has no tokenizer, which reads the text"  # transformers would make an empty one
            raise ModelError(where, what, "name a revision that has the tokenizer beside the model")
        with _load_errors(where, "its tokenizer "):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        limits = find_position_limits(network.config)
        positions, longest = limits.most, limits.table or NO_LIMIT
        if tokenizer.model_max_length > longest:
            tokenizer.model_max_length = positions or tokenizer.model_max_length
        form = objectives.prompt_form(section, has_template=bool(tokenizer.chat_template))
        made = None
        if task == _NEAREST:
            set_prompts(tokenizer, None, None)
        elif objective is None and task != "text2text-generation":
            made = pipeline(task, model=network, tokenizer=tokenizer, trust_remote_code=False)
        return cls(where, task, form, network.eval(), tokenizer, positions, made, objective)

    def answer(self, text: str, options: AnswerOptions) -> ModelAnswer:
        """Return the model's answer to a text.

        Raises:
            DataError: the text is empty, or longer than the model can read.
            ModelError: the model fails.
        """
        import torch

        if not text.strip():
            raise DataError("the text", "is empty", "write one")
        answer = self._answer_row if self._objective else getattr(self, _TASKS[self.task][2])
        try:
            with torch.inference_mode():
                found: ModelAnswer = answer(text, options)
                return found
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            what = f"cannot answer: {type(error).__name__}: {error}"
            fix = "try a shorter text, or load it with transformers to see more"
            raise ModelError(self.where, what, fix) from error

    def _classify(self, text: str, _: AnswerOptions) -> ModelAnswer:
        form = AnswerForm.of(self.network.config.to_dict())
        given, arguments = self._given(text, form), form.call_arguments if form else {}
        found = self._pipeline(given, top_k=None, truncation=True, **arguments)
        own = [(str(one["label"]), float(one["score"])) for one in found]
        if self.network.config.problem_type == "regression":
            return ModelAnswer(
                text, numbers=[PredictedNumber(*one) for one in own], note=self._unread(given, **arguments)
            )
        labels = [PredictedLabel(*one) for one in own]
        thresholds, note, reached = getattr(self.network.config, "label_thresholds", None), self._unread(given), None
        if thresholds:
            reached = [one.name for one in labels if one.probability >= thresholds.get(one.name, 0.5)]
            told = f"predicted, by the threshold of each label: {', '.join(reached) or 'none'}"
            note = f"{told}; {note}" if note else told
        labels = [one for place, one in enumerate(labels) if place < _MAX_LABELS or one.name in (reached or ())]
        return ModelAnswer(text, labels=labels, note=note, predicted=reached)

    def _given(self, text: str, form: AnswerForm | None) -> str | dict[str, str]:
        """Return a text or a pair as the model reads it; of one that gives answers a number, a prompt with its answer."""
        try:
            if form:
                return form.text_of_json(text, self.tokenizer)
        except ValueError as error:
            fix = """write '{"prompt": "...", "completion": "..."}', each a text or a list of messages"""
            raise DataError("the text", f"is no prompt with its answer: {error}", fix) from error
        if self.form.is_pair and read_pair(text) is None:
            what, fix = (
                "is one text, and the model reads two together",
                """write '{"text": "...", "text_pair": "..."}'""",
            )
            raise DataError("the text", what, fix)
        return read_pair(text) or text

    def _find_spans(self, text: str, _: AnswerOptions) -> ModelAnswer:
        """As the pipeline groups sub-words, without the spaces that some tokenizers count to a word."""
        limit = self.tokenizer.model_max_length
        in_windows = self._tokens(text) > limit and self.tokenizer.pad_token_id is not None
        windows = {"stride": window_overlap(limit)} if in_windows else {}
        spans = []
        for one in self._pipeline(text, aggregation_strategy="simple", **windows):
            start, end = int(one["start"]), int(one["end"])
            words = text[start:end]
            start += len(words) - len(words.lstrip())
            if words.strip():
                label, end = str(one["entity_group"]), start + len(words.strip())
                spans.append(PredictedSpan(label, start, end, words.strip(), float(one["score"])))
        return ModelAnswer(text, spans=spans, note=None if in_windows else self._unread(text))

    def _answer_row(self, text: str, _: AnswerOptions) -> ModelAnswer:
        assert self._objective is not None
        row, columns = None, self._objective.columns()
        names = [name for name, kind in columns.items() if kind in ("string", "labels")]  # and not the target
        with contextlib.suppress(ValueError):
            row = json.loads(text)
        if not isinstance(row, dict) or any(row.get(name) in (None, "") for name in names):
            what = f"the model reads {', '.join(names)}"
            raise DataError("the text", what, f"write them as JSON: {json.dumps(dict.fromkeys(names, '...'))}")
        row = dict.fromkeys(columns) | row | {"row_id": 0}
        limit = min(self.tokenizer.model_max_length, NO_LIMIT)
        lines = self._objective.prediction_lines(row, self.network, self.tokenizer, limit, {})
        return ModelAnswer(text, generated="\n".join(lines))

    def _find_near(self, text: str, options: AnswerOptions) -> ModelAnswer:
        query, *others = [text] if options.among else text.splitlines()
        among = tuple(one for one in options.among or others if one.strip() and one != query)
        if not among:
            what, fix = "is searched among other texts, and there are none", "give several texts, or --among FILE"
            raise DataError("the text", what, fix)
        if among not in self._vectors:
            self._vectors[among] = embed_texts(self.network, self.tokenizer, among, "document")
        cosines = self._vectors[among] @ embed_texts(self.network, self.tokenizer, [query], "query")[0]
        found = [NearText(among[i], float(cosines[i])) for i in cosines.argsort(descending=True, stable=True)[:_NEAR]]
        return ModelAnswer(query, near=found, note=self._unread(query))

    def _fill(self, text: str, _: AnswerOptions) -> ModelAnswer:
        mask = self.tokenizer.mask_token
        if text.count(mask) != 1:
            raise DataError(
                "the text", f"has {text.count(mask)} masks", f"write {mask} once, for what the model is to tell"
            )
        found = self._pipeline(text, top_k=5, tokenizer_kwargs={"truncation": True})
        labels = [PredictedLabel(str(one["token_str"]).strip(), float(one["score"])) for one in found]
        return ModelAnswer(text, labels=labels, note=self._unread(text))

    def _continue(self, text: str, options: AnswerOptions) -> ModelAnswer:
        prompt, longest = self._prompt(text), options.max_new_tokens
        if self.positions:
            used = self._tokens(prompt)
            if used >= self.positions:
                what = f"has {used} tokens with its prompt, and {self.where} can read {self.positions - 1}"
                raise DataError("the text", what, "shorten it")
            longest = min(longest, self.positions - used)
        (found,) = self._pipeline(prompt, return_full_text=False, max_new_tokens=longest, **options.sampling)
        return ModelAnswer(text, generated=str(found["generated_text"]))

    def _rewrite(self, text: str, options: AnswerOptions) -> ModelAnswer:
        prompt = str(self._prompt(text))
        encoded = self.tokenizer(prompt, truncation=True, return_tensors="pt").to(self.network.device)
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        ids = self.network.generate(**inputs, **options.sampling, max_new_tokens=options.max_new_tokens)
        generated = self.tokenizer.decode(ids[0], skip_special_tokens=True)
        return ModelAnswer(text, generated=str(generated), note=self._unread(prompt))

    def _prompt(self, text: str) -> str | list[dict[str, str]]:
        """Return a text as the model learned to read it: with one token of begin of text, also where the text writes it."""
        prompt = self.form.prompt(text)
        return prompt if not isinstance(prompt, str) else strip_repeated_special_tokens([prompt], self.tokenizer)[0]

    def _tokens(self, prompt: str | dict[str, str] | list[dict[str, str]], **arguments: bool) -> int:
        if isinstance(prompt, str | dict):
            given = prompt if isinstance(prompt, dict) else {"text": prompt}
            return len(self.tokenizer(**given, verbose=False, **arguments)["input_ids"])
        encoded = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
        return len(encoded["input_ids"])

    def _unread(self, text: str | dict[str, str], **arguments: bool) -> str | None:
        """Return a sentence about the end of a text that is too long; None if the model reads all of it."""
        count, limit = self._tokens(text, **arguments), self.tokenizer.model_max_length
        end = "last" if self.tokenizer.truncation_side == "left" else "first"
        read = f"the model read {limit} of {count} tokens, without the end of the longer text"
        read = f"the model read the {end} {limit} of {count} tokens" if isinstance(text, str) else read
        return read if count > limit else None


def _task(names: Collection[str], where: str, file: str) -> str:
    """Return what a model is for, by the architectures that its configuration names, or by the task that an adapter names."""
    from transformers.models.auto import modeling_auto as auto

    tried = {task: table for task, (_, table, _) in _TASKS.items() if task != _NEAREST}
    for task, table in tried.items():
        known = {TASKS.get(task)}
        for value in getattr(auto, table).values():
            known.update([value] if isinstance(value, str) else value)
        if known.intersection(names):
            return task
    what = f"its {file} names {', '.join(sorted(names)) or 'no task'}, for which there is no way to try it"
    raise ModelError(where, what, f"try a model for {', '.join(tried)}, or a release whose record names its objective")


def _objective_that_answers(section: Mapping[str, Any] | None) -> Objective[Any] | None:
    """Return the objective that a release records, if it answers rows by itself: transformers has no pipeline for its task, or none is used."""
    with contextlib.suppress(ValueError, RecipeError):
        found = objectives.build_objective(ObjectiveChoice.model_validate(section))
        if found.pipeline_tag not in _TASKS and objectives.overrides_method(found, "prediction_lines"):
            return found
    return None


def _load_network(folder: Path, of: Objective[Any] | str, where: str) -> PreTrainedModel:
    """Return the model of an objective, or of a task."""
    import transformers

    model_class = getattr(transformers, _TASKS[of][0]) if isinstance(of, str) else of.model_class()
    network: PreTrainedModel
    with _load_errors(where):
        if is_adapter_folder(folder):
            return load_trained_model(folder, model_class)
        network, info = model_class.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, dtype="float32", output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        what = f"its weights lack {', '.join(missing[:5])}, so its answers would be random"
        raise ModelError(where, what, "name a revision with a whole model")
    return network


@contextlib.contextmanager
def _load_errors(where: str, part: str = "") -> Iterator[None]:
    """Turn what transformers raises for a folder that it cannot load into a ModelError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        what = f"{part}cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        fix = "name a model that transformers can load without code of its own"
        raise as_remote_code_error(where, error) or ModelError(where, what, fix) from error
