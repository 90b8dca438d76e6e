"""Compare two checkouts of this project: do the same runs give the same numbers, to the last bit?

    python benchmarks/compare.py BEFORE AFTER [--flower] [--only NAME ...]

BEFORE and AFTER are folders of two checkouts. The script runs a list of small federations with the command line of each
checkout: all methods on digits4, both partitions, and the settings that take other paths through the code. It compares
what each run leaves behind:

- the lines of ``metrics.jsonl``, the order of their keys included, without times;
- ``summary.json``, ``partition.json`` and the settings of the run, without settings that only AFTER has;
- tensors and values of the checkpoints, and all saved models of all clients;
- the content of every message to and from a client, array by array (only in process, where one can listen).

The script prints one line per run: ``equal``, or the first difference. Its status is 0 only if all runs are equal. With
``--flower`` it runs a few of them under ``flwr run`` with Ray, four clients each.

Results of a checkout without changes are kept under its commit, so that BEFORE does not run twice. ``--cache`` names
the folder for them.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What may differ between two equal runs. The values are replaced, the keys stay.
TIMES = {"seconds", "finished", "git_commit"}
LIMIT_S = 1200
FORMAT = 1  # of kept results; raise it when what is gathered changes
METHODS = {
    "local": "strategy='local'",
    "fedproto": "strategy='fedproto'",
    "fedsaf-gcsa": "strategy='fedsaf' alignment='gcsa'",
    "fedsaf-rcsa": "strategy='fedsaf' alignment='rcsa'",
    "fedhpro-head": "strategy='fedhpro' share='head'",
    "fedhpro-model": "strategy='fedhpro' share='model' models='cnn'",
    "isoproto": "strategy='isoproto'",
    "isoproto-anchors": "strategy='isoproto_anchors'",
}
# Some of the clients in a round, and evaluations in between: a run then takes other paths than by default.
PARTITIONS = {"domain": "partition='domain'", "dirichlet": "partition='dirichlet' fraction=0.7 evaluate-every=2"}
OTHERS = {
    "fedavg": "strategy='fedavg' models='resnet' partition='dirichlet'",
    "procrustes": "strategy='isoproto_anchors' frame='procrustes'",
    "gram-rcsa": "strategy='isoproto_anchors' frame='gram' alignment='rcsa+hpcl+hpal'",
    "server-head": "strategy='isoproto_anchors' hyper.head='server' partition='dirichlet'",
    "creff": "strategy='fedhpro' share='head' hyper.retrain='creff' partition='dirichlet'",
    "int8": "strategy='isoproto_anchors' wire.dtype='int8' partition='dirichlet'",
    "float16": "strategy='fedhpro' share='head' wire.dtype='float16'",
    "grad-before": "strategy='fedhpro' share='head' hyper.grad-point='before-training'",
    "grad-few": "strategy='isoproto_anchors' hyper.grad-samples=3 hyper.grad-weight='class_samples'"
    " hyper.distance='coordinate_sign' hyper.margin='additive' hyper.form='normalised'",
    "anchors-own": "strategy='isoproto_anchors' anchors='own' hyper.grad-point='before-training'",
    "anchors-private": "strategy='isoproto_anchors' anchors='private'",
    "together": "strategy='isoproto_anchors' models='mlp,tiny_cnn' batch-size=10 partition='dirichlet'",
    "together-fedproto": "strategy='fedproto' models='mlp,tiny_cnn' batch-size=10",
    "last-epoch": "strategy='fedproto' proto-source='last-epoch' epochs=2 missing='self' stale='drop'"
    " min-contributors=2 min-class-samples=3 proto-weight='uniform' partition='dirichlet'",
    "all-epochs": "strategy='fedsaf' proto-source='all-epochs' batches='fixed' augment='flip' epochs=2"
    " optimizer='adamw' heads='mixed' relation.shrink=0.3",
    "cosine-hpcl": "strategy='fedproto' prototypes='hyper' alignment='cosine+hpcl' frame='procrustes'",
    "late": "strategy='isoproto_anchors' join-late=0.3 join-round=2 share='base' models='mlp'",
}
IN_PROCESS = {f"{m} {p}": f"{METHODS[m]} {PARTITIONS[p]}" for m in METHODS for p in PARTITIONS} | OTHERS
UNDER_FLOWER = {name: f"{settings} partition='dirichlet'" for name, settings in METHODS.items()} | {
    name: OTHERS[name] for name in ("creff", "gram-rcsa", "int8", "together")
}


@dataclass(frozen=True)
class Checkout:
    """A folder with the code of one commit.

    Attributes:
        folder: Where the code lies.
        commit: Its commit, with ``-dirty`` if files are changed.
    """

    folder: Path
    commit: str

    @classmethod
    def at(cls, folder: Path) -> "Checkout":
        """Read the commit of a folder."""
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return cls(folder.resolve(), done.stdout.strip())


@dataclass(frozen=True)
class Work:
    """One federation to run in one checkout."""

    checkout: Checkout
    name: str
    settings: str
    flower: bool

    @property
    def command(self) -> list[str]:
        """The arguments of the project's own command."""
        engine, clients = ("flower", 4) if self.flower else ("in-process", 8)
        rounds = 2 if self.flower else 3
        settings = f"rounds={rounds} seed=3 max-samples=1600 {self.settings}"
        return ["run", "--engine", engine, "--clients", str(clients), "-c", settings]

    def kept(self, cache: Path) -> Path:
        """Where the results are kept."""
        versions = [importlib.metadata.version(name) for name in ("torch", "numpy", "flwr")]
        key = json.dumps([FORMAT, self.command, sys.version, versions])
        return cache / self.checkout.commit / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


