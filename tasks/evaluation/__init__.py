"""evaluate: score the model, the champion and the untrained model on held-out rows, and judge."""
