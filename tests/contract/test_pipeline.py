"""dvc.yaml, the stage functions and the flow say the same; what a stage's result depends on, its DVC stage declares."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath

import grimp
import pytest
from ruamel.yaml import YAML

from flows import retrain as flow_module
from params.foundation.artifacts import Artifacts
from params.foundation.stages import PIPELINE, STAGES, Stage, stage_named
from tasks.recipes.loading import load
from tasks.scaffold.project import NO_BASE
from tasks.stage_run import import_stage_function
from tests.support.project import ROOT
from trainer import identity
from trainer.identity import DECIDING_CODE, HARMLESS_CODE, deciding_files, run_identity, run_key


def module_of(place: str) -> str:
    return place.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")


DVC = YAML(typ="safe").load(ROOT / "dvc.yaml")
RECIPES = YAML(typ="safe").load(ROOT / "recipes.yaml")["recipes"]
PACKAGES = ("params", "trainer", "tasks")
# What may change without making a stage's result stale, beside what decides no weights (trainer.identity.HARMLESS_CODE).
HARMLESS = {module_of(place): reason for place, reason in HARMLESS_CODE.items()} | {
    "tasks.shards.executor": "calls functions whose results do not depend on where they run",
    "tasks.hub_client.token": "finds a token",
    "tasks.loopback": "tells this machine from others; what is read and published does not depend on it",
    "tasks.mirror": "copies checkpoints to a Hub",
    "tasks.progress": "only logs",
    "tasks.recipes": "reads the recipe, whose values DVC watches",
    "tasks.shards.kept_work": "gives what the same work made before",
    "tasks.stage_inputs": "compares the inputs of a stage",
    "tasks.stages": "reads and writes reports and logs",
    "tasks.training.causes": "words the error of a training",
    "tasks.training.processes": "starts and ends the processes of a training",
    "tasks.training.ranks": "watches a training",
    "tasks.training.run_folders": "deletes the checkpoints of other runs",
    "tasks.training.supervisor": "watches a training",
    "tasks.hub_server": "stands in for the real Hub; what is published does not depend on it",
}
_OF_VALIDATE = {
    "tasks.measurements.drift.new_rows": "validate compares the rows",
    "tasks.measurements.label_review.review_answers": "takes answers of people",
    "tasks.measurements.suites.rows": "validate checks the rows",
}
# The same for one stage.
HARMLESS_FOR = {
    "tokenize": {
        "tasks.hub_client": "fetches the profile of the published rows, which tokenize does not read",
        "trainer.model.weights_header": "reads thresholds of a model",
    },
    "train": {"tasks.lineage": "says of which rows a model knows the answers"},
    "validate": {
        "tasks.evaluation": "is what measurements do with models",
        "tasks.measurements.drift.confidence": "asks a model",
        "tasks.measurements.label_review": "asks models",
        "tasks.measurements.other_rows.pairing": "asks a model",
        "tasks.measurements.row_ages.ages": "compares rows with those of the champion",
        "tasks.measurements.suites.judging": "asks a model",
        "tasks.report": "shows what was measured",
    },
    "evaluate": {**_OF_VALIDATE, "tasks.report": "shows what was measured"},
    "publish": {
        **_OF_VALIDATE,
        "tasks.measurements.drift.confidence": "evaluate asks a model",
        "tasks.measurements.label_review.review": "evaluate asks models",
        "tasks.measurements.label_review.review_table": "evaluate writes it",
        "tasks.measurements.other_rows.pairing": "evaluate asks a model",
        "tasks.measurements.row_ages.ages": "evaluate compares the rows",
        "tasks.measurements.suites.judging": "evaluate asks a model",
    },
}
# Harmless to the weights, but it writes an output of the stage.
OUTPUT_CODE = {"train": {"trainer/reporting/metrics_log.py"}, "validate": {"tasks/report/page.css"}}

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
            .replace("${item.base}", item["base"])
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
    assert tuple(DVC["stages"]) == ("resolve", *STAGES)


@pytest.mark.parametrize("stage", PIPELINE, ids=STAGES)
def test_dvc_declares_the_sections_that_a_stage_reads(stage: Stage) -> None:
    (params,) = DVC["stages"][stage.name]["do"]["params"]
    assert list(params) == ["runs/${key}/recipe.yaml"]
    assert sorted(params["runs/${key}/recipe.yaml"]) == sorted({*stage.sections} - READ_ELSEWHERE.keys())


@pytest.mark.parametrize("stage", PIPELINE, ids=STAGES)
def test_sections_of_a_stage_are_the_arguments_of_its_function(stage: Stage) -> None:
    arguments = inspect.signature(import_stage_function(stage.name)).parameters.keys() - {"artifacts", "inputs"}
    assert sorted(arguments) == sorted(section.rpartition(".")[2] for section in stage.sections)


def test_dvc_resolves_a_recipe_again_when_a_default_may_have_changed() -> None:
    """The modules that decide what the values of a recipe are; an objective has its own defaults."""
    deciding = {"params/defaults.py", "params/schema.py", "params/sections"}
    deciding |= {"tasks/recipes/defaults.py", "tasks/recipes/resolve.py"}
    deciding |= {"trainer/objectives/__init__.py", "trainer/objectives/bases", "${item.objective}"}
    assert set(DVC["stages"]["resolve"]["do"]["deps"]) == deciding
    assert DVC["stages"]["resolve"]["do"]["params"] == [{"params/${key}.yaml": None}]
    assert [Path(path) for path in made("resolve")] == [Artifacts("default").resolved_recipe]


@pytest.mark.parametrize("stage", ["resolve", *STAGES])
def test_stage_runs_the_documented_command(stage: str) -> None:
    assert DVC["stages"][stage]["do"]["cmd"] == f"exec python -m tasks {stage} params/${{key}}.yaml"
    assert DVC["stages"][stage]["foreach"] == "${recipes}"


@pytest.mark.parametrize("stage", PIPELINE, ids=STAGES)
def test_reports_of_a_stage_are_among_its_outputs(stage: Stage) -> None:
    assert stage.name in stage.reports
    for name in stage.reports:
        report = Artifacts("default").report(name)
        assert any(report.is_relative_to(path) for path in made(stage.name))


@pytest.mark.parametrize("stage", PIPELINE, ids=STAGES)
def test_dvc_declares_what_a_stage_makes(stage: Stage) -> None:
    """A folder that DVC has in parts, as some are in git, is declared by them."""
    places = {getattr(Artifacts("default"), name) for name in stage.makes}
    assert {place for place in places if any(path.is_relative_to(place) for path in made(stage.name))} == places
    assert [path for path in made(stage.name) if not any(path.is_relative_to(place) for place in places)] == []


@pytest.mark.parametrize("stage", STAGES[1:])
def test_stage_reads_what_earlier_stages_write(stage: str) -> None:
    earlier = [path for s in STAGES[: STAGES.index(stage)] for path in made(s)]
    read = [Path(p) for p in declared(stage)["deps"] if p.startswith("runs/")]
    assert read
    for path in read:
        assert any(path == made_path or made_path in path.parents for made_path in earlier), path


def test_only_what_git_keeps_is_not_cached() -> None:
    uncached = [
        path
        for body in DVC["stages"].values()
        for kind in ("outs", "metrics", "plots")
        for entry in body["do"].get(kind, [])
        if isinstance(entry, dict)
        for path, options in entry.items()
        if options.get("cache", True) is False
    ]
    evaluation = "runs/${key}/evaluation"
    assert uncached == [
        "runs/${key}/recipe.yaml",
        "runs/${key}/start.json",
        f"{evaluation}/blessing.json",
        f"{evaluation}/metrics.json",
        "runs/${key}/release/receipt.json",
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "params").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_is_listed(path: Path) -> None:
    assert path.stem in RECIPES, "add it to recipes.yaml"
    assert RECIPES[path.stem]["objective"] == f"trainer/objectives/{load(path).objective.name}.py"
    assert (ROOT / RECIPES[path.stem]["data"]).exists()
    assert (ROOT / RECIPES[path.stem]["base"]).exists()
    assert (ROOT / RECIPES[path.stem]["code"]).exists()
    assert re.fullmatch(r"[A-Za-z0-9_-]+", path.stem)


@pytest.mark.parametrize("recipe", RECIPES)
def test_only_recipes_are_listed(recipe: str) -> None:
    assert (ROOT / "params" / f"{recipe}.yaml").exists()


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


@pytest.mark.parametrize("stage", STAGES)
def test_stage_declares_its_code(stage: str, graph: grimp.ImportGraph) -> None:
    item = RECIPES["default"]
    code = {p for p in declared(stage)["deps"] if not p.startswith("runs/") and p not in (item["data"], item["code"])}
    entry = f"tasks.{stage_named(stage).folder}.stage"
    needed = {file(module) for module in closure(entry, graph, HARMLESS_FOR.get(stage, {}))} | OUTPUT_CODE.get(
        stage, set()
    )
    if stage == "train":
        needed |= {str(path.relative_to(ROOT)) for path in deciding_files("causal_lm")}
    undeclared = {p for p in needed if not is_in(p, code)}
    assert undeclared == set(), "add these to the stage's deps in dvc.yaml, or to HARMLESS with the reason"
    unused = {d for d in code if not any(is_in(p, {d}) for p in needed)} - {"trainer/objectives/causal_lm.py"}
    assert unused == set(), "the stage does not use these"
    assert all((ROOT / d).exists() for d in code)


def test_stages_that_read_the_base_model_declare_it() -> None:
    """What stands in for it where there is none makes no stage stale: they declare it anyway."""
    readers = [stage for stage in STAGES if "${item.base}" in DVC["stages"][stage]["do"]["deps"]]
    assert readers == ["validate", "tokenize", "train", "evaluate", "publish"]
    for stage in readers:
        assert declared(stage)["deps"].count(NO_BASE) == 2, stage


def test_train_stage_depends_on_the_code_that_decides_the_weights() -> None:
    """One definition: the key of a run hashes the same files."""
    deciding = {place.format(objective="causal_lm") for place in DECIDING_CODE}
    stage = {f"tasks/training/{name}.py" for name in ("model_folder", "report", "stage", "versions")}
    own = {*stage, "tasks/tokenization/report.py", *OUTPUT_CODE["train"], RECIPES["default"]["code"]}
    assert {p for p in declared("train")["deps"] if not p.startswith("runs/")} == deciding | own


def test_every_import_of_the_worker_is_classified(graph: grimp.ImportGraph) -> None:
    deciding = [place.format(objective="*") for place in DECIDING_CODE]
    imported = {file(m) for m in graph.find_upstream_modules("trainer.worker")} | {"trainer/worker.py"}
    imported |= {file(m) for m in graph.find_children("trainer.objectives")}  # by name
    for name in sorted(imported):
        decides = any(PurePath(name).match(place) or is_in(name, {place}) for place in deciding)
        assert decides != is_in(name, set(HARMLESS_CODE)), f"{name}: list it in one of the two in trainer/identity.py"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code that a run's key hashes, to edit."""
    for package in ("params", "trainer"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(identity, "_PROJECT", tmp_path)
    return tmp_path


def test_run_key_changes_with_code_that_decides_the_weights(code: Path) -> None:
    recipe = load(ROOT / "params/default.yaml")
    sections = {name: getattr(recipe, name) for name in ("seed", "objective", "model", "training")}

    def key() -> str:
        return run_key(run_identity(code / "tokens", sections))

    decides = {path.relative_to(code).as_posix() for path in deciding_files("causal_lm")}
    assert {"trainer/data/order.py", "trainer/objectives/causal_lm.py", "trainer/worker.py"} <= decides
    before = key()
    for path in sorted(code.rglob("*.py")):
        content = path.read_text(encoding="utf-8")
        path.write_text(f"{content}# edited\n", encoding="utf-8")
        name = path.relative_to(code).as_posix()
        assert (key() != before) == (name in decides), name
        path.write_text(content, encoding="utf-8")
    harmless = {p.relative_to(code).parts[1] for p in code.glob("trainer/*/*.py")} - {n.split("/")[1] for n in decides}
    assert harmless == {"iterative", "reporting", "runtime"}


TEMPLATES = [path for kind in ("*.jinja", "*.css") for path in sorted((ROOT / "tasks").rglob(kind))]
NO_STAGE = ("tasks/history/", "tasks/hub_server/")
"""Pages that no stage writes."""


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_templates_are_declared(template: Path) -> None:
    name = str(template.relative_to(ROOT))
    declared_paths = [path for stage in STAGES for path in declared(stage)["deps"]]
    assert name.startswith(NO_STAGE) or any(name == path or name.startswith(f"{path}/") for path in declared_paths)


def test_flow_runs_the_stages_by_name() -> None:
    assert flow_module.STAGES is STAGES
    assert flow_module.retrain.name == "retrain"
    assert set(flow_module.retrain.parameters.properties) == {"recipe", "publish", "force", "record"}


def closure(entry: str, graph: grimp.ImportGraph, harmless: Mapping[str, str]) -> set[str]:
    """The modules that run when `entry` works, except the harmless ones and other objectives."""
    found: set[str] = set()
    queue = [entry]
    while queue:
        module = queue.pop()
        if module in found or any(
            module == h or module.startswith(f"{h}.") for h in {**HARMLESS, **harmless} if h != "trainer"
        ):
            continue
        found.add(module)
        imported = graph.find_modules_directly_imported_by(module)
        if module == "trainer.objectives":  # it imports them by name
            imported |= graph.find_children(module)
        if module == "tasks.measurement":
            imported |= graph.find_descendants("tasks.measurements")
        queue += imported
        parent = module.rpartition(".")[0]
        if parent:
            queue.append(parent)
    empty = {m for m in found if graph.find_children(m) and not graph.find_modules_directly_imported_by(m)}
    # Packages that only describe themselves, and the objectives, of which a recipe uses one.
    return found - {"tasks", "trainer"} - empty - graph.find_children("trainer.objectives")


def is_in(path: str, places: set[str]) -> bool:
    """Whether a file is one of the places, or lies in one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def file(module: str) -> str:
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))
