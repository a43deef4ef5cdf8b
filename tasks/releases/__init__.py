"""Lists, rolls back and reproduces releases."""
