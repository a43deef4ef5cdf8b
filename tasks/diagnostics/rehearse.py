"""rehearse: run the whole pipeline on few rows, publishing nowhere, and estimate what the real run takes.

What would fail after hours fails here after a minute: the loss of a batch of the longest rows in memory, a metric, the gate, the card,
the upload. Rows are spread over what is read of the source; the release goes to a Hub that is deleted again.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from params import EvergreenError, Recipe, load
from params.artifacts import Artifacts
from params.dvc_files import Inputs
from params.resolve import write_recipe
from tasks import stages
from tasks.diagnostics.check import check
from tasks.diagnostics.rehearsal_rows import Sample, sample
from tasks.hub_client.connection import LOCAL
from tasks.stages import read_report
from tasks.tokenization.report import TokenizationReport
from tasks.validation.kinds import is_of_rows
from trainer.loop.batch import every, total_steps
from trainer.runtime.lifetime import exclusive

logger = logging.getLogger(__name__)
_STEPS = 6
_FIRST = 2
"""Steps that are not timed: they also load kernels and fill caches."""
