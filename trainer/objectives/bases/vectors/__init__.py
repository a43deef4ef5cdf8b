"""Texts as vectors, as sentence-transformers has them. Begin with `space`.

- `space`: the documents of a search, and how far the spaces of two models are apart
- `several_texts`: rows of an anchor, its positive and its negatives, of which a column may hold a list
- `contrastive_loss`: losses that compare all rows of a global batch
- `hard_negatives`: texts that a model finds near to an anchor, and that are none of its positives
- `sentence_transformers_files`: how its files say what a vector is, and what stands before a text
"""
