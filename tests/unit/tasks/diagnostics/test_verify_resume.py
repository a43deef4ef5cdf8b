"""verify-resume compares two runs by component, names the first difference, and says what causes it."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from params import CheckpointError, KilledError, ModelError, PreemptedError, RecipeError
from params.foundation.artifacts import Artifacts
from tasks.commands import main
from tasks.diagnostics import verify_resume
from tasks.diagnostics.compare_runs import ComponentComparison, compare_training_runs, earliest_differing_comparison
from tasks.diagnostics.verify_resume import PlannedKill, format_comparisons, plan_kills, resume_difference_error
from tests.support import tiny
from trainer.checkpoints.sealed import replace_best_weights, seal_and_rename
from trainer.runtime import heartbeat

STEPS = 4
COMPONENTS = [
    *("steps", "rows", "random state", "learning rate", "loss", "weights", "optimizer", "scheduler"),
    *("saved random state", "position", "trainer state", "other files", "best weights"),
]


def run(folder):
    """Write what two processes leave after four steps of two micro-batches."""
    folder.mkdir(parents=True)
    for rank in (0, 1):
        lines = [
            {
                "step": step,
                "rows": [[step, rank], [step + 10, rank]],
                "losses": [(1 / step).hex(), (2 / step).hex()],
                "learning_rate": (0.1 * step).hex(),
                "random_state": f"{step}a",
            }
            for step in range(1, STEPS + 1)
        ]
        write_records(folder, rank, lines)
    write_best(folder, step=2)
    staged = folder / ".staging"
    staged.mkdir()
    (staged / "config.json").write_text('{"hidden_size": 2}')
    (staged / "position.json").write_text('{"order": {"epoch": 0, "batch": 4}}')
    note = {
        "best_model_checkpoint": f"{folder}/best-2",
        "log_history": [{"loss": 0.5, "eval_runtime": random.random()}],
    }
    (staged / "trainer_state.json").write_text(json.dumps(note))
    (staged / "training_args.bin").write_bytes(random.randbytes(8))
    save_file(weights(), staged / "model.safetensors")
    torch.save({"state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.zeros(2, 3)}}}, staged / "optimizer.pt")
    torch.save({"last_epoch": 4, "_last_lr": [0.4]}, staged / "scheduler.pt")
    for rank in (0, 1):
        state = {"python": (3, (1, 2, 3), None), "numpy": np.random.RandomState(rank).get_state(), "cpu": torch.ones(3)}
        torch.save(state, staged / f"rng_state_{rank}.pth")
    seal_and_rename(staged, folder / f"checkpoint-{STEPS}")
    return folder


def weights():
    return {
        "head.weight": torch.tensor([[1.0, float("nan")], [0.0, 2.0]]),
        "bias": torch.zeros(2, dtype=torch.bfloat16),
    }


def write_best(folder, step):
    staged = folder / ".best"
    staged.mkdir()
    save_file(weights(), staged / "model.safetensors")
    replace_best_weights(staged, step=step, metric="loss", value=0.25)


def write_records(folder, rank, lines):
    (folder / f"steps-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def records(folder, rank):
    return [json.loads(line) for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines()]


def change_record(rank, step, **values):
    def change(folder):
        lines = records(folder, rank)
        lines[step - 1] |= values
        write_records(folder, rank, lines)

    return change


def repeat_record(rank, step, **values):
    """Repeat the step at the end, with other values."""

    def change(folder):
        lines = records(folder, rank)
        write_records(folder, rank, [*lines, lines[step - 1] | values])

    return change


def remove_record(rank, step):
    def change(folder):
        write_records(folder, rank, [line for line in records(folder, rank) if line["step"] != step])

    return change


def change_saved(name, edit):
    """Edit the content of a file of torch."""

    def change(folder):
        path = folder / f"checkpoint-{STEPS}" / name
        content = torch.load(path, weights_only=False)
        edit(content)
        torch.save(content, path)

    return change


def change_text(name, old, new):
    def change(folder):
        path = folder / f"checkpoint-{STEPS}" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def change_weights(edit):
    def change(folder):
        tensors = weights()
        edit(tensors)
        save_file(tensors, folder / f"checkpoint-{STEPS}" / "model.safetensors")

    return change


def another_best(folder):
    shutil.rmtree(folder / "best-2")
    write_best(folder, step=3)


CHANGES = {
    "rows": (
        change_record(1, 3, rows=[[3, 1], [7, 1]]),
        "rows",
        "step 3, rank 1, micro-batch 2: [13, 1] and [7, 1]",
    ),
    "loss": (
        change_record(0, 2, losses=[(0.75).hex(), (1.0).hex()]),
        "loss",
        "step 2, rank 0, micro-batch 1: 0.5 and 0.75, up to 0.25 apart",
    ),
    "a loss that is not a number": (
        change_record(0, 2, losses=["nan", (1.0).hex()]),
        "loss",
        "step 2, rank 0, micro-batch 1: 0.5 and nan, up to nan apart",
    ),
    "another number of micro-batches": (
        change_record(0, 1, rows=[[1, 0, 11, 0]]),
        "rows",
        "step 1, rank 0, micro-batch 1: [1, 0] and [1, 0, 11, 0]",
    ),
    "learning rate": (
        change_record(1, 4, learning_rate=(0.5).hex()),
        "learning rate",
        "step 4, rank 1: 0.4 and 0.5, up to 0.1 apart",
    ),
    "random state": (change_record(1, 2, random_state="7f"), "random state", "step 2, rank 1: 2a and 7f"),
    "a missing step": (remove_record(1, 3), "steps", "step 3, rank 1: present and missing"),
    "a step that differs when it is repeated": (
        repeat_record(0, 3, random_state="7f"),
        "random state",
        "step 3, rank 0 (repeated): 3a and 7f",
    ),
    "weights": (
        change_weights(lambda tensors: tensors["head.weight"].__setitem__((1, 1), 2.5)),
        "weights",
        "model.safetensors head.weight[1, 1]: 2 and 2.5, up to 0.5 apart",
    ),
    "the sign of a zero": (
        change_weights(lambda tensors: tensors["bias"].neg_()),
        "weights",
        "model.safetensors bias[0]: 0 and -0, up to 0 apart",
    ),
    "a missing tensor": (
        change_weights(lambda tensors: tensors.pop("bias")),
        "weights",
        "model.safetensors bias: present and missing",
    ),
    "the shape of a tensor": (
        change_weights(lambda tensors: tensors.update(bias=torch.zeros(3, dtype=torch.bfloat16))),
        "weights",
        "model.safetensors bias: torch.bfloat16 (2,) and torch.bfloat16 (3,)",
    ),
    "one tensor of the optimizer": (
        change_saved("optimizer.pt", lambda content: content["state"][0]["exp_avg"].__setitem__((1, 2), 1e-3)),
        "optimizer",
        "optimizer.pt state.0.exp_avg[1, 2]: 0 and 0.00100000005, up to 0.001 apart",
    ),
    "the step count of the optimizer": (
        change_saved("optimizer.pt", lambda content: content["state"][0]["step"].add_(1)),
        "optimizer",
        "optimizer.pt state.0.step: 4 and 5, up to 1 apart",
    ),
    "scheduler": (
        change_saved("scheduler.pt", lambda content: content.update(last_epoch=3)),
        "scheduler",
        "scheduler.pt last_epoch: 4 and 3",
    ),
    "python's random state": (
        change_saved("rng_state_1.pth", lambda content: content.update(python=(3, (1, 2, 4), None))),
        "saved random state",
        "rng_state_1.pth python[1][2]: 3 and 4",
    ),
    "numpy's random state": (
        change_saved("rng_state_0.pth", lambda content: content["numpy"][1].__setitem__(5, 7)),
        "saved random state",
        "rng_state_0.pth numpy[1][5]: ",
    ),
    "the random state of a process is missing": (
        lambda folder: (folder / f"checkpoint-{STEPS}" / "rng_state_1.pth").unlink(),
        "saved random state",
        "rng_state_1.pth: present and missing",
    ),
    "position": (
        change_text("position.json", '"batch": 4', '"batch": 3'),
        "position",
        "position.json order.batch: 4 and 3",
    ),
    "log": (
        change_text("trainer_state.json", '"loss": 0.5', '"loss": 0.25'),
        "trainer state",
        "trainer_state.json log_history[0].loss: 0.5 and 0.25, up to 0.25 apart",
    ),
    "configuration": (
        change_text("config.json", "2", "3"),
        "other files",
        "config.json hidden_size: 2 and 3",
    ),
    "best weights": (another_best, "best weights", "the best evaluation: at step 2 and at step 3"),
}


@pytest.mark.parametrize(("change", "component", "expected"), CHANGES.values(), ids=CHANGES)
def test_difference_is_reported_in_its_component(tmp_path, change, component, expected):
    one, other = run(tmp_path / "one"), run(tmp_path / "other")
    change(other)
    found = {c.component: c for c in compare_training_runs(one, other, "min")}
    assert list(found) == COMPONENTS
    assert [name for name, c in found.items() if c.differing] == [component]
    first = found[component].first
    assert first.startswith(expected) if expected.endswith(" ") else first == expected
    assert earliest_differing_comparison(found.values()) is found[component]
    assert found[component].differing <= found[component].compared
    assert f"  {component} " in format_comparisons(list(found.values()))


def test_times_and_paths_are_not_compared(tmp_path):
    comparisons = compare_training_runs(run(tmp_path / "one"), run(tmp_path / "other"), "min")
    assert [str(comparison) for comparison in comparisons] == ["equal"] * len(COMPONENTS)
    counts = {comparison.component: comparison.compared for comparison in comparisons}
    assert (counts["steps"], counts["rows"], counts["loss"], counts["weights"]) == (8, 16, 16, 2)
    assert counts["trainer state"] == 2, "without the time"


def test_repeated_steps_count_and_a_torn_line_does_not(tmp_path):
    one, other = run(tmp_path / "one"), run(tmp_path / "other")
    repeat_record(0, 3)(other)
    with (other / "steps-1.jsonl").open("a") as file:
        file.write('{"step": 4, "rows": [[4,\n')
    found = {c.component: c for c in compare_training_runs(one, other, "min")}
    assert earliest_differing_comparison(found.values()) is None
    assert (found["steps"].compared, found["rows"].compared, found["random state"].compared) == (8, 18, 9)


def test_first_difference_has_the_lowest_step_and_then_the_likeliest_cause(tmp_path):
    one, other = run(tmp_path / "one"), run(tmp_path / "other")
    change_record(0, 2, losses=[(0.0).hex(), (0.0).hex()], learning_rate=(0.5).hex())(other)
    change_record(0, 3, rows=[[9], [9]])(other)
    assert earliest_differing_comparison(compare_training_runs(one, other, "min")).component == "learning rate"


def test_sharded_weights_are_compared_without_their_index(tmp_path):
    """torch writes a random number into the index."""
    one, other = run(tmp_path / "one"), run(tmp_path / "other")

    def write(folder, value):
        place = folder / f"checkpoint-{STEPS}" / "pytorch_model_fsdp_0"
        shutil.rmtree(place, ignore_errors=True)
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"model": {"weight": torch.tensor([1.0, value])}}, checkpoint_id=place)

    write(one, 2.0)
    write(other, 2.0)
    assert earliest_differing_comparison(compare_training_runs(one, other, "min")) is None
    write(other, 3.0)
    found = earliest_differing_comparison(compare_training_runs(one, other, "min"))
    assert found.first == "pytorch_model_fsdp_0 model.weight[1]: 2 and 3, up to 1 apart"


def test_run_without_a_checkpoint_cannot_be_compared(tmp_path):
    one = run(tmp_path / "one")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        compare_training_runs(one, tmp_path / "other", "min")


@pytest.mark.parametrize(
    ("total", "save_steps", "steps", "kills", "expected"),
    [
        (200, 50, None, 2, (30, 10, 21, [(15, 10), (25, 20)])),  # three save intervals would be 150 steps
        (200, 5, None, 2, (15, 5, 11, [(7, 5), (12, 10)])),
        (200, 1, None, 2, (12, 4, 9, [(6, 4), (10, 8)])),  # four per start
        (9, 50, None, 2, (9, 3, 7, [(4, 3), (7, 6)])),  # no more than the training has
        (200, 50, 40, 1, (40, 20, 21, [(30, 20)])),
        (200, 50, 4, 1, (4, 2, 3, [(3, 2)])),
    ],
)
def test_plan(total, save_steps, steps, kills, expected):
    planned = plan_kills(total, save_steps, 2, steps, kills)
    found = [(kill.step, kill.checkpoint) for kill in planned.kills]
    assert (planned.steps, planned.save_steps, planned.eval_steps, found) == expected
    assert [kill.rank for kill in planned.kills] == [1, 0][:kills], "another process each time"
    for kill in planned.kills:
        assert kill.checkpoint < kill.step < kill.checkpoint + planned.save_steps, "between two checkpoints"
    assert planned.kills[-1].checkpoint < planned.eval_steps <= planned.kills[-1].step, "the evaluation is repeated"


@pytest.mark.parametrize(("steps", "kills"), [(5, 2), (12, 0), (12, -1), (-3, 2), (0, 40)])
def test_too_few_steps_or_kills_are_refused(steps, kills):
    with pytest.raises(RecipeError, match="needs a kill, and two steps per start"):
        plan_kills(12, 50, 1, steps, kills)


def comparison(component, where=None):
    return (
        ComponentComparison(component, 1, "values", 1, f"{where}: 1 and 2")
        if where
        else ComponentComparison(component, 1, "values", 0)
    )


def test_what_two_comparisons_show_together(tmp_path):
    after_kills = [comparison("rows", "step 5"), comparison("loss", "step 5"), comparison("weights", "w")]
    equal = [comparison("rows"), comparison("loss"), comparison("weights")]
    noisy = [comparison("rows"), comparison("loss", "step 1"), comparison("weights", "w")]

    broken = resume_difference_error(after_kills, equal, tmp_path)
    assert "a killed run ends differently; first difference in the rows, step 5" in broken.what
    assert "two uninterrupted runs are equal" in broken.fix
    assert str(tmp_path) in broken.fix

    random = resume_difference_error(noisy, noisy, tmp_path)
    assert "the training is not deterministic" in random.what
    assert "first in the loss, step 1" in random.what
    assert "resuming" not in random.what, "nothing shows that"
    assert "full_determinism" in random.fix

    shuffled = [comparison("rows", "step 1"), comparison("loss", "step 1"), comparison("weights", "w")]
    assert "resuming" not in resume_difference_error(shuffled, shuffled, tmp_path).what

    both = resume_difference_error(after_kills, noisy, tmp_path)
    assert "first in the loss, step 1" in both.what
    assert "resuming is not exact: only after kills the rows differ" in both.what


# The command


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """Return a function that writes a recipe to a project without tokens."""
    monkeypatch.chdir(tmp_path)
    return lambda changes=None: tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe(changes))


def test_without_tokens_the_error_names_the_command_to_run(inside, capsys):
    assert main(["verify-resume", str(inside())]) == os.EX_DATAERR
    assert "dvc repro tokenize@tiny" in capsys.readouterr().err


def test_several_machines_are_refused(inside, capsys):
    changes = {"num_processes": 2, "num_machines": 2, "main_process_ip": "10.0.0.1", "main_process_port": 29500}
    path = inside({f"launch.{name}": value for name, value in changes.items()})
    assert main(["verify-resume", str(path)]) == os.EX_CONFIG
    assert "launch.num_machines" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    return tiny.tokenized(
        tmp_path_factory.mktemp("tokenized"), tiny.recipe(), {"train": 20, "validation": 5, "test": 5}
    )


@pytest.fixture
def job(tokenized, tmp_path):
    artifacts, recipe = tokenized
    job = verify_resume._job(recipe, artifacts, tmp_path, plan_kills(12, 2, 1, None, 2))
    job.folder.mkdir()
    return job


def test_learning_rate_schedule_is_that_of_the_whole_training(job):
    assert (job.stop_at_step, job.record, job.training.max_steps) == (12, True, 12)
    assert (job.training.save_steps, job.training.eval_steps, job.training.save_minutes) == (4, 9, None)
    assert (job.training.learning_rate, job.training.warmup_steps) == (1e-2, 2)


def end_with(monkeypatch, error=None, checkpoint=None):
    """Replace the training by its end."""

    def supervise(job, _):
        if checkpoint is not None:
            (job.folder / f"checkpoint-{checkpoint}").mkdir(exist_ok=True)
        if error:
            raise error

    monkeypatch.setattr(verify_resume, "supervise_training", supervise)


def test_kill_by_someone_else_is_an_error(job, monkeypatch):
    end_with(monkeypatch, KilledError("train", "killed by SIGKILL", "again"))
    with pytest.raises(KilledError):
        verify_resume._train(job, PlannedKill(6, 0, 4))


def test_ctrl_c_is_an_error_and_the_stop_at_the_last_step_is_not(job, monkeypatch):
    end_with(monkeypatch, PreemptedError("train", "stopped by SIGINT", "again"), checkpoint=4)
    with pytest.raises(PreemptedError, match="SIGINT\n  fix: run it again; it starts from scratch"):
        verify_resume._train(job)
    end_with(monkeypatch, PreemptedError("train", "stopped by a request from outside", "again"), checkpoint=12)
    assert verify_resume._train(job) is False


def test_training_that_ends_before_the_first_kill_is_an_error(job, monkeypatch):
    end_with(monkeypatch, checkpoint=12)
    with pytest.raises(ModelError, match="ended before it could be killed"):
        verify_resume._train_with_kills(job, plan_kills(12, 2, 1, None, 2))


@pytest.mark.parametrize(("step", "checkpoint", "dies"), [(6, 4, True), (5, 4, False), (7, None, False)])
def test_kill_waits_for_its_step_and_for_a_checkpoint(job, step, checkpoint, dies):
    if checkpoint:
        (job.folder / f"checkpoint-{checkpoint}").mkdir()
    is_over = threading.Event()
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as victim,
        ThreadPoolExecutor(1) as pool,
    ):
        line = f"{victim.pid} {os.uname().nodename} 3 {step} training".ljust(heartbeat._PULSE)
        (job.folder / "rank-0").write_text(line)
        was_killed = pool.submit(verify_resume._kill_when_due, job, PlannedKill(6, 0, 4), is_over)
        if dies:
            assert victim.wait(20) == -9
        else:
            time.sleep(0.3)
            assert victim.poll() is None
        is_over.set()
        assert was_killed.result() == dies
        victim.kill()


def test_runs_are_kept_only_if_they_differ(inside, tokenized, monkeypatch, capsys):
    """The whole command, on made-up runs."""
    path = inside()
    shutil.copytree(tokenized[0].run, Artifacts("tiny").run)
    trained = []

    def train(job, kill=None):
        shutil.rmtree(job.folder.parent, ignore_errors=True)
        run(job.folder)
        trained.append(job.folder.parent.name)
        if job.folder.parent.name in changed:
            change(job.folder)
        return kill is not None

    monkeypatch.setattr(verify_resume, "_train", train)
    change, changed = change_record(0, 3, rows=[[9], [9]]), ()
    assert main(["verify-resume", str(path)]) == 0
    assert trained == ["uninterrupted", *["killed"] * 3]
    assert "verify-resume: equal, bit for bit" in capsys.readouterr().out
    assert not (Artifacts("tiny").scratch / "verify-resume").exists()

    changed = ("killed",)
    assert main(["verify-resume", str(path)]) == os.EX_NOINPUT
    assert "first difference in the rows, step 3, rank 0, micro-batch 1: [3, 0] and [9]" in capsys.readouterr().err
    kept = sorted(p.name for p in (Artifacts("tiny").scratch / "verify-resume").iterdir())
    assert kept == ["killed", "uninterrupted", "uninterrupted-again"]

    changed = ("killed", "uninterrupted-again")
    assert main(["verify-resume", str(path)]) == os.EX_NOINPUT
    assert "the training is not deterministic" in capsys.readouterr().err
