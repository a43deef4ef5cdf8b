"""Which values in a Trainer's log depend on a clock, so that equal trainings differ in them."""

CLOCK_SUFFIXES = ("runtime", "per_second", "preparation_time")
"""Ends of their names."""
