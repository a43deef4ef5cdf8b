"""What a model goes back to, and which rows it has learned from, itself and through that."""
