"""Conversations that the chat template refuses are bad rows, like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from params import DataError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from params.sections.rows import PretrainedTokenizer, TrainTokenizer
from tests.support import tiny
from tests.support.validation import good_rows, quarantine_reasons, run_validation, write_raw

ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
DROPS_THOUGHTS = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def talk(*roles: str, think: str = "") -> list[dict[str, str]]:
    return [{"role": role, "content": f"{think}{i}"} for i, role in enumerate(roles)]


GOOD = talk("user", "assistant", "user", "assistant")


def raw(root: Path, *talks: Any) -> Artifacts:
    held_out = {split: {"talk": [talk("user", "assistant", think=split)]} for split in ("validation", "test")}
    return write_raw(root, train={"talk": list(talks)}, **held_out)


@pytest.mark.parametrize("kind", ["trained", "pretrained"])
def test_refused_conversations_are_set_aside_with_the_reason(tmp_path: Path, kind: str) -> None:
    tokenizer: Any = TrainTokenizer(kind="train", vocab_size=300)
    options = {"chat_template": ALTERNATE}
    if kind == "pretrained":
        folder = tmp_path / "base"
        from tests.support.pretrained import write_model

        write_model(folder, "llama", chat_template=ALTERNATE)
        tokenizer, options = PretrainedTokenizer(kind="pretrained", path=str(folder)), {}
    sft = ObjectiveChoice(name="sft", messages_column="talk", **options)
    artifacts = raw(tmp_path / "run", GOOD, talk("user", "user", "assistant"), *[GOOD] * 8)
    report = run_validation(artifacts, objective=sft, tokenizer=tokenizer, max_quarantined=0.1)
    assert report.quarantined == 1
    why = "row_is_usable(): the chat template refuses the conversation: roles must alternate"
    assert quarantine_reasons(artifacts) == {("train", 1): [why]}
    assert good_rows(artifacts) == [0, *range(2, 10)]
    with pytest.raises(DataError, match="more than"):
        run_validation(artifacts, objective=sft, tokenizer=tokenizer, max_quarantined=0.05)


def test_another_template_checks_all_rows_again(tmp_path: Path) -> None:
    """The template of a tokenizer is in no option, and verdicts are kept from run to run."""
    from tests.support.pretrained import write_model

    sft = ObjectiveChoice(name="sft", messages_column="talk")
    artifacts = raw(tmp_path, GOOD, talk("user", "user", "assistant"))
    inputs = tiny.inputs("validate", artifacts, "")
    for template, quarantined in ((ALTERNATE.replace("raise_exception", "str"), 0), (ALTERNATE, 1)):
        write_model(tmp_path / "base", "llama", chat_template=template.replace("str('roles must alternate')", "''"))
        tokenizer = PretrainedTokenizer(kind="pretrained", path=str(tmp_path / "base"))
        report = run_validation(artifacts, objective=sft, tokenizer=tokenizer, inputs=inputs)
        assert report.quarantined == quarantined


def test_a_template_that_drops_earlier_thoughts_refuses_what_cannot_be_learned(tmp_path: Path) -> None:
    thoughts = [*talk("user"), *talk("assistant", think="<think>so</think>")] * 2
    artifacts = raw(tmp_path, thoughts, GOOD)
    options: Any = {"messages_column": "talk", "chat_template": DROPS_THOUGHTS}
    settings: Any = {"tokenizer": TrainTokenizer(kind="train", vocab_size=300), "max_quarantined": 0.0}
    assert run_validation(artifacts, objective=ObjectiveChoice(name="sft", **options), **settings).quarantined == 0
    everything = ObjectiveChoice(name="sft", completion_only=False, **options)
    with pytest.raises(DataError, match=r"drops some of what is said .* set objective\.completion_only to true"):
        run_validation(artifacts, objective=everything, **settings)
    counting = ObjectiveChoice(name="sft", **options | {"chat_template": "{{ messages | length }}" + DROPS_THOUGHTS})
    with pytest.raises(DataError, match=r"renders the messages before message 1 differently .*\{% generation %\}"):
        run_validation(artifacts, objective=counting, **settings)
