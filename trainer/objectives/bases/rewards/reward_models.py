"""Reward models: how good completions are, as a published model or one in a local folder says.

    rewards:
      - {model: owner/name@0123456789abcdef0123456789abcdef01234567}
      - {model: runs/answers/model}

Such a model has one output for a text (`AutoModelForSequenceClassification`). It reads prompt and completion with its own tokenizer, as
it learned to (`bases.preferences.answer_form`); one of another project does not say how, so the recipe may. Weights are read from safetensors, and no
code of a repository is run. A reward does not depend on the other completions of a batch, but for the rounding of its last digits.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field
from pydantic import model_validator as validate_model

from params import DataError, ModelError
from params.foundation.artifacts import fix_missing_model
from params.sections.base import Call, Importable, Section, conflict_error, repo_id_problem
from trainer.objectives.bases.conversations.chat import ConversationTokenizer, conversation_template
from trainer.objectives.bases.labels.names import require_one_output
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch, transformers
from trainer.objectives.bases.network.alignment import align_weights
from trainer.objectives.bases.network.position_limits import find_position_limits
from trainer.objectives.bases.preferences.answer_form import AnswerForm, as_messages
from trainer.objectives.bases.texts.padding import pad_to_tensor, put_padding_before_text
from trainer.objectives.bases.texts.tokenizing import TOKEN_TYPES, Tokenizer, types_of_single_texts
from trainer.rewards import Reward, RewardFunction, RewardRow
from trainer.runtime.library_errors import as_loading_error, panics_as_errors
from trainer.runtime.model_files import check_safe_to_load, has_only_unsafe_weights

logger = logging.getLogger(__name__)
PROMPT: Final = "prompt_text"
"""The key of a reward's row with the prompt as its template has filled it, before a chat template renders it."""
_HEAD: Final = "ForSequenceClassification"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_BATCH: Final = 16
"""Texts that are read at a time."""


def _check_name(name: str) -> str:
    path, at, revision = name.partition("@")
    if at and (problem := repo_id_problem(path)):
        raise conflict_error(f"the Hub refuses {path!a}: {problem}", "write owner/name@ and the hash of a commit")
    if at and not revision:
        raise conflict_error(f"{name!a} names no commit", f"write {path}@ and the hash of a commit")
    return name


class RewardSource(Section):
    """A reward: a function or a model. Give either `name` or `model`."""

    name: Importable | None = None
    """`package.module:name` of a function of (completions, rows) that returns one number per completion."""
    arguments: dict[str, Any] = Field(default={})
    """Keyword arguments of the function."""
    model: Annotated[str, AfterValidator(_check_name)] | None = None
    """A reward model: `owner/name@commit` on the Hub, or a local folder. It must hold safetensors; code in it is never run."""
    reads: AnswerForm | None = None
    """How a model that does not say so reads a prompt and a completion: `{chat: true}`, or `{separator: " "}`. Default: messages if
    `objective.chat` is true, else one text."""

    @validate_model(mode="before")
    @classmethod
    def _read_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @validate_model(mode="after")
    def _is_one(self) -> Self:
        if (self.name is None) == (self.model is None):
            raise conflict_error("needs exactly one of `name` and `model`", "name a function or a model")
        if self.model is None and self.reads is not None:
            raise conflict_error("`reads` has no effect on a function", "remove it")
        if self.model is not None and self.arguments:
            raise conflict_error("`arguments` has no effect on a model", "remove it")
        return self

    def build(self, key: str, chat: bool) -> Reward:  # noqa: FBT001
        """Return the reward, which the recipe names under `key`; `chat`: the prompts of completions are messages."""
        if self.name is not None:
            return RewardFunction(Call(name=self.name, arguments=self.arguments), key)
        return RewardModel(str(self.model), self.reads, chat=chat)


_USUAL_TOKENS: Final = 512


class _Loaded(NamedTuple):
    network: PreTrainedModel
    tokenizer: Tokenizer
    max_length: int
    """Where a text is cut, in tokens."""


