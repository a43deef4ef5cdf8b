"""Whether a model knows anything of its rows: its answers must fit their own rows better than others."""
