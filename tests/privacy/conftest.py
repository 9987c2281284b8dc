"""The independent field that field arithmetic is compared with, and both ways to compute points of the curve."""

import pytest

from colonnade.privacy import compiled
from colonnade.privacy.field import P


@pytest.fixture(scope="session")
def GF():
    """The integers modulo P, of `galois`; its first use compiles for two seconds."""
    import galois  # with numba

    return galois.GF(P)


@pytest.fixture(scope="module", params=["compiled", "plain"])
def arithmetic(request):
    """Run a module's tests with the compiled file, if it can be used here, and without it."""
    if request.param == "compiled" and not compiled.AVAILABLE:
        pytest.skip("not compiled here, or no AVX-512 IFMA")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "AVAILABLE", request.param == "compiled")
        yield
