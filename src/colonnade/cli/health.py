"""`colonnade health`: whether a member's process lives and can make progress, for HEALTHCHECK and probes."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import say

__all__ = ["health"]


def health(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG_OR_FOLDER",
            help="The member's config, its folder (--out), or a folder with runs/ in it.",
        ),
    ],
    ready: Annotated[
        bool, typer.Option("--ready", help="Also ask whether it can make progress: it serves, or it is connected.")
    ] = False,
) -> None:
    """Say whether the server or the party of this folder lives; exit code 1 if not.

    The process refreshes health.json in its folder every 2 seconds. A file older than 15 seconds means that the process
    is gone, stuck, or cannot write to its disk.

    Examples:
      colonnade health server.toml
      colonnade health runs/clinic --ready
    """
    from colonnade.drivers.health_file import STALE_AFTER_S, newest_health

    folder = _folder_of(place) if place.suffix == ".toml" else place
    found = newest_health(folder)
    if found is None:
        _fail(f"no process runs here: there is no health.json in {folder}")
    elif (age_s := found.age_s()) > STALE_AFTER_S:
        since = "an earlier start of the machine" if age_s == float("inf") else f"{age_s:.0f} s ago"
        _fail(f"{found.role}: the last sign of life is from {since}: it is gone, stuck, or cannot write to its disk")
    elif ready and found.causes:
        _fail(f"{found.role}: lives, but is not ready: {'; '.join(found.causes)}")
    else:
        say(f"{found.role}: ok ({found.aim})")


def _fail(words: str) -> None:
    say(words)
    raise typer.Exit(1)


def _folder_of(config: Path) -> Path:
    """The usual folder of the member whose config this is. Reads only the certificate's name, because probes hurry."""
    import tomllib

    from cryptography import x509
    from cryptography.x509.oid import NameOID

    from colonnade.protocol.errors import ConfigError
    from colonnade.results.places import own_folder

    try:
        certificate = Path(tomllib.loads(config.read_text(encoding="utf-8"))["network"]["certificate"])
        subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
        name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        advice = f"has no network.certificate that can be read ({type(error).__name__}); name the member's folder"
        raise ConfigError("CONFIG_OR_FOLDER", str(config), advice) from None
    return own_folder(config, name)
