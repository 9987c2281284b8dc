"""The folder of a run, its summary, and whether its numbers may be trusted."""
