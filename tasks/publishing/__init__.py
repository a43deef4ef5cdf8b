"""publish: put the model on a Hub, exactly once."""
