"""What the Prefect server watches, and the messages that it sends."""
