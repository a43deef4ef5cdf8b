"""What `evergreen new` writes into a recipe of an objective. Nothing here decides the weights of a training."""
