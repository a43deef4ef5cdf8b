"""The processes of a training: how they start, show that they are alive, and end."""
