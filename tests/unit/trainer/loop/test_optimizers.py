"""Every optimizer of transformers: it learns and resumes exactly, or is refused with the reason."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from params import DivergedError, ModelError, Recipe, RecipeError
from params.foundation.installation import install_extra
from tests.support import tiny
from tests.support.in_process import At, job, losses, trained, trainer_of
from tests.support.project import ROOT
from trainer.checkpoints.sealed import find_best_weights
from trainer.loop import optimizer_check, optimizers

RUN = {
    # 64 x 64 weights: 8-bit and 4-bit optimizers quantize from 4096 on
    "model.config.hidden_size": 64,
    "model.config.tie_word_embeddings": False,
    "training.max_steps": 8,
    "training.eval_steps": 4,
    "training.save_steps": 4,
    "launch.micro_batch_size": 8,
}
LOW_RANK = {"optim_target_modules": ["q_proj", "up_proj"], "optim_args": "rank=4,update_proj_gap=3"}
RUNNABLE = [name for name in optimizers.known_optimizers() if optimizer_check.why_optimizer_unavailable(name) is None]

pytestmark = [
    # grokadamw 0.1.2, grokadamw.py: torch.cuda.amp.autocast() at each step, on any device
    pytest.mark.filterwarnings(r"ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available or torch_xla is imported:UserWarning"),
    # bitsandbytes 0.50.2: without a GPU, paged optimizers have no pages
    pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU:UserWarning"),
]


@pytest.fixture(autouse=True)
def eager():
    """torchao compiles its steps, which takes seconds and changes nothing here."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def changes(name, **more):
    """The keys of a recipe that trains with this optimizer."""
    settings = RUN | {"training.optimizer": name, "training.arguments": {}}
    if name.startswith(("galore", "apollo")):
        settings["training.arguments"] = dict(LOW_RANK)
    if name.startswith("schedule_free"):
        settings |= {"training.lr_scheduler": "constant", "training.warmup_steps": 0}
    if name == "schedule_free_radam":  # it skips its first steps; adam_beta2 sets how many
        settings |= {"training.arguments": {"adam_beta2": 0.8}, "training.learning_rate": 0.03}
    if name == "adalomo":  # its rate is relative to the size of a weight
        settings["training.learning_rate"] = 0.1
    if name in ("sgd", "lomo", "schedule_free_sgd"):
        settings["training.learning_rate"] = 0.5
    if name in ("lomo", "adalomo") or name.endswith("layerwise"):
        settings["training.max_grad_norm"] = 0.0
    return settings | more


def checkpoint(trainer, step):
    return Path(trainer.args.output_dir) / f"checkpoint-{step}"


def optimizer_of(trainer):
    return trainer.optimizer.optimizer


def state_of(trainer, weight):
    """The optimizer's state of one weight, and the weight."""
    parameter = dict(trainer.model.named_parameters())[weight]
    return optimizer_of(trainer).state[parameter], parameter


UP = "model.layers.0.mlp.up_proj.weight"


# Availability


def test_unavailable_optimizers_are_known():
    missing = {"adamw_torch_xla", "adamw_torch_npu_fused", "adamw_anyprecision"}
    missing |= {"galore_adamw_8bit", "galore_adamw_8bit_layerwise"}
    if not torch.cuda.is_available():
        missing.add("adalomo")
    assert set(optimizers.known_optimizers()) - set(RUNNABLE) == missing


ONE_OF_EACH = {"adamw_torch_fused", *{optimizers.optimizer_family(name): name for name in reversed(RUNNABLE)}.values()}
"""The default, and one of each family; `make slow` trains with all of them."""
ONE_OF_EACH -= {"adamw_torch", "adagrad", "rmsprop"}  # torch's, of whose kind the default and sgd are


LAYERWISE = "galore_adamw_layerwise"


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def all_at_length(names):
    return [name if name in ONE_OF_EACH else slow([name])[0] for name in names]


