"""A model from a folder, ready to answer: by the pipelines of transformers, where they have one for its task.

The task follows from the architecture that config.json names, or from what an adapter says; an adapter is merged into its base
model, which comes from the Hub of HF_ENDPOINT. Weights are read from safetensors only, and no code of a repository is run. What a
release records of its objective says how a prompt is written (`Objective.prompt_form`). For a task without a pipeline, that objective
answers a row (`Objective.prediction_lines`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from params import DataError, ModelError
from tasks.digests import ReleaseRecord
from tasks.inference import model_loading
from tasks.inference.answer import ModelAnswer, NearText, PredictedLabel, PredictedNumber, PredictedSpan, RankedText
from trainer import objectives
from trainer.model.adapters import BaseModelReference, is_adapter_folder
from trainer.model.limits import window_overlap
from trainer.objectives.bases.conversations.chat import ConversationTokenizer
from trainer.objectives.bases.conversations.messages import looks_like_conversation
from trainer.objectives.bases.conversations.tools import read_tools
from trainer.objectives.bases.lazy_imports import PreTrainedModel, PreTrainedTokenizerBase, torch, transformers
from trainer.objectives.bases.network.position_limits import NO_LIMIT, PositionLimits, find_position_limits
from trainer.objectives.bases.objective import Objective, PromptForm
from trainer.objectives.bases.preferences.answer_form import AnswerForm
from trainer.objectives.bases.texts.pairs import read_pair
from trainer.objectives.bases.texts.tokenizing import strip_repeated_special_tokens
from trainer.objectives.bases.vectors.sentence_transformers_files import MODULES, embed_texts, set_prompts
from trainer.runtime.library_errors import panics_as_errors
from trainer.runtime.memory import import_network_code
from trainer.runtime.model_files import check_safe_to_load

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
    """Texts of which an embedding finds the nearest, or which a ranker puts in order; by default the lines of the text after its first."""

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
    """One of `TASKS`, or that of the objective which answers."""
    form: PromptForm
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    positions: int | None
    """Most tokens that the model can read and write together; None without a limit."""
    _pipeline: Any
    """transformers' own; None for sequence to sequence, for embeddings and where the objective answers, for which it has none."""
    _objective: Objective[Any] | None = None
    """That of the release, if it answers: its task is none of `TASKS`."""
    _vectors: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Those of the texts that were searched."""

    @classmethod
    def load(cls, folder: Path, where: str) -> AnsweringModel:
        """Load the model in a folder.

        Raises:
            ModelError: it has no weights, no tokenizer or no task that can be used here, or names files that are not its own.
        """
        check_safe_to_load(folder, where=where, adapter=True)
        import_network_code()
        record = None
        with contextlib.suppress(OSError, ValueError):  # a release of another project need not record its objective
            record = ReleaseRecord.of(folder)
        objective = model_loading.objective_that_answers(record.objective if record else None)
        task = objective.pipeline_tag if objective else _find_task(folder, where)
        network = model_loading.load_network(folder, objective or task, where)
        tokenizer = _load_tokenizer(folder, where)
        limits = find_position_limits(network.config)
        _limit_texts(tokenizer, limits)
        if record is None and task == "text-classification" and model_loading.is_cross_encoder(folder):
            form = _form_of_cross_encoder(network)
        else:
            section = record.objective.model_dump() if record else None
            form = objectives.prompt_form(section, has_template=bool(tokenizer.chat_template))
        made = None
        if task == model_loading.NEAREST:
            set_prompts(tokenizer, None, None)
        elif objective is None and task != "text2text-generation":
            made = transformers.pipeline(task, model=network, tokenizer=tokenizer, trust_remote_code=False)
        return cls(where, task, form, network.eval(), tokenizer, limits.most, made, objective)

    @property
    def reads_several(self) -> bool:
        """Whether the model answers a text by looking at others."""
        return self.task == "sentence-similarity" or self.form.ranks

    def answer(self, text: str, options: AnswerOptions) -> ModelAnswer:
        """Return the model's answer to a text.

        Raises:
            DataError: the text is empty, or longer than the model can read.
            ModelError: the model fails.
        """
        if not text.strip():
            raise DataError("the text", "is empty", "write one")
        answer = self._answer_row if self._objective else getattr(self, model_loading.TASKS[self.task].method)
        try:
            with torch.inference_mode(), panics_as_errors():
                found: ModelAnswer = answer(text, options)
                return found
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            what = f"cannot answer: {type(error).__name__}: {error}"
            fix = "try a shorter text, or load it with transformers to see more"
            raise ModelError(self.where, what, fix) from error

    def _classify(self, text: str, options: AnswerOptions) -> ModelAnswer:
        if self.form.ranks and read_pair(text) is None:
            return self._rank(text, options)
        form = AnswerForm.of(self.network.config.to_dict())
        given, arguments = self._given(text, form), form.call_arguments if form else {}
        found = self._pipeline(given, top_k=None, truncation=True, **arguments)
        own = [(str(one["label"]), float(one["score"])) for one in found]
        if self.network.config.problem_type == "regression":
            return ModelAnswer(
                text, numbers=[PredictedNumber(*one) for one in own], note=self._unread(given, **arguments)
            )
        return self._answer_with_labels(text, [PredictedLabel(*one) for one in own], self._unread(given))

    def _answer_with_labels(self, text: str, labels: Sequence[PredictedLabel], note: str | None) -> ModelAnswer:
        """Return the likeliest labels; of several that may be predicted together, all that reach their threshold."""
        thresholds = getattr(self.network.config, "label_thresholds", None)
        if not thresholds:
            return ModelAnswer(text, labels=labels[:_MAX_LABELS], note=note)
        reached = [one.name for one in labels if one.probability >= thresholds.get(one.name, 0.5)]
        told = f"predicted, by the threshold of each label: {', '.join(reached) or 'none'}"
        shown = [one for place, one in enumerate(labels) if place < _MAX_LABELS or one.name in reached]
        return ModelAnswer(text, labels=shown, note=f"{told}; {note}" if note else told, predicted=reached)

    def _rank(self, text: str, options: AnswerOptions) -> ModelAnswer:
        query, documents = _query_and_others(text, options)
        pairs = [{"text": query, "text_pair": one} for one in documents]
        found = [float(one["score"]) for (one,) in self._pipeline(pairs, top_k=None, truncation=True)]
        in_order = sorted(zip(documents, found, strict=True), key=lambda pair: -pair[1])
        cut = sum(self._unread(pair) is not None for pair in pairs)
        note = f"the model did not read the end of {cut} of {len(pairs)} documents" if cut else None
        return ModelAnswer(query, ranked=[RankedText(*pair) for pair in in_order], note=note)

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
        query, among = _query_and_others(text, options)
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
            used = self._tokens(prompt, self._tools(text))
            if used >= self.positions:
                what = f"has {used} tokens with its prompt, and {self.where} can read {self.positions - 1}"
                raise DataError("the text", what, "shorten it")
            longest = min(longest, self.positions - used)
        tools = {"tools": defined} if (defined := self._tools(text)) else {}
        (found,) = self._pipeline(prompt, return_full_text=False, max_new_tokens=longest, **tools, **options.sampling)
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
        prompt = (self.form.is_chat and self._messages(text)) or self.form.prompt(text)
        return prompt if not isinstance(prompt, str) else strip_repeated_special_tokens([prompt], self.tokenizer)[0]

    def _messages(self, text: str) -> list[dict[str, Any]] | None:
        """Return the messages that a text says as `{"messages": [...]}`, as they are learned; None if it is another text. DataError if they cannot be read."""
        found = _conversation_in(text)
        if found is None:
            return None
        fix = """write '{"messages": [{"role": "user", "content": "..."}]}', and beside them `tools` if there are any"""
        if not found["messages"] or not looks_like_conversation(found["messages"]):
            raise DataError("the text", "has no list of messages", fix)
        try:
            return self._conversations.read(found["messages"])
        except ValueError as error:
            raise DataError("the text", f"has messages that cannot be read: {error}", fix) from error

    def _tools(self, text: str) -> list[dict[str, Any]]:
        """Return the tools that stand beside the messages of a text. DataError if they cannot be read, or the chat template writes none."""
        found = _conversation_in(text) if self.form.is_chat else None
        try:
            tools = read_tools((found or {}).get("tools"))
            if tools and (reason := self._conversations.with_tools(tools).why_no_tools()):
                raise ValueError(reason)  # noqa: TRY301
        except ValueError as error:
            raise DataError("the text", f"cannot be read: {error}", "remove `tools`, or correct them") from error
        return tools

    @cached_property
    def _conversations(self) -> ConversationTokenizer:
        return ConversationTokenizer(self.tokenizer)

    def _tokens(
        self, prompt: str | dict[str, str] | list[dict[str, str]], tools: Sequence[Any] = (), /, **arguments: bool
    ) -> int:
        if isinstance(prompt, str | dict):
            given = prompt if isinstance(prompt, dict) else {"text": prompt}
            return len(self.tokenizer(**given, verbose=False, **arguments)["input_ids"])
        defined = {"tools": [*tools]} if tools else {}
        encoded = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, **defined)
        return len(encoded["input_ids"])

    def _unread(self, text: str | dict[str, str], **arguments: bool) -> str | None:
        """Return a sentence about the end of a text that is too long; None if the model reads all of it."""
        count, limit = self._tokens(text, **arguments), self.tokenizer.model_max_length
        end = "last" if self.tokenizer.truncation_side == "left" else "first"
        read = f"the model read {limit} of {count} tokens, without the end of the longer text"
        read = f"the model read the {end} {limit} of {count} tokens" if isinstance(text, str) else read
        return read if count > limit else None


def _conversation_in(text: str) -> dict[str, Any] | None:
    """Return what a text says as JSON of `messages`, with `tools` beside them or not; None if it is another text."""
    found = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
    is_conversation = isinstance(found, dict) and "messages" in found and found.keys() <= {"messages", "tools"}
    return found if is_conversation else None


def _query_and_others(text: str, options: AnswerOptions) -> tuple[str, tuple[str, ...]]:
    """Return a query and the texts to look at for it: those of the options, or the lines below the first."""
    query, *others = [text] if options.among else text.splitlines()
    among = tuple(one for one in options.among or others if one.strip() and one != query)
    if not among:
        what, fix = "is searched among other texts, and there are none", "give several texts, or --among FILE"
        raise DataError("the text", what, fix)
    return query, among


def _find_task(folder: Path, where: str) -> str:
    """Return the task of a model that no objective answers for; ModelError if it has none that can be used here."""
    if (folder / MODULES).exists() and not model_loading.is_cross_encoder(folder):
        return model_loading.NEAREST
    if is_adapter_folder(folder):
        named = BaseModelReference.of(folder).task
        return model_loading.find_task([named] if named else [], where, "adapter_config.json")
    with model_loading.load_errors(where):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return model_loading.find_task(config.architectures or [], where, "config.json")


def _limit_texts(tokenizer: PreTrainedTokenizerBase, limits: PositionLimits) -> None:
    """Let the tokenizer cut texts at the positions of the network, where it allows more than these."""
    if tokenizer.model_max_length > (limits.table or NO_LIMIT):
        tokenizer.model_max_length = limits.most or tokenizer.model_max_length


def _form_of_cross_encoder(network: PreTrainedModel) -> PromptForm:
    is_number = network.config.problem_type == "regression"
    return PromptForm(is_pair=True, ranks=network.config.num_labels == 1 and not is_number)


def _load_tokenizer(folder: Path, where: str) -> PreTrainedTokenizerBase:
    if not any(file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)):
        what = "has no tokenizer, which reads the text"  # transformers would make an empty one
        raise ModelError(where, what, "name a revision that has the tokenizer beside the model")
    with model_loading.load_errors(where, "its tokenizer "):
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
