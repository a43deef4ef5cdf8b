"""What the schema and everything else builds on: errors, paths, hashes, and what texts may show."""
