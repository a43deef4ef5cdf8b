"""Loading a recipe: all problems at once, each with file:line, key, cause and fix."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from params import Recipe, RecipeError
from tasks.diagnostics.check import find_recipe_problems
from tasks.recipes.loading import find_recipe, load, parse, read_yaml_document, recipe_name, valid_sections
from tests.support.settings_check import check_settings_in_this_process

DEFAULT = Path("params/default.yaml")
TEXT = """\
seed: 17

data:
  source:
    kind: function
    function: params.python_documentation:documentation
  split:
    validation: 0.05
    test: 0.05
  group_by: [text]

validation:
  max_quarantined: 0.15
  expectations:
    - type: expect_column_values_to_be_unique
      column: text
    - type: expect_column_value_lengths_to_be_between
      column: text
      min_value: 20
    - type: expect_column_values_to_be_in_set
      column: kind
      value_set: [module, class, function, topic]
      on_failure: fail

tokenization:
  tokenizer:
    kind: train
    vocab_size: 4096
  max_length: 256

objective:
  name: causal_lm
  text_column: text

model:
  config:
    model_type: llama
    hidden_size: 192
    intermediate_size: 512
    num_hidden_layers: 4
    num_attention_heads: 6
    num_key_value_heads: 2
    tie_word_embeddings: true

training:
  max_steps: 300
  global_batch_size: 16
  learning_rate: 2e-3
  lr_scheduler: cosine
  warmup_steps: 20
  weight_decay: 0.1
  eval_steps: 50
  save_steps: 50
  logging_steps: 10
  best_metric: loss

launch:
  num_processes: 1
  micro_batch_size: 8
  eval_batch_size: 16

evaluation:
  split: test
  compare_untrained: true

publish:
  repo_id: evergreen/python-documentation
  endpoint: local
  license: psf-2.0
"""
"""A recipe with every section, independent of params/default.yaml."""


def recipe(tmp_path, *changes, name="trial.yaml"):
    """The recipe above with some of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def error_lines(path):
    """The lines of the error, without the path."""
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return [line.removeprefix(f"{path}:") for line in caught.value.what.splitlines() if line.startswith(str(path))]


def line_of(path, text):
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize("path", sorted(Path("params").glob("*.yaml")) + sorted(Path("docs").glob("*.yaml")), ids=str)
def test_shipped_recipes_load(path):
    assert isinstance(load(path), Recipe)


def test_exponent_is_a_number(tmp_path):
    assert load(recipe(tmp_path, ("learning_rate: 2e-3", "learning_rate: 1e-4"))).training.learning_rate == 1e-4


def test_loaded_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load(DEFAULT).training.learning_rate = 1.0


