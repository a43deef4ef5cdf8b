r"""Direct preference optimization: prefer the better of two completions of a prompt, measured against the start model.

    {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"}

The reward of a completion is beta times what its log-probability has gained over the model as it was before training, the
reference (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290); the loss wants the chosen one to earn more. Prompt and
completions are tokenized apart, so that both completions follow the same tokens, and each ends with the end-of-text
token. A pair that is too long loses the beginning of its prompt, all but one token of it at most; only then is a
completion cut, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from params import ModelError, Problem
from params.schema import Direction, Launch, Model, Section, Training
from trainer.objectives.bases.likelihood import IGNORED, pad_batch
from trainer.objectives.bases.objective import Example, Kind, Objective, Row, Scores, State

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_SMOOTHED = ("sigmoid", "robust", "exo_pair")


class Options(Section):
    """Keys of the recipe's `objective` section."""

    prompt_column: str = "prompt"
    """The column with the text that both completions answer."""
    chosen_column: str = "chosen"
    """The column with the better completion, its leading space included."""
    rejected_column: str = "rejected"
    """The column with the worse completion."""
    separator: str = ""
    """Text between prompt and completion, where the columns hold none; it belongs to the prompt."""
    loss_type: Literal["sigmoid", "ipo", "hinge", "robust", "exo_pair", "apo_zero", "apo_down"] = "sigmoid"
    """How the rewards of a pair become a loss; `DPO.losses` says where each comes from."""
    beta: PositiveFloat = 0.1
    """How dear it is to leave the reference; for `ipo` the regularization called tau."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Share of the pairs that are thought to be labelled the wrong way round; for sigmoid, robust and exo_pair."""
    reference: Literal["model", "precomputed"] = "model"
    """`model` asks a frozen copy of the start model in every step, whole on each process; with `model.lora` the model
    without its adapters. `precomputed` asks once for all pairs before training, and needs no second model in memory."""


