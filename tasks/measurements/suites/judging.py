"""Rows that a model must get right to be published (`evaluation.suites`): the candidate reads each of them as it is published.

The objective says by its scores which rows are right (`Objective.right_rows`), or the text that the model generates for a row does: it
is that of the row, has the row's pattern in it, or satisfies a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from params import DataError, ModelError, RecipeError
from params.foundation.artifacts import SUITES
from params.importing import import_with_arguments
from params.sections.evaluation import Suite
from tasks.evaluation.plan import EvaluationPlan
from tasks.measurements.suites.report import FailedRow, SuiteResult
from tasks.progress import iterate_with_progress
from tasks.shards.split_rows import SplitRows
from trainer import objectives
from trainer.data.shards import ROW_ID, folder_sha256
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch, transformers
from trainer.objectives.bases.objective import Objective, Row
from trainer.objectives.bases.texts.tokenizing import strip_repeated_special_tokens

_MAX_TEXT = 2000
"""Characters that a report keeps of a text."""


def why_not_judged(objective: Objective[Any], name: str, suite: Suite) -> tuple[str, str] | None:
    """Return why no row of a suite can be right or wrong with an objective, and the fix; None if they can."""
    asks_for_text = bool(suite.matches or suite.function)
    compares_text = not objective.judges_rows and objectives.overrides_method(objective, "expected_answer")
    if asks_for_text and not objective.answers_rows:
        fix = "remove `matches` and `function`" if objective.judges_rows else "remove the suite"
        return f"{name}, with these options, gives no text that could match", fix
    if suite.max_new_tokens and not (objective.generates_as_released and (asks_for_text or compares_text)):
        what = "`max_new_tokens` has no effect: nothing is generated for the suite, or as long as the objective says"
        return what, "remove it"
    if asks_for_text or objective.judges_rows or compares_text:
        return None
    return f"{name} does not say which rows are right", _what_says_it_instead(objective)


def _what_says_it_instead(objective: Objective[Any]) -> str:
    if objective.answers_rows:
        return "name a column of patterns (`matches`) or a `function`"
    known = [one for one, cls in objectives.objective_classes().items() if cls.judges_some_rows()]
    return f"remove the suite; suites work with {', '.join(sorted(known))}"


def judge_suites(plan: EvaluationPlan, network: PreTrainedModel) -> list[SuiteResult]:
    """Return what the candidate, whose network this is, makes of the suites.

    Raises:
        RecipeError: the objective does not say which rows are right, or a function fails.
        DataError: a row cannot be read.
    """
    return [_judge(plan, network, number, suite) for number, suite in enumerate(plan.settings.suites)]


def _judge(plan: EvaluationPlan, network: PreTrainedModel, number: int, suite: Suite) -> SuiteResult:
    where, objective = f"evaluation.suites.{number}", plan.models[0].reader.objective
    if found := why_not_judged(objective, plan.objective_name, suite):
        raise RecipeError(where, *found)
    stored = SplitRows(plan.rows.folder.parent / SUITES / suite.name)
    rows = list(stored.rows())
    by_scores = objective.judges_rows and not (suite.matches or suite.function)
    judged = _judge_scores(plan, network, suite, rows) if by_scores else _judge_texts(plan, network, suite, rows, where)
    failures = [
        FailedRow(row_id=row[ROW_ID], text=objective.text(row)[:_MAX_TEXT], notes=notes)
        for row, (is_right, notes) in zip(rows, judged, strict=True)
        if not is_right
    ]
    right, digest = len(rows) - len(failures), folder_sha256(stored.folder)
    return SuiteResult(name=suite.name, rows=len(rows), right=right, share=suite.must, sha256=digest, failures=failures)


def _judge_scores(
    plan: EvaluationPlan, network: PreTrainedModel, suite: Suite, rows: Sequence[Row]
) -> Iterator[tuple[bool, dict[str, str]]]:
    """Yield whether each row is right by its scores, and what they say."""
    from tasks.evaluation.scoring import score_rows
    from trainer.loop.metrics import EvaluationMetrics

    reader, state = plan.models[0].reader, plan.resampler.state
    objective, encoder, examples = reader.objective, reader.encoder(None, state), []
    for row in rows:
        where = f"suite {suite.name}, row_id {row[ROW_ID]}"
        try:
            own = encoder.encode([row])[0].examples
        except DataError as error:
            raise error.replace(where=where) from error
        if not own:
            what = f"gives nothing to score within {encoder.max_length} tokens"
            raise DataError(where, what, "shorten or remove it")
        examples += own
    scores = score_rows(
        network,
        sorted(examples, key=objective.length, reverse=True),
        metrics=EvaluationMetrics(objective, state=state, tokenizer=reader.tokenizer, metrics=None),
        batch_size=plan.batch_size,
        batch_tokens=plan.batch_tokens,
        name=f"suite {suite.name}",
    )
    right = objective.right_rows(scores.columns)
    assert right is not None
    yield from ((bool(one), objective.describe_scores(scores.row(at), state)) for at, one in enumerate(right))


def _judge_texts(
    plan: EvaluationPlan, network: PreTrainedModel, suite: Suite, rows: Sequence[Row], where: str
) -> Iterator[tuple[bool, dict[str, str]]]:
    """Yield whether each row is right by the model's text for it, and both texts."""
    objective, ask = plan.models[0].reader.objective, _text_function(plan, network, suite)
    function = import_with_arguments(suite.function, f"{where}.function", 2) if suite.function else None
    for row in iterate_with_progress(rows, what=f"evaluate: rows of suite {suite.name}", total=len(rows)):
        text, notes = ask(row), dict[str, str]()
        if function:
            try:
                is_right = bool(function(row, text))
            except Exception as error:
                what = f"raised {type(error).__name__} for row_id {row[ROW_ID]}: {error}"
                raise RecipeError(f"{where}.function", what, "fix the function") from error
        elif suite.matches:
            notes = {"matches": str(row[suite.matches])}
            is_right = re.search(notes["matches"], text) is not None
        else:
            expected = str(objective.expected_answer(row)).strip()
            notes, is_right = {"expected": expected[:_MAX_TEXT]}, text.strip() == expected
        yield is_right, {**notes, "answered": text[:_MAX_TEXT]}


def _text_function(plan: EvaluationPlan, network: PreTrainedModel, suite: Suite) -> Callable[[Row], str]:
    """Return what gives the model's text for a row: that of the call on the model card, or else its `prediction_lines`."""
    reader, state = plan.models[0].reader, plan.resampler.state
    objective, tokenizer = reader.objective, reader.tokenizer
    arguments = {**objective.call_arguments} | (
        {"max_new_tokens": suite.max_new_tokens} if suite.max_new_tokens else {}
    )
    ready = (
        transformers.pipeline("text-generation", model=network, tokenizer=tokenizer, trust_remote_code=False)
        if objective.generates_as_released
        else None
    )

    def ask(row: Row) -> str:
        try:
            with torch.inference_mode():
                if ready is None:
                    return "\n".join(objective.prediction_lines(row, network, tokenizer, reader.max_length, state))
                given = objective.reader_input(row)
                if isinstance(given, str):
                    (given,) = strip_repeated_special_tokens([given], tokenizer)
                own = {**arguments, **objective.reader_arguments(row)}
                return str(ready(given, return_full_text=False, **own)[0]["generated_text"])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            what = f"cannot answer row_id {row[ROW_ID]} of suite {suite.name}: {type(error).__name__}: {error}"
            raise ModelError(reader.where, what, "shorten or remove the row, or lower `max_new_tokens`") from error

    return ask
