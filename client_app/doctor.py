"""Check whether anything keeps a device from joining its federation, and say what to do about it."""

import dataclasses
import importlib.metadata
import os
import platform
import resource
import shutil
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from client_app.client import Client
from client_app.device import choose_device
from client_app.in_frame import frame_name
from client_app.local_round import local_settings
from client_app.own_model import build_model
from client_app.training import train
from isoproto.config import Scalar
from isoproto.data import class_counts
from isoproto.deploy.checks import Finding, check_ports, examine_network, skipped
from isoproto.deploy.node import NodeConfig
from isoproto.errors import DataError, IsoprotoError
from isoproto.fingerprint import package_folder
from isoproto.seeding import torch_generator
from isoproto.settings.sections import NO_MODEL
from models import FeatureModel, TextSpec

Asked = Mapping[str, Collection[str]]
"""By strategy, what its runs ask for in the words of `may-send`."""

# The kind of run that a device without a model can take part in. Nothing is held out, so that all samples are counted.
_WITHOUT_MODEL: dict[str, Scalar] = {"strategy": "isoproto", "common.map": "standard", "common.holdout": 0.0}
_MIB = 2**20
_SUPERNODE_MIB = 200  # the SuperNode and the process that starts others: importing flwr 1.42, and a reserve
_GENERATIONS = 4  # the most model files that a client keeps at a time
_GPU_FILES = ("/dev/nvidia0", "/dev/nvhost-ctrl")  # a desktop's or server's, a Jetson's


def examine(config: NodeConfig, feature_dim: int = 128, asked: Asked | None = None) -> Iterator[Finding]:
    """Run all checks of a node, one after the other. A check is skipped if a check that it depends on has failed.

    Args:
        config: The node's configuration.
        feature_dim: Width d of the federation's features, for the batch that is trained.
        asked: What runs of each strategy ask clients to send besides class means. Clients do not import strategies, so
            the command line hands this in.
    """
    yield _packages()
    yield _user()
    yield check_ports(config)
    yield from examine_network(config)
    yield _sends(config, asked or {})
    gpu = _gpu(config)
    yield gpu
    if gpu.state == "failed":
        yield from (skipped(check, "the device cannot be used") for check in ("data", "training", "memory", "disk"))
        return
    client, data = _data(config, feature_dim)
    yield data
    if client is not None and (config.map or not client.has_model):
        yield _map(client, config)
    model: FeatureModel | None = None
    if client is None or data.state == "failed":
        yield skipped("training", "there are no data")
    elif not client.has_model:
        yield Finding("training", "ok", "nothing to train: this device has no model, and sends statistics alone")
    elif not config.model and isinstance(client.spec, TextSpec):  # only for pictures is there a default model
        yield skipped("training", "the run's models are not known here; name a `model` to try it")
    else:
        model, training = _training(client, config.memory_mb)
        yield training
    yield _memory(config)
    yield _disk(config, model)


def _packages() -> Finding:
    """Compare the installed packages with what our package requires.

    ray may be missing, because only simulations need it.
    """
    from packaging.requirements import Requirement

    try:
        texts = importlib.metadata.requires("isoproto") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout
        project = tomllib.loads((package_folder("isoproto").parent / "pyproject.toml").read_text("utf8"))
        texts = project["project"]["dependencies"]
    wanted = map(Requirement, texts)
    wrong, versions = [], []
    for package in (entry for entry in wanted if entry.marker is None or entry.marker.evaluate({"extra": ""})):
        try:
            version = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            wrong += [] if package.name in _NOT_ON_A_NODE else [f"{package.name} is missing"]
            continue
        if not package.specifier.contains(version, prereleases=True):  # NVIDIA's torch is 2.5.0a0+872d972e41.nv24.8
            wrong.append(f"{package.name} is {version}, wanted {package.specifier}")
        if package.name in ("flwr", "torch"):
            versions.append(f"{package.name} {version}")
    text = ", ".join([f"Python {platform.python_version()} on {platform.machine()}", *versions])
    if wrong:
        return Finding(
            "packages", "failed", f"{text}: {'; '.join(wrong)}", "pip install -r deploy/node-requirements.txt"
        )
    return Finding("packages", "ok", text)


