"""Sequence to sequence: generate one text from another, as in translation or summarization.

    {"input": "translate to German: good morning", "target": "guten Morgen"}

The model has an encoder and a decoder (T5, BART). The loss is the mean negative log-likelihood per target token, in nats,
the end-of-text token included. Inputs and targets that are too long lose their end; a target that was cut has no end-of-text
token to learn.

Evaluation also generates text, by greedy or beam search, so that the same weights give the same text. Its metrics:
`exact_match` is the share of rows whose text equals the target except for white space around it; `rouge1`, `rouge2` and
`rougeL` are means over rows of ROUGE's F-measure (Lin 2004, https://aclanthology.org/W04-1013) on lower-case words without
stemming, where words are letters and digits of any script. `generate: false` skips this, and is much faster.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import PositiveInt

from params import Problem, RecipeError
from params.defaults import ObjectiveDefaults
from params.problems import suggestion
from params.schema import Launch, Model, Training
from params.sections.base import Section
from trainer.column_template import column_or_template
from trainer.objectives.advice.base import ModelKind, NewRecipeAdvice, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import TokenLikelihood, count_scored_bytes, tokens_contain_texts_in_order
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named
from trainer.objectives.bases.row_content import read_template
from trainer.objectives.bases.rows import ColumnKind, EncodedRow, Example, ObjectiveState, PromptForm, Row, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import IGNORE_INDEX
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate, find_answers_in_prompt, form_around_text
from trainer.objectives.bases.texts.tokenizing import Tokenizer, strip_repeated_special_tokens, tokenize_texts_truncated

_TEXT_METRICS = ("exact_match", "rouge1", "rouge2", "rougeL")
_LANGUAGE_OPTIONS: Final[Mapping[str, str]] = {"source_language": "src_lang", "target_language": "tgt_lang"}
"""Options, and what transformers' tokenizers call them."""
_TOKENIZERS_WITH_LANGUAGES: Final = frozenset(
    {"MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer", "M2M100Tokenizer"}
)
"""Tokenizers with languages; transformers takes English for the source, and the source's for the target."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    input_column: ColumnOrTemplate = "input"
    """The column with the input text, or a template of columns, such as `{question} {context}`
    (trainer.objectives.bases.texts.prompt_template)."""
    target_column: str = "target"
    """The column with the target text."""
    prefix: str = ""
    """Text to put before every input, for example `summarize: ` for a T5."""
    source_language: str | None = None
    """The language of inputs, as the tokenizer of a translation model names it: `en_XX` for mBART, `eng_Latn` for NLLB. By default
    the one that tokenizer_config.json names. It is published with the tokenizer."""
    target_language: str | None = None
    """The language of targets; what is published begins its texts with it."""
    max_target_length: PositiveInt | None = None
    """Maximum length of a target in tokens; by default `tokenization.max_length`, the maximum of inputs."""
    generate: bool = True
    """Generate text in every evaluation, and compare it with the target."""
    max_new_tokens: PositiveInt = 64
    """Maximum length of a generated text in tokens."""
    num_beams: PositiveInt = 1
    """Beams of the search; 1 is greedy search."""
    packing: bool = False
    """Always false: an encoder attends to its whole input."""


class _Advice(NewRecipeAdvice):
    meaning = "a text from another text"
    columns: ClassVar[Mapping[str, str]] = {"prompt": "input_column", "completion": "target_column"}
    templates = frozenset({"prompt"})
    reads_prompts = True
    models: ClassVar[tuple[ModelKind, ...]] = ("encoder-decoder",)
    rates: ClassVar[UpTo] = ((300e6, 3e-4), (math.inf, 1e-4))
    lora_rate = 1e-3
    new_rate = 1e-3
    epochs: ClassVar[UpTo] = ((1_000, 10), (50_000, 3), (500_000, 2), (math.inf, 1))

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        return ObjectiveFit.COLUMNS if seen.has_pairs else ObjectiveFit.NOT

    def asked_options(self, tokenizer: Tokenizer) -> Mapping[str, str]:
        return _ask_for_languages(tokenizer)


def _mean_of_texts(name: str) -> Metric:
    """Return a mean over the generated texts, if there are any."""

    def mean(sums: Sums) -> NDArray[np.float64] | None:
        return sums[name] / sums["generated"] if np.any(sums["generated"]) else None

    right = (lambda scores: np.asarray(scores[name] == 1)) if name == "exact_match" else None
    return Metric(name, "max", mean, share_of=every_row, right=right, restated=True)


class Seq2Seq(TokenLikelihood[Options]):
    """Text in, text out."""

    options_class = Options
    defaults = ObjectiveDefaults(5e-5, group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = {**TokenLikelihood.metrics, **named(*map(_mean_of_texts, _TEXT_METRICS))}
    own_options = frozenset({"prefix", "max_new_tokens", "num_beams", *_LANGUAGE_OPTIONS})
    prompt_option = "input_column"
    limits = frozenset({"max_target_length"})
    reader_cuts = True
    auto_class = "AutoModelForSeq2SeqLM"
    pipeline_tag = "text2text-generation"
    has_target_text = True
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"input": "three plus four", "target": "seven"},
        {"input": "two plus two", "target": "it is four"},
        {"input": "nine minus one plus one", "target": "nine"},
    )

    def columns(self) -> Mapping[str, ColumnKind]:
        return {**column_or_template(self.options.input_column).columns, self.options.target_column: "string"}

    def content(self, row: Row) -> Mapping[str, Any]:
        return {**super().content(row), **read_template(column_or_template(self.options.input_column), row)}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        options = self.options
        yield from find_answers_in_prompt(self.options, "input_column", "target_column")
        if options.packing:
            what = "seq2seq cannot pack: its encoder would attend across unrelated inputs"
            yield Problem(("objective", "packing"), what, "remove it, or use causal_lm or sft, which can pack")
        if not options.generate:
            for name in sorted({"max_new_tokens", "num_beams"} & options.model_fields_set):
                what = "has no effect while `generate` is false"
                yield Problem(("objective", name), what, "remove it, or set `generate: true`")
            if training.best_metric in _TEXT_METRICS:
                what = f"{training.best_metric} is a metric of generated text, and `generate` is false"
                yield Problem(("training", "best_metric"), what, "set objective.generate to true, or use loss")
        yield from _model_conflicts(model)
        for option, language in _read_languages_in_folder(options, model).items():
            if not language:
                what, fix = "is not set, and the tokenizer writes it into every text", "as the tokenizer names it"
                yield Problem(("objective", option), what, f"set it {fix}, such as en_XX or eng_Latn")

    def remarks(self, model: Model) -> Iterable[str]:
        named = _read_languages_in_folder(self.options, model)
        if all(named.values()) and named:
            unsaid = (
                "" if self.options.source_language and self.options.target_language else ", by the tokenizer's defaults"
            )
            yield "inputs are read as {source_language}, and targets as {target_language}".format(**named) + unsaid

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Set the languages of a tokenizer that has any."""
        super().prepare_tokenizer(tokenizer)
        _set_languages(tokenizer, self.options)

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        """Let generated texts begin with the language of targets.

        The labels of the first mBART end with it, and its decoder begins with the last label; others have it as their first label.
        """
        language = getattr(tokenizer, "tgt_lang", None)
        if language is None or model.generation_config is None:
            return
        token = tokenizer.convert_tokens_to_ids(language)
        is_last = tokenizer(text_target="a")["input_ids"][-1] == token and model.config.model_type == "mbart"
        setattr(model.generation_config, "decoder_start_token_id" if is_last else "forced_bos_token_id", token)

    def check_model(self, model: PreTrainedModel) -> None:
        encoder, decoder = model.config.num_hidden_layers, getattr(model.config, "num_decoder_layers", 0)
        if self.options.generate and decoder > encoder:
            what = f"its decoder has {decoder} layers and its encoder {encoder}: transformers cannot generate with it"
            fix = "set num_layers and num_decoder_layers to the same number, or objective.generate to false"
            raise RecipeError("model", what, fix)

    def text(self, row: Row) -> str:
        return f"{self._input(row)}\n{row[self.options.target_column]}"

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        form = form_around_text(str(options.get("input_column", "")))
        return replace(form, before=f"{options.get('prefix', '')}{form.before}")

    def says_all(self, row: Row, examples: Sequence[Example], tokenizer: Tokenizer) -> bool:
        ids = [token for example in examples for token in example["labels"]]
        return tokens_contain_texts_in_order(ids, self._targets([row], tokenizer), tokenizer)

    def input_text(self, row: Row) -> str:
        return column_or_template(self.options.input_column).values(row)

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        asked, texts = self._inputs(rows, tokenizer), self._targets(rows, tokenizer)
        inputs = tokenize_texts_truncated(asked, tokenizer, max_length)
        targets = tokenizer(text_target=["", *texts], verbose=False)["input_ids"]
        longest, end = self.options.max_target_length or max_length, tokenizer.eos_token_id
        # a language, which is never cut
        behind = targets[0][-1:] if targets[0][-2:-1] == [end] != targets[0][-1:] else []
        whole = [target if [end, *behind] == target[-1 - len(behind) :] else [*target, end] for target in targets[1:]]
        is_cut = [len(target) > longest for target in whole]
        labels = [[*t[: longest - len(behind)], *behind] if len(t) > longest else t for t in whole]
        sizes = count_scored_bytes(texts, labels, is_cut, tokenizer)
        encoded = []
        for i, (row, (ids, is_truncated), size) in enumerate(zip(rows, inputs, sizes, strict=True)):
            example = {"row_id": row["row_id"], "input_ids": ids, "labels": labels[i], "bytes": size}
            is_usable = asked[i].strip() and texts[i].strip()  # not if there are special tokens only
            encoded.append(EncodedRow([example], is_truncated or is_cut[i]) if is_usable else EncodedRow([]))
        return encoded

    def prepare_inputs(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add `decoder_input_ids`: the labels shifted right by one, after the model's decoder start token."""
        labels = batch["labels"]
        if hasattr(model, "prepare_decoder_input_ids_from_labels"):
            shifted = model.prepare_decoder_input_ids_from_labels(labels=labels)
        else:
            shifted = labels.roll(1, dims=1)
            shifted[:, 0] = model.config.decoder_start_token_id
            shifted = shifted.masked_fill(shifted == IGNORE_INDEX, model.config.pad_token_id)
        return {**batch, "decoder_input_ids": shifted}

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"max_new_tokens": self.options.max_new_tokens, "num_beams": self.options.num_beams, "do_sample": False}

    def reader_input(self, row: Row) -> str:
        return self._input(row)

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        if not self.options.generate:
            return {}
        target = tokenizer.decode(example["labels"], skip_special_tokens=True)
        (given,) = self._inputs([row], tokenizer)
        return dict(zip(_TEXT_METRICS, exact_match_and_rouge(str(ask(given)), str(target)), strict=True))

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "tokens", "correct", "generated", *_TEXT_METRICS)

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The model's logits, and the tokens of the text that it generates, if it does, (B, T).

        Scores: columns of `score_logits`, whether text was generated, and its metrics, (B, 8); zeros if none was.
        """
        found = super().score_outputs(model, batch, tokenizer)
        scores = found.scores
        if not self.options.generate:
            no_text = scores.new_zeros((len(scores), 1 + len(_TEXT_METRICS)))
            return found._replace(scores=torch.cat([scores, no_text], dim=1))
        generated = self._generate(model, batch)
        target_ids = batch["labels"].where(batch["labels"] != IGNORE_INDEX, tokenizer.pad_token_id)
        texts, targets = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (generated, target_ids))
        text_scores = [[1.0, *exact_match_and_rouge(*pair)] for pair in zip(texts, targets, strict=True)]
        scores = torch.cat([scores, scores.new_tensor(text_scores)], dim=1)
        return found._replace(scores=scores, predictions=generated)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Token statistics, whether text was generated, and its metrics."""
        texts = {name: scores[name] for name in ("generated", *_TEXT_METRICS)}
        return {**super().statistics(scores, state), **texts}

    @property
    def judges_rows(self) -> bool:
        return self.options.generate

    answers_rows = judges_rows

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        if not self.options.generate:
            return []
        encoded = self.encode([row], tokenizer, max_length, state)
        ids = self._generate(model, self.collate(encoded[0].examples, tokenizer))
        return str(tokenizer.decode(ids[0], skip_special_tokens=True)).splitlines()

    def _generate(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> torch.Tensor:
        ids: torch.Tensor = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self.options.max_new_tokens,
            num_beams=self.options.num_beams,
            do_sample=False,
        )
        return ids

    def _inputs(self, rows: Iterable[Row], tokenizer: Tokenizer) -> list[str]:
        return strip_repeated_special_tokens(map(self._input, rows), tokenizer)

    def _targets(self, rows: Iterable[Row], tokenizer: Tokenizer) -> list[str]:
        texts = (str(row[self.options.target_column]) for row in rows)
        return strip_repeated_special_tokens(texts, tokenizer, ends=True)

    def _input(self, row: Row) -> str:
        return f"{self.options.prefix}{column_or_template(self.options.input_column).fill(row)}"


