"""ingest: read rows from a source, and give each one a row id and a split."""
