"""What the torch allocator shall be. ``settings`` and ``planning`` are pure; ``runtime`` and ``memory`` are for a process that has torch."""
