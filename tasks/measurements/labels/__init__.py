"""What a classifier does on each label."""
