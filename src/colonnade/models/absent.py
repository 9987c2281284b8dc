"""Party dropout: the server learns a replacement for the block of an absent party.

In training the server replaces each party's block of each row, with probability p, by a vector u_m of θ_0. It learns
u_m with the rest of θ_0: u_m comes to stand for an absent party, and the server's network learns to do without any of
them. Replaced blocks have no gradient, so a party learns nothing from rows in which it was replaced.

A block of NaN is one that its party does not have (`align.min_parties`): u_m always replaces it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from colonnade.models.continued import FALLBACK
from colonnade.models.server import aggregate

__all__ = ["PartyDropout", "with_party_dropout"]


class PartyDropout(nn.Module):
    """The server's module with a gate before it; in evaluation mode the gate replaces only blocks of NaN."""

    def __init__(self, inner: nn.Module, widths: Sequence[int], how: str, probability: float) -> None:
        super().__init__()
        self.inner, self._how, self._probability = inner, how, probability
        self._parties = len(widths)
        self._of_party = [party for party, width in enumerate(widths) for _ in range(width)]  # party of each place
        self.fallback = nn.Parameter(torch.zeros(sum(widths)))  # u_1 … u_M
        self.names_inside = (FALLBACK, *inner.state_dict())  # see `continued.Wrapping`

    def forward(self, h: Tensor) -> Tensor:
        """(rows, Σ widths) → the output."""
        h = torch.where(h.isnan(), self.fallback, h)
        if self.training:
            draws = torch.rand(len(h), self._parties)  # on the CPU: that generator is seeded, and restored afterwards
            away = (draws < self._probability)[:, self._of_party].to(h.device)
            h = torch.where(away, self.fallback, h)
        output: Tensor = self.inner(aggregate(self._how, h, self._parties))
        return output


def with_party_dropout(
    module: nn.Module, probability: float, widths: Sequence[int], how: str, lacking: bool = False
) -> tuple[nn.Module, str]:
    """Return the module and the aggregate for a server's network; both unchanged if p = 0 and no row is lacking."""
    if not probability and not lacking:
        return module, how
    return PartyDropout(module, widths, how, probability), "concat"
