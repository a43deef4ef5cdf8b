"""What the field's own trainers learn, we learn: 20 steps beside each, of unequal rows and accumulated gradients.

Ours trains first. The library's trainer then starts from the same weights and reads the same rows in the same order. It tokenizes them itself where
nothing is drawn by chance, pads them by its own collator, and takes its own loss and steps. Losses and norms of gradients agree at each step.

Transformers has two ways to accumulate. A model whose loss is a mean over its micro-batch is told so (`model_accepts_loss_kwargs`), or Trainer would
add up means of micro-batches. Where the micro-batches have other numbers of labels, a mean of means would not be the mean; there Trainer gets the
cross-entropy as its documentation writes it for `compute_loss_func`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from tests.support import in_process, tiny
from tests.support.zoo.tokenizers_of_kinds import KINDS

STEPS, MICRO_BATCH, LIMIT = 20, 2, 48
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": LIMIT}
BERT = {"config": {**tiny.CLASSES["model"]["config"], **NO_DROPOUT}}
LLAMA = {"config": {**tiny.RECIPE["model"]["config"], "attention_dropout": 0.0}}
T5 = {"config": {**tiny.TARGETS["model"]["config"], "dropout_rate": 0.0}}


@dataclass(frozen=True)
class Case:
    """An objective, and how the library's trainer is given the same task."""

    objective: dict[str, Any]
    tokenizer: str
    model: dict[str, Any]
    refer: Callable[[Ours, Path], Any]
    """From what ours has learned to the library's trainer, before it trains."""
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Ours:
    """What our training did."""

    trainer: Any
    start: dict[str, torch.Tensor]
    """The weights before the first step."""
    rows: list[dict[str, Any]]
    """The rows of the train split, in the order in which they were read."""
    batches: list[dict[str, torch.Tensor]]
    """The micro-batches, in their order."""

    @property
    def tokenizer(self) -> Any:
        return self.trainer.processing_class

    def model(self, auto_class: Any) -> Any:
        """The same network, made by transformers from the configuration."""
        config = copy.deepcopy(self.trainer.model.config)
        network = auto_class.from_config(config)
        network.load_state_dict(self.start)
        return network

    def arguments(self, folder: Path, cls: Any = TrainingArguments, **more: Any) -> Any:
        """Trainer's arguments with the same optimizer and schedule, for rows in the given order."""
        own = self.trainer.args
        same = ("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim")
        same += ("adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps", "lr_scheduler_kwargs")
        return cls(
            str(folder),
            **{name: getattr(own, name) for name in same},
            per_device_train_batch_size=MICRO_BATCH,
            max_steps=STEPS,
            logging_steps=1,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            **more,
        )


def train_ours(case: Case, root: Path) -> Ours:
    KINDS[case.tokenizer]().save_pretrained(root / "tokenizer")
    sections = {
        "objective": case.objective,
        "model": case.model,
        "tokenization": {"tokenizer": {"kind": "pretrained", "path": str(root / "tokenizer")}, "max_length": LIMIT},
    }
    changes = {"launch.micro_batch_size": MICRO_BATCH, "training.max_steps": STEPS, "training.eval_steps": STEPS}
    changes |= {"training.learning_rate": 1e-3, "training.save_steps": STEPS, **case.changes}
    job = in_process.job(root, changes, **sections)
    trainer = in_process.trainer_of(job)
    found = Ours(trainer, copy.deepcopy(trainer.model.state_dict()), [], [])
    batch_loss, places = trainer.objective.batch_loss, list[int]()

    def observed(model: Any, batch: Any, share: Any) -> Any:
        found.batches.append({name: value.clone() for name, value in batch.items()})
        return batch_loss(model, batch, share)

    trainer.objective.batch_loss = observed
    note = in_process.At(
        "on_pre_optimizer_step", lambda **_: places.extend(chain.from_iterable(trainer.training_data.rows))
    )
    trainer.add_callback(note)
    trainer.train()
    texts = in_process_rows(root)
    found.rows = [texts[place] for place in places]
    assert len(found.rows) == STEPS * 8
    return found


