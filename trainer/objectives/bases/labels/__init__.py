"""Labels of rows: classes, tags, topics. Begin with `one_label`.

- `one_label`: the base of objectives that learn one label per text
- `names`: which of two sets of labels mean the same, and which look alike
- `sets`: any number of labels of a row, from a list, a record or columns
- `thresholds`: from which probability each of several labels is predicted
"""
