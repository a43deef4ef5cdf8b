"""The token of the Hub is nowhere in what a run writes, however the run ends.

One trained model, which the flow is to publish to a Hub with tokens of its own. It fails in every way there is, and at
last succeeds; each time everything that was written is searched for the tokens: the project, Prefect's home with its
database, the client's home, what was printed, and the Hub's repositories. The cases share one project and stand in order.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import sqlite3
import string
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.support import forked
from tests.support.faulty_hub import Fault, FaultyHub
from tests.support.project import Project, free_port, wait_for

pytestmark = pytest.mark.in_order

RECIPE = "params/tiny.yaml"
OK, ACCESS, CONFIG, MODEL, TRANSIENT = os.EX_OK, os.EX_NOPERM, os.EX_CONFIG, os.EX_NOINPUT, os.EX_TEMPFAIL
chance = random.Random(20)


def random_text(alphabet: str, length: int) -> str:
    return "".join(chance.choices(alphabet, k=length))


TOKEN = f"hf_{random_text(string.ascii_letters + string.digits, 34)}"
"""May write."""
PLAIN = f'{random_text(string.ascii_lowercase, 12)}/+{random_text(string.digits, 12)}"\\{random_text("abc%=&", 8)}'
"""May write, and looks like nothing; others write it in other ways."""
READER = f"hf_{random_text(string.ascii_letters, 34)}"
"""May not write."""
WRONG = f"hf_{random_text(string.digits, 34)}"
"""Not known to the Hub."""
SPACED = f"{random_text(string.ascii_letters, 20)} {random_text(string.ascii_letters, 20)}"
FOREIGN = f"hf_{random_text(string.ascii_letters, 20)}ß{random_text(string.ascii_letters, 20)}"
TOKENS = {"token": TOKEN, "plain": PLAIN, "reader": READER, "wrong": WRONG, "spaced": SPACED, "foreign": FOREIGN}

FLOW = """\
import json, os, sys
from pathlib import Path
from flows import cli, retrain
from flows.server.own import OwnPrefectServer

retrain.bring_stage_up_to_date.retry_delay_seconds = 0
mine = dict(os.environ)
with OwnPrefectServer(Path(".scratch/tiny/prefect-server.log")).used():
    for line in sys.stdin:
        request = json.loads(line)
        retrain.bring_stage_up_to_date.retries = request["retries"]
        os.environ.clear()
        os.environ.update(mine | request["environment"])
        print("the flow ended with", cli.main(["run", "tiny"]), flush=True)
