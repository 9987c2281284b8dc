"""What the tests of the transport share: a federation's certificates."""

import pytest

from colonnade.drivers.processes.certificates import Identity, throw_away


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(["bank"], folder)
    return folder


def identity(folder, name):
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")
