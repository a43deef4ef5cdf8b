"""Sequence to sequence: read a text, write another; translation, summaries, questions with their answers.

    {"input": "translate to German: good morning", "target": "guten Morgen"}

The model has an encoder and a decoder (T5, BART and their kin). Its loss is the mean negative log-likelihood per token of the
target, in nats, the end-of-text token included. What is too long loses its end; a target that did is not taught to end there.

Evaluation also lets the model write, by greedy or beam search, so that the same weights write the same text. Of that text:
`exact_match` is the share of rows that are the target but for white space around them; `rouge1`, `rouge2` and `rougeL` are
means over the rows of ROUGE's F-measure (Lin 2004, https://aclanthology.org/W04-1013), of words in lower case without
stemming; words are letters and digits of any script. `generate: false` leaves all of this out, and is much faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt

from params import ModelError, Problem, RecipeError
from params.schema import Direction, Launch, Model, Section, Training
from trainer.objectives.bases.likelihood import (
    IGNORED,
    Likelihood,
    bytes_of,
    label_loss,
    label_losses,
    pad_batch,
    token_figures,
    token_scores,
    token_totals,
)
from trainer.objectives.bases.objective import Example, Kind, Row, Scores, State

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TEXT_FIGURES = ("exact_match", "rouge1", "rouge2", "rougeL")


class Options(Section):
    """Keys of the recipe's `objective` section."""

    input_column: str = "input"
    """The column with the text to read."""
    target_column: str = "target"
    """The column with the text to write."""
    prefix: str = ""
    """Put before every input, for example `summarize: ` for a T5."""
    max_target_length: PositiveInt | None = None
    """Longest target, in tokens; by default as long as the longest input, `tokenization.max_length`."""
    generate: bool = True
    """Let the model write in every evaluation, and compare what it wrote."""
    max_new_tokens: PositiveInt = 64
    """Longest text that the model writes, in tokens."""
    num_beams: PositiveInt = 1
    """Texts that are kept side by side while writing; 1 is greedy search."""
    packing: bool = False
    """Always false: an encoder reads each input as a whole."""