"""
"""Runs the flow for each line on its standard input: what it imports, and its server, take longer than what it does."""


@dataclass(frozen=True)
class Case:
    """How a run ends."""

    name: str
    token: str
    status: int
    words: str
    """A part of what is printed."""
    faults: tuple[Fault, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0
    is_in_file: bool = False
    """Where the client finds the token: in its file instead of the variable."""
    recipe: tuple[str, str] = ("timeout_s: 3", "timeout_s: 3")
    """A text in the recipe, and what stands for it."""
    evaluates: bool = False
    """Whether the evaluation, which asks for the champion, is to be done again."""


class Company:
    """A project that publishes to a Hub elsewhere."""

    def __init__(self, project: Project, hub: FaultyHub, folder: Path) -> None:
        self.project, self.hub, self.folder = project, hub, folder
        self.recipe = (project.root / RECIPE).read_text()
        self.log = project.root / "flow.log"
        with self.log.open("wb") as file:
            self.flow = subprocess.Popen(
                ["python", "-c", FLOW],
                cwd=project.root,
                env=forked.commands(project.environment),  # which forks the stages
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        project.started.append(self.flow)

    def retrain(self, case: Case) -> tuple[int, str]:
        """Run the flow; its exit status, and what it printed."""
        assert case.recipe[0] in self.recipe
        (self.project.root / RECIPE).write_text(self.recipe.replace(*case.recipe))
        self.hub.faults[:] = case.faults
        if case.evaluates:
            (self.project.root / "runs/tiny/evaluation/blessing.json").unlink()
        login = self.project.root / ".hf/token"
        login.unlink(missing_ok=True)
        environment = self.access(None if case.is_in_file else case.token)
        if case.is_in_file:
            login.write_text(f" {case.token}\n")
        start = self.log.stat().st_size
        request = {"retries": case.retries, "environment": environment | dict(case.environment)}
        assert self.flow.stdin is not None
        self.flow.stdin.write(json.dumps(request).encode() + b"\n")
        self.flow.stdin.flush()

        def printed() -> str:
            with self.log.open("rb") as file:
                file.seek(start)
                return file.read().decode()

        wait_for(lambda: "the flow ended with " in printed() or self.flow.poll() is not None, "the flow", 180)
        output, _, status = printed().rpartition("the flow ended with ")
        assert status.strip(), printed()
        (self.project.root / RECIPE).write_text(self.recipe)
        return int(status.split()[0]), output  # events may be logged after it

    def access(self, token: str | None) -> dict[str, str]:
        """What tells a process which Hub and, unless it is in the file, which token."""
        return {"HF_ENDPOINT": self.hub.endpoint, **({"HF_TOKEN": token} if token else {})}

    def end(self) -> None:
        """Let the flow's process end in order: Prefect sends its last logs then."""
        assert self.flow.stdin is not None
        self.flow.stdin.close()
        self.flow.wait(60)

    def written(self) -> Iterator[tuple[str, bytes]]:
        """Everything that there is to read, by name: files, rows of databases, and objects of git."""
        for path in sorted(self.folder.rglob("*")):
            yield "names of files", str(path).encode()
            if path.is_file() and not path.is_symlink() and path != self.project.root / ".hf/token":
                with contextlib.suppress(FileNotFoundError):  # a temporary one of Prefect's
                    yield str(path.relative_to(self.folder)), path.read_bytes()
            if path.suffix == ".db":
                with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                    yield f"rows of {path.name}", "\n".join(database.iterdump()).encode()
            if path.name == "objects" and (path.parent / "HEAD").is_file():
                command = ["git", f"--git-dir={path.parent}", "cat-file", "--batch-all-objects", "--batch"]
                objects = subprocess.run(command, capture_output=True, check=True).stdout
                yield f"objects of {path.parent.relative_to(self.folder)}", objects

    def places(self, words: Mapping[str, bytes]) -> dict[str, list[str]]:
        """Where each of the words stands."""
        found: dict[str, list[str]] = {}
        for place, content in self.written():
            for name, word in words.items():
                if word in content:
                    found.setdefault(name, []).append(place)
        return found


