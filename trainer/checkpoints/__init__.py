"""Checkpoints: written whole, verified, resumed from."""
