"""Held-out rows that the champion's release had, and those that are new since it was made."""
