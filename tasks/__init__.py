"""What a stage does: read artifacts, do the work, write artifacts, return a report. Knows neither Prefect nor DVC."""