# A node may lack these: matplotlib draws reports, and torchvision is for its own models and data sets.
_NOT_ON_A_NODE = ("matplotlib", "torchvision")


def _user() -> Finding:
    if os.geteuid() == 0:
        text = "these checks run as root, who may read and write what the node's user may not"
        return Finding("user", "warning", text, "run them as the node's user: sudo -u isoproto isoproto doctor")
    return Finding("user", "ok", f"number {os.geteuid()}, whom the node must run as too")


def _sends(config: NodeConfig, asked: Asked) -> Finding:
    """Say what may leave the device, and the runs of which strategies ask for more."""
    allowed = sorted(set(config.sends))
    *some, last = ["class means", "counts", *allowed]
    text = f"{', '.join(some)} and {last}{'' if allowed else ' alone'}"
    if lacking := [name for name, words in asked.items() if not set(words) <= set(allowed)]:
        text += f"; runs of {', '.join(lacking)} ask for more and leave this node out"
    return Finding("sends", "ok", text, details={"may_send": allowed, "left_out_by": lacking})


def _gpu(config: NodeConfig) -> Finding:
    try:
        chosen = choose_device(config.device)
    except IsoprotoError as err:
        advice = "install a build of torch for this GPU (docs/edge.md), or set `device = 'auto'`"
        return Finding("device", "failed", str(err), advice)
    if chosen.type == "cuda":
        free, total = torch.cuda.mem_get_info(chosen)
        name = torch.cuda.get_device_name(chosen)
        return Finding("device", "ok", f"{chosen}: {name}, {free // _MIB} of {total // _MIB} MiB are free")
    if any(map(os.path.exists, _GPU_FILES)) and not torch.cuda.is_available():
        text = f"{chosen}, though there is a GPU: torch {torch.__version__} cannot use it"
        return Finding("device", "warning", text, "install a build of torch for it (docs/edge.md)")
    threads = f"{config.threads} of {os.cpu_count()} threads"
    return Finding("device", "ok", f"{chosen}, {threads}" if chosen.type == "cpu" else str(chosen))


def _data(config: NodeConfig, feature_dim: int) -> tuple[Client | None, Finding]:
    try:
        settings = _WITHOUT_MODEL if config.model == NO_MODEL else {}
        client = Client.of({"feature-dim": feature_dim, **settings}, config.for_client(), 0)
    except DataError as err:
        return None, Finding("data", "failed", str(err), "mend the data, or `data`, `classes` and `data-dir`")
    except (IsoprotoError, MemoryError) as err:
        return None, Finding("data", "failed", str(err) or "not enough memory", "mend the node's configuration")
    labels = client.data.train_y, client.data.test_y
    train, test = (class_counts(part, client.num_classes).tolist() for part in labels)
    details = {name: {"train": a, "test": b} for name, a, b in zip(client.data.classes, train, test, strict=True)}
    held = {name: counts for name, counts in details.items() if counts["train"] or counts["test"]}
    table = ", ".join(f"{name} {counts['train']}+{counts['test']}" for name, counts in list(held.items())[:20])
    table += f" and {len(held) - 20} more" if len(held) > 20 else ""
    text = f"{sum(train)} training and {sum(test)} test samples, {len(held)} of {len(train)} classes: {table}"
    few = {name: n["train"] for name, n in details.items() if 0 < n["train"] < config.min_class_samples}
    if not any(n["train"] >= config.min_class_samples for n in details.values()):
        text += f"; no class has {config.min_class_samples} training samples, so nothing would be sent"
        advice = "add data, or lower `min-class-samples` if you accept what that reveals (docs/edge.md)"
        return client, Finding("data", "failed", text, advice, details)
    if few:
        text += f"; kept back, below `min-class-samples`: {few}"
    if not sum(test):
        return client, Finding("data", "warning", text, "without test samples its accuracy is not known", details)
    return client, Finding("data", "ok", text, details=details)


