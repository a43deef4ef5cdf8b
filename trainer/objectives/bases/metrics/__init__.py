"""How good answers are, from sums over rows. Begin with `label_results`.

- `label_results`: precision, recall and F1 of each label, and the curve of one
- `calibration`: how well confidence says how many predictions are right
- `rank_correlation`: whether two numbers order rows alike
- `retrieval`: where the relevant documents of a query stand among all
"""