WRONG = {
    "unknown key": (
        ("learning_rate: 2e-3", "learning_rat: 2e-3"),
        "learning_rat: 2e-3",
        "training.learning_rat: no such key; did you mean `learning_rate`?",
    ),
    "unknown section": (("evaluation:", "evaluatoin:"), "evaluatoin:", "evaluatoin: no such key; did you mean"),
    "unknown key, nothing close": (("seed: 17", "seed: 17\nqqq: 1"), "qqq", "qqq: no such key; keys here: seed, data"),
    "wrong type": (
        ("max_length: 256", "max_length: long"),
        "max_length",
        "input should be a valid integer, found 'long'; write a valid value (Length of the longest sequence, in tokens. Longer texts are cut; packing fills sequences up to it.)",
    ),
    "text for a number": (("seed: 17", "seed: '17'"), "seed", "seed: input should be a valid integer, found '17'"),
    "yes for a bool": (("compare_untrained: true", "compare_untrained: yes"), "compare_untrained", "found 'yes'"),
    "out of range": (
        ("test: 0.05", "test: 1.5"),
        "test: 1.5",
        "data.split.test: 1.5 is no share of the rows; write a share from 0 to below 1, such as 0.05",
    ),
    "negative": (
        ("max_steps: 300", "max_steps: -1"),
        "max_steps",
        "training.max_steps: input should be greater than 0",
    ),
    "unknown word": (
        ("  split: test", "  split: train"),
        "  split: train",
        "evaluation.split: input should be 'test' or 'validation', found 'train'",
    ),
    "a list for a section": (
        ("launch:\n  num_processes: 1\n  micro_batch_size: 8\n  eval_batch_size: 16", "launch: [1]"),
        "launch:",
        "launch: input should be a mapping of keys, found [1]",
    ),
    "nothing for a section": (
        ("evaluation:\n  split: test\n  compare_untrained: true", "evaluation:"),
        "evaluation:",
        "evaluation: input should be a mapping of keys, found None",
    ),
    "unknown key in a source": (
        ("kind: function\n", "kind: function\n    refreshh: true\n"),
        "refreshh",
        "data.source.refreshh: no such key; did you mean `refresh`?",
    ),
    "key of another kind of source": (
        ("kind: function\n", "kind: function\n    train: x.csv\n"),
        "train: x.csv",
        "data.source.train: no such key; keys here: columns, where, max_rows, weight, splits, kind, function, arguments, refresh",
    ),
    "unknown kind": (("kind: function\n", "kind: functoin\n"), "kind: functoin", "data.source.kind: there is no kind"),
    "no kind": (("    kind: function\n", ""), "source:", "data.source: has no `kind`; add `kind:`"),
    "key missing in a tokenizer": (
        ("    vocab_size: 4096\n", ""),
        "tokenizer:",
        "tokenization.tokenizer.vocab_size: is missing; add `vocab_size:` (Number of tokens",
    ),
    "unknown key in a tokenizer": (
        ("vocab_size: 4096", "vocab_size: 4096\n    min_frequenci: 3"),
        "min_frequenci",
        "tokenization.tokenizer.min_frequenci: no such key; did you mean `min_frequency`?",
    ),
    "an expectation's setting": (
        ("on_failure: fail", "on_failure: explode"),
        "explode",
        "validation.expectations.2.on_",
    ),
    "not importable": (
        ("params.python_documentation:documentation", "documentation"),
        "function: documentation",
        "data.source.function: string should match pattern",
    ),
    "not a repository": (
        ("evergreen/python-documentation", "python"),
        "repo_id: python",
        "publish.repo_id: string should",
    ),
    "both lengths": (
        ("max_steps: 300", "max_steps: 300\n  epochs: 2"),
        "training:",
        "training: needs exactly one of `epochs` and `max_steps`; remove one of them",
    ),
    "both origins": (
        ("model:\n", "model:\n  pretrained: some/model\n"),
        "model:",
        "model: needs exactly one of `config` and `pretrained`; remove one of them",
    ),
    "no model type": (("    model_type: llama\n", ""), "model:", "model: `config` has no `model_type`; add one"),
}


@pytest.mark.parametrize(("change", "where", "message"), WRONG.values(), ids=WRONG)
def test_problem_has_line_key_cause_and_fix(tmp_path, change, where, message):
    path = recipe(tmp_path, change)
    found = error_lines(path)
    assert any(message in line for line in found), found
    line = next(line for line in found if message in line)
    if where:
        assert line.startswith(f"{line_of(path, where)}: ")
    assert "; " in line  # cause; fix


def test_all_problems_are_reported_in_file_order(tmp_path):
    path = recipe(
        tmp_path,
        ("seed: 17", "seed: -1"),
        ("kind: function\n", "kind: function\n    refreshh: true\n"),
        ("max_length: 256", "max_length: 1"),
        ("learning_rate: 2e-3", "learning_rat: 2e-3"),
        ("license: psf-2.0", "licence: psf-2.0"),
    )
    found = error_lines(path)
    keys = {line.split(": ")[1] for line in found}
    wrong = {"seed", "data.source.refreshh", "tokenization.max_length", "training.learning_rat", "publish.licence"}
    assert keys == wrong
    lines = [int(line.split(":")[0]) for line in found]
    assert lines == sorted(lines)
    with pytest.raises(RecipeError, match="5 problems in the recipe"):
        load(path)


def test_missing_sections_are_named(tmp_path):
    path = tmp_path / "trial.yaml"
    path.write_text("seed: 1\n")
    missing = {line.split(": ")[1] for line in error_lines(path)}
    assert missing == {"data", "model", "objective", "tokenization.tokenizer"}


