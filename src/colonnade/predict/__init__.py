"""Predictions after the training; the roles are the methods' own (`algorithms.prediction`).

The modules: `processes` (the roles as processes, made from what the training left on the disk), `http` (the server's
door), `asking` (the client), `in_one_place` (all roles in one process, without messages).
"""
