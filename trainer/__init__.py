"""How a model learns: objectives, Trainer, checkpoints, and the worker that accelerate launches."""