def test_duplicate_key_is_an_error(tmp_path):
    path = recipe(tmp_path, ("seed: 17", "seed: 17\nseed: 18"))
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert caught.value.where == f"{path}:{line_of(path, 'seed: 18')}"
    assert "duplicate key" in caught.value.what
    assert "once" in caught.value.fix


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no recipe"),
        (b"# nothing\n", "holds no recipe"),
        (b"- a\n- b\n", "holds no recipe"),
        (b"just text", "holds no recipe"),
        (b"a: [1, 2\nb: 3", "not valid YAML"),
        (b"a: 1\n\tb: 2", "not valid YAML"),
        (b"a: b: c", "not valid YAML"),
        (b"a: \x00", "not valid YAML"),
        (b"a: 1\n---\nb: 2", "not valid YAML"),
        (b"a: *nobody", "not valid YAML"),
        (b"seed: !!python/object/apply:os.system [true]", "not valid YAML"),
        (b"seed: !mine 3", "not valid YAML"),
        (b"? [a, b]\n: 1\n", ""),
        (b"? {a: b}\n: 1\n", ""),
        (b"17: 3\n", ""),
        (b"null: 3\n", ""),
        (b"seed: &x [*x]\n", ""),
        (b"model: &x {config: *x}\n", ""),
        (b"seed: 2026-11-21\n", ""),
        (b"seed: .nan\ntraining: {learning_rate: .inf}\n", ""),
        (b"a: " + b"[" * 700 + b"]" * 700, "not valid YAML"),
        ("seed: 1 # caf\xe9".encode("latin-1"), "cannot be read as text"),
        (b"\xff\xfe\x00", "cannot be read as text"),
    ],
)
def test_file_that_is_no_recipe_is_an_error(tmp_path, content, message):
    path = tmp_path / "trial.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert message in caught.value.what
    assert str(path) in caught.value.where
    assert caught.value.fix


def test_missing_recipe_suggests_others(tmp_path):
    recipe(tmp_path, name="german.yaml")
    with pytest.raises(RecipeError, match="no such recipe") as caught:
        load(tmp_path / "germann.yaml")
    assert caught.value.fix == f"did you mean `{tmp_path}/german.yaml`?"
    with pytest.raises(RecipeError) as caught:
        load(tmp_path / "x.yaml")
    assert caught.value.fix == f"recipes in {tmp_path}: german"
    with pytest.raises(RecipeError, match="check the path"):
        load(tmp_path / "no" / "such" / "folder.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        load(tmp_path / "german.yaml" / "below.yaml")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's root with the recipes params/german.yaml and others/french.yaml, and a dvc.yaml."""
    monkeypatch.chdir(tmp_path)
    for folder in ("params", "others"):
        (tmp_path / folder).mkdir()
    recipe(tmp_path / "params", name="german.yaml")
    recipe(tmp_path / "others", name="french.yaml")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return tmp_path


def test_find_recipe_takes_a_name_or_a_path(project):
    assert find_recipe("german") == find_recipe("params/german.yaml") == Path("params/german.yaml")
    assert find_recipe(f"{project}/params/german.yaml") == project / "params/german.yaml"


@pytest.mark.parametrize(
    ("recipe_path", "fix"),
    [
        ("germann", "did you mean `params/german.yaml`?"),
        ("german.yaml", "did you mean `params/german.yaml`?"),
        ("params/germann.yaml", "did you mean `params/german.yaml`?"),
        ("killa", "recipes in params: german"),
        ("", "recipes in params: german"),
        ("params/", "recipes in params: german"),
        ("others/german.yaml", "recipes in others: french"),
        ("nowhere/german.yaml", "check the path, or run this in the project's root, the folder that holds params/"),
    ],
)
def test_find_recipe_suggests_existing_recipes(project, recipe_path, fix):
    with pytest.raises(RecipeError) as caught:
        find_recipe(recipe_path)
    assert caught.value.fix == fix


def test_find_recipe_outside_a_project_asks_for_its_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="run this in the project's root"):
        find_recipe("german")


@pytest.mark.parametrize("find", [find_recipe, recipe_name])
def test_recipes_outside_of_params_are_refused(project, find):
    """Artifacts are named after the recipe: others/german.yaml would overwrite those of params/german.yaml."""
    recipe(project / "params", name="spanish.yml")
    recipe(project / "others", name="german.yaml")
    (project / "params" / "below").mkdir()
    recipe(project / "params" / "below", name="german.yaml")
    for outside in ("others/german.yaml", "others/french.yaml", "params/spanish.yml", "params/below/german.yaml"):
        with pytest.raises(RecipeError, match=r"is not a .yaml file in params/") as caught:
            find(outside)
        assert caught.value.where == outside


@pytest.mark.parametrize("find", [find_recipe, recipe_name])
@pytest.mark.parametrize("name", ["my german", "$(date)", "a;b", "-v", ".hidden", "a@b", "größe", "a\nb", "german'"])
def test_names_that_are_unsafe_in_a_command_are_refused(project, find, name):
    recipe(project / "params", name=f"{name}.yaml")
    for name_or_path in (name, f"params/{name}.yaml"):
        with pytest.raises(RecipeError, match="the name of a recipe") as caught:
            find(name_or_path)
        assert caught.value.fix.startswith("rename it")


