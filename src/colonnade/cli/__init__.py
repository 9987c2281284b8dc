"""The commands of `colonnade`."""