# What runs in the process of a checkout.


@dataclass
class Listener:
    """Writes down the messages of an in-process run."""

    messages: list[Any] = field(default_factory=list)

    def listen(self) -> None:
        """Record every call of a ClientApp from now on."""
        from flwr.clientapp import ClientApp

        answer = ClientApp.__call__

        def recording(app: Any, message: Any, context: Any) -> Any:
            asked = _content(message)
            reply = answer(app, message, context)
            heads = [message.metadata.message_type, message.metadata.dst_node_id, message.metadata.group_id]
            self.messages.append({"heads": heads, "asked": asked, "answered": _content(reply)})
            return reply

        ClientApp.__call__ = recording  # type: ignore[method-assign]


def _content(message: Any) -> Any:
    """Return the content of a message as JSON, arrays as digests, and how many bytes it takes."""
    from flwr.common.serde import recorddict_to_proto

    if message.has_error():
        return str(message.error)
    size = recorddict_to_proto(message.content).ByteSize()
    records = {name: [type(record).__name__, _record(record)] for name, record in message.content.items()}
    return {"bytes": size, "records": records}


def _record(record: Any) -> dict[str, Any]:
    from flwr.app import ArrayRecord

    if isinstance(record, ArrayRecord):
        return {name: [a.dtype, list(a.shape), _digest(a.data)] for name, a in record.items()}
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in record.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def run_here(command: list[str], home: Path) -> None:
    """Run the project's command in this process and write all that it left behind as JSON."""
    _check_imports(home)
    listener = Listener()
    listener.listen()
    package = importlib.util.find_spec("isoproto.cli")
    inside = package is not None and package.submodule_search_locations
    sys.argv = ["isoproto", *command]
    try:
        runpy.run_module("isoproto.cli.main" if inside else "isoproto.cli", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    (home / "found.json").write_text(json.dumps(gather(home, listener.messages)))


def _check_imports(home: Path) -> None:
    """Fail where Python would take the packages from elsewhere, such as from an installed copy."""
    for name in ("isoproto", "client_app", "strategies", "server_app", "models"):
        origin = str(found.origin) if (found := importlib.util.find_spec(name)) else "nowhere"
        if not origin.startswith(str(home / "code")):
            raise RuntimeError(f"{name} would come from {origin}, not from the checkout")


def gather(home: Path, messages: list[Any]) -> dict[str, Any]:
    """Read all that a run left behind, in a form that is equal for equal runs."""
    run = next((home / "runs").iterdir())
    summary = json.loads((run / "summary.json").read_text("utf8"))
    found = {
        "settings": (run / "config.toml").read_text("utf8").splitlines(),
        "partition": json.loads((run / "partition.json").read_text("utf8")),
        "metrics": [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf8").splitlines()],
        "messages": messages,
        "checkpoints": {path.name: _tensors(path) for path in sorted((run / "checkpoint").iterdir())},
        "clients": {
            str(path.relative_to(home / "state" / summary["experiment"])): _tensors(path)
            for path in sorted((home / "state").rglob("*.safetensors"))
        },
        "summary": summary,
    }
    text = json.dumps(_without_times(found))
    for private, public in _names(home, summary):
        text = text.replace(private, public)
    return json.loads(text)


def _names(home: Path, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what names this run or this code, each with what stands for it."""
    yield Path(summary["report"]).parent.name, "RUN"
    yield summary["experiment"], "EXPERIMENT"
    yield summary["fingerprint"], "FINGERPRINT"
    yield str(home), "HOME"


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: None if key in TIMES else _without_times(item) for key, item in value.items()}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file as digests, and its values."""
    if not path.name.endswith(".safetensors"):
        return {}
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])
    found = {
        name: _readable(entry)
        if name == "__metadata__"
        else [entry["dtype"], entry["shape"], _digest(content[slice(*(length + at for at in entry["data_offsets"]))])]
        for name, entry in header.items()
    }
    return dict(sorted(found.items()))


def _readable(metadata: dict[str, str]) -> dict[str, Any]:
    """Return a file's values; those that are JSON are read."""
    found: dict[str, Any] = {}
    for key, text in sorted(metadata.items()):
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


# What runs in the process that compares.


def results(work: Work, cache: Path) -> Any:
    """Return what a run leaves behind, from the cache if it has it."""
    path = work.kept(cache)
    if path.exists():
        return json.loads(path.read_text("utf8"))
    found = run_apart(work)
    if not work.checkout.commit.endswith("-dirty"):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        temporary.replace(path)
    return found


def run_apart(work: Work) -> Any:
    """Run one federation in a process and a home of its own.

    Raises:
        RuntimeError: If the process fails.
    """
    # All names have one length in both checkouts: folders are part of messages, whose bytes are counted.
    home = Path(tempfile.mkdtemp(prefix="compare-", dir="/tmp"))
    try:
        (home / "code").symlink_to(work.checkout.folder)
        (home / "empty").mkdir()
        others = {name: value for name, value in os.environ.items() if not name.startswith(("ISOPROTO_", "FLWR_"))}
        environment = {
            **others,
            "PYTHONPATH": str(home / "code"),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ISOPROTO_HOME": str(home),
            "OMP_NUM_THREADS": "1",
        }
        if work.flower:
            environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        command = [sys.executable, __file__, "--home", str(home), "--", *work.command]
        with (home / "log").open("w") as log:
            done = subprocess.run(
                command, env=environment, cwd=home / "empty", stdout=log, stderr=log, timeout=LIMIT_S, check=False
            )
        if done.returncode:
            tail = (home / "log").read_text("utf8", errors="replace")[-2000:]
            raise RuntimeError(f"{work.checkout.folder}: status {done.returncode}\n{tail}")
        return json.loads((home / "found.json").read_text("utf8"))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def difference(before: Any, after: Any, place: str = "") -> str:
    """Return where two results differ first, and how; empty where they are equal.

    Keys must come in one order, and numbers have one type: ``1`` is not ``1.0``.

    Example:
        >>> difference({"a": [1, 2.0]}, {"a": [1, 2]})
        'a[1]: 2.0, then 2'
    """
    if type(before) is not type(after):
        return f"{place}: {before!r:.200}, then {after!r:.200}"
    if isinstance(before, dict):
        found = (difference(before[key], after[key], f"{place}.{key}".lstrip(".")) for key in before if key in after)
        if first := next(filter(None, found), ""):
            return first
        if list(before) != list(after):
            return f"{place}: keys {_unlike(list(before), list(after))}"
        return ""
    if isinstance(before, list):
        pairs = enumerate(zip(before, after, strict=False))
        if first := next(filter(None, (difference(a, b, f"{place}[{i}]") for i, (a, b) in pairs)), ""):
            return first
        return "" if len(before) == len(after) else f"{place}: {len(before)} entries, then {len(after)}"
    return "" if before == after else f"{place}: {before!r:.200}, then {after!r:.200}"


def _unlike(before: list[str], after: list[str]) -> str:
    gone, new = [k for k in before if k not in after], [k for k in after if k not in before]
    return f"gone {gone}, new {new}" if gone or new else f"in another order: {before}, then {after}"


def compare(name: str, works: tuple[Work, Work], cache: Path) -> str:
    """Return ``equal``, the first difference, or why a run failed."""
    try:
        before, after = (results(work, cache) for work in works)
    except (RuntimeError, subprocess.TimeoutExpired, OSError) as err:
        return f"failed: {err}"
    return difference(before, without_new_settings(before, after)) or "equal"


def without_new_settings(before: Any, after: Any) -> Any:
    """Leave out of a result the settings that only the later checkout has. A run that compares equal does not use them.

    Example:
        >>> before = {"settings": ["a = 1"], "summary": {"settings": {"a": 1}}}
        >>> after = {"settings": ["a = 1", "b = 2"], "summary": {"settings": {"a": 1, "b": 2}}}
        >>> without_new_settings(before, after) == before
        True
    """
    known = before["summary"]["settings"]
    lines = [line for line in after["settings"] if line.split(" = ")[0].strip(chr(34)) in known]
    kept = {key: value for key, value in after["summary"]["settings"].items() if key in known}
    return {**after, "settings": lines, "summary": {**after["summary"], "settings": kept}}


def main() -> int:
    """Compare two checkouts and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--flower", action="store_true", help="a few runs under flwr run with Ray")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only the runs whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once (one with --flower)")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "isoproto-compare")
    arguments = parser.parse_args()
    checkouts = [Checkout.at(folder) for folder in (arguments.before, arguments.after)]
    print(f"before: {checkouts[0].commit}, after: {checkouts[1].commit}", flush=True)
    chosen = {
        name: settings
        for name, settings in (UNDER_FLOWER if arguments.flower else IN_PROCESS).items()
        if not arguments.only or any(word in name for word in arguments.only)
    }
    works = {name: [Work(each, name, chosen[name], arguments.flower) for each in checkouts] for name in chosen}
    verdicts = []
    with ThreadPoolExecutor(1 if arguments.flower else arguments.jobs) as pool:
        for name, verdict in zip(works, pool.map(lambda n: compare(n, works[n], arguments.cache), works), strict=True):
            print(f"{name:24} {verdict}", flush=True)
            verdicts.append(verdict)
    equal = verdicts.count("equal")
    print(f"{equal} of {len(verdicts)} runs are equal", flush=True)
    return int(equal < len(verdicts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--home"]:
        run_here(sys.argv[4:], Path(sys.argv[2]))
    else:
        sys.exit(main())