@pytest.mark.parametrize("name", all_at_length(RUNNABLE))
def test_optimizer_learns_and_resumes_with_the_same_bits(tmp_path, name):
    learns_and_resumes(tmp_path, changes(name), stop_at=5)


@pytest.mark.parametrize("name", all_at_length(n for n in RUNNABLE if n.startswith("schedule_free")))
def test_schedule_free_stopped_at_an_evaluation_resumes_with_the_same_bits(tmp_path, name):
    """The next start makes the evaluation and must switch the weights as the first would have."""
    learns_and_resumes(tmp_path, changes(name), stop_at=4)


def learns_and_resumes(tmp_path, settings, stop_at):
    whole = trained(job(tmp_path / "whole", settings))
    curve = losses(whole)
    assert curve[8] < curve[1] - 0.2
    planned = job(tmp_path / "stopped", settings, stop_at_step=stop_at)
    first = trained(planned)
    assert first.guard.stopped
    rest = planned.model_copy(update={"stop_at_step": None, "checkpoint": checkpoint(first, stop_at)})
    second = trained(rest)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "position.json"):
        assert (checkpoint(whole, 8) / name).read_bytes() == (checkpoint(second, 8) / name).read_bytes(), name
    assert losses(second) == curve
    assert best(whole).step == best(second).step > 0
    assert same_bits(load_file(best(whole).folder / "model.safetensors"), best(second).folder)


def best(trainer):
    return find_best_weights(Path(trainer.args.output_dir), "min")


def same_bits(tensors, folder):
    found = load_file(folder / "model.safetensors")
    return found.keys() == tensors.keys() and all(torch.equal(found[k], tensors[k]) for k in found)


