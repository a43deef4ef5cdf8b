"""A small finished run: enough for every section of the report, with text that is hard to display."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from params.foundation.artifacts import Artifacts
from tests.support import tiny

EVIL = (
    "<script src='https://evil.example/x.js'>alert(1)</script><img src=//evil.example/p onerror=alert(2)>\"'&amp; $x_1$"
)
STRANGE = "a\tb\x00 \u202egnp 你好 \U0001f600 \ud7ff"
"""Control characters, a right-to-left override, and characters that the charts' font lacks."""
DIGEST = "0123456789abcdef" * 4
CHAMPION = {
    "endpoint": "local",
    "repo_id": "tests/tiny",
    "commit": "c" * 40,
    "tag": "release-cafe",
    "weights": "9" * 64,
}
RECEIPT = {
    "status": "published",
    "reasons": ["accuracy is 0.03 better"],
    "repo_id": "tests/tiny",
    "endpoint": "local",
    "commit": "d" * 40,
    "tag": "release-beef",
    "publish_id": DIGEST,
}
METRICS = ("accuracy", "loss", "macro_f1")


def write(root: Path, *, slices: int = 12, worst: int = 8, text: str = EVIL) -> Artifacts:
    """Write the files of every stage of a published run."""
    artifacts = Artifacts("tiny", root)
    tiny.write(artifacts.recipe_path, tiny.recipe(**tiny.CLASSES))
    for path, content in files(slices=slices, worst=worst, text=text).items():
        save(artifacts.run / path, content)
    curve(
        artifacts.history / "train.csv", [{"step": s, "loss": 4 / (s + 1), "grad_norm": 1.0} for s in range(0, 60, 2)]
    )
    steps = range(0, 61, 10)
    rows = [{"step": s, "loss": 4 / (s + 1), "accuracy": s / 61, "perplexity": 900 / (s + 1)} for s in steps]
    curve(artifacts.history / "validation.csv", rows)
    quarantine = {
        "row_id": pa.array([3, 4, 5], pa.int64()),
        "split": ["train", "train", "test"],
        "reasons": [
            [f"expect_column_values_to_be_unique(column='{text}'), repeats row 1 of train"],
            [
                f"expect_column_values_to_be_unique(column='{text}'), repeats row 2 of train",
                "row_is_usable(): too (odd)",
            ],
            ["row_is_usable(): it holds nothing"],
        ],
        "text": [text, STRANGE, None],
    }
    pq.write_table(pa.table(quarantine), artifacts.validated / "quarantine.parquet")
    (artifacts.validated / "report.html").write_text("<p>validation report</p>")
    return artifacts


