"""From a config to a result: configs, runs, comparisons, run folders."""
