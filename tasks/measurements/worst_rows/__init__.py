"""The rows with the largest error."""