def test_adalomo_learns_and_resumes_with_the_same_bits(tmp_path, monkeypatch):
    """Its package uses CUDA only to create its moments; without that it runs on a CPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        monkeypatch.setattr(optimizer_check, "why_optimizer_unavailable", lambda name: None)
    learns_and_resumes(tmp_path, changes("adalomo"), stop_at=5)


# Behaviour of each optimizer


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_galore_updates_have_low_rank(tmp_path):
    settings = changes("galore_adamw", **{"training.max_steps": 3})
    settings["training.arguments"] = LOW_RANK | {"optim_args": "rank=4,update_proj_gap=50"}
    trainer = trainer_of(job(tmp_path, settings))
    before = weights(trainer)
    trainer.train()
    state, parameter = state_of(trainer, UP)
    assert parameter.shape == (64, 64)
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (64, 4)
    after = weights(trainer)
    ranks = {
        name: torch.linalg.matrix_rank(after[name] - before[name], atol=1e-5).item()
        for name in after
        if after[name].ndim == 2
    }
    assert ranks[UP] == 4
    assert ranks[UP.replace("up_proj", "down_proj")] > 32, "not among optim_target_modules"


def test_apollo_moments_have_low_rank(tmp_path):
    trainer = trained(job(tmp_path, changes("apollo_adamw", **{"training.max_steps": 2})))
    state, parameter = state_of(trainer, UP)
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (64, 4)
    assert state_of(trainer, UP.replace("up_proj", "down_proj"))[0]["exp_avg"].shape == parameter.shape


@pytest.mark.parametrize("name", [LAYERWISE, *slow(n for n in RUNNABLE if n.endswith("layerwise") and n != LAYERWISE)])
def test_layerwise_optimizer_trains_the_same_with_one_gradient_at_a_time(tmp_path, name):
    at_once = trained(
        job(tmp_path / "at-once", changes(name.removesuffix("_layerwise"), **{"training.max_grad_norm": 0.0}))
    )
    trainer = trainer_of(job(tmp_path / "layerwise", changes(name)))
    optimizer, gradient_counts = trainer.create_optimizer(), []
    for parameter in trainer.model.parameters():
        parameter.register_hook(
            lambda _: gradient_counts.append(sum(p.grad is not None for p in trainer.model.parameters()))
        )
    trainer.train()
    assert optimizer_of(trainer) is optimizer
    assert max(gradient_counts) == 0, "earlier gradients are freed when the next one arrives"
    assert same_bits(load_file(checkpoint(at_once, 8) / "model.safetensors"), checkpoint(trainer, 8))
    norms = [[e["grad_norm"] for e in t.state.log_history if "grad_norm" in e] for t in (at_once, trainer)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_lomo_is_sgd_without_state_and_with_one_gradient_at_a_time(tmp_path):
    plain = trained(job(tmp_path / "sgd", changes("sgd", **{"training.max_grad_norm": 0.0})))
    trainer = trainer_of(job(tmp_path / "lomo", changes("lomo")))
    gradient_counts = []
    for parameter in trainer.model.parameters():
        parameter.register_hook(
            lambda _: gradient_counts.append(sum(p.grad is not None for p in trainer.model.parameters()))
        )
    trainer.train()
    assert max(gradient_counts) <= 1
    assert optimizer_of(trainer).state_dict()["state"] == {}
    expected = weights(plain)
    for name, found in weights(trainer).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lomo", "galore_adamw_layerwise", "galore_adamw"])
def test_nonfinite_gradient_stops_the_run_before_saving(tmp_path, name):
    trainer = trainer_of(job(tmp_path, changes(name, **{"training.save_steps": 1})))
    parameter = dict(trainer.model.named_parameters())[UP]
    parameter.register_hook(lambda grad: grad * float("inf") if trainer.state.global_step == 2 else grad)
    with pytest.raises(DivergedError, match=r"the loss is finite, but the norm of the gradient is (nan|inf) at step 3"):
        trainer.train()
    folder = Path(trainer.args.output_dir)
    assert {p.name for p in folder.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    assert all(t.isfinite().all() for t in load_file(folder / "checkpoint-2" / "model.safetensors").values())


@pytest.mark.parametrize("name", all_at_length(n for n in RUNNABLE if n.startswith(("galore", "apollo"))))
def test_weight_decay_covers_projected_and_other_weights(tmp_path, name):
    trainer = trainer_of(job(tmp_path, changes(name, **{"training.weight_decay": 0.1})))
    decays = {p: group["weight_decay"] for group in trainer.create_optimizer().param_groups for p in group["params"]}
    found = {name: decays[p] for name, p in trainer.model.named_parameters()}
    assert {name for name, decay in found.items() if decay == 0.1} == set(
        trainer.get_decay_parameter_names(trainer.model)
    )
    assert {decay for name, decay in found.items() if "norm" in name} == {0.0}


@pytest.mark.parametrize("name", all_at_length(n for n in RUNNABLE if n.startswith("schedule_free")))
def test_schedule_free_evaluates_and_publishes_the_average(tmp_path, name):
    trainer = trainer_of(job(tmp_path, changes(name)))
    train_weights, average = {}, {}

    def record_average(state, **_):
        """After a step, before its evaluation: the trained weights and their average, computed by hand."""
        optimizer = optimizer_of(trainer)
        beta = optimizer.param_groups[0].get("momentum") or optimizer.param_groups[0]["betas"][0]
        for weight, y in trainer.model.named_parameters():
            z = optimizer.state[y]["z"]
            train_weights[weight] = y.detach().clone()
            average[weight] = ((y - (1 - beta) * z) / beta).detach()  # y = (1 - beta) z + beta x

    trainer.add_callback(At("on_step_end", record_average))
    trainer.train()
    assert best(trainer).step == 8
    saved = load_file(best(trainer).folder / "model.safetensors")
    for weight, expected in average.items():
        torch.testing.assert_close(saved[weight], expected, rtol=1e-4, atol=1e-5)
    assert max((saved[w] - train_weights[w]).abs().max().item() for w in saved) > 1e-3
    logged = next(e["eval_loss"] for e in trainer.state.log_history if e["step"] == 8 and "eval_loss" in e)
    assert logged == best(trainer).value
    assert loss_of(best(trainer).folder, trainer) == pytest.approx(logged, abs=1e-5)
    with torch.no_grad():
        for weight, parameter in trainer.model.named_parameters():
            parameter.copy_(train_weights[weight])
    trainer.model.save_pretrained(tmp_path / "trained")
    assert abs(loss_of(tmp_path / "trained", trainer) - logged) > 1e-3


def loss_of(folder, trainer):
    """Mean loss per token of the weights in `folder` on the validation split."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, tokens = 0.0, 0
    for example in trainer.eval_dataset:
        ids = torch.tensor([example["input_ids"]])
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return total / tokens


