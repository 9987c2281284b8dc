"""Predictions after the training: one more pair of roles, which the same nodes run over the same streams.

The modules: `messages`, `party` and `server` (the roles; no I/O), `standing_in` (what replaces a party that is away),
`processes` (the roles as processes, made from what the training left on the disk), `http` (the server's door),
`asking` (the client), `in_one_place` (all roles in one process, without messages).
"""
