"""Answers that people prefer to others. Begin with `answers`, the base of objectives of a prompt with one or several answers.

- `pairs`: a chosen and a rejected answer, in the forms that people have them, and the base of objectives that learn from both
- `feedback`: whether a single answer is good, in the words that people use
- `losses`: losses of both, from log-probabilities under the model and its reference
- `answer_form`: how a prompt with an answer is read by a model that gives it a number
"""