@pytest.mark.parametrize("find", [find_recipe, recipe_name])
@pytest.mark.parametrize("name", ["a" * 300, "params/" + "a" * 300 + ".yaml", "a" * 300 + "/b.yaml"])
def test_names_that_are_too_long_for_a_file_are_refused(project, find, name):
    with pytest.raises(RecipeError, match="cannot be read: File name too long") as caught:
        find(name)
    assert len(str(caught.value)) < 400


def test_longest_name_is_accepted(project):
    recipe(project / "params", name=f"{'a' * 200}.yaml")
    assert recipe_name("a" * 200) == "a" * 200
    recipe(project / "params", name=f"{'a' * 201}.yaml")
    with pytest.raises(RecipeError, match="at most 200 characters, not 201"):
        recipe_name("a" * 201)


@pytest.mark.parametrize("name", ["llama3.1-sft", "a_b", "7"])
def test_names_of_letters_digits_and_some_punctuation_are_accepted(project, name):
    recipe(project / "params", name=f"{name}.yaml")
    assert recipe_name(name) == recipe_name(f"params/{name}.yaml") == name


def test_recipe_name_takes_a_name_or_a_path(project):
    assert recipe_name("german") == recipe_name("params/german.yaml") == "german"
    assert recipe_name(f"{project}/params/german.yaml") == "german"
    with pytest.raises(RecipeError, match="no such recipe"):
        recipe_name("french")


def test_valid_sections_are_returned_beside_a_malformed_one(tmp_path):
    path = recipe(tmp_path, ("learning_rate: 2e-3", "learning_rate: fast"), ("license: psf-2.0", "licence: psf-2.0"))
    sections = valid_sections(read_yaml_document(path))
    assert set(sections) == set(Recipe.model_fields) - {"training"}
    assert sections["publish"].repo_id == "evergreen/python-documentation"  # valid apart from an unknown key


VALUES = [None, 0, -1, 3.5, float("nan"), True, "", "text", "a/b", [], [1, [2]], {}, {"kind": "files"}, {"kind": []}]
VALUES += [{"x": {"y": [1]}}, [{"type": "x"}], {1: 2}, {None: 3}, {"kind": "train", "train": 1}, 10**30, "\x07é"]


def _places(node, at=()):
    """Every key and index of a recipe."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in items:
        yield (*at, name)
        yield from _places(value, (*at, name))


def _mutated(content, rng):
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 4)):
        *parents, last = rng.choice(list(_places(content)))
        node = content
        for part in parents:
            node = node[part]
        what = rng.randrange(5)
        if what == 0:
            del node[last]
        elif what == 1 and isinstance(node, dict):
            node[rng.choice(["kind", "lerning_rate", "train", 7, "name", "config"])] = rng.choice(VALUES)
        elif what == 2:
            node[last] = [node[last]]
        else:
            node[last] = copy.deepcopy(rng.choice(VALUES))
        if not content:
            break
    return content


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_mutated_recipe_gives_a_recipe_or_an_error(tmp_path, seed, monkeypatch):
    check_settings_in_this_process(monkeypatch)
    rng = random.Random(seed)
    content = YAML(typ="safe").load(TEXT)
    path = tmp_path / "trial.yaml"
    outcomes = set()
    for i in range(50):
        YAML(typ="safe").dump(_mutated(content, rng), path)
        document = read_yaml_document(path)
        found, problems = parse(document)
        outcomes.add(type(found))
        assert bool(found) != bool(problems)
        str(document.error(problems))
        valid_sections(document)
        if i % 12 == 0:  # all_problems is slower
            document.content.pop("data", None)  # reading its rows takes seconds
            str(document.error(find_recipe_problems(document)))
    assert outcomes == {Recipe, type(None)}


@pytest.mark.parametrize(
    "text",
    [
        "a: &a\n  <<: *a\n  b: 1\n",
        "data: &a\n  source: *a\n",
        "seed: &a [*a]\n",
        "seed: " + "[" * 2000 + "]" * 2000,
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"{x}: &{x} [{', '.join([f'*{y}'] * 10)}]\n" for y, x in zip("abcdefg", "bcdefgh", strict=True)),
        "seed: 2020-99-99\n",
        "seed: !!int x\n",
        "seed: " + "9" * 6000,
    ],
    ids=["merge of itself", "alias cycle", "list cycle", "deep", "aliases of aliases", "date", "tag", "digits"],
)
@pytest.mark.timeout(10)
def test_yaml_that_cannot_be_read_is_an_error(tmp_path, text):
    path = tmp_path / "trial.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match="not valid YAML"):
        read_yaml_document(path)
