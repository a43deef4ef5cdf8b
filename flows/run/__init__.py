"""A run of the flow: its stages, their time limits, the state in which it ends, and its history."""
