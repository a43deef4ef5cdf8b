"""A stranger's model takes no more time and memory than it gets, on the command line as on a page, and a panic of its tokenizer is an error."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from params import DataError, ModelError
from params.foundation.command_result import report_result_on_exit
from tasks.inference import bounds, command
from tasks.inference.published_model import DownloadedModel
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tasks.tokenization.tokenizers import load_tokenizer
from tests.support.pretrained import write_model
from tests.support.project import ROOT
from trainer.runtime.library_errors import panics_as_errors

LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
GROW = "{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a model with a chat template answer, as `evergreen try` does."""

    def ask(template: str, **arguments: bool) -> None:
        folder = write_model(tmp_path / "model", "llama", chat_template=template)
        found = DownloadedModel(folder=folder, repo_id="mallory/model", commit="c" * 40, tag=None)
        monkeypatch.setattr(command, "fetch_published_model", lambda *_: found)
        command.try_model(
            "mallory/model", ["hello"], against=None, options=AnswerOptions(max_new_tokens=1), **arguments
        )

    return ask


def test_an_endless_template_ends(answer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "bounded_step", lambda where, what: bounds.bounded_step(where, what, timeout_s=2.0))
    monkeypatch.setattr(bounds, "_REPEAT_S", 1.0)
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"mallory/model.*(an answer|loading it) takes longer than 2 s"):
        answer(LOOP + PLAIN)
    assert time.monotonic() - start < 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_template_gets_no_more_memory_than_its_share(
    answer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    share = used + (1 << 30)
    monkeypatch.setattr(
        command, "bounded_step", lambda where, what: bounds.bounded_step(where, what, memory_bytes=share)
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ModelError, match="an answer needs more memory than it gets"):
        answer(GROW + PLAIN)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < share + (1 << 30)


def test_other_models_answer_within_the_limits_and_without(answer: Callable[..., None], capsys) -> None:
    answer(PLAIN)
    assert "hello" in capsys.readouterr().out


def test_a_page_and_the_command_have_the_same_limits() -> None:
    from tasks.inference.hub_trials import HubModelAnswerer

    with HubModelAnswerer(Path()) as trials:
        assert (trials._timeout_s, trials._memory_bytes) == (bounds.TIMEOUT_S, bounds.memory_share())
        assert bounds.memory_share() == psutil.virtual_memory().total // 2


def test_a_step_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower limit of memory stays, and an error that a library catches is raised again."""
    monkeypatch.setattr(bounds, "_REPEAT_S", 0.1)
    before, handler = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGALRM)
    lower = (int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + (4 << 30), before[1])

    def catch_one_error() -> None:
        assert resource.getrlimit(resource.RLIMIT_DATA) == lower
        with contextlib.suppress(ModelError):
            time.sleep(20)
        time.sleep(20)

    start = time.monotonic()
    resource.setrlimit(resource.RLIMIT_DATA, lower)
    try:
        with (
            pytest.raises(ModelError, match="an answer takes longer"),
            bounds.bounded_step("a/b", "an answer", timeout_s=0.1, memory_bytes=lower[0] + 1),
        ):
            catch_one_error()
        assert resource.getrlimit(resource.RLIMIT_DATA) == lower
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert time.monotonic() - start < 15
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    for timer in timers:
        timer.join(5)
    assert not any(timer.is_alive() for timer in timers)


def test_a_library_that_never_returns_is_ended() -> None:
    code = """
from tasks.inference import bounds
import signal, time
bounds._GRACE_S = 1.0
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as within a library, where no handler runs
with bounds.bounded_step("mallory/model", "an answer", timeout_s=1.0):
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == ModelError.exit_code
    assert "an answer takes longer than 1 s" in done.stderr


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A model whose tokenizer panics at texts with many `a`."""
    folder = write_model(tmp_path / "odd", "llama", chat_template=PLAIN)
    content = json.loads((folder / "tokenizer.json").read_text())
    pattern = {"Regex": "(a|a|aa)+$"}
    content["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_panic_of_a_tokenizer_is_an_error(odd: Path, capfd) -> None:
    text = "a" * 40 + "b"
    tokenizer = load_tokenizer(str(odd), None)
    with pytest.raises(ValueError, match="has given up"), panics_as_errors():
        tokenizer(text)
    with pytest.raises(ModelError, match="a library has given up"), report_result_on_exit():
        tokenizer(text)
    with pytest.raises(ModelError, match=r"cannot answer: .*given up"):
        AnsweringModel.load(odd, "mallory/model").answer(text, AnswerOptions(max_new_tokens=1))


def test_other_errors_pass_unchanged() -> None:
    for kind in (KeyboardInterrupt, DataError, SystemExit):
        error = kind("a", "b", "c")
        with pytest.raises(kind) as caught, panics_as_errors():
            raise error
        assert caught.value is error
