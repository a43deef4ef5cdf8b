"""Processes forked from one that has imported the libraries: a training of ten steps takes a second instead of ten.

Most of what a short training does is to import torch and transformers, once in accelerate's launcher and once in each rank.
Python's forkserver imports the libraries and the project (tests.support.forked_project) once for all workers of pytest. The processes that
it forks are processes of their own: a session, an environment, a working directory, an exit status.

`commands` gives this to programs: a `python`, first on their path, that asks for a fork instead of starting a module of the
project (tests/support/forked_python.py), or code by -c. It stands for the fork: it gets its signals and ends as it ends.

Where it matters how processes are started or what they import, tests start them as a user does.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import logging
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.support import forked_project

if TYPE_CHECKING:
    from trainer.job import Job

_NAMES = """
    tests.support.preloading torch torch._dynamo torch.distributed.run accelerate datasets pandas
    pyarrow.parquet psutil transformers.trainer transformers.trainer_seq2seq
    transformers.models.auto.modeling_auto peft transformers.models.llama.modeling_llama
    transformers.models.bert.modeling_bert transformers.models.t5.modeling_t5 torchmetrics.classification
    scipy.stats scipy.optimize great_expectations great_expectations.expectations.core huggingface_hub.hf_api
    fastapi uvicorn dulwich.repo jinja2 markdown_it typer zc.lockfile matplotlib.figure
    matplotlib.backends.backend_svg PIL.Image dvc.cli dvc.commands.repro dvc.repo dvc.stage.exceptions
    dvc.utils.strictyaml prefect.flows prefect.artifacts prefect.server.api.server
    transformers.pipelines.text_generation transformers.models.auto.processing_auto dvc.cli.parser dvc.scm
    dvc.rwlock dvc.data_cloud dvc.repo.open_repo scmrepo.git flufl.lock prefect.telemetry.run_telemetry
    prefect.runtime prefect.flow_runs prefect.variables dvc.dirs dvc.cachemgr dvc._debug dvc.repo.metrics
    dvc.repo.plots dvc.repo.params dvc.repo.stage dvc.repo.datasets dvc.repo.artifacts dvc.repo.index
    dvc.repo.graph networkx sklearn.linear_model dvc.repo.trie dvc.types dvc_data.hashfile.db dvc_data.hashfile.status dvc_render
    dvc_render.html flatten_dict configobj dulwich.ignore dulwich.worktree dulwich.gc dulwich.lfs
    dulwich.commit_graph ruamel.yaml.mergevalue fsspec.implementations.memory matplotlib.style.core
    platformdirs.unix rich._emoji_codes tabulate starlette.middleware.trustedhost typer._adapters
    uvicorn.loops.auto cyclopts prefect.concurrency.services prefect.utilities.visualization
    distributed.cli.dask_scheduler distributed.cli.dask_worker uvicorn.protocols.http.h11_impl uvicorn.loops.asyncio uvicorn.lifespan.off anyio._backends._asyncio
    tests.support.preloaded
