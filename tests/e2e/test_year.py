"""A year of retraining on data that drift, some of it bad: exactly the right models are released.

The rows are those of Banking77, or made ones, whose intents the bank comes to know one after the other. All effects are large: an
interval of a gain that decides is several times its own width away from the bar.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.support.sample_data import cases, data_set, needs_public_data
from tests.support.year import Bank, Change, as_they_are, doubled, rotated, shuffled

ALL = 200
"""More rows than any intent has."""
GAIN = r"accuracy is 0\.\d+ better than the champion's \(95% interval 0\.\d+ to 0\.\d+ better"
LOSS = r"accuracy is 0\.\d+ worse than the champion's \(95% interval 0\.\d+ to 0\.\d+ worse"
FLOOR = r"accuracy 0\.\d+ is below 0\.4, the recipe's floor"
CHANCE = 0.03
"""By how much an accuracy on the final month's 960 rows may differ for nothing: more than two standard errors at 0.9."""
ANOTHER_ARCHITECTURE = {
    "model_type: bert": "model_type: distilbert",
    "hidden_size: 64": "dim: 96",
    "intermediate_size: 128": "hidden_dim: 192",
    "num_hidden_layers: 1": "n_layers: 1",
    "num_attention_heads: 2": "n_heads: 2",
    "vocab_size: 1000": "vocab_size: 700",
}


@dataclass(frozen=True)
class Month:
    """What the bank retrains on, and what must come of it."""

    name: str
    intents: int
    rows: int
    verdict: str
    why: str
    """Pattern that is found in the gate's reasons."""
    change: Change = as_they_are
    recipe: Mapping[str, str] = field(default_factory=dict)


JANUARY = Month("a first release", 8, 15, "publish", "first release: no model is published yet")
FEBRUARY = Month("the same rows again", 8, 15, "keep", "the published model has the same weights")
MARCH = Month("many more rows", 8, ALL, "publish", GAIN)
APRIL = Month("intents that the champion does not know", 12, ALL, "publish", GAIN)
MAY = Month("labels shuffled", 12, ALL, "keep", LOSS, change=shuffled(0.3))
JUNE = Month("few rows", 12, 12, "keep", LOSS)
JULY = Month("labels of a line off", 12, ALL, "refuse", FLOOR, change=rotated)
AUGUST = Month(
    "a learning rate far too high",
    12,
    ALL,
    "refuse",
    FLOOR,
    recipe={"learning_rate: 3e-3": "learning_rate: 1.0"},
)
SEPTEMBER = Month(
    "nothing but copies of the rows", 12, ALL, "keep", "the published model has the same weights", change=doubled
)
OCTOBER = Month("good rows again, of more intents", 16, ALL, "publish", GAIN)
NOVEMBER = Month(
    "another architecture and tokenizer, more intents",
    20,
    ALL,
    "publish",
    GAIN,
    recipe=ANOTHER_ARCHITECTURE,
)
DECEMBER = Month("more intents, and longer", 24, ALL, "publish", GAIN, recipe={"max_steps: 160": "max_steps: 480"})


@pytest.fixture
def bank(project, name, kind, tmp_path_factory) -> Bank:
    return Bank(project, data_set(name, kind, tmp_path_factory.mktemp("data")))


def live_through(bank: Bank, month: Month) -> None:
    """Retrain on a month's rows, and find on the Hub exactly what should be there."""
    before = bank.log()
    bank.write_recipe(month.recipe)
    bank.write_rows(month.intents, month.rows, month.change)
    done = bank.retrain(is_refused=month.verdict == "refuse")
    said = f"{month.name}: {done.verdict}: {done.why}"
    print(said)
    assert done.verdict == month.verdict, said
    assert re.search(month.why, done.why), said
    after = bank.log()
    if month.verdict == "publish":
        assert done.receipt is not None
        assert done.receipt["status"] == "published"
        assert after[:-1] == (before or [(after[0][0], "initial commit")])
        assert after[-1] == (done.receipt["commit"], done.receipt["tag"])
        return
    assert after == before, "nothing was written"
    if month.verdict == "refuse":
        assert done.receipt is None
        assert "the gate refuses the model: accuracy 0." in done.output
    else:
        assert done.receipt is not None
        commit, tag = after[-1]
        assert (done.receipt["status"], done.receipt["commit"]) == ("kept", commit)
        assert done.receipt["tag"] == (tag if tag.startswith("release-") else None)


def never_worse(bank: Bank, releases: list[str], intents: int) -> None:
    """On the final month's rows, no release does worse than the one that it replaced."""
    found = [bank.accuracy(commit, intents) for commit in releases]
    print("accuracy of the releases on the final month's rows: " + ", ".join(f"{value:.3f}" for value in found))
    assert all(later > earlier - CHANCE for earlier, later in itertools.pairwise(found))
    assert found[-1] > found[0] + 10 * CHANCE, "the year was not for nothing"


@pytest.mark.slow  # tests/e2e/test_continual.py releases a model of more labels in short
@pytest.mark.parametrize(("name", "kind"), cases("banking77"))
def test_some_telling_months(bank) -> None:
    for month in (JANUARY, APRIL):  # what the gate keeps and refuses is in tests/e2e/test_drivers.py
        live_through(bank, month)
    assert len(bank.log()) == 1 + 2, "the commit that made the repository, and two releases"


@pytest.mark.slow
@pytest.mark.timeout(2400)
@needs_public_data
@pytest.mark.parametrize(("name", "kind"), [("banking77", "public")])
def test_a_whole_year(bank) -> None:
    year = (JANUARY, FEBRUARY, MARCH, APRIL, MAY, JUNE, JULY, AUGUST, SEPTEMBER, OCTOBER, NOVEMBER)
    for month in year:
        live_through(bank, month)

    # What November released answers well and is rolled back nevertheless, for a reason that no row shows.
    *_, (_, october), _ = log = bank.log()
    bank.roll_back(october, why="the devices of the branches cannot load it")
    *earlier, (_, title) = bank.log()
    assert earlier == log
    assert title == f"Roll back to {october}"
    rolled_back = replace(NOVEMBER, name="November again", verdict="keep", why="rolled back")
    live_through(bank, rolled_back)

    live_through(bank, DECEMBER)
    releases = [commit for commit, title in bank.log() if title.startswith("release-")]
    assert len(releases) == sum(month.verdict == "publish" for month in (*year, DECEMBER))
    never_worse(bank, releases, DECEMBER.intents)
