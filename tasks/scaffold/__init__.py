"""`evergreen new` and `evergreen remove`: from data and a model to a recipe with its line and its deployment, and back."""