def save(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def curve(path: Path, rows: list[dict[str, float]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def files(*, slices: int, worst: int, text: str) -> dict[str, Any]:
    """The JSON files of a run, by path."""
    models = {"model": 0.9, "champion": 0.87, "untrained": 0.1}
    metrics = {name: {"accuracy": a, "loss": 1 - a, "macro_f1": a - 0.01} for name, a in models.items()}
    intervals = {
        name: {metric: {"low": value - 0.02, "high": value + 0.02} for metric, value in of.items()}
        for name, of in metrics.items()
    }
    gains = {
        ("champion", 0): (0.03, 0.011, 0.049),
        ("champion", 1): (0.03, -0.01, 0.07),
        ("champion", 2): (-0.03, -0.05, -0.01),
    }
    comparisons = []
    for against in ("champion", "untrained"):
        for i, metric in enumerate(METRICS):
            gain, low, high = gains.get((against, i), (0.8, 0.78, 0.82))
            p_value = 0.004 if metric == "accuracy" else None
            body = {"metric": metric, "gain": gain, "low": low, "high": high, "p_value": p_value, "rows": 400}
            comparisons.append({"against": against, **body})
    return {
        "raw/source.json": {
            "source": "files",
            "revision": f"sha256:{DIGEST}",
            "rows": {"train": 1000, "validation": 100, "test": 403},
            "columns": {"row_id": "int64", "text": "string", "label": "string"},
            "data_sha256": dict.fromkeys(("train", "validation", "test"), DIGEST),
        },
        "validated/validation.json": {
            "rows_in": {"train": 1000, "validation": 100, "test": 403},
            "rows_out": {"train": 998, "validation": 100, "test": 402},
            "quarantined": 3,
            "share": 3 / 1503,
            "max_quarantined": 0.01,
            "checks": [
                check("expect_column_values_to_not_be_null", success=True, count=0, text=text),
                check("expect_column_values_to_be_unique", success=False, count=2, text=text),
                check("expect_table_row_count_to_be_between", success=True, count=None, text=text),
            ],
            "drift": drift(text),
        },
        "tokens/statistics.json": {
            "vocab_size": 300,
            "max_length": 32,
            "characters_per_token": 3.214,
            "splits": {split: tokens(rows) for split, rows in (("train", 998), ("validation", 100), ("test", 402))},
        },
        "history/training.json": {
            "run": "0123456789abcdef",
            "steps": 60,
            "parameters": 528_589,
            "best_step": 50,
            "best_metric": "accuracy",
            "best_value": 0.82,
            "final_train_loss": 0.07,
            "git_commit": "e" * 40 + "+",
            "versions": {"python": "3.11.7", "torch": "2.13.0"},
        },
        "evaluation/metrics.json": {
            "split": "test",
            "rows": 402,
            "sequences": 402,
            "metric": "accuracy",
            "verdict": "publish",
            **metrics,
        },
        "evaluation/details.json": {
            "confidence": 0.95,
            "resamples": 2000,
            "directions": {"accuracy": "max", "loss": "min", "macro_f1": "max"},
            "intervals": intervals,
            "comparisons": comparisons,
            "slices": [slice_result(i, text) for i in range(slices)],
            "worst": [
                {
                    "row_id": i,
                    "text": text * 20,
                    "row_error": 9.5 - i / 9,
                    "notes": {"expected": text, "predicted": STRANGE},
                }
                for i in range(worst)
            ],
            "changed": [changed_row(i, text) for i in range(worst)],
            "labels": labels(text),
            "suspects": suspects(text, worst),
            "calibration": [{"confidence": c / 10 + 0.05, "accuracy": c / 11, "rows": 40} for c in range(10)],
        },
        "evaluation/blessing.json": {
            "verdict": "publish",
            "reasons": [f"accuracy is 0.03 better than the champion's (0.011 to 0.049 better) {text}"],
            "metric": "accuracy",
            "first_release": False,
            "model": DIGEST,
            "data": DIGEST[::-1],
            "recipe": DIGEST[1:] + "0",
            "champion": CHAMPION,
        },
        "release/receipt.json": RECEIPT,
    }


def changed_row(i: int, text: str) -> dict[str, Any]:
    errors = {"error": 0.25, "champion_error": 3.25 - i, "gain": 3.0 - i}
    notes = {"notes": {"predicted": text}, "champion_notes": {"predicted": STRANGE}}
    return {"row_id": 100 + i, "text": text * 20, **errors, **notes}


def check(name: str, *, success: bool, count: int | None, text: str) -> dict[str, Any]:
    examples = [{"row_id": 3, "split": "train", "value": text}] if not success else []
    body = {"on_failure": "quarantine", "origin": "recipe", "success": success, "unexpected_count": count}
    return {"type": name, "arguments": {"column": text}, **body, "observed": None, "examples": examples}


def drift(text: str) -> dict[str, Any]:
    change = {"measure": "share of new rows", "effect": 0.2, "floor": 0.005, "p_value": 0.0005, "detail": text}
    return {
        "status": "compared",
        "repo_id": "tests/tiny",
        "revision": "release-cafe",
        "confidence": 0.95,
        "known_rows": 900,
        "new_rows": 98,
        "looked_at": 998,
        "changes": [
            {"what": f"new labels ({text})", "moved": True, **change},
            {"what": "words", "moved": False, **change},
        ],
        "examples": [{"row_id": 990, "values": {text: text}}],
    }


def tokens(rows: int) -> dict[str, float]:
    lengths = {"longest": 32, "mean_length": 14.5, "learned_tokens": rows, "truncated_rows": 1, "unused_rows": 0}
    return {"rows": rows, "sequences": rows, "tokens": 14 * rows, **lengths}


def labels(text: str) -> dict[str, Any]:
    """The results of four labels, of which one has too few rows to be judged."""
    names = [text, STRANGE, "c", "d"]
    judged = {"low": 0.7, "high": 0.85, "gain": 0.1, "gain_low": 0.02, "gain_high": 0.18}
    values = {"predicted": 99, "precision": 0.82, "recall": 0.75, "f1": 0.78, "champion": 0.68, "floor_p_values": {}}
    curve = {"average_precision": 0.81, "recall": [0.2, 0.75, 1.0], "precision": [1.0, 0.82, 0.3]}
    return {
        "results": [
            {"label": name, "rows": 100 - 30 * i, **values, **(judged if i < 3 else {})} for i, name in enumerate(names)
        ],
        "confusions": [{"label": names[0], "predicted": names[1], "rows": 12, "share": 0.12, "champion": 9}],
        "matrix": [[80, 12, 4, 4], [1, 68, 1, 0], [0, 0, 40, 0], [0, 0, 0, 10]],
        "names": names,
        "curves": [{"label": name, **curve} for name in names],
    }


def suspects(text: str, worst: int) -> dict[str, Any]:
    """What looks wrong in two splits, of which one was not looked at as a whole."""
    row = {"split": "train", "text": text * 20, "given": text, "suggested": STRANGE, "confidence": 0.97}
    return {
        "splits": [
            {"split": "train", "rows": 12_998, "reviewed": 10_000, "suspects": worst},
            {"split": "test", "rows": 402, "reviewed": 402, "suspects": 3},
        ],
        "labels": [{"label": text, "rows": 300, "suspects": 9, "suggested": STRANGE, "most": 7}],
        "worst": [{**row, "row_id": i} for i in range(worst)],
    }


def slice_result(i: int, text: str) -> dict[str, Any]:
    is_judged = i % 4 != 3
    interval = {"low": 0.4, "high": 0.95} if is_judged else {"low": None, "high": None}
    gains = (
        {"gain_low": -0.05 if i else -0.3, "gain_high": 0.09 if i else -0.01}
        if is_judged
        else {"gain_low": None, "gain_high": None}
    )
    names = {"slice_by": "label" if i % 2 else "length", "slice": f"{text if i == 1 else STRANGE} {i}"}
    metrics = {
        "metric": "accuracy",
        "value": 0.5 + i / 1000,
        **interval,
        "champion": 0.52,
        "gain": -0.02 + i / 1000,
        **gains,
    }
    return {**names, "rows": 40 if is_judged else 7, **metrics, "floor_p_value": None, "margin_p_value": None}