class RewardModel:
    """A reward that a model gives. It is loaded at its first use, once per process."""

    def __init__(self, name: str, reads: AnswerForm | None = None, *, chat: bool = False) -> None:
        """`name` and `reads` are as in `RewardSource`; `chat`: prompts of completions are messages."""
        self.name, self._reads, self._chat = name, reads, chat
        path, at, revision = self.name.partition("@")
        self._path, self._revision = path, revision if at else None

    def check(self) -> None:
        """Look at everything but the weights.

        Raises:
            ModelError: it is not there, moves, is no reward model, or cannot be read as the recipe asks.
            TransientError: the Hub cannot be reached.
        """
        _require_pinned(self.name, self._path, self._revision)
        config, tokenizer = _read_settings(self._path, self._revision)
        heads = [str(name) for name in config.architectures or ()]
        if heads and not any(name.endswith(_HEAD) for name in heads):
            raise self._no_reward_model(f"it is a {', '.join(heads)}, which gives a text no number")
        try:
            require_one_output(config)
        except ValueError as error:
            raise self._no_reward_model(str(error)) from error
        form = self._form(config, tokenizer)
        if config.is_encoder_decoder:  # such heads read where the end-of-text token is, and fail without one
            self._require_end_of_text(config.eos_token_id, tokenizer, form)

    def load(self) -> None:
        """Load the model, if this process has not yet; errors as of `check`, and a ModelError if its weights cannot be loaded."""
        self._ready  # noqa: B018

    def __call__(self, completions: Sequence[str], rows: Sequence[RewardRow], device: Any = "cpu") -> list[float]:
        """Return the reward of each of n completions; each text is read once.

        DataError if the chat template refuses one. Other errors are those of `load`.
        """
        (network, tokenizer, max_length), form, conversations = self._ready
        texts = []
        for completion, row in zip(completions, rows, strict=True):
            parts = [str(row[PROMPT]), completion]
            if form.chat:
                parts = [as_messages(part, role) for part, role in zip(parts, ("user", "assistant"), strict=True)]
            try:
                texts += form.texts(parts, tokenizer, conversations)
            except ValueError as error:
                fix = "add a check that sets such rows aside, or use another reward model"
                raise DataError(f"objective.rewards: {self.name}", f"row {row.get('row_id')}: {error}", fix) from error
        known = list(dict.fromkeys(texts))
        ids = [own for own, _ in form.tokenize(known, tokenizer, max_length)] if known else []
        found = dict(zip(known, _score(network.to(device), tokenizer, ids), strict=True))
        return [found[text] for text in texts]

    @cached_property
    def _ready(self) -> tuple[_Loaded, AnswerForm, ConversationTokenizer | None]:
        self.check()
        loaded = _load(self._path, self._revision)
        form = self._form(loaded.network.config, loaded.tokenizer)
        if not (AnswerForm.of(loaded.network.config.to_dict()) or self._reads):
            read = "messages" if form.chat else "one text"
            logger.info("%s does not say how it reads prompt and completion, nor does `reads`: as %s", self.name, read)
        return loaded, form, ConversationTokenizer(loaded.tokenizer) if form.chat else None

    def _form(self, config: Any, tokenizer: Tokenizer) -> AnswerForm:
        own = AnswerForm.of(config.to_dict())
        if own and self._reads and own != self._reads:
            what = f"its config.json says that it reads {own.model_dump()}, and `reads` says {self._reads.model_dump()}"
            raise ModelError(self.name, what, "remove `reads`")
        form = own or self._reads or AnswerForm(chat=self._chat)
        if form.chat and not conversation_template(tokenizer):
            what = "its tokenizer has no chat template, and it is to read messages; of several, it is `default`"
            fix = "use a reward model with a chat template" if own else "set `reads: {chat: false}`, or use another one"
            raise ModelError(self.name, what, fix)
        return form

    def _require_end_of_text(self, token: int | None, tokenizer: Tokenizer, form: AnswerForm) -> None:
        parts = [as_messages("a", "user"), as_messages("a", "assistant")] if form.chat else ["a", "a"]
        try:
            texts = form.texts(parts, tokenizer, ConversationTokenizer(tokenizer) if form.chat else None)
        except ValueError:  # the template refuses this one, and may take others
            return
        ((ids, _),) = form.tokenize(texts, tokenizer, _USUAL_TOKENS)
        if token not in ids:
            where = "its chat template does not write" if form.chat else "its tokenizer does not add"
            what = f"its head reads a text at the end-of-text token, {token} in its config.json, which {where}"
            own = f"let its chat template end with {tokenizer.eos_token}" if form.chat else "give it its own tokenizer"
            raise ModelError(self.name, what, f"{own}, or use another reward model")

    def _no_reward_model(self, why: str) -> ModelError:
        fix = "use a model with one output for a text, such as one of the objective `reward`"
        return ModelError(self.name, f"is no reward model: {why}", fix)


