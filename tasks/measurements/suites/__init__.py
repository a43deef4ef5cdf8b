"""Rows that a model must get right to be published (`evaluation.suites`)."""