def in_process_rows(root: Path) -> list[dict[str, Any]]:
    """The rows of the train split, by their row_id."""
    from tasks.shards.split_rows import SplitRows

    artifacts = tiny.Artifacts("tiny", root)
    return sorted(SplitRows(artifacts.rows / "train").rows(), key=lambda row: row["row_id"])


def steps_of(trainer: Any) -> list[tuple[float, float]]:
    return [(one["loss"], float(one["grad_norm"])) for one in trainer.state.log_history if "grad_norm" in one]


def plain(ours: Ours, folder: Path, model: Any, rows: list[dict[str, Any]], collator: Any, loss: Any = None) -> Trainer:
    trainer = Trainer(
        model=model,
        args=ours.arguments(folder),
        train_dataset=Dataset.from_list(rows),
        data_collator=collator,
        compute_loss_func=loss,
    )
    if not type(model).__name__.endswith("ForCausalLM"):
        trainer.model_accepts_loss_kwargs = False
    return trainer


def mean_over_labels(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs.logits.flatten(0, -2)
    summed = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    return summed / num_items_in_batch


def classifier(label: Callable[[Ours, dict[str, Any]], Any], texts: tuple[str, ...] = ("text",)) -> Any:
    def refer(ours: Ours, folder: Path) -> Trainer:
        columns = [[row[name] for row in ours.rows] for name in texts]
        encoded = ours.tokenizer(*columns, truncation=True, max_length=LIMIT)
        rows = [
            {**{name: encoded[name][i] for name in encoded}, "labels": label(ours, row)}
            for i, row in enumerate(ours.rows)
        ]
        model = ours.model(AutoModelForSequenceClassification)
        return plain(ours, folder, model, rows, DataCollatorWithPadding(ours.tokenizer))

    return refer


def class_of(ours: Ours, row: dict[str, Any]) -> int:
    return sorted({one["label"] for one in ours.rows}).index(row["label"])


def classes_of(ours: Ours, row: dict[str, Any]) -> list[float]:
    return [float(label in row["labels"]) for label in sorted({name for one in ours.rows for name in one["labels"]})]


def standardized(ours: Ours, row: dict[str, Any]) -> float:
    config = ours.trainer.model.config
    return (row["number"] - config.target_mean[0]) / config.target_std[0]


def next_tokens(ours: Ours, folder: Path) -> Trainer:
    ids = [[*ours.tokenizer(row["text"])["input_ids"], ours.tokenizer.eos_token_id] for row in ours.rows]
    rows = [{"input_ids": one, "attention_mask": [1] * len(one), "labels": one} for one in ids]
    collator = DataCollatorForTokenClassification(ours.tokenizer)
    return plain(ours, folder, ours.model(AutoModelForCausalLM), rows, collator)


def second_text(ours: Ours, folder: Path) -> Trainer:
    sources = [row["text"] for row in ours.rows]
    encoded = ours.tokenizer(sources, text_target=[row["label"] for row in ours.rows], truncation=True)
    rows = [{name: encoded[name][i] for name in encoded} for i in range(len(sources))]
    model = ours.model(AutoModelForSeq2SeqLM)
    return plain(ours, folder, model, rows, DataCollatorForSeq2Seq(ours.tokenizer, model), mean_over_labels)


def labelled_tokens(auto_class: Any) -> Any:
    def refer(ours: Ours, folder: Path) -> Trainer:
        """The tokens and labels that ours read, as what is masked is drawn by chance, and spans become tags in our way."""
        rows = []
        for batch in ours.batches:
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
                size = int(mask.sum())
                rows.append({"input_ids": ids[:size].tolist(), "labels": labels[:size].tolist()})
        collator = DataCollatorForTokenClassification(ours.tokenizer)
        return plain(ours, folder, ours.model(auto_class), rows, collator, mean_over_labels)

    return refer


def cross_encoder(ours: Ours, folder: Path) -> Any:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
    from torch.utils.data import BatchSampler, SequentialSampler

    class InOrder(CrossEncoderTrainer):
        def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> Any:
            return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    ours.model(AutoModelForSequenceClassification).save_pretrained(folder / "start")
    ours.tokenizer.save_pretrained(folder / "start")
    encoder = CrossEncoder(str(folder / "start"), num_labels=1, max_length=LIMIT, device="cpu")
    columns = {"query": [row["label"] for row in ours.rows], "document": [row["text"] for row in ours.rows]}
    highest = max(row["number"] for row in in_process_rows(folder.parent))
    columns |= {"label": [row["number"] / highest for row in ours.rows]}
    arguments = ours.arguments(folder, CrossEncoderTrainingArguments)
    made = Dataset.from_dict(columns)
    return InOrder(model=encoder, args=arguments, train_dataset=made, loss=BinaryCrossEntropyLoss(encoder))


def reward_trainer(ours: Ours, folder: Path) -> Any:
    from trl import RewardConfig, RewardTrainer

    def tokens(row: dict[str, Any], answer: str) -> list[int]:
        return [*ours.tokenizer(f"{row['text']} =>{row[answer]}")["input_ids"], ours.tokenizer.eos_token_id]

    rows = [{"chosen_ids": tokens(row, "label"), "rejected_ids": tokens(row, "text")} for row in ours.rows]
    return RewardTrainer(
        model=ours.model(AutoModelForSequenceClassification),
        args=ours.arguments(folder, RewardConfig, max_length=None, gradient_checkpointing=False, bf16=False),
        train_dataset=Dataset.from_list(rows),
        processing_class=ours.tokenizer,
    )


REWARD = {"prompt_column": "text", "chosen_column": "label", "rejected_column": "text", "separator": " =>"}
RANKING = {"query_column": "label", "document_column": "text", "relevance_column": "number"}
TARGETS = {"name": "seq2seq", "input_column": "text", "target_column": "label", "generate": False}
LONG = {"tokenization.max_length": 120}
CASES = {
    "sequence_classification": Case(tiny.CLASSES["objective"], "wordpiece", BERT, classifier(class_of)),
    "multi_label_classification": Case(tiny.LABEL_SETS["objective"], "wordpiece", BERT, classifier(classes_of)),
    "regression": Case(tiny.NUMBERS["objective"], "wordpiece", BERT, classifier(standardized, ("text", "label"))),
    "token_classification": Case(
        {"name": "token_classification"}, "wordpiece", BERT, labelled_tokens(AutoModelForTokenClassification)
    ),
    "masked_lm": Case(
        {"name": "masked_lm", "packing": False}, "wordpiece", BERT, labelled_tokens(AutoModelForMaskedLM)
    ),
    "causal_lm": Case({"name": "causal_lm", "packing": False}, "llama", LLAMA, next_tokens, LONG),
    "seq2seq": Case(TARGETS, "t5", T5, second_text, LONG),
    "ranking": Case({"name": "ranking", **RANKING}, "wordpiece", BERT, cross_encoder),
    "reward": Case({"name": "reward", **REWARD}, "llama", LLAMA, reward_trainer, LONG),
}
QUICK = ("causal_lm", "ranking")


@pytest.mark.filterwarnings("ignore")  # the libraries warn of experimental features and renamed arguments
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES])
def test_twenty_steps_are_those_of_the_librarys_own_trainer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    ours = train_ours(case, tmp_path)
    sizes = {int(batch["attention_mask"].sum()) for batch in ours.batches}
    assert len(sizes) > 3, "micro-batches have different numbers of tokens"
    theirs = case.refer(ours, tmp_path / "reference")
    theirs.train()
    own, expected = steps_of(ours.trainer), steps_of(theirs)
    assert len(own) == len(expected) == STEPS
    for (loss, norm), (their_loss, their_norm) in zip(own, expected, strict=True):
        assert loss == pytest.approx(their_loss, rel=1e-5, abs=1e-6)
        assert norm == pytest.approx(their_norm, rel=1e-5, abs=1e-6)
