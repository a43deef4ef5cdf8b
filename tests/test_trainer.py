"""What the exact resume rests on: the order of rows, the batch arithmetic, checkpoints, the key of a run."""

from __future__ import annotations

import inspect
import logging

import pytest
from transformers import Trainer

from params import RecipeError
from params.schema import Launch, Recipe
from tests import tiny
from trainer import checkpoints
from trainer.arguments import build, split_batch
from trainer.job import run_key
from trainer.sampling import EpochSampler
from trainer.trainer import PRIVATE_HOOKS, EvergreenTrainer


def order(rows=50, *, seed=3, batch=8, epoch=0, lengths=None):
    sampler = EpochSampler(rows, seed=seed, global_batch_size=batch, lengths=lengths)
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert len(found) == len(sampler)
    return found


def test_an_epoch_is_whole_global_batches_without_a_row_twice():
    assert len(order()) == 48
    assert len(set(order())) == 48
    assert len(order(rows=48)) == 48
    assert order(rows=7) == []


def test_the_order_follows_from_seed_and_epoch_alone():
    assert order() == order()
    assert order(epoch=1) != order(epoch=0)
    assert order(seed=4) != order(seed=3)
    assert order(epoch=2, seed=3) != order(epoch=3, seed=2)
    left_out = [set(range(50)) - set(order(epoch=e)) for e in range(4)]
    assert len(set(map(frozenset, left_out))) > 1, "other rows are left over in each epoch"


def test_the_sampler_is_asked_for_the_same_rows_on_any_number_of_processes():
    """One process with accumulation, or several: what they share out is one and the same order."""
    for processes in (1, 2, 4):
        micro_batch, accumulation = split_batch(8, Launch(num_processes=processes, micro_batch_size=2))
        sampler = EpochSampler(50, seed=3, global_batch_size=micro_batch * accumulation * processes)
        assert list(sampler) == order()


def test_grouping_by_length_keeps_batches_alike_and_the_epoch_whole():
    lengths = [i * 7919 % 100 for i in range(1000)]
    found = order(1000, lengths=lengths)
    assert sorted(found) == list(range(1000))
    spreads = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in zip(*[iter(found)] * 8, strict=True)]
    assert max(spreads) < 10
    firsts = [lengths[i] for i in found[::8]]
    assert firsts != sorted(firsts, reverse=True), "but the batches come in random order"
    assert found == order(1000, lengths=lengths)
    assert found != order(1000, lengths=lengths, epoch=1)


@pytest.mark.parametrize(
    ("processes", "most", "expected"),
    [
        (1, 24, (24, 1)),
        (1, 8, (8, 3)),
        (1, 7, (6, 4)),  # the largest divisor that is not above it
        (1, 1, (1, 24)),
        (2, 8, (6, 2)),
        (3, 100, (8, 1)),
        (24, 8, (1, 1)),
    ],
)
def test_the_global_batch_is_kept(processes, most, expected):
    micro_batch, accumulation = split_batch(24, Launch(num_processes=processes, micro_batch_size=most))
    assert (micro_batch, accumulation) == expected
    assert micro_batch * accumulation * processes == 24


def test_a_batch_that_cannot_be_shared_names_the_numbers_that_can():
    with pytest.raises(RecipeError) as caught:
        split_batch(12, Launch(num_processes=5, micro_batch_size=4))
    assert caught.value.fix == "use one of [1, 2, 3, 4, 6, 12] processes, or another global batch"


def test_the_arguments_of_a_run_are_the_recipes(tmp_path):
    recipe = Recipe.model_validate(tiny.recipe({"training.arguments": {"adam_beta2": 0.95}}))
    for resuming in (False, True):
        args = build(folder=tmp_path, seed=3, training=recipe.training, launch=recipe.launch, resuming=resuming)
        assert args.eval_on_start is not resuming
    assert (args.seed, args.data_seed, args.max_steps, args.learning_rate) == (3, 3, 12, 1e-2)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 2)
    assert args.adam_beta2 == 0.95
    assert args.output_dir == str(tmp_path)
    assert args.report_to == []
    refused = recipe.training.model_copy(update={"arguments": {"push_to_hub": True}})
    with pytest.raises(RecipeError, match="push_to_hub: belongs to the pipeline"):
        build(folder=tmp_path, seed=3, training=refused, launch=recipe.launch, resuming=False)


