"""check, trace, verify-resume, and the comparison of two runs."""
