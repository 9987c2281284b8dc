"""A local web page that shows a run while it is under way (`colonnade watch`)."""
