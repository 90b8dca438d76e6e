"""The commands for a deployment: ``isoproto keys``, ``isoproto connect`` and ``isoproto health``."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoproto import paths
from isoproto.errors import ConfigError, StateError

if TYPE_CHECKING:
    from isoproto.deploy.enrolment import Outcome

_SOON_DAYS = 30

app = typer.Typer()
keys_app = typer.Typer(help="Make, enrol, revoke and show the keys of a deployment.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

KeysDirOption = Annotated[
    Path | None,
    typer.Option("--keys-dir", help="Folder of keys; by default `keys` in $ISOPROTO_HOME.", envvar="ISOPROTO_KEYS_DIR"),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="Name or address by which nodes call the SuperLink. May be repeated."),
]
YearsOption = Annotated[int, typer.Option(min=1, max=100, help="How many years the SuperLink's certificate is valid.")]


@keys_app.command()
def init(
    nodes: Annotated[int, typer.Option(min=0, help="Make keys for so many nodes, called node-0, node-1, ….")] = 0,
    host: HostOption = None,
    years: YearsOption = 2,
    ca_years: Annotated[
        int, typer.Option(min=1, max=100, help="How many years the authority's certificate is valid.")
    ] = 10,
    keys_dir: KeysDirOption = None,
) -> None:
    """Make an authority, a certificate for the SuperLink, and a key for each node. No file is replaced."""
    from isoproto.deploy import keys

    folder = _folder(keys_dir)
    names = [f"node-{number}" for number in range(nodes)]
    keys.make_keys(folder, nodes=names, hosts=host or [], years=years, authority_years=ca_years)
    _show(folder)


@keys_app.command()
def add(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of the new nodes.")],
    keys_dir: KeysDirOption = None,
) -> None:
    """Make keys for further nodes. Enrol them afterwards."""
    from isoproto.deploy import keys

    for name in nodes:
        typer.echo(str(keys.make_node_key(_folder(keys_dir), name)))


@keys_app.command()
def renew(host: HostOption = None, years: YearsOption = 2, keys_dir: KeysDirOption = None) -> None:
    """Renew the SuperLink's certificate, for the same hosts and further ones. Restart the SuperLink afterwards."""
    from isoproto.deploy import keys

    keys.renew_server_certificate(_folder(keys_dir), hosts=host or [], years=years)
    _show(_folder(keys_dir))


@keys_app.command()
def show(keys_dir: KeysDirOption = None) -> None:
    """Show the keys, whom they are for, and when they end. The status is 1 if one has ended or is open to others."""
    if not _show(_folder(keys_dir)):
        raise typer.Exit(1)


@keys_app.command()
def enrol(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE...]", help="By default all nodes that have a key.")
    ] = None,
    connection: Annotated[
        str, typer.Option(help="Name of the SuperLink's entry in Flower's config.toml.")
    ] = "isoproto",
    keys_dir: KeysDirOption = None,
) -> None:
    """Make the SuperLink accept the keys of nodes. It is safe to call this again."""
    from isoproto.deploy import enrolment, keys

    folder = _folder(keys_dir)
    names = nodes or keys.node_names(folder)
    if not names:
        raise StateError(f"there is no key of a node in {folder}; make one with `isoproto keys add NODE`")
    _report(enrolment.enrol(folder, names, connection))


@keys_app.command()
def revoke(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="The nodes to revoke.")],
    keys_dir: KeysDirOption = None,
) -> None:
    """Make the SuperLink refuse the keys of nodes from now on, and delete these keys here."""
    from isoproto.deploy import enrolment

    _report(enrolment.revoke(_folder(keys_dir), name) for name in nodes)


@app.command()
def connect(
    name: Annotated[str, typer.Argument(help="Name of the entry, as in `flwr run . NAME`.")] = "isoproto",
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink.")] = "127.0.0.1:8000",
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the authority; by default ca.pem in the folder of keys.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use no TLS.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change an existing entry that differs.")] = False,
    keys_dir: KeysDirOption = None,
) -> None:
    """Write the SuperLink's entry into Flower's config.toml. The rest of that file stays as it is."""
    from isoproto.deploy.connection import check_address, write_connection
    from isoproto.deploy.keys import check_certificate

    if insecure and root_certificates:
        raise ConfigError("--insecure and --root-certificates exclude each other; give one of them")
    certificate = None if insecure else root_certificates or _folder(keys_dir) / "ca.pem"
    if certificate:
        check_certificate(certificate)
    path, default = _flower_config()
    changed = write_connection(path, default, name, check_address(address), certificate, replace=replace)
    typer.echo(f"{path}: {name} {'leads' if changed else 'led already'} to {address}; `flwr run . {name} --stream`")
    if insecure:
        typer.echo(f"warning: without TLS, what goes to {address} can be read and changed on the way", err=True)


@app.command()
def health(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT, as in --health-server-address.")],
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="Certificate of the authority, if the server has TLS. Flower's health servers have none."),
    ] = None,
    service: Annotated[str, typer.Option(help="Name of one service; by default the server as a whole.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Ask a SuperLink or SuperNode whether it works. The status is 0 if yes, 1 if no, 2 if nobody answers."""
    from isoproto.deploy.connection import check_address
    from isoproto.deploy.health import check
    from isoproto.deploy.keys import check_certificate

    certificates = check_certificate(root_certificates) if root_certificates else None
    found = check(check_address(address), certificates, service, timeout)
    words = found.status.name.lower().replace("_", " ")
    typer.echo(f"{address}: {words}{f' ({found.reason})' if found.reason else ''}", err=found.status != 0)
    raise typer.Exit(found.status)


def _folder(keys_dir: Path | None) -> Path:
    return (keys_dir or paths.keys_dir()).expanduser()


def _flower_config() -> tuple[Path, str]:
    """Return the path of Flower's config.toml, and the text that Flower writes into a new one."""
    from flwr.cli.constant import DEFAULT_FLOWER_CONFIG_TOML, FLOWER_CONFIG_FILE
    from flwr.supercore.utils import get_flwr_home

    return get_flwr_home() / FLOWER_CONFIG_FILE, DEFAULT_FLOWER_CONFIG_TOML


def _report(outcomes: "Iterable[Outcome]") -> None:
    """Print the result for each node as soon as it is known. The status is 1 if one failed."""
    failed = False
    for outcome in outcomes:
        typer.echo(f"{outcome.node}: {outcome.text}", err=not outcome.done)
        failed |= not outcome.done
    if failed:
        raise typer.Exit(1)


def _show(folder: Path) -> bool:
    """Print what is in a folder of keys, and return whether all of it is valid and closed to others."""
    from isoproto.deploy.enrolment import enrolled_as
    from isoproto.deploy.keys import describe, open_folders

    fine = True
    typer.echo(str(folder))
    for path in open_folders(folder):
        typer.echo(f"  others can put files into {path}: chmod 700 {path}")
        fine = False
    for found in describe(folder):
        name = found.path.relative_to(folder).as_posix()
        if found.expires:
            days = (found.expires - datetime.now(UTC)).days
            fine &= days >= 0
            state = f"good until {found.expires:%Y-%m-%d} ({days} days), for {', '.join(found.names)}"
            if days < _SOON_DAYS:
                state += "; " + ("call `isoproto keys renew`" if name == "server.pem" else "make all keys anew")
        else:
            state = enrolled_as(folder, found.path.stem) or "not enrolled"
        typer.echo(f"  {name}: {state}\n    {found.fingerprint}")
        if found.exposed:
            typer.echo(f"    others can read its private key: chmod 600 {found.path.with_suffix('.key')}")
            fine = False
    return fine
