"""Shards of rows: how they are read, the work on them, which is kept, and the processes that do it."""
