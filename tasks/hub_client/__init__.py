"""How every part of the pipeline talks to a Hub."""
