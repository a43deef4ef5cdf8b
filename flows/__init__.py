"""The Prefect flow: Prefect starts, retries and schedules the stages; DVC decides which of them are stale."""

import os

# No telemetry, unless the user sets the variable. This must run before the libraries that read these are imported;
# prefect.toml has the same for commands that do not import this package.
_NO_TELEMETRY = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "DVC_NO_ANALYTICS": "1"}
# On a slow machine, Prefect's temporary server needs more than the default of 20 s to start.
_SLOW_START = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90"}

for _name, _value in {**_NO_TELEMETRY, **_SLOW_START}.items():
    os.environ.setdefault(_name, _value)
