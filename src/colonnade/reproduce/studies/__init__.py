"""Items whose numbers need more than the curves and summaries of runs."""
