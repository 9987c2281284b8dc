"""The commands that make a federation's certificates: init, request, sign, show."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["certs_app"]

certs_app = typer.Typer(
    help="Make and sign the certificates of a federation's members.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Federation = Annotated[Path, typer.Option("--dir", help="The federation's folder; it holds the authority's key.")]
Days = Annotated[int, typer.Option(help="Days that the certificate is valid.")]


@certs_app.command()
def init(
    dir: Federation = Path("federation"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME_OR_IP", help="A name or IP address at which parties reach the server; repeatable."
        ),
    ] = None,
    days: Days = 365,
    ca_days: Annotated[int, typer.Option(help="Days that the federation's authority is valid.")] = 3650,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate for the server of this federation.")
    ] = False,
) -> None:
    """Make a federation: its authority, its server's certificate, its list of members.

    Examples:
      colonnade certs init --host train.example.org --host 192.0.2.7
      colonnade certs init --renew
    """
    from colonnade.drivers.processes import certificates

    if renew:
        path = certificates.renew_server(dir, hosts or (), days)
        _say_signed(path)
        typer.echo("Next:")
        typer.echo(f"  to the server, and to every party: {dir / 'members.toml'}")
        typer.echo(f"  to the server: {path}")
        return
    paths = certificates.init(dir, hosts or (), days, ca_days)
    _say_signed(paths.server_certificate)
    typer.echo(f"{paths.key} signs for this federation. Keep it on this machine, and back it up.")
    typer.echo("Next, for every party:")
    typer.echo("  the party, on its own machine: colonnade certs request NAME")
    typer.echo(f"  here, with the NAME.csr it sends: colonnade certs sign NAME.csr --dir {dir}")


@certs_app.command()
def request(
    name: Annotated[str, typer.Argument(help="The party's name in the federation.")],
    dir: Annotated[Path, typer.Option("--dir", help="The folder for the key and the request.")] = Path(),
) -> None:
    """Make a party's private key and the request to sign it; run this on the party's own machine.

    Example:
      colonnade certs request hospital
    """
    from colonnade.drivers.processes import certificates

    path = certificates.request(name, dir)
    typer.echo(
        f"{path.with_suffix('.key')} is the private key: it stays on this machine, and no other member needs it."
    )
    typer.echo("Next:")
    typer.echo(f"  to the federation: {path}")
    typer.echo(f"  the federation sends back: {name}.pem, ca.pem, members.toml")


@certs_app.command()
def sign(
    csr: Annotated[Path, typer.Argument(metavar="FILE.csr", help="The signing request that a party sent.")],
    dir: Federation = Path("federation"),
    days: Days = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace this party's present certificate.")] = False,
) -> None:
    """Sign a party's request and put the party on the list of members.

    The certificate has the name that the request gives: make sure that the request comes from that party.

    Examples:
      colonnade certs sign hospital.csr
      colonnade certs sign hospital.csr --renew --days 90
    """
    from colonnade.drivers.processes import certificates

    path = certificates.sign(csr, dir, days, renew)
    _say_signed(path)
    typer.echo("Next:")
    typer.echo(f"  to {path.stem}: {path}, {dir / 'ca.pem'}")
    typer.echo(f"  to all members, once the last party is signed: {dir / 'members.toml'}")


@certs_app.command()
def show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate, such as hospital.pem.")]) -> None:
    """Print a certificate's name, issuer, dates and fingerprint.

    Example:
      colonnade certs show hospital.pem
    """
    from colonnade.drivers.processes import certificates
    from colonnade.protocol.foreign import harmless

    for key, value in certificates.describe(file).items():
        typer.echo(f"{key + ':':<13}{harmless(value)}")


def _say_signed(path: Path) -> None:
    from colonnade.drivers.processes import certificates

    rows = certificates.describe(path)
    typer.echo(f"Signed {rows['name']} until {rows['valid until']}: {path}")
    typer.echo(f"Fingerprint: {rows['fingerprint']}")