def spellings(name: str, token: str) -> Iterator[tuple[str, bytes]]:
    """The ways in which a token may stand in a file."""
    raw = token.encode()
    yield name, raw
    for way, text in {
        "in a URL": quote(token, safe=""),
        "in a path": quote(token),
        "in a form": quote_plus(token),
        "in JSON": json.dumps(token)[1:-1],
        "in JSON in JSON": json.dumps(json.dumps(token))[3:-3],
        "in Python": repr(token)[1:-1],
        "in SQL": token.replace("'", "''"),
        "in hexadecimal": raw.hex(),
    }.items():
        yield f"{name} {way}", text.encode()
    for before in range(3):  # what a whole number of its groups of three bytes makes, whatever stands around the token
        inner = base64.b64encode(b"." * before + raw)[4 if before else 0 :]
        yield f"{name} in base64", inner[: (before + len(raw)) // 3 * 4 - (4 if before else 0)]


SOUGHT = {
    f"{name} ({number})": word
    for token, text in TOKENS.items()
    for number, (name, word) in enumerate(spellings(token, text))
}


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory, first_run: Path) -> Iterator[Company]:
    """A company whose model is trained and evaluated, and not published."""
    folder = tmp_path_factory.mktemp("company") / "of-secrets"
    shutil.copytree(first_run, folder, symlinks=True)
    root = folder / "project"
    project = Project(root, folder / "prefect")
    project.environment |= {"PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    for published in (".hub", "runs/tiny/release", ".hf"):
        shutil.rmtree(root / published, ignore_errors=True)
    project.edit(RECIPE, "endpoint: local", "endpoint: local, timeout_s: 3")
    (root / ".hf").mkdir()
    hub = FaultyHub(folder / "hub", tokens={TOKEN: "tests", PLAIN: "tests", READER: "reader"})
    company = None
    try:
        with hub:
            company = Company(project, hub, folder)
            yield company
    finally:
        project.end()
        if company is not None and company.flow.stdin is not None:
            company.flow.stdin.close()


COMMIT = "POST .*/commit/"
ECHO = {"x-error-message": f"Invalid user token: {PLAIN}"}
CASES = [
    Case("a token that the Hub does not know", WRONG, ACCESS, "401"),
    Case("a refusal that quotes the token", PLAIN, ACCESS, "***", (Fault(COMMIT, "before", 403, ECHO),)),
    Case("no right to write", READER, ACCESS, "403"),
    Case("errors that quote the token", PLAIN, TRANSIENT, "***", (Fault(COMMIT, "before", 500, ECHO, 999),), retries=1),
    Case(
        "a Hub that asks to wait",
        TOKEN,
        TRANSIENT,
        "asks to wait 3600 s",
        (Fault(COMMIT, "before", 429, {"retry-after": "3600"}),),
    ),
    Case("a Hub that does not answer", PLAIN, TRANSIENT, "deadline", (Fault(COMMIT, "silent", times=999),)),
    Case(
        "nobody at the address",
        TOKEN,
        TRANSIENT,
        "refused",
        environment={"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"},
    ),
    Case("a token with a space in it", SPACED, ACCESS, "white space"),
    Case("a token with another alphabet's letter", FOREIGN, ACCESS, "no token has"),
    Case("no address", PLAIN, CONFIG, "correct the endpoint", environment={"HF_ENDPOINT": "127.0.0.1"}),
    Case(
        "an address with the token in it",
        TOKEN,
        CONFIG,
        "the endpoint holds a user or a password",
        environment={"HF_ENDPOINT": f"http://me:{TOKEN}@127.0.0.1:1"},
    ),
    Case(
        "the token as a key of the recipe",
        TOKEN,
        CONFIG,
        "publish.token: no such key",
        recipe=("timeout_s: 3", f"token: {TOKEN}"),
    ),
    Case(
        "the token in a comment of the recipe, which is a part of the report and the card",
        PLAIN,
        CONFIG,
        "line:29: holds",
        recipe=("publish: {", f"# export HF_TOKEN={PLAIN}\npublish: {{"),
    ),
    Case("all is well", PLAIN, OK, "published: tests/tiny", is_in_file=True, recipe=("timeout_s: 3", "timeout_s: 99")),
    Case("an evaluation that may not ask for the champion", WRONG, ACCESS, "401", evaluates=True),
]
"""In this order: what has been published is not published again."""
AT_LENGTH = {
    "a token that the Hub does not know",
    "a token with a space in it",
    "an address with the token in it",
    "errors that quote the token",
    "no right to write",
    "a Hub that asks to wait",
    "a Hub that does not answer",
    "nobody at the address",
    "a token with another alphabet's letter",
    "no address",
    "an evaluation that may not ask for the champion",
}
"""These end much like others."""


@pytest.mark.slow
def test_a_token_in_a_file_of_the_model_is_found_before_it_is_sent(company: Company) -> None:
    notes = company.project.root / "runs/tiny/model/notes.txt"
    notes.write_text(f"how to get it\n\nexport HF_TOKEN='{PLAIN}'\n")
    environment = company.project.environment
    company.project.environment = environment | company.access(PLAIN)
    try:
        output = company.project.run("python", "-m", "tasks", "publish", RECIPE, ok=False)
    finally:
        company.project.environment = environment
        notes.unlink()
        shutil.rmtree(company.project.root / ".scratch/tiny/release", ignore_errors=True)
    assert "notes.txt:3: holds" in output
    assert PLAIN not in output
    assert company.places(SOUGHT) == {}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if case.name in AT_LENGTH else [], id=case.name) for case in CASES],
)
def test_no_token_is_in_what_a_run_writes(company: Company, case: Case) -> None:
    status, output = company.retrain(case)
    assert case.words in output, output
    assert status == case.status, output
    assert company.places(SOUGHT) == {}


def test_no_token_is_there_when_all_is_over_and_the_search_looks_everywhere(company: Company) -> None:
    company.end()
    assert company.places(SOUGHT) == {}
    certain = {"a log": b"publish@tiny", "a commit": b"Publish-Id: ", "a card": b"library_name: transformers"}
    places = {name: " ".join(found) for name, found in company.places(certain).items()}
    assert all(place in places["a log"] for place in ("rows of runs-1.db", "flow.log", "dvc.lock"))
    assert "objects of hub" in places["a commit"]
    assert "objects of hub" in places["a card"]
