"""What a training reports: progress, metrics, trackers, the record of each step."""