def exact_match_and_rouge(text: str, target: str) -> list[float]:
    from torchmetrics.functional.text import rouge_score

    def words(some: str) -> str:
        return re.sub(r"[\W_]+", " ", some.lower())

    found = rouge_score(text, target, rouge_keys=_TEXT_METRICS[1:], normalizer=words)
    return [float(text.strip() == target.strip()), *(float(found[f"{k}_fmeasure"]) for k in _TEXT_METRICS[1:])]


def _model_conflicts(model: Model) -> Iterator[Problem]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = model.config
    key: tuple[str, ...] = ("model", "config", "model_type")
    if config is None:
        path, key = Path(str(model.pretrained)) / "config.json", ("model", "pretrained")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # a repository, or a folder that other checks report
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING or config.get("is_encoder_decoder"):
        return
    if not getattr(CONFIG_MAPPING[kind], "is_encoder_decoder", False):
        what = f"{kind} is not an encoder-decoder model, which seq2seq needs"
        yield Problem(key, what, "use for example t5 or bart, or the objective causal_lm or sft")


def _ask_for_languages(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the question for each option; none for a tokenizer without languages."""
    codes = ", ".join(
        code for code in _known_languages(tokenizer) if code not in {*tokenizer.special_tokens_map.values()}
    )
    texts = {"source_language": "inputs", "target_language": "targets"}
    return {option: f"Language of the {own}, one of {codes}" for option, own in texts.items()} if codes else {}


def _set_languages(tokenizer: Tokenizer, options: Any) -> None:
    """Let a tokenizer write the languages of the options, or those that it names itself; a RecipeError if it cannot."""
    known = _known_languages(tokenizer)
    for option, name in _LANGUAGE_OPTIONS.items():
        language = getattr(options, option)
        if language and not known:
            what, fix = "has no effect: the tokenizer knows no languages", "remove it; a T5 takes a `prefix`"
            raise RecipeError(f"objective.{option}", what, fix)
        if not known:
            continue
        language = language or tokenizer.init_kwargs.get(name)
        if language not in known:
            what = (
                f"the tokenizer has no language {language!r}" if language else "is not set, and the tokenizer needs it"
            )
            raise RecipeError(f"objective.{option}", what, suggestion(language or "", known, "special tokens"))
        setattr(tokenizer, name, language)
        tokenizer.init_kwargs[name] = language  # what is saved has it, too


def _read_languages_in_folder(options: Any, model: Model) -> dict[str, str | None]:
    """Return the languages that the tokenizer in a model's folder writes, by option; None if nobody names it."""
    try:
        path = Path(str(model.pretrained)) / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # a repository, or a folder that other checks report
    if str(config.get("tokenizer_class")).removesuffix("Fast") not in _TOKENIZERS_WITH_LANGUAGES:
        return {}
    return {option: getattr(options, option) or config.get(name) for option, name in _LANGUAGE_OPTIONS.items()}


def _known_languages(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.get_added_vocab()) if hasattr(tokenizer, "set_tgt_lang_special_tokens") else []
