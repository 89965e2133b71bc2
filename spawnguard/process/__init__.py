"""The living tree: the only place that starts, signals or waits for a process."""
