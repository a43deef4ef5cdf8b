"""train: start the workers of a training, watch them, collect what they leave."""
