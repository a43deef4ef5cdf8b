"""What a stage does: read artifacts, do the work, write artifacts, return a report. Knows neither Prefect nor DVC."""

import os

# Nothing is reported to anybody unless the user asks for it by setting the variable; read when the libraries are imported.
for _name, _value in {"DO_NOT_TRACK": "1", "GX_ANALYTICS_ENABLED": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}.items():
    os.environ.setdefault(_name, _value)
