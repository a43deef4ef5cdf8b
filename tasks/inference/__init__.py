"""What a published model answers: `evergreen try`, and the box of the local Hub's pages."""
