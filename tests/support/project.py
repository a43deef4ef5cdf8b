"""A project of its own for a test: the tracked files in a temporary folder, with a recipe that runs in seconds."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from ruamel.yaml import YAML

from params.foundation.stages import STAGES
from tests.support import forked, tiny

ROOT = Path(__file__).parents[2]
CODE = ("params", "trainer", "tasks", "flows")
FILES = (
    "dvc.yaml",
    "recipes.yaml",
    "prefect.yaml",
    "prefect.toml",
    ".dvcignore",
    ".gitignore",
    ".dvc/config",
    ".dvc/.gitignore",
)
FILES += ("runs/.gitignore", "pyproject.toml")

TINY = """\
seed: 3
data:
  source: {kind: files, train: data/sentences.csv}
  split: {validation: 0.1, test: 0.1}
validation:
  max_quarantined: 0.05
tokenization:
  tokenizer: {kind: train, vocab_size: 300}
  max_length: 32
objective: {name: causal_lm, text_column: text}
model:
  config:
    model_type: llama
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 2
    num_key_value_heads: 2
    tie_word_embeddings: true
training:
  max_steps: 20
  global_batch_size: 8
  learning_rate: 1e-2
  eval_steps: 10
  save_steps: 5
  logging_steps: 5
launch: {num_processes: 1, micro_batch_size: 8, eval_batch_size: 32}
evaluation: {split: test, compare_untrained: true, gate: {resamples: 200}}
publish: {repo_id: tests/tiny, endpoint: local}
"""


TINY_DEPLOYMENT = """
  - <<: *retrain
    name: tiny
    parameters: {recipe: tiny}
"""
"""To append to prefect.yaml."""


class Project:
    """A copy of the project, and the ways in which a user drives it."""

    def __init__(self, root: Path, prefect_home: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "DVC_", "HF_", "GIT_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(prefect_home),
            "HF_HOME": str(root / ".hf"),
            "HF_HUB_OFFLINE": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "test",
            "GIT_AUTHOR_EMAIL": "test@example.org",
            "GIT_COMMITTER_NAME": "test",
            "GIT_COMMITTER_EMAIL": "test@example.org",
        }

    def run(self, *command: str, ok: bool | None = True, timeout_s: float = 400) -> str:
        """Run a command to its end; its output, or a failed test with it."""
        status, output = self.run_and_report(*command, timeout_s=timeout_s)
        if ok is not None:
            assert (status == 0) is ok, f"{' '.join(command)} ended with {status}\n{output}"
        return output

    def run_and_report(self, *command: str, timeout_s: float = 400) -> tuple[int, str]:
        """Run a command to its end; its exit status and its output. Its processes are forked, where they can be."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=forked.commands(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        return done.returncode, done.stdout

    def stages(self, recipe: str, stages: Sequence[str] = STAGES) -> str:
        """Stages of a recipe, one after another; their output."""
        return "".join(self.run("python", "-m", "tasks", stage, recipe) for stage in stages)

    def start(self, *command: str, log: str, fork: bool = False) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, its output in the file `log`; with `fork`, as `run` does."""
        with (self.root / log).open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=forked.commands(self.environment) if fork else self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def repro(self, *arguments: str) -> list[str]:
        """`dvc repro`; the stages that it ran."""
        return stages_of(self.run("dvc", "repro", *arguments))

    def flow(self, *arguments: str) -> list[str]:
        """The flow, without a server; the stages that it ran."""
        return stages_of(self.run("python", "-m", "flows.cli", "run", "tiny", *arguments))

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file."""
        file = self.root / path
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def recipe(self, name: str, changes: Mapping[str, Any]) -> str:
        """Write the tiny recipe under another name, some keys (`training.max_steps`) changed; its path."""
        with (self.root / "params/tiny.yaml").open(encoding="utf-8") as file:
            content = YAML(typ="safe").load(file)
        tiny.write(
            self.root / f"params/{name}.yaml", tiny.changed(content, {"publish.repo_id": f"tests/{name}", **changes})
        )
        return f"params/{name}.yaml"

    def rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> str:
        """Write rows as JSON lines; their path."""
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (self.root / f"data/{name}.jsonl").write_text(text, encoding="utf-8")
        return f"data/{name}.jsonl"

    def use_source(self, module: str, code: str, *, options: str = "") -> None:
        """Let the recipe tiny read its rows from the function `rows` of a new module."""
        path = f"{module.replace('.', '/')}.py"
        (self.root / path).write_text(code, encoding="utf-8")
        source = f"kind: function, function: '{module}:rows'{options}"
        self.edit("params/tiny.yaml", "kind: files, train: data/sentences.csv", source)
        self.edit("recipes.yaml", "data: data/sentences.csv", f"data: {path}")

    def json(self, path: str) -> dict:
        return json.loads((self.root / path).read_text(encoding="utf-8"))

    def processes(self, *words: str) -> list[psutil.Process]:
        """Living processes of this project whose command line has all of `words`."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                alive = process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == self.root
                if alive and all(word in line for word in words):
                    found.append(process)
        return found

    def end(self) -> None:
        """End all that was started here, by id."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=10)


