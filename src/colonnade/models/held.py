"""Forward passes that wait for their gradients while other steps change θ.

Each pass has a copy of the network that keeps the θ and the buffers of that pass. The copies are saved, so a restarted
role computes the same gradient, bit for bit.
"""

from typing import Any

from colonnade.models.network import Network

__all__ = ["Held"]


class Held:
    """At most `count` waiting passes of a network, by key; any `count` consecutive keys fit."""

    def __init__(self, network: Network, count: int) -> None:
        self._network = network
        self._copies = tuple(network.copy() for _ in range(count))
        self._keys: list[int | None] = [None] * count

    def fresh(self, key: int) -> Network:
        """Return a copy at the network's current state, for the forward pass of this key; `hold` then keeps it."""
        copy = self.at(key)
        copy.follow(self._network)
        return copy

    def hold(self, key: int) -> None:
        """Keep the network's current state, that of the forward pass, under this key."""
        self.fresh(key)
        self._keys[key % len(self._keys)] = key

    def at(self, key: int) -> Network:
        """Return the copy at the state of this key's forward pass."""
        return self._copies[key % len(self._copies)]

    def release(self, key: int) -> None:
        self._keys[key % len(self._keys)] = None

    def save(self) -> dict[str, Any]:
        """Return the states of the copies in use, by key."""
        return {str(key): self.at(key).save() for key in self._keys if key is not None}

    def load(self, saved: dict[str, Any]) -> None:
        self._keys = [None] * len(self._keys)
        for copy in self._copies:
            copy.forget_forward()  # keys may repeat
        for key, state in saved.items():
            self.at(int(key)).load(state)
            self._keys[int(key) % len(self._keys)] = int(key)
