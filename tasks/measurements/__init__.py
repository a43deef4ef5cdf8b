"""What a run measures beside the metrics of its models: one module or folder each, see tasks/measurement.py."""
