"""Runs that are recorded on a branch of a git remote."""
