"""Completions that a model generates, and numbers that say how good they are. Begin with `generative`, the base of these objectives.

- `rollout`: how completions are sampled, and how they become batches
- `reward_models`: models that score them (functions that do are in `trainer.rewards`)
"""
