"""Recipes of this project: found, read with the defaults of their objective, and written with all of their values."""
