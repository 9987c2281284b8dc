"""The HTML page of a run or a comparison, its figures and tables, and the pages about privacy."""
