"""Run expectations of Great Expectations (GX) on a frame.

GX has three pitfalls. It drops an unknown expectation and only logs it, so each one is built separately and counted. It
reports its own failures as if the data were bad, so those are found and raised. Its results come in arbitrary order and
with times and random ids, so they are sorted, and only what depends on the data is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from params import Problem, RecipeError, ValidationEngineError
from params.problems import Key, suggestion
from params.sections.rows import Expectation
from tasks.validation.raw_rows import Positions

if TYPE_CHECKING:
    import pandas as pd

_RESERVED = ("id", "meta", "result_format", "catch_exceptions", "rendered_content", "severity", "batch_id")
"""Arguments of GX that this stage sets itself, or that `on_failure` replaces."""


@dataclass(frozen=True)
class ExpectationResult:
    success: bool
    """Whether the data pass; with `mostly`, they pass although some rows fail."""
    failing: Positions | None
    """Positions of the failing rows; None for a check of the table or of a column's type, which names no rows."""
    observed: Any = None
    """The observed value of a check of the table as a whole, as JSON."""
    considered: int = 0
    """Number of rows that can fail: not those that the check ignores, such as nulls."""
    repeats: NDArray[np.int64] | None = None
    """(2, N) for each failing row the position and the row_id of the row that it repeats, if the check is for equal rows."""


def is_expectation_met(expectation: Expectation, failing: int, considered: int) -> bool:
    """Return whether an expectation of rows is met, by GX's rule for `mostly`."""
    share = (considered - failing) / considered if considered else 1.0
    return bool(share >= expectation.arguments.get("mostly", 1))


def expectation_key_text(expectation: Expectation) -> str:
    """Return what decides which rows pass; the date 2026-01-01 is another text than the string."""
    return f"{expectation.type} {expectation.arguments!r}"


def columns_named_by_expectations(expectations: Iterable[Expectation]) -> list[str]:
    found: list[str] = []
    for expectation in expectations:
        if expectation.type == "expect_column_to_exist":
            continue
        arguments = expectation.arguments
        found += [arguments[k] for k in ("column", "column_A", "column_B") if isinstance(arguments.get(k), str)]
        found += arguments.get("column_list", [])
    return list(dict.fromkeys(found))


def expectation_problems(expectations: Sequence[Expectation]) -> list[Problem]:
    """Return what is wrong with the names and arguments of a recipe's expectations; no data is needed."""
    return [p for i, e in enumerate(expectations) for p in _problems(e, ("validation", "expectations", i))]


def run_expectations(expectations: Sequence[Expectation], frame: pd.DataFrame) -> list[ExpectationResult]:
    """Check all rows of `frame`, and return one result for each expectation, in the same order.

    Raises:
        RecipeError: Great Expectations left out an expectation.
        ValidationEngineError: an expectation could not be run.
    """
    if not expectations:
        return []
    gx_results = _run([_build(expectation, i) for i, expectation in enumerate(expectations)], frame)
    by_position = {r.expectation_config.meta["position"]: r for r in gx_results}
    if missing := [e.type for i, e in enumerate(expectations) if i not in by_position]:
        what = f"Great Expectations ran only {len(by_position)} of {len(expectations)}; missing: {', '.join(missing)}"
        raise RecipeError.at("validation.expectations", what, "replace the missing expectations by others")
    return [_result(e, by_position[i]) for i, e in enumerate(expectations)]


def positions_of_compared_rows(expectation: Expectation, frame: pd.DataFrame) -> Positions:
    """Return the positions of the rows that an expectation does not ignore; for those of uniqueness.

    Raises:
        ValidationEngineError: the values cannot be compared, or the condition cannot be evaluated.
    """
    built = _build(expectation, 0)
    from great_expectations.execution_engine import PandasExecutionEngine

    names = ("column", "column_list", "row_condition", "condition_parser", "ignore_row_if")
    domain = {name: value for name in names if (value := getattr(built, name, None)) is not None}
    engine = PandasExecutionEngine()
    engine.load_batch_data("rows", frame)  # type: ignore[no-untyped-call, unused-ignore]
    try:
        rows = engine.get_domain_records(domain)
        if "column" in domain:
            rows = rows[rows[domain["column"]].notnull()]
        for column in columns_named_by_expectations([expectation]):
            rows[column].dropna().head(1).map(hash)  # fails for lists, as GX does
    except Exception as error:  # whatever pandas raises for a condition or for values
        raise _engine_error(expectation, str(error)) from error
    finally:
        # The engine is part of a reference cycle, and garbage is rarely looked for: let go of the frame.
        engine.load_batch_data("rows", frame[:0].copy())  # type: ignore[no-untyped-call, unused-ignore]
    positions: Positions = rows.index.to_numpy(dtype="int64")
    return positions