def sealed(folder, step, content=b"weights"):
    staged = folder / ".staging" / f"checkpoint-{step}"
    (staged / "part").mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(content * 100)
    (staged / "part" / "rng.pth").write_bytes(b"state")
    checkpoints.seal(staged, folder / f"checkpoint-{step}")
    return folder / f"checkpoint-{step}"


def test_a_sealed_checkpoint_verifies(tmp_path):
    assert checkpoints.verify(sealed(tmp_path, 5)) is None
    assert checkpoints.newest_verified(tmp_path) == tmp_path / "checkpoint-5"


def test_the_newest_is_that_of_the_highest_step_not_of_the_last_name(tmp_path):
    for step in (900, 1000, 20):
        sealed(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "broken-checkpoint-2000").mkdir()
    assert checkpoints.newest_verified(tmp_path) == tmp_path / "checkpoint-1000"
    assert [p.name for p in checkpoints.all_checkpoints(tmp_path)] == [
        "checkpoint-1000",
        "checkpoint-900",
        "checkpoint-20",
    ]


def _truncate(checkpoint):
    (checkpoint / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:-1])


def _flip(checkpoint):
    content = bytearray((checkpoint / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "model.safetensors").write_bytes(content)


def _empty(checkpoint):
    for path in sorted(checkpoint.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


FLAWS = {
    "truncated": (_truncate, "not as it was written: model.safetensors"),
    "a flipped bit": (_flip, "not as it was written: model.safetensors"),
    "a file is gone": (lambda c: (c / "part" / "rng.pth").unlink(), "not as it was written: part/rng.pth"),
    "a file too many": (lambda c: (c / "extra").write_text("x"), "not as it was written: extra"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "it has no manifest"),
    "a torn manifest": (lambda c: (c / "manifest.json").write_text('{"model'), "its manifest is damaged"),
    "an empty manifest": (lambda c: (c / "manifest.json").write_text(""), "its manifest is damaged"),
    "a manifest of another kind": (lambda c: (c / "manifest.json").write_text("[1]"), "its manifest is damaged"),
    "a manifest that is no text": (lambda c: (c / "manifest.json").write_bytes(b"\xff\xfe"), "its manifest is damaged"),
    "empty": (_empty, "it has no manifest"),
}


@pytest.mark.parametrize(("spoil", "said"), FLAWS.values(), ids=FLAWS)
def test_a_broken_checkpoint_is_set_aside_and_an_older_one_taken(tmp_path, caplog, spoil, said):
    sealed(tmp_path, 5)
    spoil(sealed(tmp_path, 10))
    assert checkpoints.verify(tmp_path / "checkpoint-10") == said
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest_verified(tmp_path) == tmp_path / "checkpoint-5"
    assert (tmp_path / "broken-checkpoint-10").is_dir()
    assert [p.name for p in checkpoints.all_checkpoints(tmp_path)] == ["checkpoint-5"]
    assert f"set aside {tmp_path / 'broken-checkpoint-10'}: {said}" in caplog.text
    spoil(sealed(tmp_path, 10))  # and once more: an earlier one set aside is in nobody's way
    assert checkpoints.newest_verified(tmp_path) == tmp_path / "checkpoint-5"


def test_with_no_checkpoint_that_verifies_there_is_none(tmp_path):
    assert checkpoints.newest_verified(tmp_path) is None
    _flip(sealed(tmp_path, 5))
    assert checkpoints.newest_verified(tmp_path) is None


def test_what_was_never_sealed_is_not_seen(tmp_path):
    (tmp_path / ".staging" / "checkpoint-7").mkdir(parents=True)
    assert checkpoints.newest_verified(tmp_path) is None


def test_sealing_again_replaces(tmp_path):
    sealed(tmp_path, 5, b"old")
    assert (sealed(tmp_path, 5, b"new") / "model.safetensors").read_bytes() == b"new" * 100
    assert checkpoints.verify(tmp_path / "checkpoint-5") is None


def test_the_newest_are_retained(tmp_path):
    for step in (2, 4, 10, 8):
        sealed(tmp_path, step)
    checkpoints.retain(tmp_path, 2)
    assert [p.name for p in checkpoints.all_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-8"]


@pytest.mark.parametrize("name", PRIVATE_HOOKS)
def test_transformers_still_has_the_private_methods_that_we_override(name):
    theirs, ours = getattr(Trainer, name), getattr(EvergreenTrainer, name)
    assert ours is not theirs
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_every_private_method_that_we_override_is_listed():
    overridden = {
        n for n in vars(EvergreenTrainer) if n.startswith("_") and not n.startswith("__") and hasattr(Trainer, n)
    }
    assert overridden == set(PRIVATE_HOOKS)
    calls = inspect.getsource(Trainer)
    assert "self._save_checkpoint(" in calls
    assert "self._get_output_dir(" in calls


@pytest.fixture
def tokens(tmp_path):
    folder = tmp_path / "tokens"
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("train.arrow", "objective.json", "tokenizer/tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def key(tokens, changes=None):
    made = Recipe.model_validate(tiny.recipe(changes))
    return run_key(seed=made.seed, objective=made.objective, model=made.model, training=made.training, tokens=tokens)


def test_the_key_of_a_run_is_that_of_what_is_learned(tokens):
    assert key(tokens) == key(tokens)
    assert len(key(tokens)) == 16
    same = {"launch.num_processes": 4, "launch.micro_batch_size": 1, "launch.eval_batch_size": 2}
    same |= {"training.logging_steps": 7, "training.keep_checkpoints": 5, "evaluation.split": "validation"}
    for path, value in same.items():
        assert key(tokens, {path: value}) == key(tokens), path
    different = {
        "seed": 4,
        "training.learning_rate": 1e-3,
        "training.max_steps": 13,
        "training.arguments": {"adam_beta2": 0.95},
        "objective.packing": False,
        "objective.name": "sequence_classification",
        "model.config.hidden_size": 64,
        "model": {"pretrained": "owner/name"},
    }
    keys = [key(tokens, {path: value}) for path, value in different.items()]
    assert len({key(tokens), *keys}) == len(different) + 1


@pytest.mark.parametrize("name", ["train.arrow", "objective.json", "tokenizer/tokenizer.json"])
def test_other_data_or_another_tokenizer_is_another_run(tokens, name):
    before = key(tokens)
    (tokens / name).write_text("changed")
    assert key(tokens) != before


def test_other_weights_in_the_base_models_folder_are_another_run(tokens, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_text("a")
    changes = {"model": {"pretrained": str(base)}}
    before = key(tokens, changes)
    (base / "model.safetensors").write_text("b")
    assert key(tokens, changes) != before


def best_of(folder, step: int, value: float) -> None:
    staged = folder / ".best"
    staged.mkdir()
    (staged / "model.safetensors").write_text(f"weights of step {step}")
    checkpoints.seal_best(staged, step=step, metric="loss", value=value)


def test_a_better_model_takes_the_place_of_the_best(tmp_path):
    best_of(tmp_path, 10, 2.0)
    best_of(tmp_path, 20, 1.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best-20"]
    best = checkpoints.best_weights(tmp_path, "min")
    assert (best.step, best.metric, best.value) == (20, "loss", 1.0)


def test_between_two_bests_neither_is_lost(tmp_path):
    """A kill after the new one is sealed and before the old one is deleted leaves both; a torn one does not count."""
    best_of(tmp_path, 10, 2.0)
    (tmp_path / "best-10").rename(tmp_path / "kept")
    best_of(tmp_path, 20, 1.0)
    (tmp_path / "kept").rename(tmp_path / "best-10")
    assert checkpoints.best_weights(tmp_path, "min").step == 20
    assert checkpoints.best_weights(tmp_path, "max").step == 10
    (tmp_path / "best-20" / "model.safetensors").write_text("torn")
    assert checkpoints.best_weights(tmp_path, "min").step == 10
    assert checkpoints.best_weights(tmp_path / "nowhere", "min") is None
