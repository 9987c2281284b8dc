"""Pictures of runs and comparisons."""
