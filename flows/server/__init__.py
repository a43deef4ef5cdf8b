"""Prefect's server: one of the run's own, or the configured one, and its password."""
