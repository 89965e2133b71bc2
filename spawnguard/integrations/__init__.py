"""Launchers that have a Python API of their own: `spawnguard.integrations.ray`."""
