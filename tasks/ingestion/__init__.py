"""ingest: read rows from their source, give each a row id and a split."""
