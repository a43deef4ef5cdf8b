"""FSDP2 on two CPU processes: the model is sharded and trains as without; the checks of FSDP and DeepSpeed."""

from __future__ import annotations

import os
import shutil
import types

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM

from params import CheckpointError, KilledError, ModelError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from tests.support import tiny
from tests.support.project import ROOT
from tests.support.training import curve, run_train
from trainer.loop import sharding
from trainer.model import network

FSDP = str(ROOT / "params" / "accelerate" / "fsdp2.yaml")
# two micro-batches per step and process; no dropout, whose masks depend on the micro-batch
RUN = {
    "training.max_steps": 12,
    "training.save_steps": 4,
    "model.config.attention_dropout": 0.0,
    "launch.micro_batch_size": 2,
    "launch.num_processes": 2,
}


def train(root, *, fsdp=True, processes=2, kill_at=None):
    """Run the train stage in the folder `root` and return its artifacts."""
    changes = RUN | {"launch.num_processes": processes} | ({"launch.accelerate_config": FSDP} if fsdp else {})
    artifacts, recipe = tiny.tokenized(root, tiny.recipe(changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support' / 'fsdp_on_cpu'}")
        if kill_at:
            patch.setenv("EVERGREEN_KILL_AT", kill_at)
        run_train(artifacts, recipe)
    return artifacts


def weights(artifacts):
    return load_file(artifacts.model / "model.safetensors")


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def checkpoint(artifacts):
    """The newest checkpoint of an unfinished run."""
    return max(artifacts.scratch.glob("checkpoints/*/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """An uninterrupted run under FSDP."""
    return train(tmp_path_factory.mktemp("fsdp"))


def test_fsdp_shards_the_model_and_trains_like_data_parallelism(sharded, tmp_path):
    shards = FileSystemReader(sharded.checkpoint / "pytorch_model_fsdp_0").read_metadata().state_dict_metadata
    assert len(shards) > 20
    assert {len(tensor.chunks) for tensor in shards.values()} == {2}, "every weight has two shards"
    whole = train(tmp_path, fsdp=False)
    assert largest_difference(weights(sharded), weights(whole)) < 1e-6
    curves = [[row[name] for row in curve(run, "train") for name in ("loss", "grad_norm")] for run in (sharded, whole)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert max(curves[0][1::2]) > 1.0, "no gradient was clipped"


def test_fsdp_model_is_published_unsharded(sharded):
    assert {p.name for p in sharded.model.iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert "lm_head.weight" not in weights(sharded), "tied weights are stored once"
    model = network.load_trained_model(sharded.model, AutoModelForCausalLM)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, weights(sharded)["model.embed_tokens.weight"])


@pytest.mark.slow
def test_killed_fsdp_run_resumes_with_the_same_bits(sharded, tmp_path):
    with pytest.raises(KilledError, match="SIGKILL"):
        train(tmp_path, kill_at="checkpoint.retained:1")
    assert checkpoint(Artifacts("tiny", tmp_path)).name == "checkpoint-4"
    resumed = train(tmp_path)
    assert largest_difference(weights(resumed), weights(sharded)) == 0
    for name in ("train.csv", "validation.csv"):
        assert (resumed.history / name).read_text() == (sharded.history / name).read_text()


@pytest.mark.slow
def test_fsdp_run_resumes_with_one_process_and_then_two(sharded, tmp_path, caplog):
    caplog.set_level("INFO")
    for processes, step in ((2, 4), (1, 8)):
        with pytest.raises(KilledError, match="SIGKILL"):
            train(tmp_path, processes=processes, kill_at="checkpoint.retained:1")
        assert checkpoint(Artifacts("tiny", tmp_path)).name == f"checkpoint-{step}"
    resumed = train(tmp_path)
    assert "resumes at step 8" in caplog.text
    assert largest_difference(weights(resumed), weights(sharded)) < 1e-6
    assert largest_difference(weights(resumed), {k: v + 1e-3 for k, v in weights(sharded).items()}) > 1e-4


def test_fsdp_without_gpus_is_refused(tmp_path):
    """accelerate would silently use data parallelism instead."""
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe(RUN | {"launch.accelerate_config": FSDP}))
    with pytest.raises(ModelError) as caught:
        run_train(artifacts, recipe)
    assert caught.value.where == "launch.accelerate_config"
    assert "asks for FSDP, which needs GPUs" in caught.value.what


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "params/accelerate").glob("*.yaml")))
@pytest.mark.parametrize("has_gpu", [False, True])
def test_check_says_that_a_configuration_needs_gpus(problems, monkeypatch, name, has_gpu):
    """As training would, after all stages before it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    found = problems({"launch.accelerate_config": str(ROOT / "params/accelerate" / name)})
    needs = [what for what in found.values() if "which needs GPUs, and torch finds none here" in what]
    assert bool(needs) == (not has_gpu and name != "ddp.yaml")


def fake_trainer(*, fsdp=False, deepspeed=False, world_size=2, model=None):
    return types.SimpleNamespace(
        is_fsdp_enabled=fsdp,
        is_deepspeed_enabled=deepspeed,
        args=types.SimpleNamespace(world_size=world_size),
        model_wrapped=model,
        accelerator=types.SimpleNamespace(unwrap_model=lambda model, **_: model),
    )


def test_model_that_fsdp2_does_not_shard_is_refused():
    with pytest.raises(ModelError, match="the model is a Linear, which FSDP2 does not shard"):
        sharding.check_fsdp2_wrapped(fake_trainer(fsdp=True, model=torch.nn.Linear(2, 2)))
    sharding.check_fsdp2_wrapped(fake_trainer(model=torch.nn.Linear(2, 2)))


WRITTEN_FILES = {"FSDP": "pytorch_model_fsdp_0", "DeepSpeed": "global_step4", "data parallelism": "model.safetensors"}
TRAINERS = {
    "FSDP": fake_trainer(fsdp=True),
    "DeepSpeed": fake_trainer(deepspeed=True),
    "data parallelism": fake_trainer(),
}


@pytest.mark.parametrize("used", TRAINERS)
@pytest.mark.parametrize("written", WRITTEN_FILES)
def test_checkpoint_needs_the_distribution_it_was_written_with(tmp_path, written, used):
    (tmp_path / WRITTEN_FILES[written]).touch()
    tiny.position(processes=2).save(tmp_path)
    if written == used:
        sharding.check_sharding_as_requested(TRAINERS[used], tmp_path)
        return
    with pytest.raises(CheckpointError, match=f"was written under {written}, and this start uses {used}"):
        sharding.check_sharding_as_requested(TRAINERS[used], tmp_path)


def test_only_deepspeed_needs_the_same_number_of_processes(tmp_path):
    (tmp_path / "global_step4").touch()
    tiny.position(processes=2).save(tmp_path)
    with pytest.raises(CheckpointError, match="was written by 2 processes, and DeepSpeed cannot resume with 4"):
        sharding.check_sharding_as_requested(fake_trainer(deepspeed=True, world_size=4), tmp_path)
    (tmp_path / "global_step4").rename(tmp_path / "pytorch_model_fsdp_0")
    sharding.check_sharding_as_requested(fake_trainer(fsdp=True, world_size=4), tmp_path)


def launch(configuration):
    return Launch(micro_batch_size=1, accelerate_config=configuration)


CONFIGURATIONS = sorted((ROOT / "params" / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_accelerate_configurations_are_valid_and_name_their_setting(path):
    assert path.read_text().splitlines()[0] == f"# launch.accelerate_config: params/accelerate/{path.name}"
    assert load_config_from_file(str(path)).distributed_type in {"MULTI_GPU", "FSDP", "DEEPSPEED"}


@pytest.mark.skipif(shutil.which("deepspeed") is not None, reason="DeepSpeed is installed")
def test_missing_deepspeed_is_named_before_the_start():
    sharding.check_deepspeed_installed(launch(None))
    sharding.check_deepspeed_installed(launch(FSDP))
    sharding.check_deepspeed_installed(launch("not/there.yaml"))
    with pytest.raises(ModelError) as caught:
        sharding.check_deepspeed_installed(launch(str(ROOT / "params" / "accelerate" / "deepspeed_zero2.yaml")))
    assert "asks for DeepSpeed, which is not installed" in caught.value.what
    assert "'.[deepspeed]'" in caught.value.fix
