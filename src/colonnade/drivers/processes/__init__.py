"""The driver for a real network: each role is an operating-system process, connected by gRPC with mutual TLS."""