def _map(client: Client, config: NodeConfig) -> Finding:
    """Make the feature map that the node would use, and compute the features of made-up samples."""
    name = "own" if config.map else "standard"
    try:
        found, _ = frame_name(dataclasses.replace(client, config=dataclasses.replace(client.config, common__map=name)))
    except IsoprotoError as err:
        return Finding("map", "failed", str(err), "mend `map`, or leave it out where no run asks for it")
    _, checksum = found.split(":")
    text = f"{config.map.rsplit('/', 1)[-1] or found.partition(':')[0]}, checksum {checksum}"
    return Finding("map", "ok", f"{text}; all nodes of a run need the same")


def _training(client: Client, memory_mb: int) -> tuple[FeatureModel | None, Finding]:
    """Build the model and train on one batch, within the memory that the node may use."""
    config = client.config
    size = min(config.batch_size, len(client.data.train_y))
    batch = dataclasses.replace(client.data, train_x=client.data.train_x[:size], train_y=client.data.train_y[:size])
    settings = local_settings(config)
    try:
        with _limited(memory_mb):
            model = build_model(client.architecture, client.spec, client.device, seed=0)
            train(model, batch, settings, (), torch_generator(0, "doctor"))  # slower than any later time
            started = time.perf_counter()
            losses, _ = train(model, batch, settings, (), torch_generator(0, "doctor"))
            seconds = time.perf_counter() - started
    except IsoprotoError as err:
        return None, Finding("training", "failed", str(err), "mend `model`, or choose one of `isoproto models`")
    except (MemoryError, RuntimeError) as err:
        advice = "raise `memory-mb`, lower `batch-size`, or choose a smaller `model`"
        return None, Finding("training", "failed", f"{type(err).__name__}: {str(err).splitlines()[0]}", advice)
    batches = -(-len(client.data.train_y) // config.batch_size)
    parameters = sum(p.numel() for p in model.parameters())
    text = (
        f"{client.architecture.rsplit('/', 1)[-1]}, {parameters:,} parameters: a batch of {size} in "
        f"{seconds * 1000:.0f} ms, so about {batches * seconds:.1f} s per local epoch; loss {losses['total']:.2f}"
    )
    return model, Finding("training", "ok", text, details={"batch_s": seconds, "parameters": parameters})


@contextmanager
def _limited(memory_mb: int) -> Iterator[None]:
    """Limit this process to the memory that a process of the node may use; 0 is no limit."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * _MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _memory(config: NodeConfig) -> Finding:
    """Compare the memory that a process of the node needs with what is free.

    This process has now done what a process of the node does, so its peak memory is an estimate for that process.
    """
    unit = 1 if platform.system() == "Darwin" else 1024
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // _MIB
    text = f"one process of the node takes {taken} MiB, its SuperNode about {_SUPERNODE_MIB}"
    details = {"process_mib": taken}
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) // 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return Finding("memory", "ok", text, details=details)
    text += f"; {free} MiB are free"
    if free < _SUPERNODE_MIB:  # this process is about to free its memory
        advice = "end other programs, choose a smaller `model` or `batch-size`, or add swap"
        return Finding("memory", "failed", text, advice, {**details, "free_mib": free})
    if 0 < config.memory_mb < taken:
        advice = f"set `memory-mb` to {taken} or more, or choose a smaller `model` or `batch-size`"
        return Finding("memory", "failed", f"{text}, and `memory-mb` allows {config.memory_mb}", advice, details)
    limit = f"; at most {config.memory_mb} each" if config.memory_mb else ""
    return Finding("memory", "ok", text + limit, details={**details, "free_mib": free})


def _disk(config: NodeConfig, model: FeatureModel | None) -> Finding:
    """Write into the state folder, and check that there is room for the files of a model."""
    folder = Path(config.state_dir)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values()) if model else 0
    needed = _GENERATIONS * size // _MIB + 100  # Flower keeps apps and logs, about 100 MiB
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # as the node makes it
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
        free = shutil.disk_usage(folder).free // _MIB
    except OSError as err:
        advice = "give this user the folder, or name another `state-dir`"
        return Finding("disk", "failed", f"cannot write to {folder}: {err.strerror or err}", advice)
    text = f"{free} MiB are free for models and Flower's files, about {needed} are needed"
    if free < needed:
        return Finding("disk", "failed", text, "free some space, or name another `state-dir`", {"free_mib": free})
    return Finding("disk", "ok", text, details={"free_mib": free})