def _build(expectation: Expectation, position: int) -> Any:
    _import()
    from great_expectations.expectations import registry

    return registry.get_expectation_impl(expectation.type)(**expectation.arguments, meta={"position": position})


def _problems(expectation: Expectation, key: Key) -> list[Problem]:
    _import()
    from great_expectations.compatibility import pydantic
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.expectations import registry

    name, arguments = expectation.type, expectation.arguments
    names = sorted(registry.list_registered_expectation_implementations())
    if name not in names:
        fix = suggestion(name, names, "expectations")
        return [Problem((*key, "type"), f"there is no expectation `{name}`", fix)]
    if reserved := [a for a in arguments if a in _RESERVED]:
        return [Problem((*key, a), "is set by the validate stage", "remove it") for a in reserved]
    try:
        _build(expectation, 0)
    except pydantic.ValidationError as error:
        fields = registry.get_expectation_impl(name).__fields__
        known, found = sorted(set(fields) - set(_RESERVED) - {"meta"}), dict[Key, Problem]()
        for e in error.errors():
            place = (*key, *(part for part in e["loc"] if part != "__root__"))
            what, fix = f"{name}: {e['msg']}", "write a valid value"
            if e["type"] == "value_error.extra":
                what, fix = f"{name} has no such argument", suggestion(str(e["loc"][-1]), known, "arguments")
            elif e["type"] == "value_error.missing":
                what, fix = f"is missing; {name} needs it", f"add `{e['loc'][-1]}:`"
            found.setdefault(place, Problem(place, what, fix))
        return list(found.values())
    except (GreatExpectationsError, ValueError, TypeError) as error:
        return [Problem(key, f"{name}: {error}", "fix its arguments")]
    return []


def _import() -> None:
    """Import GX before any of its modules, as tasks.validation.gx does it."""
    import tasks.validation.gx  # noqa: F401


def _run(expectations: list[Any], frame: pd.DataFrame) -> list[Any]:
    import great_expectations as gx
    import pandas as pd
    from great_expectations.exceptions import GreatExpectationsError

    batch = _batch_definition().get_batch(batch_parameters={"dataframe": frame})
    # Only COMPLETE lists all failing rows. Without id columns, the list holds index labels instead of one dict per row.
    # The query is off because it would repeat all labels as text.
    result_format = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
    try:
        validated = batch.validate(
            gx.ExpectationSuite(name="rows", expectations=expectations), result_format=result_format
        )
    except GreatExpectationsError as error:
        fix = "change validation.expectations so that they can be run"
        raise ValidationEngineError("validation", f"the checks could not be run: {error}", fix) from error
    finally:
        _batch_definition().get_batch(batch_parameters={"dataframe": pd.DataFrame()})  # GX would keep the rows
    return list(validated.results)


@cache
def _batch_definition() -> Any:
    """GX's name for any frame; it keeps the last one."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("all")


def _result(expectation: Expectation, gx_result: Any) -> ExpectationResult:
    errors = _raised(gx_result.exception_info)
    if errors:
        raise _engine_error(expectation, errors[0])
    found, failing, considered = gx_result.result, None, 0
    if (rows := found.get("unexpected_index_list")) is not None:
        failing = np.sort(np.array(rows, np.int64))
        considered = found["element_count"] - found.get("missing_count", 0)
    return ExpectationResult(bool(gx_result.success), failing, _plain(found.get("observed_value")), considered)


def _engine_error(expectation: Expectation, message: str) -> ValidationEngineError:
    what = f"could not be run, so the rows are not checked: {message}"
    return ValidationEngineError(_call(expectation), what, "fix its arguments, or use it on a column of another type")


def _call(expectation: Expectation) -> str:
    return f"{expectation.type} ({', '.join(f'{k}={v}' for k, v in expectation.arguments.items())})"


def _raised(info: Any) -> list[str]:
    """Return the messages in an `exception_info`, which is one record, or a record for each failed metric."""
    if not isinstance(info, dict):
        return []
    if info.get("raised_exception"):
        return [str(info.get("exception_message"))]
    return sorted(message for value in info.values() for message in _raised(value))


def _plain(value: Any) -> Any:
    """Return the value as JSON types, with sets sorted."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(v) for v in value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # a numpy scalar or array
        return _plain(value.tolist())
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
