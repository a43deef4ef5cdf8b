"""rehearse: the whole pipeline on few rows, no traces, and an estimate that is about right."""

from __future__ import annotations

import re

import pytest

from tests.support.project import Project

CODE = """
def metric(predictions):
    raise RuntimeError("out of luck")
"""


def traces(project: Project) -> list[str]:
    """What a rehearsal has left."""
    found = (path for name in ("runs", ".hub", ".scratch") for path in (project.root / name).rglob("*"))
    kept = {".gitignore", "rehearsal.lock", "checked-settings"}
    return [str(path) for path in found if path.is_file() and path.name not in kept]


@pytest.mark.slow  # tests/e2e/test_tutorial.py rehearses, and the next test looks for traces
def test_it_publishes_nowhere_and_estimates_the_real_run(project: Project) -> None:
    out = project.run("python", "-m", "tasks", "rehearse", "tiny")
    assert "rehearse: usual rows: publish" in out
    assert "rehearse: the longest rows: train" in out
    assert re.search(r"rehearse: rows of the source: train 300\n", out)
    assert re.search(r"rehearse: time: about .*; 20 steps\)", out)
    assert re.search(r"rehearse: memory: \d\.\d GiB for each training process", out)
    assert "rehearse: the release was built, and nothing was sent" in out
    assert "would be published as the first release" in out
    assert not re.search(r"published: |https?://", out)
    assert traces(project) == []


def test_what_would_fail_at_the_end_fails_now(project: Project) -> None:
    (project.root / "params/metrics.py").write_text(CODE)
    project.edit("recipes.yaml", "code: trainer/losses.py", "code: params/metrics.py")
    project.edit(
        "params/tiny.yaml", "split: test,", "split: test, slices: [{name: parity, function: 'params.metrics:metric'}],"
    )
    out = project.run("python", "-m", "tasks", "rehearse", "tiny", ok=False)
    assert "out of luck" in out
    assert "rehearse: usual rows: evaluate" in out
    assert out.count("validation at step 0:") == 1, "the longest rows are scored once, with the memory of a training"
    assert "evaluate: " not in out.partition("rehearse: usual rows: evaluate")[2], (
        "it would speak of a model of few steps"
    )
    assert traces(project) == []


@pytest.mark.slow
def test_the_estimate_is_near_the_truth(project: Project) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 600")
    out = project.run("python", "-m", "tasks", "rehearse", "tiny")
    estimate = re.search(r"train (?:(\d+) min )?(\d+(?:\.\d)?) s", out)
    assert estimate
    project.stages("tiny")
    truth = project.json(".scratch/tiny/timings/train.json")["seconds"]
    assert truth / 2 < float(estimate[1] or 0) * 60 + float(estimate[2]) < truth * 2
