"""What a user sets: the schema of a config, what follows from it, and a first config for a table."""
