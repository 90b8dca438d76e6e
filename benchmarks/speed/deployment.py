"""Measure where the seconds of a round go in a deployment whose clients have almost nothing to train.

The SuperLink and two SuperNodes (`isoproto node`) are processes on this machine, without TLS. A node starts a process
for each message. Each process notes when it started, when it had Flower's modules and the message, when it had our
modules and torch, how long data and training took, and when it ended. The rest of a round is waiting: a SuperNode asks
the SuperLink for messages every 3 s, and checks every 0.5 s whether its process has answered.

    python benchmarks/speed/deployment.py [--rounds 8] [--force]
"""

import contextlib
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import ROOT, options, write_results

from tests.e2e.processes import flower_environment, flwr, free_port, isoproto, lines, only_run, run, started, superlink

NODES = 2
SETTINGS = "data='digits4' partition='iid' max-samples=80 models='mlp' feature-dim=32 strategy='isoproto'"
# Python runs this module, `sitecustomize`, at the start of every process.
NOTES = """
import sys

if sys.orig_argv[1:2] and sys.orig_argv[1].endswith("flwr-clientapp"):
    import atexit, importlib.util, json, os, time

    noted = {"python": time.time()}

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "client_app.app":
                return None
            sys.meta_path.remove(self)
            noted["fetched"] = time.time()
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                noted["imported"] = time.time()
                module.Client.of = timed(module.Client.of, "data")
                module.answer = timed(module.answer, "answer")

            spec.loader.exec_module = exec_module
            return spec

    def timed(function, name):
        def call(*words):
            began = time.time()
            result = function(*words)
            noted[name] = time.time() - began
            return result

        return call

    @atexit.register
    def write():
        import psutil

        noted["started"], noted["ended"] = psutil.Process().create_time(), time.time()
        with open(os.path.join(os.environ["NOTES"], f"{os.getpid()}.json"), "w") as file:
            json.dump(noted, file)

    sys.meta_path.insert(0, Finder())
"""


def federate(folder: Path, rounds: int) -> Path:
    """Run a federation of two nodes in a folder, and return its run folder."""
    for name in ("notes", "hooks", "work"):
        (folder / name).mkdir()
    (folder / "hooks" / "sitecustomize.py").write_text(NOTES)
    environment = flower_environment(folder / "flower", ISOPROTO_HOME=str(folder / "home"))
    noting = {**environment, "PYTHONPATH": f"{folder / 'hooks'}:{ROOT}", "NOTES": str(folder / "notes")}
    address = f"127.0.0.1:{environment['FLWR_LOCAL_SUPERLINK_HTTP_API_PORT']}"
    with superlink(folder / "work", environment), contextlib.ExitStack() as stack:
        run(isoproto("connect", "--address", address, "--insecure"), 60, cwd=ROOT, env=environment)
        for number in range(NODES):
            config = folder / f"node-{number}.toml"
            config.write_text(
                f'superlink = "{address}"\ninsecure = true\npartition-id = {number}\nnum-partitions = {NODES}\n'
                f'state-dir = "{folder / f"state-{number}"}"\nruntime-port = {free_port()}\nmin-class-samples = 1\n'
                'may-send = "gradients"\n'
            )
            command = isoproto("node", "--config", str(config))
            stack.enter_context(started(command, folder / f"node-{number}.log", cwd=ROOT, env=noting))
        settings = f"rounds={rounds} min-nodes={NODES} {SETTINGS}"
        run(flwr("run", str(ROOT), "isoproto", "--stream", "-c", settings), 600, cwd=folder / "work", env=environment)
    done = only_run(folder / "home" / "runs")
    assert done is not None, "there is no run folder"
    status = json.loads((done / "summary.json").read_text())["status"]
    assert status == "completed", (folder / "node-0.log").read_text()[-2000:]
    return done


def figures(done: Path, notes: Path) -> dict[str, Any]:
    """Return the median seconds of a round without the first, and of the parts of a process that answers a message."""
    ends = [line["seconds"]["since_start"] for line in lines(done, "round")]
    found = [json.loads(path.read_text()) for path in notes.iterdir()]
    processes = [one for one in found if "answer" in one]  # the others answered the query before round 1
    parts = {
        "Python starts": lambda one: one["python"] - one["started"],
        "Flower is imported and fetches message and app": lambda one: one["fetched"] - one["python"],
        "the app is imported, PyTorch above all": lambda one: one["imported"] - one["fetched"],
        "data are read": lambda one: one["data"],
        "model, training, tests, the model is kept": lambda one: one["answer"] - one["data"],
        "the answer is handed over, the process ends": lambda one: one["ended"] - one["imported"] - one["answer"],
    }
    return {
        "rounds": len(ends),
        "processes": len(processes),
        "round": statistics.median(after - before for before, after in itertools.pairwise(ends)),
        "process": statistics.median(one["ended"] - one["started"] for one in processes),
        "parts": {name: statistics.median(map(part, processes)) for name, part in parts.items()},
    }


def main() -> None:
    """Measure and write benchmarks/results/deployment.json."""
    arguments = options(__doc__, rounds=8)
    with tempfile.TemporaryDirectory(prefix="isoproto-deployment-") as scratch:
        found = figures(federate(Path(scratch), arguments.rounds), Path(scratch) / "notes")
    print(f"a round {found['round']:.1f} s, a process {found['process']:.1f} s")
    for name, seconds in found["parts"].items():
        print(f"{seconds:6.2f} s  {name}")
    if not arguments.force:
        command = f"python benchmarks/speed/deployment.py --rounds {arguments.rounds}"
        print("wrote", write_results("deployment", {"command": command, "unit": "s", "nodes": NODES, **found}))


if __name__ == "__main__":
    main()
