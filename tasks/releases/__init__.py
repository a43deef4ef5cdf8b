"""What is published: list, roll back, reproduce."""
