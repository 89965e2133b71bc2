"""Inside the child, before user code. Standard library only: nothing here imports the rest of spawnguard."""
