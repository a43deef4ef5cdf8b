"""The model: how it is built, loaded and merged, and whether its configuration fits."""
