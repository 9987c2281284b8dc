"""The independent field that shares and field arithmetic are compared with."""

import pytest

from colonnade.privacy.field import P


@pytest.fixture(scope="session")
def GF():
    """The integers modulo P, of `galois`; its first use compiles for two seconds."""
    import galois  # with numba

    return galois.GF(P)
