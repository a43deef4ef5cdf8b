"""What objectives share. Begin with `objective`, the interface, and `rows`, the words that it speaks: rows, examples, states.

`likelihood` is the usual base of an objective: a model that gives each label, or each next token, a probability. The rooms:

- `texts`: texts as tokens, and examples as batches
- `conversations`: messages that a chat template renders, and which of their tokens are the assistant's
- `preferences`: answers that people prefer to others
- `rewards`: completions that a model generates, and numbers that say how good they are
- `labels`: names of labels, sets of them, and from which probability one is predicted
- `spans`: places in a text
- `vectors`: texts as vectors, as sentence-transformers has them
- `metrics`: how good answers are, from sums over rows
- `network`: what an objective knows of a network: its positions, its output layer, the units of its numbers
"""
