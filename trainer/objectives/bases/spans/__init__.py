"""Places in a text. Begin with `places`.

- `places`: where a span is whose own text contradicts its offsets
- `answer_spans`: answers as spans of a context, and the windows in which a model reads a long one
"""
