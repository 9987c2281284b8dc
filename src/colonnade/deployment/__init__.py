"""Federations of processes: each side of one, all of them on one machine (`up`) or on Ray, and the alignment."""
