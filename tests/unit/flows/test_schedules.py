"""When recipes are due, from prefect.yaml."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows.run.history import (
    _cron_limit,
    fetch_last_success_times,
    fetch_scheduled_deployments,
    read_prefect_yaml_schedules,
)
from tests.support.project import ROOT

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
"""A Tuesday."""


def limits(root: Path, text: str) -> dict[str, list[tuple[str, datetime | None]]]:
    (root / "prefect.yaml").write_text(text, encoding="utf-8")
    return {
        recipe: [(one.text, one.overdue_since) for one in found]
        for recipe, found in read_prefect_yaml_schedules(root, NOW).items()
    }


def test_the_default_recipe_is_due_every_night():
    (schedule,) = read_prefect_yaml_schedules(ROOT, NOW)["default"]
    assert schedule.text == "by cron 0 3 * * *, UTC"
    assert schedule.overdue_since == NOW - timedelta(days=2)


def test_schedules_of_each_recipe_are_found(tmp_path):
    text = """
definitions:
  retrain: &retrain {entrypoint: "flows/retrain.py:retrain"}
deployments:
  - {<<: *retrain, name: a, parameters: {recipe: params/a.yaml}, schedules: [{interval: 600}, {cron: "0 3 * * *"}]}
  - {<<: *retrain, name: b, parameters: {recipe: b}, schedules: [{interval: 600, active: false}]}
  - {<<: *retrain, name: c, parameters: {recipe: c}, schedules: [{rrule: FREQ=DAILY}, {cron: never}, {interval: odd}]}
  - {<<: *retrain, name: none, schedules: [{interval: PT2H}]}
  - {<<: *retrain, name: unscheduled}
  - {entrypoint: "other.py:flow", name: d, parameters: {recipe: d}, schedules: [{interval: 600}]}
  - {<<: *retrain, name: odd, parameters: [recipe], schedules: {cron: never}}
  - a mistake
"""
    found = limits(tmp_path, text)
    assert found["a"] == [
        ("every 10 min", NOW - timedelta(minutes=20)),
        ("by cron 0 3 * * *, UTC", NOW - timedelta(days=2)),
    ]
    assert found["default"] == [("every 2 h", NOW - timedelta(hours=4))]
    assert found["c"] == [("FREQ=DAILY", None), ("by cron never, UTC", None), ("every odd", None)]
    assert found.keys() == {"a", "c", "default"}
    assert read_prefect_yaml_schedules(tmp_path, NOW, {"a", "b"}).keys() == {"a"}
    assert read_prefect_yaml_schedules(tmp_path, NOW, set()) == {}


@pytest.mark.parametrize("text", ["deployments: [", "[]", "deployments: 3"])
def test_a_damaged_file_has_no_schedules(tmp_path, text):
    assert limits(tmp_path, text) == {}
    assert read_prefect_yaml_schedules(tmp_path / "nowhere", NOW) == {}


@pytest.mark.parametrize(
    ("cron", "zone", "now", "expected"),
    [
        ("0 3 * * *", "UTC", "2026-03-10T12:00+00:00", "2026-03-08T12:00+00:00"),
        # on Tuesday at noon, the runs of Friday noon and before are too old: those of Monday and Tuesday are missing
        ("0 3 * * 1-5", "UTC", "2026-03-10T12:00+00:00", "2026-03-06T12:00+00:00"),
        ("0 3 * * 1-5", "UTC", "2026-03-14T12:00+00:00", "2026-03-12T03:00+00:00"),
        # one of these nights has 23 hours
        ("0 3 * * *", "Europe/Berlin", "2026-03-30T03:00+02:00", "2026-03-28T03:00+01:00"),
        ("*/10 * * * *", "UTC", "2026-03-10T12:05+00:00", "2026-03-10T11:45+00:00"),
    ],
)
def test_twice_the_interval_of_a_cron_schedule(cron, zone, now, expected):
    found = _cron_limit(cron, zone, datetime.fromisoformat(now))
    assert found == datetime.fromisoformat(expected)


def test_an_unknown_time_zone_is_no_schedule():
    assert _cron_limit("0 3 * * *", "Mars/Base", NOW) is None


def test_without_a_server_nobody_knows_more(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert fetch_last_success_times(["default"]) == {}
    assert fetch_scheduled_deployments() == set()


def test_a_server_that_is_away_is_not_waited_for(monkeypatch, caplog):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert fetch_last_success_times(["default"]) == {}
        assert fetch_scheduled_deployments() is None
    assert "the Prefect server does not say when runs last succeeded" in caplog.text


def test_a_server_that_refuses_says_what_to_set(monkeypatch, caplog):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(HTTPStatus.UNAUTHORIZED)

    from prefect.settings import PREFECT_API_URL, temporary_settings

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}):
            assert fetch_scheduled_deployments() is None
        server.shutdown()
    assert "refuses with status 401" in caplog.text
    assert "fix: set PREFECT_API_AUTH_STRING" in caplog.text
