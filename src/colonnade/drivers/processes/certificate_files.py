"""Certificates and keys as PEM files.

Private keys are created with mode 0600, and a key that others can read is refused. `write_new` never overwrites a file,
and writes either all files of a set or none. Only `replace` overwrites.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from colonnade.drivers.files import replace_file
from colonnade.protocol.errors import ConfigError

__all__ = ["pem", "pem_of_key", "read", "read_certificate", "read_key", "read_p256_key", "replace", "write_new"]


@contextmanager
def _os_errors(key: str, path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(key, str(path), f"cannot be {what}: {error.strerror or error}") from error


def read(key: str, path: Path) -> bytes:
    """The bytes of a file; raises ConfigError for the setting `key` if it cannot be read."""
    with _os_errors(key, path, "read"):
        return path.read_bytes()


def read_certificate(key: str, path: Path) -> x509.Certificate:
    """The certificate in a file that must hold exactly one; raises ConfigError."""
    try:
        certificates = x509.load_pem_x509_certificates(read(key, path))
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError(key, str(path), "is not a certificate in PEM") from error
    if len(certificates) != 1:
        # A bundle would be trusted as a whole, although only the first certificate was checked.
        raise ConfigError(key, str(path), f"holds {len(certificates)} certificates; it must hold one")
    return certificates[0]


def read_key(key: str, path: Path) -> PrivateKeyTypes:
    """A private key; raises ConfigError if other users can read the file."""
    with _os_errors(key, path, "read"), path.open("rb") as file:
        mode, data = os.fstat(file.fileno()).st_mode, file.read()
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(key, str(path), f"other users can read this private key; run `chmod 600 {path}`")
    try:
        return load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ConfigError(
            key, str(path), "is protected by a passphrase; remove the passphrase, because nodes start without a prompt"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(key, str(path), "is not a private key in PEM") from error


def read_p256_key(key: str, path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key of the kind that Colonnade makes; raises ConfigError for another kind."""
    private = read_key(key, path)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(key, str(path), "must be a P-256 key, as `colonnade certs init` makes it")
    return private


def write_new(files: Mapping[Path, bytes], advice: str) -> None:
    """Write all files or none; raises ConfigError if one of them exists."""
    for path in files:
        with _os_errors("file", path, "written"):
            there = path.exists()
        if there:
            raise ConfigError("file", str(path), f"exists: {advice}")
    written: list[Path] = []
    try:
        for path, data in files.items():
            with _os_errors("file", path, "written"):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _mode(path))
                written.append(path)
                _fill(descriptor, data)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def replace(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old file or the new one."""
    with _os_errors("file", path, "written"):
        replace_file(path, [data], _mode(path))


def _fill(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _mode(path: Path) -> int:
    return 0o600 if path.suffix == ".key" else 0o644


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def pem_of_key(key: PrivateKeyTypes) -> bytes:
    """In PEM, without a passphrase."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
