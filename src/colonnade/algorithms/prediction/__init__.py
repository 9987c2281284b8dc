"""Predictions after training: another pair of roles, which the same nodes run over the same connections.

predictor      what a method defines for its predictions
plain          for methods whose parties show the server their embeddings
party, server  the roles of `plain`, and what all such roles share
sums           what roles share whose server learns only sums
standing_in    replacements for a party that is away
messages       messages and jobs
"""
