"""The commands for a federation's certificates: init, request, sign, renew, revoke, show."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["certs_app"]

certs_app = typer.Typer(
    help="Make, sign, renew and revoke the certificates of a federation's members.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Federation = Annotated[Path, typer.Option("--dir", help="The federation's folder; it holds the authority's key.")]
Days = Annotated[int, typer.Option(help="Days that the certificate is valid.")]
COMPARE = "compare these digits by telephone before signing"


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
        bool, typer.Option("--renew", help="Make a new certificate for the server; the same as `certs renew server`.")
    ] = False,
) -> None:
    """Make a federation: its authority, its server's certificate, its list of members.

    Examples:
      colonnade certs init --host train.example.org --host 192.0.2.7
      colonnade certs renew server
    """
    from colonnade.drivers.processes import certificates, renewal

    if renew:
        _say_renewed("server", renewal.renew_server(dir, hosts or (), days), dir)
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
    typer.echo(f"Code of the request: {certificates.request_code(path)}  ({COMPARE})")
    typer.echo("Next:")
    typer.echo(f"  to the federation: {path}")
    typer.echo(f"  the federation sends back: {name}.pem, ca.pem, members.toml")


@certs_app.command()
def sign(
    csr: Annotated[Path, typer.Argument(metavar="FILE.csr", help="The signing request that a party sent.")],
    dir: Federation = Path("federation"),
    days: Days = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace this party's present certificate.")] = False,
    code: Annotated[
        str | None, typer.Option(help="Sign only if the request has this code, which the party reads out.")
    ] = None,
    same_key: Annotated[
        bool, typer.Option("--same-key", help="Sign although a certificate of this key was revoked.")
    ] = False,
) -> None:
    """Sign a party's request and put the party on the list of members.

    The certificate has the name that the request gives: make sure that the request comes from that party. `colonnade
    certs show FILE.csr` prints the code of a request without signing it.

    Examples:
      colonnade certs sign hospital.csr --code "12345 67890 12345 67890 12345"
      colonnade certs sign hospital.csr --renew --days 90
    """
    from colonnade.drivers.processes import certificates

    _check_code(csr, code)
    path = certificates.sign(csr, dir, days, renew, same_key)
    _say_signed(path)
    typer.echo("Next:")
    typer.echo(f"  to {path.stem}: {path}, {dir / 'ca.pem'}")
    typer.echo(f"  to all members, once the last party is signed: {dir / 'members.toml'}")


def _check_code(csr: Path, code: str | None) -> None:
    """Print a request's code; raises ConfigError if the typed one differs."""
    from colonnade.drivers.processes import certificates
    from colonnade.protocol.errors import ConfigError

    found = certificates.request_code(csr)
    if code is None:
        typer.echo(f"Code of the request: {found}  ({COMPARE}; --code checks them)")
    elif "".join(code.split()) != "".join(found.split()):
        raise ConfigError("--code", code, f"{csr} has the code {found}: it is not the request that the party made")


@certs_app.command()
def renew(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A party, `server`, or `ca` for the authority.")],
    dir: Federation = Path("federation"),
    days: Annotated[int | None, typer.Option(help="Days that it is valid [365; ca: 3650].")] = None,
    request: Annotated[
        Path | None, typer.Option("--request", metavar="FILE.csr", help="A party's request with a new key.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Renew only if the request has this code.")] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME_OR_IP", help="Of the server: one more name or address.")
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option("--new-key", help="Of the server: make a new key, and revoke the certificate of the old one."),
    ] = False,
) -> None:
    """Make a member's next certificate, for the same key; the one before counts until it expires.

    Running members notice their new files by themselves. Trained states stay usable.

    Examples:
      colonnade certs renew hospital
      colonnade certs renew hospital --request hospital.csr
      colonnade certs renew server
      colonnade certs renew ca
    """
    from colonnade.drivers.processes import renewal
    from colonnade.protocol.errors import ConfigError

    if name != "server" and (hosts or new_key):
        raise ConfigError("NAME", name, "--host and --new-key are for the server; a party's new key needs --request")
    if request is not None and name in ("server", "ca"):
        raise ConfigError("--request", str(request), f"is for a party, not for {name}")
    if name == "ca":
        path = renewal.renew_authority(dir, days or 3650)
        _say_signed(path)
        typer.echo(f"Next:\n  to the server, and to every party: {path}")
    elif name == "server":
        _say_renewed(name, renewal.renew_server(dir, hosts or (), days or 365, new_key), dir)
    else:
        if request is not None:
            _check_code(request, code)
        _say_renewed(name, renewal.renew(name, dir, days or 365, request), dir)


@certs_app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The party to exclude.")],
    dir: Federation = Path("federation"),
) -> None:
    """Take a party off the list of members: its certificates are never accepted again.

    The party is refused as soon as the server has the new list.

    Example:
      colonnade certs revoke hospital
    """
    from colonnade.drivers.processes import renewal

    told = renewal.revoke(name, dir)
    typer.echo(f"Revoked {name}. Until a member has the new list, it accepts the old certificate.")
    typer.echo("Next:")
    typer.echo(f"  to {', '.join(told)}: {dir / 'members.toml'}")
    typer.echo(f"  to admit {name} again: colonnade certs sign {name}.csr --dir {dir}, with a request for a new key")


@certs_app.command()
def show(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER_OR_FILE]", help="The federation's folder, a members.toml, a certificate or a request."
        ),
    ] = Path("federation"),
) -> None:
    """Print all members with the dates of their certificates, or the content of one file.

    The code of a list or request is for two people to compare by telephone.

    Examples:
      colonnade certs show
      colonnade certs show hospital.pem
      colonnade certs show hospital.csr
    """
    from colonnade.drivers.processes import certificates
    from colonnade.protocol.foreign import harmless

    if place.is_dir() or place.suffix == ".toml":
        _show_members(place / "members.toml" if place.is_dir() else place)
        return
    if place.suffix == ".csr":
        name, _ = certificates.read_request(place)
        rows = {"name": name, "code": f"{certificates.request_code(place)}  ({COMPARE})"}
    else:
        rows = certificates.describe(place)
    for key, value in rows.items():
        typer.echo(f"{key + ':':<13}{harmless(value)}")


def _show_members(path: Path) -> None:
    from colonnade.drivers.processes.members import list_code, read_members
    from colonnade.drivers.processes.members_overview import overview

    rows = overview(path)
    width = max(len(row.name) for row in rows) + 2
    for row in rows:
        left = "" if row.days is None else f"{row.days} days left" if row.days >= 0 else f"ended {-row.days} days ago"
        dates = f"{row.until or 'dates not here':<22}{left:<18}"
        typer.echo(f"{row.name:<{width}}{row.state:<11}{dates}{row.fingerprint[:16]}…")
    typer.echo(f"Code of this list: {list_code(read_members(path))}  (every member must have the same)")


def _say_renewed(name: str, path: Path, dir: Path) -> None:
    _say_signed(path)
    typer.echo("Next:")
    typer.echo(f"  to the server, and to every party: {dir / 'members.toml'}")
    typer.echo(f"  to {'the server' if name == 'server' else name}: {path}")


def _say_signed(path: Path) -> None:
    from colonnade.drivers.processes import certificates

    rows = certificates.describe(path)
    typer.echo(f"Signed {rows['name']} until {rows['valid until']}: {path}")
    typer.echo(f"Fingerprint: {rows['fingerprint']}")
