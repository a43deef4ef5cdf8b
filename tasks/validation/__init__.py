"""validate: check rows, and set bad ones aside with the reasons."""
