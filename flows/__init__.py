"""When it happens: Prefect starts, retries and schedules the stages; DVC decides which of them are stale."""

import os

# Nothing is reported to anybody unless the user asks for it by setting the variable. This runs before any library that
# reads these is imported; prefect.toml says the same to commands that do not pass through here.
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
}
# A slow machine needs longer than Prefect's own 20 s to start its temporary server.
_PATIENT = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90"}

for _name, _value in {**_QUIET, **_PATIENT}.items():
    os.environ.setdefault(_name, _value)