def test_adafactor_state_is_factored(tmp_path):
    state, parameter = state_of(trained(job(tmp_path, changes("adafactor", **{"training.max_steps": 2}))), UP)
    assert parameter.shape == (64, 64)
    assert {name: t.shape for name, t in state.items() if isinstance(t, torch.Tensor) and t.ndim} == {
        "exp_avg_sq_row": (64,),
        "exp_avg_sq_col": (64,),
    }


@pytest.mark.parametrize(
    ("name", "moment", "bits"),
    [
        ("adamw_bnb_8bit", "state1", 8),
        ("paged_adamw_32bit", "state1", 32),
        ("lion_8bit", "state1", 8),
        ("rmsprop_bnb_8bit", "state1", 8),
        ("ademamix_8bit", "state2", 8),
        ("adamw_torch_8bit", "exp_avg", 8),
        ("adamw_torch_4bit", "exp_avg", 4),
    ],
)
def test_moments_have_the_expected_bits_in_memory_and_checkpoint(tmp_path, name, moment, bits):
    trainer = trained(job(tmp_path, changes(name, **{"training.max_steps": 2})))
    state, parameter = state_of(trainer, UP)
    values = getattr(state[moment], "codes", state[moment])
    assert values.nbytes * 8 == parameter.numel() * bits
    assert values.dtype == (torch.float32 if bits == 32 else torch.uint8)
    saved = torch.load(checkpoint(trainer, 2) / "optimizer.pt", weights_only=True)
    same = [v for s in saved["state"].values() for v in tensors(s) if torch.equal(v, values)]
    assert same, "the checkpoint has the same bits"


def tensors(value):
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def test_stable_adamw_does_not_use_triton_without_a_gpu(tmp_path, monkeypatch):
    """If triton is installed, the package would use kernels that a CPU cannot run."""
    module = importlib.import_module("optimi.stableadamw")
    monkeypatch.setattr(module, "_default_to_triton", lambda _: not torch.cuda.is_available())
    trained(job(tmp_path, changes("stable_adamw", **{"training.max_steps": 2})))


# optim_args and optim_target_modules


