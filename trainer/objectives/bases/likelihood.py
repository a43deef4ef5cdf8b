"""Objectives whose model gives each label a probability: losses per label, and metrics per token and per byte."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from trainer.objectives.bases.labels.names import are_unnamed, match_labels
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare, auxiliary_loss
from trainer.objectives.bases.metrics.label_results import LabelBeliefs, PrecisionRecallCurve
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, is_positive, named, ratio
from trainer.objectives.bases.objective import Objective, ObjectiveState, OptionsT, ScoreColumns
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, count_labels
from trainer.objectives.bases.texts.tokenizing import Tokenizer, check_end_of_text_token


class Likelihood(Objective[OptionsT]):
    """An objective whose model turns a batch into logits, which give each label a probability."""

    smooths_labels = True

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the negative log-likelihood in nats of each label, in the shape of `labels`; NaN where there is no loss.

        By default for logits (B, T, C) aligned with labels (B, T).
        """
        return label_losses(logits, labels)

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the cross-entropy of logits that are aligned with labels.

        The own loss of many models averages over the micro-batch: with n of them, the gradient would be n times too large.
        """
        outputs = model(**without_labels(batch))
        loss = micro_batch_loss_share(outputs.logits, batch["labels"], share.items, smoothing=share.smoothing)
        return BatchLoss(loss * share.processes, outputs)

    @abstractmethod
    def score_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the scores that follow from logits: float64 (B, K), or its first columns where text is generated, too."""

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The model's logits, and the likeliest class of each label."""
        logits = compute_logits(model, batch)
        return ScoredBatch(self.score_logits(logits, batch["labels"]), logits, batch["labels"])


def _tokens(scores: ScoreColumns) -> NDArray[np.float64] | None:
    return scores.get("tokens")


def _perplexity(sums: Sums) -> NDArray[np.float64]:
    perplexity: NDArray[np.float64] = np.exp(np.minimum(sums["nll"] / sums["tokens"], 700.0))
    return perplexity


def _bits_per_byte(sums: Sums) -> NDArray[np.float64] | None:
    """Return the negative log-likelihood in bits over the bytes (UTF-8) of the predicted tokens' text, if bytes are known.

    It can be compared between tokenizers; metrics per token cannot.
    """
    return sums["nll"] / math.log(2) / sums["bytes"] if np.any(sums["bytes"]) else None


TOKEN_LOSS: Final = Metric(
    "loss", "min", ratio("nll", "tokens"), about=is_positive("tokens"), weights=_tokens, per_tokenizer=True
)
"""Nats per token. It is about texts of which the model predicts something: of one that is cut before its answer, there is nothing."""
TOKEN_ACCURACY: Final = Metric(
    "token_accuracy",
    "max",
    ratio("correct", "tokens"),
    share_of=every_row,
    about=is_positive("tokens"),
    weights=_tokens,
    per_tokenizer=True,
)