"""
LIBRARIES = _NAMES.split()
"""Without Prefect's engines, which configure logs when they are imported."""
_ROOT = str(Path(__file__).parents[2])
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(LIBRARIES)
_ONCE: Mapping[str, str] = {
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""What the project sets before it imports a library."""


_USE_PREFECT = {"-c", "flows.cli", "flows.evergreen", "flows.server.own", "prefect", "prefect.engine"}
"""Commands that read Prefect's settings."""
Streams: TypeAlias = tuple[connection.Connection, connection.Connection, connection.Connection]
"""Standard input, output and errors; not as numbers, because only such an object is passed on to the process."""


def start_server() -> dict[str, str]:
    """Start the server, in the process that gives tests to workers, and say how they reach it."""
    with _set_once():
        forkserver.ensure_running()
    key = getattr(forkserver._forkserver, "_forkserver_authkey", None)  # type: ignore[attr-defined]
    return {"address": forkserver._forkserver._forkserver_address, "key": (key or b"").hex()}  # type: ignore[attr-defined]


def use_server(address: str, key: str) -> None:
    """Fork from the server that another process has started, and that ends with it."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    server._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)
    if key:  # since Python 3.14
        server._forkserver_authkey = bytes.fromhex(key)
    server.ensure_running = lambda: None


@contextmanager
def _set_once() -> Iterator[None]:
    """What the server inherits when it starts."""
    before = {name: os.environ.get(name) for name in _ONCE}
    os.environ |= _ONCE
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def start(
    call: Callable[..., Any], *arguments: Any, environment: Mapping[str, str], folder: Path, output: Path | Streams
) -> BaseProcess:
    """Start a process that calls a function in `folder`, its output in a file."""
    context = multiprocessing.get_context("fork") if _is_forked() else _server
    with _set_once():
        process = context.Process(target=_begin, args=(call, arguments, dict(environment), str(folder), output))
        process.start()
    return process


def commands(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program finds the `python` that forks, and takes it for its own."""
    folder = str(_python_that_forks())
    first = {name: os.pathsep.join(filter(None, (folder, environment.get(name)))) for name in ("PATH", "PYTHONPATH")}
    return {"EVERGREEN_FORK_SERVER": "none", **environment, **first}


def python() -> str:
    """The `python` that forks, for tests in which it matters neither how a process is started nor what it imports."""
    return str(_python_that_forks() / "python")


@functools.cache
def _python_that_forks() -> Path:
    """The folder with the `python` that forks, which is answered as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    python, address = folder / "python", folder / "socket"
    head = f"#!{sys.executable} -IS\nPYTHON, ADDRESS = {sys.executable!r}, {str(address)!r}\n"
    python.write_text(head + Path(__file__).with_name("forked_python.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name, module in {"dvc": "dvc", "evergreen": "flows.evergreen"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n', encoding="utf-8")
    worker = f'case "$*" in *"worker start"*) exec {Path(sys.executable).with_name("prefect")} "$@" ;; esac'
    (folder / "prefect").write_text(  # what a worker has started outlives it, and no fork
        f'#!/bin/sh\n{worker}\nexec {python} -m prefect "$@"\n', encoding="utf-8"
    )
    for name in ("python", "dvc", "evergreen", "prefect"):
        (folder / name).chmod(0o755)
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n", encoding="utf-8")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    return folder


def _answer(listener: socket.socket) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_fork_for, args=(client,), daemon=True).start()


def _fork_for(client: socket.socket) -> None:
    """Fork what a `python` was asked to start, and end with it."""
    with client:
        size, files, _, _ = socket.recv_fds(client, 8, 3)
        request = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        stdin, stdout, stderr = map(connection.Connection, files)
        process = start(
            _run_requested,
            request["command"],
            request["parent"],
            request["file_size"],
            environment=request["environment"],
            folder=request["folder"],
            output=(stdin, stdout, stderr),
        )
        for stream in (stdin, stdout, stderr):
            stream.close()
        with suppress(OSError):  # the client was killed
            client.sendall(f"{process.pid}\n".encode())
            connection.wait([process.sentinel, client])
        if process.exitcode is None:
            _kill(process)
        process.join()
        with suppress(OSError):
            client.sendall(f"{process.exitcode}\n".encode())


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it does not lead a group yet
        process.kill()


def _read_prefect_settings_when_asked() -> None:
    """Let Prefect read its settings again when something asks for one: that takes a fourteenth of a second."""
    from prefect.context import SettingsContext, refresh_global_settings_context

    get = vars(SettingsContext)["get"]

    def get_first(cls: type[SettingsContext]) -> SettingsContext | None:
        SettingsContext.get = get  # type: ignore[method-assign]
        refresh_global_settings_context()
        return cls.get()

    SettingsContext.get = classmethod(get_first)  # type: ignore[method-assign, assignment]


def _run_requested(command: list[str], parent: int, file_size: list[int]) -> None:
    """Run a module or code of the project in the working directory, not of the one that runs the tests, as a child of `parent`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size[0], file_size[1]))
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [str(Path.cwd()), *filter(None, named), *(path for path in sys.path if path not in ("", _ROOT))]
    forked_project.use_in_fork(sys.path, command[0], *(command[2:3] if command[0] == "flows.child_process" else ()))
    if _USE_PREFECT.intersection(command[:3]):  # `flows.child_process`, a process id and the module, or a module
        _read_prefect_settings_when_asked()
    os.getppid = lambda: parent
    os.environ["FORKED_PID"] = str(os.getpid())
    importlib.import_module("trainer.runtime.lifetime")
    for module in forked_project.modules():
        if hasattr(module, "die_with_parent"):
            module.die_with_parent = lambda *_, **__: None  # the client does, and the fork with it
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.modules["__main__"] = code = ModuleType("__main__")
        exec(compile(command[1], "<string>", "exec"), vars(code))
        return
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


@contextmanager
def ranks() -> Iterator[None]:
    """Fork the ranks of trainings, instead of starting them by accelerate's launcher."""
    from tasks.training import processes

    unpatched = processes.start_processes
    processes.start_processes = Ranks  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        processes.start_processes = unpatched  # type: ignore[misc]


