"""The order of the rows, streaming, tokens, and the random states that belong to them."""
