"""Forward passes whose gradients are still to come, while θ is stepped by others.

Each has a copy of the network that stays at the θ and the buffers of its forward pass. The copies are saved, so a
restarted role computes the same gradient, bit for bit.
"""

from typing import Any

from colonnade.models.network import Network

__all__ = ["Held"]


class Held:
    """At most `count` passes of a network at a time, by their keys: any `count` keys in a row."""

    def __init__(self, network: Network, count: int) -> None:
        self._network = network
        self._copies = tuple(network.copy() for _ in range(count))
        self._keys: list[int | None] = [None] * count

    def fresh(self, key: int) -> Network:
        """A copy at the network's present state, for the forward pass of this key; `hold` then keeps it."""
        copy = self.at(key)
        copy.follow(self._network)
        return copy

    def hold(self, key: int) -> None:
        """Keep the network's present state, that of the forward pass, under this key."""
        self.fresh(key)
        self._keys[key % len(self._keys)] = key

    def at(self, key: int) -> Network:
        """The copy at the state of this key's forward pass."""
        return self._copies[key % len(self._copies)]

    def release(self, key: int) -> None:
        """The pass is not needed any more."""
        self._keys[key % len(self._keys)] = None

    def save(self) -> dict[str, Any]:
        """The copies that are in use."""
        return {str(key): self.at(key).save() for key in self._keys if key is not None}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self._keys = [None] * len(self._keys)
        for key, state in saved.items():
            self.at(int(key)).load(state)
            self._keys[int(key) % len(self._keys)] = int(key)
