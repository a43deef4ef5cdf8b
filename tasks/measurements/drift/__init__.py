"""Drift: whether the new rows are like those that the published model learned from (`validation.drift`)."""
