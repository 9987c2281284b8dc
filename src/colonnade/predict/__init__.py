"""Predictions after the training. The methods define the roles (`algorithms.prediction`).

- `processes`: the roles as processes, made from the state that the training left on the disk
- `http`: the server's HTTP endpoint; `connections`, `tokens` and `callers` are its parts
- `answering`, `audit`: a party's node and its record of the questions
- `asking`: the client
- `in_one_place`: all roles in one process, without messages
"""