class TokenLikelihood(Likelihood[OptionsT]):
    """The likelihood of tokens, with metrics per token and, in the evaluate stage, per byte of text.

    Each token predicts the next one, unless labels are those of a second text (`has_target_text`).
    """

    metrics: ClassVar[Mapping[str, Metric]] = named(
        TOKEN_LOSS,
        Metric("perplexity", "min", _perplexity, about=is_positive("tokens"), weights=_tokens, per_tokenizer=True),
        TOKEN_ACCURACY,
        Metric(
            "bits_per_byte",
            "min",
            _bits_per_byte,
            about=is_positive("bytes"),
            weights=lambda scores: scores.get("bytes"),
            only_evaluated=True,
            restated=True,
        ),
    )
    main_metric = "bits_per_byte"
    served_scores = ("nll", "tokens")
    example_counts = ("bytes",)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        check_end_of_text_token(tokenizer)

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "tokens", "correct")

    def loss_items(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the number of tokens that are predicted; the first one of a sequence is not."""
        return count_labels({"labels": batch["labels"][..., self._shift :]})

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the cross-entropy of next tokens, or of a second text, and the auxiliary loss of a model with experts.

        The own loss of a decoder is not asked for: that of BART and its kin compares each token with itself, as a mean over the micro-batch,
        and others count their auxiliary loss once for each micro-batch. Here it is a mean over all micro-batches.
        """
        may_be_fused = share.is_fused and not share.smoothing and not self.has_target_text
        inputs = {**batch, "num_items_in_batch": share.items} if may_be_fused else without_labels(batch)
        outputs = model(**inputs)
        auxiliary = auxiliary_loss(model, outputs)
        if outputs.logits is None:  # Liger's kernel has computed the loss without them
            loss = outputs.loss if auxiliary is None else outputs.loss - auxiliary
        else:
            labels = batch["labels"] if self.has_target_text else labels_of_next_tokens(batch["labels"])
            loss = micro_batch_loss_share(outputs.logits, labels, share.items, smoothing=share.smoothing)
        loss = loss * share.processes
        return BatchLoss(loss if auxiliary is None else loss + auxiliary / share.micro_batches, outputs)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, T, V) logits and (B, T) labels to losses (B, T); the first token of a sequence that predicts itself has none."""
        losses = torch.full(labels.shape, torch.nan, device=logits.device)
        losses[:, self._shift :] = label_losses(*self._aligned(logits, labels))
        return losses

    def score_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Summed negative log-likelihood, tokens and correct tokens of each sequence, (B, 3)."""
        return sum_token_scores(*self._aligned(logits, labels))

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Negative log-likelihood in nats, tokens, correct tokens, and bytes of their text; bytes are 0 where they are unknown."""
        no_bytes = np.zeros_like(scores["nll"])
        return {**{name: scores[name] for name in ("nll", "tokens", "correct")}, "bytes": scores.get("bytes", no_bytes)}

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64]:
        """Return the geometric mean of the probabilities of the tokens of each of N texts, (N,)."""
        return np.exp(-scores["nll"] / np.maximum(scores["tokens"], 1))

    @property
    def _shift(self) -> int:
        return 0 if self.has_target_text else 1

    def _aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits[:, : labels.shape[1] - self._shift], labels[:, self._shift :]


class ClassifierObjective(Likelihood[OptionsT]):
    """A likelihood whose model has a head for the `labels` of the train split."""

    counts_labels: ClassVar[bool] = False
    """Whether `statistics` say of each label, as `labels` (N, 3, L), whether a row is rightly predicted to have it, is predicted to, and has it."""
    _unknown: tuple[int, ...] = ()
    """The labels that a model of another run cannot know."""
    _guess = 0.0
    """What each of them costs where a row has it, in nats."""

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        labels = dict(enumerate(state["labels"]))
        return {"num_labels": len(labels), "id2label": labels, "label2id": {label: i for i, label in labels.items()}}

    def label_counts(self, totals: NDArray[np.float64], state: ObjectiveState) -> NDArray[np.float64] | None:
        """Return how many rows are rightly predicted to have each label, are predicted to, and have it: (..., 3, L); None if unknown.

        `totals` (..., S) are sums of `additive_statistics`.
        """
        return self.sums(totals, state)["labels"] if self.counts_labels else None

    def confusion_matrix(self, scores: ScoreColumns, state: ObjectiveState) -> NDArray[np.int64] | None:
        """Return how many of N rows have each label, and are predicted to have each one or, last, one of another run: (L, L + 1).

        None if rows have other than one label each.
        """
        return None

    def label_curves(self, scores: ScoreColumns, state: ObjectiveState) -> Mapping[str, PrecisionRecallCurve]:
        """Return the curve of each label that some of N rows have; none if the scores lack its probability."""
        return {}

    def label_beliefs(self, scores: ScoreColumns, state: ObjectiveState) -> Iterator[LabelBeliefs]:
        """Yield what the model holds for likeliest for N rows, for each question that their labels answer; nothing if the scores do not say."""
        yield from ()

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        """Return a classifier whose logits (..., C) are those of this run's labels, whatever labels it was trained on.

        Its own labels keep the probabilities that it gives them. A label that it was not trained on gets none, and is never
        predicted: `charge_unknown` says what such a label costs. Labels that only the model knows come last: predicting
        one of them is wrong.

        ValueError if the model gives a single number, or does not say what its labels are.
        """
        labels: list[str] = state["labels"]
        known = [str(model.config.id2label[i]) for i in range(model.config.num_labels)]
        self.keep_unknown_labels(known, labels)
        if known == labels:
            return model
        if len(known) == 1:
            raise ValueError("it gives one number, and none for each label")
        same = match_labels(known, labels)
        if are_unnamed(known) and not {*same} - {None}:
            raise ValueError(f"its labels have no names ({known[0]}, ...): write them into id2label of its config.json")
        only_its_own = [i for i in range(len(known)) if i not in same]
        places = [-1 if place is None else place for place in same] + only_its_own

        def rearrange(_: Any, __: Any, outputs: Any) -> Any:
            logits = outputs.logits
            never = torch.full_like(logits[..., :1], torch.finfo(logits.dtype).min)  # its softmax is 0
            outputs.logits = torch.cat([logits, never], -1)[..., places]  # the place -1 is `never`
            return outputs

        model.register_forward_hook(rearrange)
        return model

    def keep_unknown_labels(self, known: Sequence[str], labels: Sequence[str]) -> None:
        """Keep which of this run's labels a model of the `known` ones cannot know.

        One of them costs as much as a guess among those that it knows and this one, however many others are unknown: what a label costs does
        not depend on others, and rows without it cost as much as if it were not there.
        """
        same = match_labels(known, labels)
        self._unknown = tuple(i for i, place in enumerate(same) if place is None)
        self._guess = math.log(len(known) + 1)

    def charge_unknown(self, losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return losses in the shape of `labels`, where a label that the model cannot know costs as much as a guess."""
        if not self._unknown:
            return losses
        unknown = torch.isin(labels, torch.tensor(self._unknown, device=labels.device))
        return losses.masked_fill(unknown, self._guess)