class ServedProject(Project):
    """A project with a Prefect server of its own, which has a password."""

    def __init__(self, root: Path, prefect_home: Path) -> None:
        super().__init__(root, prefect_home)
        port = free_port()
        no_idle = httpx.Limits(max_keepalive_connections=0)  # the server closes them, just when the next request comes
        address = f"http://127.0.0.1:{port}/api"
        self.api = httpx.Client(base_url=address, auth=("evergreen", "secret"), timeout=60, limits=no_idle)
        self.environment |= {
            "PREFECT_API_AUTH_STRING": "evergreen:secret",
            "PREFECT_SERVER_API_AUTH_STRING": "evergreen:secret",
            "PREFECT_API_URL": str(self.api.base_url).rstrip("/"),
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "0",  # each new home would take a second for them
            "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0",
        }

    def make_password(self) -> None:
        """Have the password in .env instead, as the pages say."""
        for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"):
            del self.environment[name]
        self.run("python", "-m", "flows.cli", "password")
        self.read_password()

    def read_password(self) -> None:
        """Ask the server with the password that is in .env."""
        self.api.auth = tuple((self.root / ".env").read_text().split()[-1].partition("=")[2].split(":", 1))

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        self.server = self.start("prefect", "server", "start", log="server.log", fork=True)
        wait_for(self._answers, "the server", 120)

    def deploy(self, *which: str) -> None:
        """Make the work pool and its queue, and deploy what prefect.yaml has, as the README says."""
        self.run("prefect", "work-pool", "create", "local", "--type", "process")
        self.run("prefect", "work-queue", "create", "retrain", "--pool", "local", "--limit", "1")
        self.run("prefect", "--no-prompt", "deploy", *which)

    def stop_server(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        wait_for(lambda: not self._answers(), "the end of the server", 10)  # a fork ends with what stands for it

    def _answers(self) -> bool:
        try:
            return self.api.get("health").status_code == 200
        except httpx.TransportError:
            return False

    def post(self, path: str, **body: object) -> Any:
        """Ask the server, as its clients do: again while its database is busy."""
        for _ in range(10):
            answer = self.api.post(path, json=body)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)
        answer.raise_for_status()
        return answer.json()

    def end(self) -> None:
        super().end()
        self.api.close()


def write_lists_of_recipes(root: Path) -> None:
    """Write what `evergreen new` needs of a project: the lists of recipes and of deployments, and folders for recipes and data."""
    for name in ("recipes.yaml", "prefect.yaml"):
        shutil.copy(ROOT / name, root / name)
    for name in ("params", "data"):
        (root / name).mkdir()


def stages_of(output: str) -> list[str]:
    """The stages that DVC or a flow ran, by its output, without `resolve`."""
    return re.findall(rf"\b({'|'.join(STAGES)}): params/\w+\.yaml$", output, re.MULTILINE)


def copy_project(target: Path) -> None:
    """The tracked files, the tiny recipe and its rows; a git repository, as a clone is one."""
    for name in CODE:
        shutil.copytree(ROOT / name, target / name)  # with its bytecode, which is valid as long as a file is not edited
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    (target / "params" / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (target / "recipes.yaml").write_text(f"recipes:\n{item('tiny')}", encoding="utf-8")
    (target / "data").mkdir()
    write_sentences(target / "data" / "sentences.csv")


def item(recipe: str, *, objective: str = "causal_lm", base: str = "trainer/rewards.py") -> str:
    """The item of a recipe like the tiny one in recipes.yaml."""
    watched = f"objective: trainer/objectives/{objective}.py, base: {base}, code: trainer/losses.py"
    return f"  {recipe}: {{data: data/sentences.csv, {watched}}}\n"


def write_sentences(path: Path, rows: int = 300, seed: int = 0, empty: Sequence[int] = ()) -> None:
    """Small made sentences, a few words of which a model learns quickly; rows in `empty` have no text."""
    chance = random.Random(seed)
    who, does, what = ["The cat", "A dog", "My friend", "Nobody"], ["sees", "likes", "hears"], ["a bird", "the rain"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "number"])
        for i in range(rows):
            text = f"{chance.choice(who)} {chance.choice(does)} {chance.choice(what)}, and then number {i} comes."
            writer.writerow(["" if i in empty else text, i])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60, *, every_s: float = 0.1) -> None:
    """Wait until `condition` holds."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {timeout_s} s for {what}"
        time.sleep(every_s)