@pytest.mark.parametrize(
    ("name", "optim_args", "key", "value"),
    [
        ("sgd", "momentum=0.8,nesterov=true", "momentum", 0.8),
        ("rmsprop_bnb", "alpha=0.9", "betas", (0.9, 0)),
        ("adamw_torch_8bit", "block_size=128", "block_size", 128),
        ("ademamix", "beta3=0.99", "betas", (0.9, 0.999, 0.99)),
        ("schedule_free_adamw", "r=1.0", "r", 1.0),
        ("grokadamw", "lamb=3.0", "lamb", 3.0),
        ("stable_adamw", "kahan_sum=False", "kahan_sum", None),
        ("stable_adamw", "kahan_sum=True", "kahan_sum", True),
        ("galore_adamw", "rank=8, proj_type=reverse_std", "proj_type", "reverse_std"),
        ("apollo_adamw", "rank=8, proj=svd", "proj", "svd"),
    ],
)
def test_optim_args_reach_the_optimizer(tmp_path, name, optim_args, key, value):
    settings = changes(name)
    settings["training.arguments"] = settings["training.arguments"] | {"optim_args": optim_args}
    optimizer = trainer_of(job(tmp_path, settings)).create_optimizer()
    found = (
        [getattr(optimizer, key)] if hasattr(optimizer, key) else [g[key] for g in optimizer.param_groups if key in g]
    )
    assert found
    assert set(found) == {value}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "up_porj"], r"no linear layer of the model is named 'up_porj'\n  fix: did you mean `up_proj`\?"),
        ("model.layers.9.*", "no linear layer of the model is named"),
        (["embed_tokens"], "no linear layer of the model is named 'embed_tokens'"),
    ],
)
def test_unknown_target_module_is_an_error(tmp_path, targets, message):
    settings = changes("galore_adamw")
    settings["training.arguments"] = LOW_RANK | {"optim_target_modules": targets}
    with pytest.raises(ModelError, match=message):
        trained(job(tmp_path, settings))


def test_all_linear_targets_every_linear_layer(tmp_path):
    settings = changes("galore_adamw")
    settings["training.arguments"] = LOW_RANK | {"optim_target_modules": "all-linear"}
    optimizer = trainer_of(job(tmp_path, settings)).create_optimizer()
    assert sum(len(group["params"]) for group in optimizer.param_groups if "rank" in group) == 2 * 7 + 1


# Refused settings


@pytest.mark.parametrize("name", all_at_length(RUNNABLE))
def test_check_accepts_every_available_optimizer(problems, name):
    assert problems(changes(name)) == {}


@pytest.mark.parametrize("name", optimizer_check._PLAIN)
def test_no_problem_of_a_plain_optimizer_is_missed_without_torch(name, monkeypatch):
    recipe = tiny.recipe(changes(name, **{"training.arguments": {"adam_beta1": 0.8}, "launch.num_processes": 2}))
    recipe = Recipe.model_validate(recipe)
    quick = list(optimizer_check.find_optimizer_problems(recipe.training, recipe.launch))
    monkeypatch.setattr(optimizer_check, "_PLAIN", ())
    assert quick == list(optimizer_check.find_optimizer_problems(recipe.training, recipe.launch)) == []


PACKAGES = {
    optimizers.optimizer_family(n): n
    for n in reversed(RUNNABLE)
    if optimizers.optimizer_family(n) in optimizer_check.PACKAGES
}


@pytest.mark.parametrize(("family", "name"), PACKAGES.items(), ids=PACKAGES)
def test_missing_optimizer_package_names_its_extra(tmp_path, problems, monkeypatch, family, name):
    planned = job(tmp_path / "job", changes(name))
    module, extra = optimizer_check.PACKAGES[family]
    monkeypatch.setitem(sys.modules, module, None)
    settings = f"{name} needs {module}, which is not installed; install it with `{install_extra(extra)}`"
    assert problems(changes(name)) == {"training.optimizer": settings}
    with pytest.raises(RecipeError, match=f"{name} needs {module}, which is not installed"):
        trained(planned)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras


def test_every_optimizer_package_has_an_extra():
    assert set(PACKAGES) == set(optimizer_check.PACKAGES)