class Seq2Seq(Likelihood[Options]):
    """Text in, text out."""

    options_class = Options
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "perplexity": "min",
        "token_accuracy": "max",
        **dict.fromkeys(_TEXT_FIGURES, "max"),
    }
    held_out_metrics: ClassVar[Mapping[str, Direction]] = {"bits_per_byte": "min"}
    main_metric = "bits_per_byte"
    per_token = frozenset({"loss", "perplexity", "token_accuracy"})
    score_names = ("nll", "tokens", "correct", "written", *_TEXT_FIGURES)
    example_figures = ("bytes",)
    pipeline_tag = "text2text-generation"
    has_targets = True
    examples: ClassVar[tuple[Row, ...]] = (
        {"input": "three plus four", "target": "seven"},
        {"input": "two plus two", "target": "it is four"},
        {"input": "nine minus one plus one", "target": "nine"},
    )

    def columns(self) -> Mapping[str, Kind]:
        return {self.options.input_column: "string", self.options.target_column: "string"}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        options = self.options
        if options.packing:
            what = (
                "seq2seq does not pack: its encoder would read inputs together that have nothing to do with each other"
            )
            yield Problem(("objective", "packing"), what, "remove it, or use causal_lm or sft, which can")
        if not options.generate:
            for name in sorted({"max_new_tokens", "num_beams"} & options.model_fields_set):
                what = "the model writes nothing where `generate` is false, so this would do nothing"
                yield Problem(("objective", name), what, "remove it, or set `generate: true`")
            if training.best_metric in _TEXT_FIGURES:
                what = f"{training.best_metric} is a figure of what the model writes, and `generate` is false"
                yield Problem(("training", "best_metric"), what, "set objective.generate to true, or use loss")
        if unfit := _decoder_alone(model):
            key, model_type = unfit
            what = f"a {model_type} has not both an encoder and a decoder, and seq2seq needs both"
            yield Problem(("model", *key), what, "use for example t5 or bart, or the objective causal_lm or sft")

    def try_model(self, model: PreTrainedModel) -> None:
        encoder, decoder = model.config.num_hidden_layers, getattr(model.config, "num_decoder_layers", 0)
        if self.options.generate and decoder > encoder:
            what = f"its decoder has {decoder} layers, and its encoder {encoder}: transformers cannot write with it"
            fix = "set num_layers and num_decoder_layers to the same number, or objective.generate to false"
            raise RecipeError("model", what, fix)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            what = "has no end-of-text token, so the model could not learn to end"
            raise ModelError("tokenization.tokenizer", what, "use the tokenizer of a T5 or BART")

    def text(self, row: Row) -> str:
        return f"{self._input(row)}\n{row[self.options.target_column]}"

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        ids = tokenizer(self._input(row), truncation=True, max_length=max_length)["input_ids"]
        target = self._target_ids(row, tokenizer)[: self._longest_target(max_length)]
        said = bytes_of(target, tokenizer)
        return [{"row_id": row["row_id"], "input_ids": ids, "labels": target, "bytes": said}]

    def truncates(
        self, row: Row, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> bool:
        return (
            len(tokenizer(self._input(row), verbose=False)["input_ids"]) > max_length
            or len(self._target_ids(row, tokenizer)) > self._longest_target(max_length)
        )  # fmt: skip

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        return pad_batch(examples, tokenizer)

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM  # type: ignore[no-any-return]

    def loss(self, training: Training) -> Callable[..., Any]:
        return label_loss(training)

    def inputs(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """With `decoder_input_ids`: the labels, one place further on, behind the token that this model starts with."""
        if "decoder_input_ids" in batch:
            return batch
        labels = batch["labels"]
        if hasattr(model, "prepare_decoder_input_ids_from_labels"):
            shifted = model.prepare_decoder_input_ids_from_labels(labels=labels)
        else:
            shifted = labels.roll(1, dims=1)
            shifted[:, 0] = model.config.decoder_start_token_id
            shifted = shifted.masked_fill(shifted == IGNORED, model.config.pad_token_id)
        return {**batch, "decoder_input_ids": shifted}

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to (B, T)."""
        return label_losses(logits, labels)

    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to summed negative log-likelihood, tokens and correct tokens, (B, 3)."""
        return token_scores(logits, labels)

    def written(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor | None:
        if not self.options.generate:
            return None
        ids: torch.Tensor = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self.options.max_new_tokens,
            num_beams=self.options.num_beams,
            do_sample=False,
        )
        return ids

    def judge(
        self,
        logits: torch.Tensor,
        written: torch.Tensor | None,
        labels: torch.Tensor,
        tokenizer: PreTrainedTokenizerBase,
    ) -> torch.Tensor:
        """As `score`, whether anything was written, and its figures, (B, 8); zeros where nothing was."""
        import torch

        scores = self.score(logits, labels)
        if written is None:
            return torch.cat([scores, scores.new_zeros((len(scores), 1 + len(_TEXT_FIGURES)))], dim=1)
        told = tokenizer.batch_decode(written, skip_special_tokens=True)
        there = tokenizer.batch_decode(
            labels.where(labels != IGNORED, tokenizer.pad_token_id), skip_special_tokens=True
        )
        figures = [[1.0, *text_figures(*pair)] for pair in zip(told, there, strict=True)]
        return torch.cat([scores, scores.new_tensor(figures)], dim=1)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """Those of tokens, the texts written, and their figures, (N, 9)."""
        import numpy as np

        texts = np.stack([scores[name] for name in ("written", *_TEXT_FIGURES)], axis=1)
        return np.concatenate([token_totals(scores), texts], axis=1)

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """Figures per token and byte of the target, and means over the texts where any were written."""
        import numpy as np

        tokens, written = totals[..., :4], totals[..., 4]
        texts = {name: totals[..., 5 + i] / written for i, name in enumerate(_TEXT_FIGURES)} if np.any(written) else {}
        return token_figures(tokens) | texts

    def outcomes(self, metric: str, scores: Scores) -> NDArray[np.bool_] | None:
        return scores["exact_match"] == 1 if metric == "exact_match" else None

    def answer(
        self, row: Row, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State
    ) -> list[str]:
        """What the model writes."""
        written = self.written(
            model, self.collate(self.encode(row, tokenizer, max_length, state), tokenizer), tokenizer
        )
        return [] if written is None else str(tokenizer.decode(written[0], skip_special_tokens=True)).splitlines()

    def _input(self, row: Row) -> str:
        return f"{self.options.prefix}{row[self.options.input_column]}"

    def _target_ids(self, row: Row, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        ids: list[int] = tokenizer(text_target=str(row[self.options.target_column]), verbose=False)["input_ids"]
        return ids if ids[-1:] == [tokenizer.eos_token_id] else [*ids, tokenizer.eos_token_id]

    def _longest_target(self, max_length: int) -> int:
        return self.options.max_target_length or max_length


def text_figures(written: str, target: str) -> list[float]:
    """Exact match, ROUGE-1, ROUGE-2 and ROUGE-L of one text."""
    from torchmetrics.functional.text import rouge_score

    found = rouge_score(written, target, rouge_keys=_TEXT_FIGURES[1:], normalizer=_words)
    return [float(written.strip() == target.strip()), *(float(found[f"{k}_fmeasure"]) for k in _TEXT_FIGURES[1:])]


def _words(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower())


def _decoder_alone(model: Model) -> tuple[tuple[str, ...], str] | None:
    """The key that names a model without an encoder or without a decoder, and its type; where that is easily told."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = model.config
    key: tuple[str, ...] = ("config", "model_type")
    if config is None:
        path = Path(str(model.pretrained)) / "config.json"
        try:
            config, key = json.loads(path.read_text(encoding="utf-8")), ("pretrained",)
        except (OSError, ValueError):
            return None  # a repository, or a folder of which others tell what is wrong
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING or getattr(CONFIG_MAPPING[model_type], "is_encoder_decoder", False):
        return None
    return None if config.get("is_encoder_decoder") else (key, str(model_type))
