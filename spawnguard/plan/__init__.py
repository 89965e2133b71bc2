"""Before exec: all that a child will be started with. Starts nothing."""
