"""Write the files that ``tests/old/test_old_files.py`` opens, with the code of an older commit.

    git worktree add --detach /tmp/old 89ce3f0
    cd /tmp && PYTHONSAFEPATH=1 PYTHONPATH=/tmp/old python /path/to/tests/old/write.py

Each case becomes a folder beside this script:

- ``run``: the folder of a run that was killed in its third round, after one client had trained;
- ``state``: the models that its clients had saved;
- ``expected.jsonl``: the metrics of the same run when nobody kills it.

``/FOLDER`` stands for the folder that the test makes of it. Do not write them anew with newer code: they are here to
show that files of the older code still open.
"""

import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS, KILLED_IN = 3, 3
COMMON = (
    "rounds=4 seed=5 evaluate-every=2 partition='dirichlet' alpha=1.0 max-samples=200 batch-size=8 epochs=2"
    " feature-dim=8 learning-rate=0.05"
)
CASES = {
    "isoproto": "strategy='isoproto'",
    "fedhpro-creff": "strategy='fedhpro' share='head' hyper.retrain='creff'",
    "procrustes-server-head": "strategy='isoproto' frame='procrustes' hyper.head='server' alignment='rcsa+hpcl+hpal'",
    "fedavg": "strategy='fedavg'",
}


def run(home: Path, settings: str, kill: bool) -> None:
    """Run a federation with the command line of the code on the path, in a process of its own."""
    command = f"models='old_tiny:tiny' {COMMON} {settings}"
    child = os.fork()
    if not child:
        sys.path.append(str(HERE))  # for the model: a name with a folder in it would be part of its seed
        os.environ["ISOPROTO_HOME"] = str(home)
        os.environ["OMP_NUM_THREADS"] = "1"
        if kill:
            kill_later()
        sys.argv = ["isoproto", "run", "--clients", str(CLIENTS), "-c", command]
        status = 1
        try:
            runpy.run_module("isoproto.cli", run_name="__main__")
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)  # this process must not tidy up the folder of the other one
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != (9 if kill else 0):
        raise RuntimeError(f"{settings}: status {status}")


def kill_later() -> None:
    """End this process hard when the first client has trained in a round."""
    from flwr.clientapp import ClientApp

    answer = ClientApp.__call__

    def dying(app: Any, message: Any, context: Any) -> Any:
        reply = answer(app, message, context)
        if message.metadata.message_type == "train" and message.content["config"]["round"] == KILLED_IN:
            os._exit(9)
        return reply

    ClientApp.__call__ = dying  # type: ignore[method-assign]


def write(name: str, settings: str) -> None:
    """Write one case."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        run(whole, settings, kill=False)
        run(killed, settings, kill=True)
        metrics = (next((whole / "runs").iterdir()) / "metrics.jsonl").read_text("utf8")
        (target / "expected.jsonl").write_text(metrics.replace(str(whole), "/FOLDER"))
        shutil.copytree(next((killed / "runs").iterdir()), target / "run")
        shutil.copytree(killed / "state", target / "state")
        for path in (target / "run").iterdir():
            if path.is_file():
                path.write_text(path.read_text("utf8").replace(str(killed), "/FOLDER"))


if __name__ == "__main__":
    for case, chosen in CASES.items():
        write(case, chosen)