class Ranks:
    """The ranks of a training, with the methods of the `Popen` of accelerate's launcher or of the only rank."""

    def __init__(self, job: Job, job_path: Path, machine: int = 0) -> None:
        from tasks.training.processes import launcher_report_path, needs_launcher

        assert job.launch.num_machines == 1
        self.returncode: int | None = None
        self._report = launcher_report_path(job, machine)
        self._failed: dict[int, int] = {}
        number = job.launch.num_processes
        self._as_launched = needs_launcher(job.launch)
        shared = _environment(job, job_path)
        self._ranks = [
            start(
                train_rank,
                str(job_path),
                environment=shared | ({"RANK": str(r), "LOCAL_RANK": str(r)} if self._as_launched else {}),
                folder=Path.cwd(),
                output=job.folder / f"rank-{r}.log",
            )
            for r in range(number)
        ]
        self.pid = self._ranks[0].pid

    def poll(self) -> int | None:
        """Exit status when all ranks have ended; when one fails, end the others."""
        from trainer.runtime.launcher import LaunchFailureReport, RankFailure

        for rank, process in enumerate(self._ranks):
            if process.exitcode:
                self._failed.setdefault(rank, process.exitcode)
        alive = [process for process in self._ranks if process.exitcode is None]
        if self._failed:
            for process in alive:
                process.terminate()
        if not alive and self.returncode is None:
            self.returncode = bool(self._failed) if self._as_launched else self._failed.get(0, 0)
            pids = [process.pid for process in self._ranks]
            failures = (RankFailure(rank=rank, pid=pids[rank], exit_code=code) for rank, code in self._failed.items())
            LaunchFailureReport(failures=tuple(failures)).save(self._report)
            for log in sorted(self._report.parent.glob("rank-*.log")):
                print(log.read_text(encoding="utf-8"), end="", flush=True)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of all ranks.

        Raises:
            subprocess.TimeoutExpired: some of them live after `timeout` seconds.
        """
        give_up = time.monotonic() + (1e9 if timeout is None else timeout)
        while (status := self.poll()) is None:
            if (left := give_up - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("ranks", timeout or 0)
            connection.wait([process.sentinel for process in self._ranks if process.exitcode is None], left)
        return status

    def kill(self) -> None:
        """Kill the ranks."""
        for process in self._ranks:
            if process.exitcode is None:
                process.kill()


def _environment(job: Job, job_path: Path) -> dict[str, str]:
    """What accelerate and torch's launcher would tell the ranks."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    from tasks.training import processes

    number = job.launch.num_processes
    own = os.environ | {"TOKENIZERS_PARALLELISM": "false", **processes.gloo_environment(job.launch)}
    if processes.needs_launcher(job.launch):
        command = processes.launch_command(job.launch, job_path)
        arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(command[3:]))
        own |= prepare_multi_gpu_env(arguments)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        own |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
    return own


def train_rank(job_path: str) -> None:
    """Train a job in this process, as one of its ranks."""
    from trainer.worker import main

    sys.exit(main(Path(job_path)))


def _is_forked() -> bool:
    return multiprocessing.parent_process() is not None


def _use_hub(endpoint: str, home: Path) -> None:
    """Let the Hub's client use what it reads of the environment when it is imported, which was before the fork."""
    from huggingface_hub import constants, hf_api

    constants.ENDPOINT = hf_api.api.endpoint = endpoint
    constants.HUGGINGFACE_CO_URL_TEMPLATE = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    constants.HF_HUB_CACHE = str(home / "hub")
    constants.HF_TOKEN_PATH = str(home / "token")


def _begin(
    call: Callable[..., Any],
    arguments: Sequence[Any],
    environment: dict[str, str],
    folder: str,
    output: Path | Streams,
) -> None:
    """Become the process that was asked for, and call the function."""
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was started; here loaders use it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    logging.root.handlers.clear()
    with ExitStack() as opened:
        if isinstance(output, Path):
            log = opened.enter_context(output.open("ab"))
            streams: Any = (opened.enter_context(Path(os.devnull).open("rb")), log, log)
        else:
            streams = [opened.enter_context(stream) for stream in output]
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # asked for when a library was imported
    if endpoint := environment.get("HF_ENDPOINT"):
        _use_hub(endpoint, Path(environment.get("HF_HOME", folder)))
    os.chdir(folder)
    for path in environment.get("PYTHONPATH", "").split(os.pathsep):
        if path and (site := Path(path, "sitecustomize.py")).exists():
            runpy.run_path(str(site))
    try:
        call(*arguments)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
