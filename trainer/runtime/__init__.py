"""Processes: how they start, report that they are alive, hold locks, and end."""
