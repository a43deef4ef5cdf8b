"""Texts as tokens, and examples as batches. Begin with `tokenizing`.

- `tokenizing`: many texts per call, prompts, bytes of tokens, and the check of a generated text
- `pairs`: two texts that are read together, such as premise and hypothesis
- `continuations`: the answer to a prompt as tokens of the text that both make
- `prompt_template`: prompts that are made of columns
- `padding`: sequences of different lengths as tensors
- `packing`: several examples in one sequence, none of which attends to another
"""
