"""validate: check rows, set bad ones aside with their reasons."""
