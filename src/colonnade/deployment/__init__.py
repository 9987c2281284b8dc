"""Federations of processes: each member alone, all of them on one machine (`up`) or on Ray, and the alignment."""
