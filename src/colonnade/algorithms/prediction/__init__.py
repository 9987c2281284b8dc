"""Predictions after the training: one more pair of roles, which the same nodes run over the same streams.

The modules: `predictor` (what a method says about its predictions), `plain` (for methods whose parties show the server
their embeddings), `party` and `server` (the roles of `plain`, and what all such roles share), `sums` (what roles share
whose server learns sums only), `standing_in` (what replaces a party that is away), `messages`.
"""
