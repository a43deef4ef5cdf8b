"""The trackers of `training.arguments.report_to`, which write to this machine unless told otherwise.

Trackers are configured by environment variables. They are set here unless they are set already, for example to
WANDB_MODE=online or to another MLFLOW_TRACKING_URI. What trackers write stays after the run.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from params import Problem
from params.foundation.installation import install_extra
from params.problems import suggestion

if TYPE_CHECKING:
    from transformers import Trainer

TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
"""Trackers with an extra of this package, by the names of their modules."""
_KEY = ("training", "arguments", "report_to")
_TAG = "evergreen.run"


def find_tracker_problems(report_to: object) -> list[Problem]:
    """Return what is wrong with a recipe's `report_to`."""
    found = []
    if isinstance(report_to, str):
        report_to = [report_to]
    for name in report_to if isinstance(report_to, list) else []:
        if name in TRACKERS:
            if importlib.util.find_spec(name) is None:
                found.append(Problem(_KEY, f"{name} is not installed", install_extra(name)))
        elif name == "all":
            fix = f"name the trackers: {', '.join(TRACKERS)}"
            found.append(Problem(_KEY, "`all` depends on what is installed", fix))
        elif name != "none":
            from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

            if name not in INTEGRATION_TO_CALLBACK:
                fix = suggestion(str(name), [*TRACKERS, *INTEGRATION_TO_CALLBACK], "trackers")
                found.append(Problem(_KEY, f"transformers knows no tracker {name!r}", fix))
    return found


def tracker_folder(folder: Path) -> Path:
    """Return the folder for a recipe's trackers; `folder` is a run's, `.scratch/<recipe>/checkpoints/<key>`."""
    return folder.parents[1] / "reports"


def set_tracker_environment(folder: Path, report_to: Sequence[str], project: str) -> None:
    """Configure trackers for a run's folder by environment variables, before they are imported."""
    if not report_to:
        return
    root, run = tracker_folder(folder), folder.name
    variables = {
        "TENSORBOARD_LOGGING_DIR": root / "tensorboard" / run,
        "TRACKIO_DIR": root / "trackio",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_DIR": root,  # it makes a folder wandb/ there
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": project,
        "WANDB_RUN_ID": run,
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}",
        "MLFLOW_EXPERIMENT_NAME": project,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    root.mkdir(parents=True, exist_ok=True)
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))


def continue_tracker_runs(trainer: Trainer, folder: Path, step: int) -> None:
    """Let a start that resumes from `step` report to the same run as earlier starts.

    Trackio and W&B identify a run by name and id. TensorBoard drops earlier records of steps that are repeated. In MLflow
    the run with this key is looked up; it keeps the parameters of its first start.
    """
    if not trainer.is_world_process_zero():
        return
    if "tensorboard" in trainer.args.report_to:
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations import TensorBoardCallback

        writer = SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"], purge_step=step + 1 if step else None)
        trainer.remove_callback(TensorBoardCallback)
        trainer.add_callback(TensorBoardCallback(writer))
    if "mlflow" in trainer.args.report_to and "MLFLOW_RUN_ID" not in os.environ:
        import mlflow

        key, client = folder.name, mlflow.MlflowClient()
        experiment = mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"]).experiment_id
        runs = list(client.search_runs([experiment], f"tags.`{_TAG}` = '{key}'", max_results=1))
        if runs:
            os.environ["MLFLOW_MAX_LOG_PARAMS"] = "0"  # MLflow refuses changed parameters, and `launch` may change
        else:
            runs = [client.create_run(experiment, tags={_TAG: key}, run_name=trainer.args.run_name)]
        os.environ["MLFLOW_RUN_ID"] = runs[0].info.run_id
