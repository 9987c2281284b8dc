"""The schema of a config, the defaults and checks that complete it, and a first config for a new federation."""
