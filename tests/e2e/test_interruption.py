"""Ending ``isoproto run --engine flower`` from outside leaves nothing behind."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import ROOT, alive, family, isoproto, started, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder for temporary files, with a name short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="e2e", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("number", "to_group", "status"),
    [
        pytest.param(signal.SIGINT, True, 128 + signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, False, 128 + signal.SIGTERM, id="kill"),
        pytest.param(signal.SIGKILL, False, -signal.SIGKILL, id="kill-9"),
    ],
)
def test_no_process_survives(
    number: signal.Signals, to_group: bool, status: int, tmp_path: Path, short_tmp: Path
) -> None:
    log, output = tmp_path / "log.txt", tmp_path / "runs"
    command = isoproto("run", "--engine", "flower", "--clients", "4", "-c", "rounds=50", "--output-dir", str(output))
    environment = {**os.environ, "TMPDIR": str(short_tmp), "OMP_NUM_THREADS": "1"}
    with started(
        command, log, cwd=ROOT, env=environment, start_new_session=True, preexec_fn=as_in_a_terminal
    ) as process:
        until(lambda: list(output.glob("*/checkpoint/round-*")), 600, "a checkpoint", process)
        everybody = family(process.pid)
        assert any("ClientAppActor" in name(member) for member in everybody)

        (os.killpg if to_group else os.kill)(process.pid, number)

        assert process.wait(30) == status, log.read_text()
        assert alive(everybody, limit_s=5) == []
    if number != signal.SIGKILL:
        assert list(short_tmp.iterdir()) == []


def as_in_a_terminal() -> None:
    """Let Ctrl-C through, which is ignored where tests run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