class DPO(Objective[Options]):
    """Preferences between two completions."""

    options_class = Options
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "reward_accuracy": "max",
        "reward_margin": "max",
        "chosen_reward": "max",
        "rejected_reward": "min",
        "chosen_log_prob": "max",
        "rejected_log_prob": "min",
    }
    main_metric = "reward_accuracy"
    per_token = frozenset(metrics)  # the reference model reads the same tokens
    score_names = ("loss", "chosen_reward", "rejected_reward", "chosen_log_prob", "rejected_log_prob")
    pipeline_tag = "text-generation"
    trainer_class = "trainer.loop.preference_trainer:PreferenceTrainer"
    examples: ClassVar[tuple[Row, ...]] = (
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
        {"prompt": "A word for a small dog?", "chosen": "puppy", "rejected": "kitten, or cat"},
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.reference: Callable[[Mapping[str, Any]], torch.Tensor] | None = None
        """From a batch to its log-probabilities (2, B) under the start model; set before anything is measured."""

    def columns(self) -> Mapping[str, Kind]:
        o = self.options
        return {o.prompt_column: "string", o.chosen_column: "string", o.rejected_column: "string"}

    def reject_reason(self, row: Row) -> str | None:
        same = row[self.options.chosen_column] == row[self.options.rejected_column]
        return "chosen and rejected are the same text: nothing can be learned from it" if same else None

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        smoothing, kind = self.options.label_smoothing, self.options.loss_type
        if smoothing and kind not in _SMOOTHED:
            what = f"does nothing to {kind}"
            yield Problem(("objective", "label_smoothing"), what, f"remove it, or use {', '.join(_SMOOTHED)}")
        if kind == "exo_pair" and not smoothing:
            what = "exo_pair is infinite for labels that are never wrong"
            yield Problem(("objective", "label_smoothing"), what, "set it, for example to 0.001")
        if training.loss:
            what = "takes the place of the loss that prefers, with which dpo would learn nothing of preferences"
            yield Problem(("training", "loss"), what, "remove it, and choose objective.loss_type")
        if training.arguments.get("label_smoothing_factor"):
            key = ("training", "arguments", "label_smoothing_factor")
            yield Problem(key, "does nothing to a loss of preferences", "set objective.label_smoothing instead")
        if training.arguments.get("include_num_input_tokens_seen", "no") not in {"no", False}:
            key = ("training", "arguments", "include_num_input_tokens_seen")
            yield Problem(key, "counts the chosen completions only", "remove it")
        if training.streaming and self.options.reference == "precomputed":
            what = "`precomputed` goes through all pairs before the first step, which a stream is there to avoid"
            yield Problem(("objective", "reference"), what, "use `model`, or training.streaming: false")

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError("tokenization.tokenizer", "has no end-of-text token", "use one of a causal language model")

    def text(self, row: Row) -> str:
        """The prompt with the chosen completion, as in `input_ids`; the rejected one stands beside it."""
        return f"{row[self.options.prompt_column]}{self.options.separator}{row[self.options.chosen_column]}"

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """One pair: `input_ids` of prompt and chosen completion, `rejected` of the other completion alone."""
        prompt, *completions = self._whole(row, tokenizer)
        chosen, rejected = (completion[: max_length - 1] for completion in completions)
        prompt = prompt[-(max_length - max(len(chosen), len(rejected))) :]
        labels = [IGNORED] * len(prompt) + chosen
        return [{"row_id": row["row_id"], "input_ids": prompt + chosen, "labels": labels, "rejected": rejected}]

    def truncates(
        self, row: Row, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> bool:
        prompt, chosen, rejected = self._whole(row, tokenizer)
        return len(prompt) + max(len(chosen), len(rejected)) > max_length

    def _whole(self, row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
        """All tokens of the prompt and of the chosen and the rejected completion."""
        o, end = self.options, tokenizer.eos_token_id
        prompt = list(tokenizer(f"{row[o.prompt_column]}{o.separator}", verbose=False)["input_ids"])
        if prompt[-1] == end:  # some tokenizers end every text with it
            prompt.pop()
        chosen, rejected = (
            [*tokenizer(str(row[column]), add_special_tokens=False, verbose=False)["input_ids"], end]
            for column in (o.chosen_column, o.rejected_column)
        )
        return prompt, chosen, rejected

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        """The chosen sequences under the usual names, the rejected ones beside them as `rejected_...`."""
        import torch

        rejected = pad_batch([_rejected(example) for example in examples], tokenizer)
        beside = {f"rejected_{name}": value for name, value in rejected.items()}
        return pad_batch(examples, tokenizer) | beside | {"row_id": torch.tensor([e["row_id"] for e in examples])}

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM  # type: ignore[no-any-return]

    def set_reference(self, start: Callable[[], PreTrainedModel]) -> None:
        models: list[PreTrainedModel] = []

        def reference(batch: Mapping[str, Any]) -> torch.Tensor:
            if not models:
                models.append(start().eval().to(batch["input_ids"].device))
            return self.log_probs(models[0], batch)

        self.reference = reference

    def log_probs(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Log-probabilities in nats of the chosen and the rejected completions, (2, B) float64, by one forward pass."""
        import torch
        import torch.nn.functional as F

        def both(name: str, filler: int) -> torch.Tensor:  # (2B, T)
            parts = [batch[name], batch[f"rejected_{name}"]]
            longest = max(part.shape[1] for part in parts)
            return torch.cat([F.pad(part, (0, longest - part.shape[1]), value=filler) for part in parts])

        ids, mask, labels = both("input_ids", 0), both("attention_mask", 0), both("labels", IGNORED)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        sums = []
        for row_logits, row_labels in zip(logits[:, :-1], labels[:, 1:], strict=True):
            seen = row_labels != IGNORED  # (T-1,), one row at a time: the float copy of logits stays small
            losses = F.cross_entropy(row_logits[seen].float(), row_labels[seen], reduction="none")
            sums.append(-losses.double().sum())
        return torch.stack(sums).view(2, -1)

    def losses(self, gains: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of each pair, (B,).

        sigmoid: Rafailov et al. 2023; with label smoothing its conservative form (https://ericmitchell.ai/cdpo.pdf).
        ipo: Azar et al. 2023 (https://arxiv.org/abs/2310.12036), of log-probabilities per token. hinge: Liu et al. 2023
        (https://arxiv.org/abs/2309.06657). robust: Chowdhury et al. 2024 (https://arxiv.org/abs/2403.00409). exo_pair: Ji
        et al. 2024 (https://arxiv.org/abs/2402.00856). apo_zero and apo_down: D'Oosterlinck et al. 2024
        (https://arxiv.org/abs/2408.06266).

        Args:
            gains: log-probabilities of chosen and rejected completions less those of the reference, (2, B).
            tokens: how many tokens each completion has, (2, B).
        """
        import torch
        from torch.nn.functional import logsigmoid

        kind, beta, wrong = self.options.loss_type, self.options.beta, self.options.label_smoothing
        chosen, rejected = beta * gains  # (B,) each
        margin = chosen - rejected
        right, flipped = logsigmoid(margin), logsigmoid(-margin)
        match kind:
            case "ipo":
                per_token = gains / tokens
                found = (per_token[0] - per_token[1] - 0.5 / beta) ** 2
            case "hinge":
                found = torch.relu(1.0 - margin)
            case "robust":
                found = (wrong * flipped - (1.0 - wrong) * right) / (1.0 - 2.0 * wrong)
            case "exo_pair":
                found = right.exp() * (right - math.log1p(-wrong)) + flipped.exp() * (flipped - math.log(wrong))
            case "apo_zero":
                found = (-chosen).sigmoid() + rejected.sigmoid()
            case "apo_down":
                found = chosen.sigmoid() + (-margin).sigmoid()
            case _:
                found = -(1.0 - wrong) * right - wrong * flipped
        return found

    def preferences(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss (B,) of each pair, and rewards and log-probabilities (2, B) of its completions."""
        import torch

        assert self.reference is not None, "set_reference, or a training, says what the reference is"
        log_probs = self.log_probs(model, batch)
        with torch.no_grad():
            before = self.reference(batch)
        gains = log_probs - before
        tokens = torch.stack([(batch[name] != IGNORED).sum(1) for name in ("labels", "rejected_labels")])
        return self.losses(gains, tokens), self.options.beta * gains, log_probs

    def measure(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor:
        import torch

        losses, rewards, log_probs = self.preferences(model, batch)
        return torch.stack([losses, *rewards, *log_probs], dim=1)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """One, whether the chosen completion earns more, and the scores, (N, 7); a pair of equal rewards counts half."""
        import numpy as np

        margins = scores["chosen_reward"] - scores["rejected_reward"]
        columns = [scores[name] for name in self.score_names]
        return np.stack([np.ones_like(margins), 0.5 * np.sign(margins) + 0.5, *columns], axis=1)

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """Loss per pair; share of the pairs whose chosen completion earns more; rewards and log-probabilities in nats."""
        import numpy as np

        pairs, won, *sums = np.moveaxis(totals, -1, 0)
        means = dict(zip(self.score_names, (total / pairs for total in sums), strict=True))
        margin = means["chosen_reward"] - means["rejected_reward"]
        return means | {"reward_accuracy": won / pairs, "reward_margin": margin}


def _rejected(example: Example) -> Example:
    """The rejected completion after the same prompt, as a sequence of its own."""
    prompt = [i for i, label in zip(example["input_ids"], example["labels"], strict=True) if label == IGNORED]
    end = example["rejected"]
    return {"input_ids": prompt + end, "labels": [IGNORED] * len(prompt) + end}
