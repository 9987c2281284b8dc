"""The time and size limits of a node, from the section `[network]`."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The config checks these values and has the same defaults."""

    heartbeat_s: float = 2.0
    lost_after_s: float = 10.0
    give_up_s: float = 600.0
    max_message_mb: float = 64.0
    max_in_flight: int = 64  # messages to one peer that it has not acknowledged
    max_queue: int = 1024  # messages that wait for one peer
    max_queue_mb: float = 128.0  # of such messages; at least two messages of the largest size
    max_log_mb: float = 32.0  # above this size of the journal the node writes a checkpoint
    checkpoint_s: float = 30.0
    max_refusals: int = 8  # messages of one peer that the role refuses within ten minutes, until the peer is given up
    handshake_s: float = 10.0  # from the connection to a member's call, and from the call to its HELLO
    max_calls: int = 8  # at the same time, of one member, and of all callers that are not members together
    max_joins: int = 120  # of one party in a minute
    max_connections: int = 1024  # at the same time; fewer if the process may not open so many descriptors
    durability: str = "process"  # or "power": see `drivers.processes.commits`
    max_per_address: int = 256  # connections of one address on which no member has called yet

    @property
    def max_message_bytes(self) -> int:
        """The limit for one message, without its envelope."""
        return int(self.max_message_mb * 2**20)

    @property
    def max_queue_bytes(self) -> int:
        """The limit for all messages that wait for one peer."""
        return int(max(self.max_queue_mb, 2 * self.max_message_mb) * 2**20)
