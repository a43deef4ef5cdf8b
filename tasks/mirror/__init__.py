"""Copies of checkpoints on a branch of the Hub, and how another machine resumes from them."""