def sum_token_scores(logits: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor | None = None) -> torch.Tensor:
    """Return summed negative log-likelihood, tokens and correct tokens (B, 3), from aligned (B, T, V) and (B, T).

    `losses` (B, T) are by default those of the logits.
    """
    has_loss = labels != IGNORE_INDEX  # (B, T)
    losses = label_losses(logits, labels) if losses is None else losses
    nll = losses.double().masked_fill(~has_loss, 0.0).sum(1)
    correct = (logits.argmax(-1) == labels) & has_loss
    return torch.stack([nll, has_loss.sum(1).double(), correct.sum(1).double()], dim=1)


def count_scored_bytes(
    texts: Iterable[str], labels: Sequence[Sequence[int]], is_cut: Iterable[bool], tokenizer: Tokenizer
) -> list[int]:
    """Return the UTF-8 bytes of each row's text that has a loss: of the whole text, whatever the tokenizer makes of it.

    Of a text that is cut, the labels that are left say how much of it is read, without special tokens.
    """
    found = [len(text.encode()) for text in texts]
    cut = [i for i, one in enumerate(is_cut) if one]
    ids = [[label for label in labels[i] if label != IGNORE_INDEX] for i in cut]
    if tokenizer.clean_up_tokenization_spaces:
        read = [tokenizer.decode(sequence, skip_special_tokens=True) for sequence in ids]
    else:  # all at once, on all cores
        read = tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=True)
    for i, text in zip(cut, read, strict=True):
        found[i] = len(text.encode())
    return found


def tokens_contain_texts_in_order(ids: Sequence[int], texts: Iterable[str], tokenizer: Tokenizer) -> bool:
    """Whether tokens, decoded, hold all these texts one after another; some tokenizers drop a space before a text."""
    kept = [token for token in ids if token != IGNORE_INDEX]
    (found,), place = tokenizer.backend_tokenizer.decode_batch([kept], skip_special_tokens=True), 0
    for text in texts:
        ends = [at + len(form) for form in (text, text.removeprefix(" ")) if (at := found.find(form, place)) >= 0]
        if not ends:
            return False
        place = ends[0]
    return True


def compute_logits(model: PreTrainedModel, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the model's logits for a batch, without computing a loss."""
    logits: torch.Tensor = model(**without_labels(batch)).logits
    return logits


def without_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without labels, of which a model would compute a loss."""
    return {name: value for name, value in batch.items() if name != "labels"}


def label_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return losses in nats, (B, T), from aligned logits (B, T, V) and labels (B, T); NaN where a label is ignored."""
    losses = torch.full(labels.shape, torch.nan, device=logits.device)
    for row, row_logits, row_labels in zip(losses, logits, labels, strict=True):
        has_loss = row_labels != IGNORE_INDEX  # (T,), one row at a time: the float copy of logits stays small
        row[has_loss] = F.cross_entropy(row_logits[has_loss].float(), row_labels[has_loss], reduction="none")
    return losses


def labels_of_next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """Return labels (B, T) moved to the places that predict them: that of each token is the one behind it, and the last has none.

    Logits stay whole: a part of those of a large vocabulary would be copied.
    """
    return F.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)


def micro_batch_loss_share(
    logits: torch.Tensor,
    labels: torch.Tensor,
    items: torch.Tensor | float | None,
    *,
    smoothing: float,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the cross-entropy in nats of a micro-batch, summed and divided by the labels of its global batch.

    Logits are (B, C) or (B, T, C), labels (B,) or (B, T), class weights (C,). `items` are the labels in the global batch, by
    default those of this micro-batch; `smoothing` is the share of the target distribution spread evenly over all classes.
    """
    summed = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        weight=weights,
        ignore_index=IGNORE_INDEX,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return summed / ((labels != IGNORE_INDEX).sum() if items is None else items)
