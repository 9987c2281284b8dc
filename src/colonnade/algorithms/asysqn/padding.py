"""Zero columns for parties with a single one: AsySQN Thm. 11, threat model 2.

Colluders that removed a party's mask know θ_i^ℓ = w_ℓᵀx_{i,ℓ}. With d_ℓ = 1 that is the column itself, up to one
factor. If they know the column's range (scaled data), they nearly know the factor too. The paper's remedy is d_ℓ ≥ 2 by
zero-padding.

Padding protects only while it is secret: θ^ℓ does not change, so a colluder that knows of the zero column learns as
much as without padding. Against colluders only the trees help (`trees.leaks` says which coalitions see what).
"""

from typing import Any

import numpy as np
from scipy import sparse

__all__ = ["padded"]


def padded(x: Any) -> Any:
    """The block (rows, d_ℓ), with a zero column appended if it has only one; dense or CSR, as it came."""
    if x.shape[1] != 1:
        return x
    if sparse.issparse(x):
        return type(x)((x.data, x.indices, x.indptr), shape=(x.shape[0], 2))
    return np.hstack([x, np.zeros_like(x)])
