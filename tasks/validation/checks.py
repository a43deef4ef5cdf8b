"""Great Expectations, and nothing else: which checks exist, and what they find in a frame.

GX needs watching. It drops an expectation that it does not know with a log line, so each one is built by itself and
counted; it reports its own failures as if the data were bad, so those are told apart; its results come in an order of
their own, with clock and random ids, so only what depends on the data is taken over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from params import Problem, RecipeError, ValidationEngineError
from params.loading import Key, suggestion
from params.schema import Expectation

if TYPE_CHECKING:
    import pandas as pd

_OWNED = ("id", "meta", "result_format", "catch_exceptions", "rendered_content", "severity", "batch_id")
"""Arguments of GX that this stage sets, or for which `on_failure` stands."""


@dataclass(frozen=True)
class Outcome:
    """What one check found."""

    success: bool
    """Whether the data pass; a check with `mostly` passes although some rows fail."""
    rows: list[int] | None
    """Index labels of all failing rows, ascending; None for a check of the table as a whole."""
    observed: Any
    """The figure that a check of the whole table looked at, as JSON."""


def columns_named(expectations: Iterable[Expectation]) -> list[str]:
    """The columns that must be there for `expectations` to be run."""
    found: list[str] = []
    for expectation in expectations:
        if expectation.type == "expect_column_to_exist":
            continue
        arguments = expectation.arguments
        found += [arguments[k] for k in ("column", "column_A", "column_B") if isinstance(arguments.get(k), str)]
        found += arguments.get("column_list", [])
    return list(dict.fromkeys(found))


def problems(expectations: Sequence[Expectation], key: Key = ("validation", "expectations")) -> list[Problem]:
    """What is wrong with `expectations`, as far as that can be seen without data: names and arguments."""
    return [p for i, e in enumerate(expectations) for p in _build(e, i, (*key, i))[1]]


def run(expectations: Sequence[Expectation], frame: pd.DataFrame) -> list[Outcome]:
    """Check all of `frame`; one outcome for each expectation, in order.

    Raises:
        RecipeError: an expectation does not exist, or its arguments are wrong.
        ValidationEngineError: a check could not be run.
    """
    if not expectations:
        return []
    built, wrong = [], []
    for i, expectation in enumerate(expectations):
        one, found = _build(expectation, i, (expectation.type,))
        built.append(one)
        wrong += found
    if wrong:
        raise recipe_error(wrong)
    results = _run(built, frame)
    understood = {r.expectation_config.meta["position"]: r for r in results}
    if len(results) != len(expectations) or len(understood) != len(expectations):
        lost = [e.type for i, e in enumerate(expectations) if i not in understood]
        what = f"of {len(expectations)} checks only {len(understood)} were run; without: {', '.join(lost)}"
        raise RecipeError("validation.expectations", what, "write these checks differently")
    return [_outcome(e, understood[i]) for i, e in enumerate(expectations)]


def recipe_error(found: Sequence[Problem]) -> RecipeError:
    """All of `found` as one error, for a caller that does not know the recipe's file."""
    lines = "\n".join(f"{'.'.join(map(str, p.key))}: {p.what}; {p.fix}" for p in found)
    return RecipeError("validation.expectations", f"cannot be run\n{lines}", "mend the checks above")


def _build(expectation: Expectation, position: int, key: Key) -> tuple[Any, list[Problem]]:
    _silence()
    from great_expectations.compatibility import pydantic
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.expectations import registry

    name = expectation.type
    names = sorted(registry.list_registered_expectation_implementations())
    if name not in names:
        close = suggestion(name, names, "expectations")
        return None, [Problem((*key, "type"), f"there is no expectation `{name}`", close)]
    arguments = expectation.arguments
    owned = [Problem((*key, a), "is set by this stage", "leave it out") for a in arguments if a in _OWNED]
    if owned:
        return None, owned
    cls = registry.get_expectation_impl(name)
    try:
        return cls(**arguments, meta={"position": position}), []
    except pydantic.ValidationError as error:
        return None, _explain(error, key, name, sorted(set(cls.__fields__) - set(_OWNED) - {"meta"}))
    except (GreatExpectationsError, ValueError, TypeError) as error:
        return None, [Problem(key, f"{name}: {error}", "mend its arguments")]


def _explain(error: Any, key: Key, name: str, known: list[str]) -> list[Problem]:
    found: dict[Key, Problem] = {}
    for e in error.errors():
        place = (*key, *(part for part in e["loc"] if part != "__root__"))
        if e["type"] == "value_error.extra":
            problem = Problem(place, f"{name} has no such argument", suggestion(str(e["loc"][-1]), known, "arguments"))
        elif e["type"] == "value_error.missing":
            problem = Problem(place, f"is missing; {name} needs it", f"add `{e['loc'][-1]}:`")
        else:
            problem = Problem(place, f"{name}: {e['msg']}", "write a valid value")
        found.setdefault(place, problem)
    return list(found.values())


def _silence() -> None:
    """Keep GX from logging hundreds of lines at import.

    Its errors are told in ours: each is in its results, or raised.
    """
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    logging.getLogger("great_expectations.data_context.types.base").disabled = True  # sets a level of its own


def _run(expectations: list[Any], frame: pd.DataFrame) -> list[Any]:
    _silence()
    import great_expectations as gx
    from great_expectations.exceptions import GreatExpectationsError

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": frame})
    # COMPLETE is the only format whose list of failing rows is not cut off. Without names of id columns that list
    # holds bare index labels, not one dict a row; the query that would repeat them all as text is turned off.
    wanted = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
    try:
        validated = batch.validate(gx.ExpectationSuite(name="rows", expectations=expectations), result_format=wanted)
    except GreatExpectationsError as error:
        raise ValidationEngineError("validation", f"the checks could not be run: {error}", "mend the checks") from error
    return list(validated.results)


def _outcome(expectation: Expectation, result: Any) -> Outcome:
    where = f"{expectation.type} ({', '.join(f'{k}={v}' for k, v in expectation.arguments.items())})"
    raised = _raised(result.exception_info)
    if raised:
        what = f"could not be run, which says nothing about the rows: {raised[0]}"
        raise ValidationEngineError(where, what, "mend the arguments, or check a column that this check can read")
    rows = result.result.get("unexpected_index_list")
    if rows is not None:
        rows = sorted(int(row) for row in rows)
        if len(rows) != result.result["unexpected_count"]:
            what = f"counts {result.result['unexpected_count']} failing rows and names {len(rows)}"
            raise ValidationEngineError(where, what, "report this, with the recipe")
    return Outcome(bool(result.success), rows, _plain(result.result.get("observed_value")))


def _raised(info: Any) -> list[str]:
    """Messages in an `exception_info`, which is one record or one for each failed metric."""
    if not isinstance(info, dict):
        return []
    if info.get("raised_exception"):
        return [str(info.get("exception_message"))]
    return sorted(message for value in info.values() for message in _raised(value))


def _plain(value: Any) -> Any:
    """As JSON knows it, and in the same order every time."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(v) for v in value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # a numpy scalar or array
        return _plain(value.tolist())
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
