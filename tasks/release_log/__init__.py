"""The log of what became of models: verdicts, receipts, rollbacks."""
