"""The rows in groups that the objective names."""
