"""What a run leaves behind: its folder, its summary, and whether the numbers may be trusted."""
