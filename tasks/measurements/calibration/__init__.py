"""How often the model is right, by its confidence."""
