"""When it happens: Prefect starts, retries and schedules the stages; DVC decides which of them are stale."""
