"""A tiny model of an architecture taken through all that a real one goes through, for one objective: found sound, trained for two
steps, saved, merged, reloaded and scored again, evaluated, published, and read by its card's code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import transformers
from transformers import CONFIG_MAPPING

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import read_yaml_document
from tests.support import releases, tiny
from tests.support.tiny_releases import KINDS, OWN_ROWS
from tests.support.zoo.architectures import ARCHITECTURES, Architecture
from trainer import objectives
from trainer.objectives.advice.base import NewRecipeAdvice

SIZES: Final = {"train": 24, "validation": 4, "test": 8}
_FEW: Final = (
    *("bert", "roberta", "deberta-v2", "modernbert", "xlnet"),
    *("gpt2", "opt", "llama", "qwen2", "gemma3_text", "mamba", "t5", "bart"),
)
"""Architectures that differ from each other."""
_ALIKE: Final = ("kto", "multi_label_classification", "ranking", "reward")
"""Objectives whose head another one tries with every architecture: they are tried with few."""
_RARE: Final = ("AutoModelForSequenceClassification", "AutoModelForQuestionAnswering")
"""Heads that encoder-decoders have, too. No advice names these, because encoders learn as well in half the time."""


@dataclass(frozen=True)
class Cell:
    """An architecture with an objective, trained in full or with adapters."""

    architecture: str
    objective: str
    lora: bool

    def __str__(self) -> str:
        return f"{self.architecture}-{self.objective}{'-lora' if self.lora else ''}"

    @property
    def of(self) -> Architecture:
        """Its architecture."""
        return ARCHITECTURES[self.architecture]

    def recipe(self, base: Path) -> dict[str, Any]:
        """The recipe, with a base model in a folder."""
        sections = dict(KINDS[self.objective][1])
        tokenizer = {"kind": "pretrained", "path": str(base)}
        changes = {
            "data.source.train": "data/rows.jsonl",
            "training.max_steps": 2,
            "training.global_batch_size": 2,
            "launch.micro_batch_size": 2,
            "training.eval_steps": 2,
            "training.warmup_steps": 0,
            "evaluation.compare_untrained": False,
            "publish.private": False,
        }
        sections["model"] = {"pretrained": str(base), **({"lora": {"r": 4, **self.of.lora}} if self.lora else {})}
        sections["tokenization"] = {"tokenizer": tokenizer, "max_length": 40}
        return tiny.recipe(changes, **sections)


@cache
def all_cells() -> tuple[Cell, ...]:
    """Return every architecture with every objective that fits: it advises such models, and transformers has the head."""
    found = []
    for name, one in ARCHITECTURES.items():
        for objective in objectives.objective_names():
            cls = objectives.import_objective_class(objective)
            advised = NewRecipeAdvice.models if isinstance(cls.advice, str) else cls.advice.models
            is_fit = one.kind in advised or (one.kind == "encoder-decoder" and cls.auto_class in _RARE)
            is_tried = is_fit and (objective not in _ALIKE or name in _FEW)
            if is_tried and CONFIG_MAPPING[name] in getattr(transformers, cls.auto_class)._model_mapping:
                found += [Cell(name, objective, lora) for lora in (False, True)]
    return tuple(found)


def try_cell(cell: Cell, root: Path, changes: dict[str, Any] | None = None) -> Artifacts:
    """Take a cell through all of it in this process, without charts and reports; return the run. What goes wrong is raised.

    `changes` are keys of the recipe that are set.
    """
    from tasks.publishing import assembly
    from trainer.model import config_check

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_check, "start_transformers_settings_check", lambda *_: list)  # of a new model
        patch.setattr(assembly, "draw_card_charts", lambda _: {})
        patch.setattr(assembly, "render_report_page", lambda *_, **__: "A report.")
        return _try(cell, root, changes or {})


def _try(cell: Cell, root: Path, changes: dict[str, Any]) -> Artifacts:
    from tasks.diagnostics.check import find_recipe_problems

    is_masked = cell.objective == "masked_lm"  # whose head adapters need, because its output embeddings are tied
    base = cell.of.write(root / "base", encoder_class="AutoModelForMaskedLM" if is_masked else "AutoModel")
    (root / "data").mkdir()
    row = {"text": "A cat", "label": "cat", "number": 1.5, "spans": [{"label": "who", "start": 2, "end": 5}]}
    own = OWN_ROWS.get(cell.objective)
    if own:
        row = {column: values[0] for column, values in own(1, "train").items()}
    (root / "data/rows.jsonl").write_text(f"{json.dumps(row)}\n")
    path = tiny.write(root / "params" / "tiny.yaml", tiny.changed(cell.recipe(base), changes))
    found = find_recipe_problems(read_yaml_document(path))
    assert not found, f"check: {'; '.join(f'{one.what}: {one.fix}' for one in found)}"
    artifacts, recipe = Artifacts("tiny", root), tiny.load(path)
    if own:
        tiny.write_rows(artifacts, **{split: own(count, split) for split, count in SIZES.items()})
    else:
        tiny.write_sentences(artifacts, SIZES)
    releases.save_report(releases.SOURCE, artifacts.report("ingest"))
    tiny.tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    train_in_process(artifacts, recipe)
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    assert releases.publish(artifacts, recipe, timeout_s=120.0).status == "published"
    _assert_settings_of_base(base, artifacts)
    return artifacts


def train_in_process(artifacts: Artifacts, recipe: Any) -> None:
    """The train stage, whose only rank is this process."""
    from tasks.stage_run import stage_arguments_from_recipe
    from tasks.training import stage
    from trainer import worker
    from trainer.runtime.heartbeat import Heartbeat

    def train(job: Any, *_: Any) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        worker.train(job, Heartbeat(job.folder, 0), lambda: False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "supervise_training", train)
        patch.setattr("trainer.runtime.imports.hide_unused_packages", lambda _: None)  # which later stages use
        stage.train(artifacts, **stage_arguments_from_recipe("train", recipe))


def _assert_settings_of_base(base: Path, artifacts: Artifacts) -> None:
    """Nothing that only training needs is published, and nothing of the base is lost."""
    before, after = (json.loads((folder / "config.json").read_bytes()) for folder in (base, artifacts.model))
    for key in ("use_cache", "dtype", "tie_word_embeddings", "eos_token_id"):
        assert after.get(key) == before.get(key), f"{key} of config.json is {after.get(key)}, and was {before.get(key)}"
    own, published = (json.loads((folder / "tokenizer_config.json").read_bytes()) for folder in (base, artifacts.model))
    limits = own["model_max_length"], published["model_max_length"]
    assert limits[0] == limits[1] or limits[0] > limits[1] >= 64, (
        f"the tokenizer cut at {limits[0]}, and now at {limits[1]}"
    )
    sides = own.get("padding_side"), published.get("padding_side")
    assert sides[0] == sides[1], f"the tokenizer padded on the {sides[0]}, and now on the {sides[1]}"
