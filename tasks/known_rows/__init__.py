"""How rows are told apart: the columns that count, hashes of their content, and which rows a model has learned from."""
