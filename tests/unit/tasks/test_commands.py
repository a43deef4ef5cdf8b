"""The command line: help, arguments, recipes and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from flows import cli as flows_cli
from params import StorageError
from params.foundation.stages import STAGES
from tasks import commands as tasks_cli
from tasks.commands import main
from tests.support import tiny
from tests.support.project import ROOT
from tests.support.signs_of_life import without_signs_of_life
from trainer.reporting import signs_of_life
from trainer.reporting.signs_of_life import SignsOfLife

APPS = {"python -m tasks": tasks_cli.app, "evergreen": flows_cli.app}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A project folder with one recipe; commands do not configure logging."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe())
    return tmp_path


def listed(name, capsys):
    """The commands that `--help` lists, with their descriptions."""
    assert main(["--help"], commands=APPS[name], name=name) == 0
    _, _, lines = capsys.readouterr().out.partition("Commands:\n")
    return dict(line.split(maxsplit=1) for line in lines.splitlines())


@pytest.mark.parametrize("name", APPS)
def test_help_shows_each_command_on_one_line(name, capsys):
    found = listed(name, capsys)
    shown = {name for name, command in typer.main.get_command(APPS[name]).commands.items() if not command.hidden}
    assert set(found) == shown
    assert [stage for stage in found if stage in STAGES] == list(STAGES)
    for command, line in found.items():
        assert line.endswith("."), f"{command}: {line}"
        assert not line.endswith("..."), f"{command} is cut: {line}"


def test_a_command_that_says_nothing_yet_shows_what_it_is_for(monkeypatch):
    signs = SignsOfLife("show")
    monkeypatch.setattr(signs_of_life, "_current", [signs])
    assert signs.note == "show: starts"
    assert main(["show", "tiny"]) == 0
    assert signs.note == "show: print a recipe with all of its values"


def test_evergreen_adds_the_flows_commands(capsys):
    assert listed("evergreen", capsys).items() - listed("python -m tasks", capsys).items() == {
        ("run", "Run every stale stage of a recipe, and publish the model."),
        ("history", "List the runs, and write a page with all of them."),
        ("releases", "List releases and rollbacks, and what is published now."),
        ("watch", "Let the Prefect server notice lost runs and send messages."),
        ("password", "Make a password for your Prefect server, in .env."),
        ("notice", "Tell the Prefect server that a recipe has new data."),
        ("clean", "Show what nothing needs any more, and delete it."),
    }


@pytest.mark.parametrize("name", APPS)
def test_every_argument_and_option_is_documented(name):
    for command in typer.main.get_command(APPS[name]).commands.values():
        for parameter in command.params:
            assert parameter.help, f"{command.name} {parameter.name}"


@pytest.mark.parametrize("module", ["tasks", "flows.cli"])
def test_help_imports_nothing_slow(module):
    code = f"import sys; from {'tasks.commands' if module == 'tasks' else module} import main; main(['--help']); "
    code += "print(*sorted({'torch', 'transformers', 'prefect', 'dvc', 'rich', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "Usage: python -m tasks"),
        (["trian", "tiny"], "No such command 'trian'. Did you mean 'train'"),
        (["train"], "Missing argument 'RECIPE'"),
        (["train", "tiny", "more"], "unexpected extra argument"),
        (["trace", "tiny"], "Missing option '--row'"),
        (["trace", "tiny", "--row", "first"], "Invalid value for '--row'"),
        (["rollback", "release-1"], "Missing option '--why'"),
        (["check", "tiny", "--quick"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2(argv, message, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize("recipe", ["tiny", "params/tiny.yaml", "./params/tiny.yaml"])
def test_commands_take_a_recipe_by_name_or_path(recipe, capsys):
    assert main(["tokenize", recipe]) == os.EX_DATAERR
    assert "fix: run `evergreen validate params/tiny.yaml` first" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [[stage, "tinny"] for stage in (*STAGES, "check", "report", "mirror", "fetch", "verify-resume")]
)
def test_every_command_suggests_the_closest_recipe(argv, capsys):
    assert main(argv) == os.EX_CONFIG
    expected = "RecipeError: params/tinny.yaml: there is no such recipe\n  fix: did you mean `params/tiny.yaml`?"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "message"), [("tinny", "did you mean `params/tiny.yaml`?"), ("x.yaml", "params/x.yaml")]
)
def test_flow_accepts_only_recipes_in_params(project, recipe, message, capsys):
    (project / "x.yaml").write_text("seed: 1\n")
    assert main(["run", recipe], commands=flows_cli.app) == os.EX_CONFIG
    assert message in capsys.readouterr().err


def test_stage_of_a_recipe_outside_of_params_leaves_the_run_of_the_same_name_alone(project, capsys):
    tiny.write(project / "exp" / "tiny.yaml", tiny.recipe())
    assert main(["ingest", "exp/tiny.yaml"]) == os.EX_CONFIG
    assert "exp/tiny.yaml: is not a .yaml file in params/" in capsys.readouterr().err
    assert not (project / "runs").exists()


def test_error_sets_the_exit_code(monkeypatch, capsys):
    def fails(path):
        raise StorageError(str(path), "cannot be written", "free space")

    monkeypatch.setattr("tasks.diagnostics.check.check", fails)
    assert main(["check", "tiny"]) == os.EX_IOERR
    assert capsys.readouterr().err == "\nStorageError: params/tiny.yaml: cannot be written\n  fix: free space\n"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (KeyboardInterrupt(), "start again"),
        (KeyboardInterrupt("all is kept"), "all is kept"),
        (typer.Abort(), "nothing is changed"),
    ],
)
def test_interrupt_exits_with_130(error, kept, monkeypatch, capsys):
    def interrupt(path):
        raise error

    monkeypatch.setattr("tasks.diagnostics.check.check", interrupt)
    assert main(["check", "tiny"]) == 130
    assert capsys.readouterr().err == f"\ninterrupted: {kept}\n"


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), EOFError("torn")])
def test_unexpected_errors_are_raised(monkeypatch, error):
    def fails(path):
        raise error

    monkeypatch.setattr("tasks.diagnostics.check.check", fails)
    with pytest.raises(type(error)):
        main(["check", "tiny"])


def test_a_command_ends_quietly_with_the_reader_of_its_output():
    """As after `evergreen show default | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tasks", "show", "default"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, without_signs_of_life(done.stderr)) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(("command", "with_errors"), [(("show", "default"), False), (("check", "default"), True)])
def test_output_that_has_no_room_is_an_error_of_the_disk(command, with_errors):
    with Path("/dev/full").open("w") as full:
        errors = full if with_errors else subprocess.PIPE
        arguments = [sys.executable, "-m", "tasks", *command]
        done = subprocess.run(arguments, cwd=ROOT, stdout=full, stderr=errors, text=True, check=False)
    assert done.returncode == os.EX_IOERR
    expected = "\nStorageError: standard output: cannot be written: No space left on device; all else is done\n"
    assert done.stderr == (None if with_errors else f"{expected}  fix: send it to a disk with room\n")


def test_a_home_that_prefect_cannot_make_is_no_line_of_its_own(project):
    (project / "file").touch()
    environment = {**os.environ, "PREFECT_HOME": str(project / "file/home"), "PYTHONPATH": str(ROOT)}
    for name in ("PREFECT_API_URL", "PREFECT_PROFILES_PATH"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "flows.evergreen", "notice", "tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_SOFTWARE
    assert done.stderr.startswith("\nEvergreenError: PREFECT_API_URL: names no Prefect server\n"), done.stderr


def test_evergreen_imports_user_code_from_the_working_directory(project):
    """As `python -m tasks` does; a console script starts with its own folder in sys.path instead."""
    (project / "own_rows.py").write_text("def rows():\n    yield from ({'text': str(i)} for i in range(200))\n")
    source = {"data.source": {"kind": "function", "function": "own_rows:rows"}}
    tiny.write(project / "params" / "own.yaml", tiny.recipe(source))
    script = project / "bin" / "evergreen"
    script.parent.mkdir()
    script.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\nfrom flows.cli import main\nsys.exit(main())\n")
    done = subprocess.run([sys.executable, script, "ingest", "own"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("evergreen rel", ["releases"]),
        ("evergreen show ti", ["tiny"]),
        ("evergreen try ti", ["tiny"]),
        ("evergreen history ti", ["tiny"]),
        ("evergreen run nothing", []),
    ],
)
def test_a_shell_completes_commands_and_recipes(words, found, monkeypatch, capsys):
    monkeypatch.setenv("_EVERGREEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert flows_cli.main([]) == 0
    assert capsys.readouterr().out.split() == found
