"""Roles as operating-system processes, talking over gRPC with mutual TLS."""
