"""The rows on which candidate and champion differ most."""