REFUSED = {
    "a device": (
        {"training.optimizer": "adamw_torch_xla"},
        {"training.optimizer": "needs torch_xla, for TPUs, which is not installed; use adamw_torch"},
    ),
    "8 bits and projections": (
        changes("galore_adamw_8bit_layerwise"),
        {"training.optimizer": "no run could resume; use galore_adamw_layerwise"},
    ),
    "clipping layer by layer": (
        changes(LAYERWISE, **{"training.max_grad_norm": 1.0}),
        {
            "training.max_grad_norm": "before the norm of all gradients is known: they would not be clipped; set it to 0.0"
        },
    ),
    "accumulation layer by layer": (
        changes(LAYERWISE, **{"launch.micro_batch_size": 4}),
        {"launch.micro_batch_size": "2 micro-batches would be as many small steps instead of one; set it to 8"},
    ),
    "processes layer by layer": (
        changes(LAYERWISE, **{"launch.num_processes": 2}),
        {"launch.num_processes": "before its gradient is averaged over processes: their weights would differ; use 1"},
    ),
    "LOMO with settings it ignores": (
        changes("lomo", **{"training.max_grad_norm": 1.0, "launch.micro_batch_size": 2, "training.weight_decay": 0.1}),
        {
            "training.max_grad_norm": "would not be clipped",
            "launch.micro_batch_size": "4 micro-batches",
            "training.weight_decay": "transformers does not pass it to lomo: no weight would decay",
        },
    ),
    "a sharded state": (
        changes("galore_adamw", **{"launch.accelerate_config": str(ROOT / "params" / "accelerate" / "fsdp2.yaml")}),
        {"launch.accelerate_config": "shards the optimizer's state, which galore_adamw keeps in a form"},
    ),
    "Schedule-Free with a schedule": (
        changes("schedule_free_adamw", **{"training.lr_scheduler": "cosine", "training.warmup_steps": 0.1}),
        {
            "training.lr_scheduler": "replaces the schedule: with cosine the rate would decay",
            "training.warmup_steps": "the first step would have 10 times the learning rate; give the number of steps",
        },
    ),
    "RAdam with a warm-up": (
        changes("schedule_free_radam", **{"training.warmup_steps": 5}),
        {"training.warmup_steps": "warms up by itself and ignores it; set it to 0"},
    ),
    "betas for an optimizer without them": (
        changes("galore_adamw", **{"training.arguments": LOW_RANK | {"adam_beta2": 0.95}}),
        {"training.arguments.adam_beta2": "transformers does not pass it to galore_adamw; remove it"},
    ),
    "no target": (
        changes("apollo_adamw", **{"training.arguments": {}}),
        {"training.arguments.optim_target_modules": "it names none; for example [q_proj, v_proj], or all-linear"},
    ),
    "a target for an optimizer without one": (
        changes("sgd", **{"training.arguments": {"optim_target_modules": ["q_proj"]}}),
        {"training.arguments.optim_target_modules": "sgd ignores it; remove it"},
    ),
    "a misspelt argument": (
        changes("galore_adamw", **{"training.arguments": LOW_RANK | {"optim_args": "rnk=4"}}),
        {"training.arguments.optim_args": "galore_adamw takes no rnk; did you mean `rank`?"},
    ),
    "an argument's form": (
        changes("sgd", **{"training.arguments": {"optim_args": "momentum:0.9"}}),
        {"training.arguments.optim_args": "'momentum:0.9' is not of the form `name=value,name=value`"},
    ),
    "an argument's type": (
        changes("sgd", **{"training.arguments": {"optim_args": "momentum=much"}}),
        {"training.arguments.optim_args": "a value is of the wrong type: could not convert string to float: 'much'"},
    ),
    "an argument for an optimizer without it": (
        changes("adamw_torch", **{"training.arguments": {"optim_args": "beta=1"}}),
        {"training.arguments.optim_args": "adamw_torch takes no beta; remove it"},
    ),
}
if not torch.cuda.is_available():
    REFUSED["CUDA"] = (
        changes("adalomo"),
        {"training.optimizer": "adalomo needs a CUDA GPU, and torch finds none here; use lomo"},
    )


@pytest.mark.parametrize(("settings", "expected"), REFUSED.values(), ids=REFUSED)
def test_check_refuses_settings_an_optimizer_ignores(problems, settings, expected):
    found = problems(settings)
    assert found.keys() == expected.keys()
    for key, message in expected.items():
        assert message in found[key]
