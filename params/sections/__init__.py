"""Sections of a recipe, and what they are made of; params.schema puts them together."""
