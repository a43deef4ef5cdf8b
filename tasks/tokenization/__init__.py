"""tokenize: turn validated rows into sequences of tokens."""
