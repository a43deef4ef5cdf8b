"""dvc.yaml, the stage functions and the flow say the same; what a stage's result depends on, its DVC stage declares."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest
from ruamel.yaml import YAML

from flows import retrain as flow_module
from params import load
from params.artifacts import STAGES, Artifacts
from tasks import stages

ROOT = Path(__file__).parents[2]
DVC = YAML(typ="safe").load(ROOT / "dvc.yaml")
RECIPES = DVC["vars"][0]["recipes"]
PACKAGES = ("params", "trainer", "tasks")
# An objective names the Trainer that trains it; nothing but training asks.
TRAINERS = {"trainer.loop.trainer", "trainer.loop.preference_trainer", "trainer.loop.rollout_trainer"}

# What may change without making a stage's result stale.
HARMLESS = {
    "params": "typed reading of the recipe, whose values are declared key by key",
    "tasks.stages": "how a stage is called",
    "tasks.progress": "what is logged meanwhile",
    "trainer.runtime.lifetime": "who dies with whom",
    "trainer.runtime.imports": "what is not imported",
    "trainer.reporting.progress": "what is logged meanwhile",
    "trainer.reporting.step_record": "what is written down meanwhile",
    "trainer.reporting.trackers": "what is written down meanwhile",
    "trainer.runtime.heartbeat": "signs of life",
    "trainer.runtime.launcher": "how processes start, and what their end is called",
    "trainer.loop.collectives": "when all processes save or stop, not what they learn",
    "trainer.checkpoints.resume": "where an interrupted run goes on: it gives the same weights",
    "trainer.loop.guard": "when a training saves and stops",
    "trainer.loop.sharding": "whether accelerate does as it was told",
    "trainer.checkpoints.saver": "how a checkpoint gets to the disk",
    "trainer.checkpoints.fault_points": "instants of a save",
    "trainer.iterative": "a trainer for scripts; no stage uses it",
    "tasks.mirror.upload": "copies of checkpoints on a Hub",
    "tasks.training.supervisor": "who watches a training",
    "tasks.training.ranks": "who watches a training",
    "tasks.hub_client.faults": "how long a Hub is waited for, and what its refusals are called",
    "tasks.publishing.secrets": "what is refused, not what is published",
    "tasks.hub_server": "the server that stands in for the real Hub: what is published does not depend on it",
}

# What a stage reads of the recipe without declaring it.
READ_ELSEWHERE = {
    "launch": "says where a run happens, not what comes of it",
    "publish.endpoint": "`local` may be any Hub, by HF_ENDPOINT: the blessing names the one that was asked, and publish and "
    "the flow look whether it still says the same",
}


def declared(stage: str, recipe: str = "default") -> dict[str, list[str]]:
    """Paths by kind, with the templates filled in."""

    def fill(text: str) -> str:
        item = RECIPES[recipe]
        return (
            text.replace("${key}", recipe)
            .replace("${item.objective}", item["objective"])
            .replace("${item.data}", item["data"])
            .replace("${item.code}", item["code"])
        )

    body = DVC["stages"][stage]["do"]
    paths = {}
    for kind in ("deps", "outs", "metrics", "plots"):
        paths[kind] = [fill(next(iter(e)) if isinstance(e, dict) else e) for e in body.get(kind, [])]
    return paths


def made(stage: str) -> list[Path]:
    paths = declared(stage)
    return [Path(p) for kind in ("outs", "metrics", "plots") for p in paths[kind]]


def test_dvc_has_the_six_stages_in_order() -> None:
    assert tuple(DVC["stages"]) == STAGES == tuple(stages.FUNCTIONS)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_declares_the_sections_that_its_function_reads(stage: str) -> None:
    (params,) = DVC["stages"][stage]["do"]["params"]
    assert list(params) == ["params/${key}.yaml"]
    assert sorted(params["params/${key}.yaml"]) == sorted(set(stages.sections(stage)) - READ_ELSEWHERE.keys())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_run_by_the_documented_command(stage: str) -> None:
    assert DVC["stages"][stage]["do"]["cmd"] == f"exec python -m tasks {stage} params/${{key}}.yaml"
    assert DVC["stages"][stage]["foreach"] == "${recipes}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_writes_its_report_where_artifacts_says(stage: str) -> None:
    report = Artifacts("default").report(stage)
    assert any(path == report or path in report.parents for path in made(stage))


def test_outputs_are_those_of_artifacts() -> None:
    a = Artifacts("default")
    assert made("ingest") == [a.raw]
    assert made("validate") == [a.validated]
    assert made("tokenize") == [a.tokens]
    assert made("train")[:2] == [a.model, a.checkpoint]
    assert {path.parent for path in made("train")[2:]} == {a.history}
    assert {path.parent for path in made("evaluate")} == {a.evaluation}
    assert made("publish") == [a.receipt]


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_stage_reads_what_earlier_stages_write(stage: str) -> None:
    earlier = [path for s in STAGES[: STAGES.index(stage)] for path in made(s)]
    read = [Path(p) for p in declared(stage)["deps"] if p.startswith("runs/")]
    assert read
    for path in read:
        assert any(path == made_path or made_path in path.parents for made_path in earlier), path


def test_only_what_the_hub_said_stays_out_of_the_cache() -> None:
    uncached = [
        path
        for body in DVC["stages"].values()
        for kind in ("outs", "metrics", "plots")
        for entry in body["do"].get(kind, [])
        if isinstance(entry, dict)
        for path, options in entry.items()
        if options.get("cache", True) is False
    ]
    assert uncached == ["runs/${key}/evaluation/blessing.json", "runs/${key}/release/receipt.json"]


@pytest.mark.parametrize("path", sorted((ROOT / "params").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_is_in_the_list(path: Path) -> None:
    assert path.stem in RECIPES, "add it to `recipes` at the top of dvc.yaml"
    assert RECIPES[path.stem]["objective"] == load(path).objective.name
    assert (ROOT / RECIPES[path.stem]["data"]).exists()
    assert (ROOT / RECIPES[path.stem]["code"]).exists()
    assert re.fullmatch(r"[A-Za-z0-9_-]+", path.stem)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_item_of_the_list_is_a_recipe(recipe: str) -> None:
    assert (ROOT / "params" / f"{recipe}.yaml").exists()


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)


@pytest.mark.parametrize("stage", STAGES)
def test_the_code_of_a_stage_is_declared(stage: str, graph: grimp.ImportGraph) -> None:
    entry = stages.FUNCTIONS[stage].split(":")[0]
    needed = {file(module) for module in closure(entry, graph)}
    code = {p for p in declared(stage)["deps"] if not p.startswith("runs/") and p != RECIPES["default"]["data"]}
    covered = {p for p in needed if any(p == d or p.startswith(f"{d}/") for d in code)}
    assert needed - covered == set(), "add these to the stage's deps in dvc.yaml, or to HARMLESS with the reason"
    idle = {d for d in code if d.endswith(".py") and d not in needed} - {
        "trainer/objectives/causal_lm.py",
        RECIPES["default"]["code"],
    }
    assert idle == set(), "the stage does not use these"
    assert all((ROOT / d).exists() for d in code)


@pytest.mark.parametrize("template", sorted((ROOT / "tasks").rglob("*.jinja")), ids=lambda p: p.name)
def test_templates_are_declared(template: Path) -> None:
    name = str(template.relative_to(ROOT))
    declared_paths = [path for stage in STAGES for path in declared(stage)["deps"]]
    assert any(name == path or name.startswith(f"{path}/") for path in declared_paths)


def test_the_flow_runs_the_stages_under_their_names() -> None:
    assert flow_module.STAGES is STAGES
    assert flow_module.retrain.name == "retrain"
    assert set(flow_module.retrain.parameters.properties) == {"recipe", "publish", "force"}


def closure(entry: str, graph: grimp.ImportGraph) -> set[str]:
    """The modules that run when `entry` works, except the harmless ones and other objectives."""
    found: set[str] = set()
    queue = [entry, *(["trainer.worker"] if entry == "tasks.training.stage" else [])]
    while queue:
        module = queue.pop()
        if module in found or any(module == h or module.startswith(f"{h}.") for h in HARMLESS):
            continue
        found.add(module)
        imported = graph.find_modules_directly_imported_by(module)
        if module == "trainer.objectives":  # it imports them by name
            imported |= graph.find_children(module)
        named = module.startswith("trainer.objectives")
        queue += [m for m in imported if not (named and m in TRAINERS) or entry == "tasks.training.stage"]
        parent = module.rpartition(".")[0]
        if parent:
            queue.append(parent)
    # Packages that only describe themselves, and the objectives, of which a recipe uses one.
    return found - {"tasks", "trainer"} - graph.find_children("trainer.objectives")


def file(module: str) -> str:
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))
