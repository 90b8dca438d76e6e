"""The command ``isoproto forget``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoproto import paths

if TYPE_CHECKING:
    from server_app.forget import Forgotten

app = typer.Typer()


@app.command()
def forget(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, its name, or the end of its name.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client's name, as in the report.")],
    may_return: Annotated[
        bool, typer.Option("--may-return", help="Let the client send its statistics anew when the run is resumed.")
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Folder that holds the run folders.", envvar="ISOPROTO_OUTPUT_DIR"),
    ] = None,
) -> None:
    """Take a client's statistics exactly out of a run that has ended or was stopped, and say what stays of it."""
    from server_app.forget import forget as take_out

    done = take_out(paths.output_dir(str(output_dir or "")), run_name, client, may_return=may_return)
    for line in _told(done):
        typer.echo(line)


def _told(done: "Forgotten") -> list[str]:
    """Return what the user is told."""
    if done.samples:
        taken = (
            f"client {done.client}: took the statistics of {done.samples} samples out of {done.run}, round "
            f"{done.server_round}. The classifier is now the one that the other clients' statistics give."
        )
    else:
        taken = f"client {done.client}: the newest checkpoint of {done.run} has no statistics of it."
    if done.may_return:
        then = f"`isoproto resume {done.run}` asks the client for its statistics anew."
    else:
        then = f"`isoproto resume {done.run}` leaves the client out; call this again with --may-return to let it back."
    model = []
    if done.model is not None:
        model = [f"- its own models, which are on this machine: rm -r {shlex.quote(str(done.model))}"]
    return [
        taken,
        then,
        "This command cannot take out:",
        *model,
        *(f"- {sentence}" for sentence in done.stays),
    ]