def _require_pinned(name: str, path: str, revision: str | None) -> None:
    if revision is None:
        if not Path(path).is_dir():
            fix = "give a local folder, or owner/name@commit for a repository on the Hub"
            raise ModelError(name, f"there is no folder {path}", fix_missing_model(path) or fix)
        return
    if not _COMMIT.fullmatch(revision):
        from transformers.utils.hub import resolve_revision

        commit = getattr(resolve_revision(path, revision), "resolved", None)
        fix = f"name its commit: {path}@{commit}" if commit else f"name its commit: {path}@ and its hash"
        raise ModelError(name, f"{revision} is no commit: a branch or a tag may move, and rewards with it", fix)
    if Path(path).is_dir():
        what = f"there is a folder {path} here, which would be read in place of the repository"
        raise ModelError(name, what, "rename the folder; or name it without @, if you mean it")


@lru_cache(maxsize=8)
def _read_settings(path: str, revision: str | None) -> tuple[Any, Tokenizer]:
    if Path(path).is_dir() and has_only_unsafe_weights(Path(path)):
        what = "has weights only as pickle files, which are never loaded"
        raise ModelError(path, what, "load them where you trust them, and write safetensors with `save_pretrained`")
    try:
        pinned = check_safe_to_load(path, revision) or "main"
        config = transformers.AutoConfig.from_pretrained(path, revision=pinned, trust_remote_code=False)
        with panics_as_errors():
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, revision=pinned, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise as_loading_error(path, error) from error
    if not tokenizer.is_fast:
        raise ModelError(path, "has only a slow tokenizer", "use a model whose repository holds tokenizer.json")
    tokenizer.truncation_side = "left"  # a text that is too long loses its beginning, and not the answer
    return config, tokenizer


@lru_cache(maxsize=8)
def _load(path: str, revision: str | None) -> _Loaded:
    from safetensors import SafetensorError

    _, tokenizer = _read_settings(path, revision)
    transformers.logging.disable_progress_bar()
    try:
        pinned = check_safe_to_load(path, revision) or "main"
        network, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            path,
            revision=pinned,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
        limit = find_position_limits(network.config).reading_limit(tokenizer.model_max_length)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError) as error:
        raise as_loading_error(path, error) from error
    if missing := sorted(info["missing_keys"]):
        what = f"is no reward model: its weights lack {', '.join(missing[:5])}, so rewards would be random"
        raise ModelError(path, what, "use a model with one output for a text, such as one of the objective `reward`")
    align_weights(network)
    return _Loaded(put_padding_before_text(network).eval(), tokenizer, limit)


def _score(network: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> Iterator[float]:
    """Yield the output for each text, which is given by its tokens; texts of similar length are read together."""
    pad = network.config.pad_token_id
    if pad is None or pad < 0:  # some say so that they have none: their head does not find the end of a text
        pad, size = 0, 1
    else:
        ends = network.config.eos_token_id
        is_uneven = network.config.is_encoder_decoder and (pad == ends or len({own.count(ends) for own in texts}) > 1)
        size = 1 if is_uneven else _BATCH  # its head refuses a batch with different numbers of end-of-text tokens
    order, found = sorted(range(len(texts)), key=lambda i: len(texts[i])), dict[int, float]()
    for start in range(0, len(order), size):
        part = order[start : start + size]
        ids = [texts[i] for i in part]
        batch = {
            "input_ids": pad_to_tensor(ids, pad),
            "attention_mask": pad_to_tensor([[1] * len(own) for own in ids], 0),
        }
        if kinds := types_of_single_texts(ids, tokenizer):
            batch[TOKEN_TYPES] = pad_to_tensor(kinds, 0)
        batch = {name: value.to(network.device) for name, value in batch.items()}
        with torch.inference_mode(), torch.autocast(network.device.type, enabled=False):
            logits = network(**batch).logits.float()  # (B, 1)
        found |= zip(part, logits[:, 0].tolist(), strict=True)
    yield from (found[i] for i in range(len(texts)))
