"""Which metrics are logged when and by which process; metrics.jsonl is the same after a resume."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tests.support import forked
from tests.support.in_process import At, job, losses, trained
from tests.support.project import ROOT

EIGHT_A_EPOCH = {"training.max_steps": 20, "training.eval_steps": 10, "training.save_steps": 4}


@pytest.fixture(scope="module")
def each_loss(tmp_path_factory):
    """The loss of each step of the same training."""
    return losses(trained(job(tmp_path_factory.mktemp("each"), EIGHT_A_EPOCH | {"training.logging_steps": 1})))


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({}, [5, 10, 15, 20]),
        ({"logging_first_step": True}, [1, 5, 10, 15, 20]),
        ({"logging_strategy": "epoch"}, [8, 16, 20]),
        ({"logging_strategy": "no"}, []),
    ],
    ids=["steps", "first step", "epoch", "no"],
)
def test_logging_strategy_sets_the_logged_steps(tmp_path, each_loss, arguments, steps):
    changes = EIGHT_A_EPOCH | {"training.logging_steps": 5, "training.arguments": arguments}
    done = trained(job(tmp_path, changes))
    assert list(losses(done)) == steps
    for last, this in zip([0, *steps], steps, strict=False):
        mean = sum(each_loss[step] for step in range(last + 1, this + 1)) / (this - last)
        assert losses(done)[this] == pytest.approx(mean, rel=1e-6), "the mean since the previous line"


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_written_during_training(tmp_path):
    written = []
    planned = job(tmp_path, EIGHT_A_EPOCH | {"training.logging_steps": 5})
    done = trained(planned, At("on_step_end", lambda **_: written.append(len(lines(planned.folder)))))
    assert written == [1] * 5 + [2] * 5 + [4] * 5 + [5] * 5, (
        "each line is written at once, beginning with the evaluation at start"
    )
    found = lines(planned.folder)
    assert [(line["step"], "loss" in line, "eval_loss" in line) for line in found] == [
        (0, False, True),
        (5, True, False),
        (10, True, False),
        (10, False, True),
        (15, True, False),
        (20, True, False),
        (20, False, True),
    ]
    assert [line["epoch"] for line in found[1:3]] == [5 / 8, 10 / 8]
    logged = [entry for entry in done.state.log_history if "loss" in entry]
    assert [line["loss"] for line in found if "loss" in line] == [entry["loss"] for entry in logged]
    clock = ("runtime", "per_second", "time")
    assert not [name for line in found for name in line if name.endswith(clock)], "times would differ after a resume"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        pytest.param({"logging_strategy": "epoch"}, marks=pytest.mark.slow),
        {"include_num_input_tokens_seen": "non_padding"},
    ],
    ids=["steps", "epoch", "tokens"],
)
def test_metrics_are_the_same_after_a_resume(tmp_path, arguments):
    """Also at the end of an epoch, 8. Lines after the checkpoint are removed at the start."""
    changes = EIGHT_A_EPOCH | {"training.logging_steps": 3, "training.keep_checkpoints": 9}
    whole = job(tmp_path, changes | {"training.arguments": arguments})
    trained(whole)
    expected = (whole.folder / "metrics.jsonl").read_bytes()
    at_start: list[dict] = []
    for step in (8, 12):
        at_start.clear()
        with (whole.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 21, "lo')  # torn by a kill
        trained(
            whole.model_copy(update={"checkpoint": whole.folder / f"checkpoint-{step}"}),
            At("on_train_begin", lambda **_: at_start.extend(lines(whole.folder))),
        )
        assert max(line["step"] for line in at_start) <= step
        assert (whole.folder / "metrics.jsonl").read_bytes() == expected


def test_tokens_seen_are_counted_with_or_without_padding(tmp_path):
    seen = {}
    for kind in ("all", "non_padding"):
        changes = {"training.max_steps": 8, "training.arguments": {"include_num_input_tokens_seen": kind}}
        done = trained(job(tmp_path / kind, changes))
        seen[kind] = [e["num_input_tokens_seen"] for e in done.state.log_history if "loss" in e]
    rows = done.train_dataset
    assert seen["non_padding"][-1] == sum(len(rows[i]["input_ids"]) for i in range(len(rows))), "one epoch"
    assert seen["all"][-1] > seen["non_padding"][-1]
    assert seen["all"] == sorted(seen["all"])


def test_eval_delay_postpones_evaluations(tmp_path):
    done = trained(job(tmp_path, {"training.arguments": {"eval_delay": 7}}))  # every 4 of 12 steps
    assert [e["step"] for e in done.state.log_history if "eval_loss" in e] == [0, 8, 12], (
        "the evaluation at start is always made"
    )


def on_two_machines(tmp_path, arguments):
    """The output of two workers, each alone on its machine."""
    changes = {"training.max_steps": 2, "training.eval_steps": 2, "training.arguments": arguments}
    launch = {"num_processes": 2, "micro_batch_size": 4, "eval_batch_size": 16}
    planned = job(tmp_path, changes, launch=launch)
    planned.folder.mkdir(parents=True)
    planned.save(tmp_path / "job.json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ACCELERATE_USE_CPU": "true",
        }
        where = {"folder": ROOT, "output": tmp_path / f"output-{rank}"}
        started.append(forked.start(forked.train_rank, str(tmp_path / "job.json"), environment=environment, **where))
    for process in started:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in started] == [0, 0]
    return [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]


TRANSFORMERS, OURS = "***** Running training *****", "train: step 2 of 2"


@pytest.mark.parametrize(
    ("arguments", "transformers", "ours"),
    [
        ({"log_level": "debug"}, (True, True), True),
        ({"log_level": "error", "log_level_replica": "info", "log_on_each_node": False}, (False, True), False),
    ],
    ids=["on each machine", "replica"],
)
def test_log_levels_on_two_machines(tmp_path, arguments, transformers, ours):
    outputs = on_two_machines(tmp_path, arguments)
    assert tuple(TRANSFORMERS in text for text in outputs) == transformers
    assert tuple(OURS in text for text in outputs) == (ours, False), "only the main process logs progress"
