"""Prompts of several columns: what is left out of them, what they refuse, and that every objective with prompts reads them alike."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from trainer import objectives
from trainer.column_template import column_or_template, parse_prompt_template
from trainer.objectives.bases.texts.prompt_template import form_around_text

ALPACA = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"


@pytest.mark.parametrize(
    ("template", "row", "prompt"),
    [
        ("{a}\n\n{b}", {"a": "do", "b": "it"}, "do\n\nit"),
        ("{a}\n\n{b}", {"a": "do", "b": ""}, "do"),
        ("{a}\n\n{b}", {"a": "do", "b": " \n"}, "do"),
        ("{a}\n\n{b}", {"a": "do", "b": None}, "do"),
        ("{a}\n\n{b}", {"a": "do"}, "do"),
        ("{a}\n\n{b}", {"a": "", "b": "it"}, "it"),
        ("Q: {a}\nC: {b}\nA:", {"a": None, "b": "it"}, "C: it\nA:"),
        ("Q: {a}\nC: {b}\nA:", {"a": "do", "b": "it"}, "Q: do\nC: it\nA:"),
        ("{a}, {b}, {c}", {"a": "1", "b": None, "c": "3"}, "1, 3"),
        ("{a}, {b}, {c}", {"a": "1", "b": "2", "c": ""}, "1, 2"),
        ("{a} {a}", {"a": "x"}, "x x"),
        ("{a b}-{c-d}", {"a b": "x", "c-d": "y"}, "x-y"),
        ("{{{a}}} {{b}}", {"a": "x"}, "{x} {b}"),
        ("{a} {b}", {"a": "{b}", "b": "{a.__class__}"}, "{b} {a.__class__}"),  # values are no templates
        ("a", {"a": "x"}, "x"),
        ("a.b", {"a.b": " x "}, " x "),
    ],
)
def test_what_is_blank_is_left_out(template: str, row: dict[str, Any], prompt: str) -> None:
    assert column_or_template(template).fill(row) == prompt


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{a:>9999999999}", r"\{a:>9999999999\} is not a column name"),
        ("{a:{b}}", "is not a column name"),
        ("{a!r}", r"\{a!r\} is not a column name"),
        ("{a.b}", "is not a column name"),
        ("{a[0]}", "is not a column name"),
        ("{0}", "is not a column name"),
        ("{}", "is not a column name"),
        ("{a", "braces do not match"),
        ("a}", "braces do not match"),
        ("{{a}}", "it names no column"),
    ],
)
def test_braces_hold_columns_and_nothing_else(template: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_prompt_template(template)
    for name, option in PROMPTS.items():
        (found,) = objectives.find_option_problems(ObjectiveChoice(name=name, **{option: template}))
        assert found.key == ("objective", option)


PROMPTS = {
    "sft": "prompt_column",
    "dpo": "prompt_column",
    "reward": "prompt_column",
    "kto": "prompt_column",
    "seq2seq": "input_column",
    "grpo": "prompt",
    "iterative_sft": "prompt",
}
ROW = {"row_id": 0, "instruction": "Say", "input": "this", "prompt": "Say this"} | {
    **dict.fromkeys(("completion", "chosen", "target", "answer"), "this!"),
    "rejected": "no",
    "liked": True,
}


def build(name: str, template: str, **options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name=name, **{PROMPTS[name]: template}, **options))


@pytest.mark.parametrize("name", PROMPTS)
def test_a_template_gives_the_tokens_of_the_same_text_in_a_column(name: str) -> None:
    tokenizer = train_tokenizer(["Say this! no"], TrainTokenizer(kind="train", vocab_size=300))
    one = "{prompt}" if PROMPTS[name] == "prompt" else "prompt"
    task, plain = build(name, "{instruction} {input}"), build(name, one)
    both = [own.encode([ROW], tokenizer, 64, {}) for own in (task, plain)]
    assert both[0] == both[1]
    assert task.reader_input(ROW) == plain.reader_input(ROW)
    assert task.columns() | {"prompt": "string"} == plain.columns() | {"instruction": "optional", "input": "optional"}
    kept, lacking = {**ROW, "input": None}, {**ROW, "instruction": None, "input": " "}
    assert task.reject_reason(kept) is None
    assert task.reject_reason(lacking) == "none of instruction and input has text"
    assert objectives.needs_row_check(task, "reject_reason")
    checked = [e.model_dump().get("column") for e in task.expectations(())]
    assert not {"instruction", "input"} & {*checked}
    assert (task.input_text(kept), task.input_text(ROW)) == ("Say", "this\nSay")


@pytest.mark.parametrize("name", [name for name, option in PROMPTS.items() if option != "prompt"])
def test_a_released_model_keeps_its_template_and_reads_renamed_columns(name: str) -> None:
    option = PROMPTS[name]
    task = build(name, "{instruction}\n{input}")
    assert getattr(task.as_released({option: "{instruction}: {input}"}).options, option) == "{instruction}: {input}"
    assert getattr(task.as_released({option: "instruction"}).options, option) == "instruction"
    assert getattr(build(name, "new_name").as_released({option: "{old}?"}).options, option) == "{old}?"
    assert getattr(build(name, "new_name").as_released({option: "old_name"}).options, option) == "new_name"
    assert getattr(task.as_released(None).options, option) == "{instruction}\n{input}"


def allows_null(name: str, option: str) -> bool:
    return type(None) in get_args(objectives.import_objective_class(name).options_class.model_fields[option].annotation)


NULLS = [
    (name, option)
    for name in objectives.objective_names()
    for cls in [objectives.import_objective_class(name)]
    for option in sorted({*cls.own_options, *cls.limits, *filter(None, [cls.prompt_option])})
    if allows_null(name, option)
]


@pytest.mark.parametrize(("name", "option"), NULLS)
def test_null_of_a_released_model_is_null_and_no_default(name: str, option: str) -> None:
    """A model that learned by `prompt_column: null` reads no column `prompt`."""
    assert ("dpo", "prompt_column") in NULLS
    own = {option: "{a} {b}"} if option == objectives.import_objective_class(name).prompt_option else {}
    task = objectives.build_objective(ObjectiveChoice.model_validate({"name": name, **own}))
    assert getattr(task.as_released({option: None}).options, option) is None
    default = task.options_class.model_fields[option].default
    if own:
        assert getattr(task.as_released({}).options, option) == default


@pytest.mark.parametrize(
    ("section", "prompt"),
    [
        ({"name": "sft", "prompt_column": ALPACA}, "### Instruction:\nhi\n\n### Response:\n"),
        ({"name": "sft", "prompt_column": "question", "separator": "\n"}, "hi\n"),
        ({"name": "dpo", "prompt_column": "{a}\n\n{b}", "separator": "\n"}, "hi\n"),
        ({"name": "seq2seq", "input_column": "ask: {a} {b}", "prefix": "sum: "}, "sum: ask: hi"),
        ({"name": "grpo", "prompt": "Q: {a}\nC: {b}\nA:"}, "Q: hi\nA:"),
        ({"name": "sft", "prompt_column": "{a:>9999999999}"}, "hi"),  # a release may say anything
        ({"name": "sft", "prompt_column": "{a"}, "hi"),
    ],
)
def test_what_the_card_and_try_put_around_a_text(section: dict[str, Any], prompt: str) -> None:
    assert objectives.prompt_form(section, has_template=False).prompt("hi") == prompt


def test_around_a_text_stands_what_the_template_gives_a_row_with_its_first_column_alone() -> None:
    for template in ("{a}", "{a}\n\n{b}", "Q: {a}\nC: {b}\nA:", ALPACA, "{{x}} {a} and {b}{c} {{y}}"):
        parsed = parse_prompt_template(template)
        form = form_around_text(template)
        assert form.wrap("hi") == parsed.fill({next(iter(parsed.columns)): "hi"})
        assert form.template == (template if len(parsed.columns) > 1 else "")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sft", "completion"),
        ("dpo", "chosen"),
        ("dpo", "rejected"),
        ("reward", "chosen"),
        ("kto", "completion"),
        ("seq2seq", "target"),
    ],
)
def test_a_prompt_that_names_the_answer_is_refused(name: str, answer: str) -> None:
    def problems(template: str, **options: Any) -> list[Any]:
        training, launch = Training(max_steps=1, global_batch_size=1, learning_rate=1e-3), Launch(micro_batch_size=1)
        model = Model(config={"model_type": "llama"})
        found = build(name, template, **options).conflicts(model=model, training=training, launch=launch)
        return [one for one in found if one.key == ("objective", PROMPTS[name])]

    (found,) = problems(f"{{instruction}} {{{answer}}}")
    assert f"names `{answer}`, the column of an answer" in found.what
    assert not problems("{instruction} {input}")
    assert not problems(answer)  # a text that is to be copied
    if name == "sft":
        assert not problems(f"{{instruction}} {{{answer}}}", messages_column="messages")
