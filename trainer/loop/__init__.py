"""The training loop: transformers.Trainer with what the pipeline promises."""
