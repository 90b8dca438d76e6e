"""What could keep a device from joining its federation, checked before it does, and what to do about it."""

import dataclasses
import http.client
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import ssl
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from client_app.client import Client
from client_app.device import choose_device
from client_app.local_round import local_settings
from client_app.own_model import build_model
from client_app.training import train
from isoproto.data import class_counts
from isoproto.deploy.node import NodeConfig
from isoproto.errors import DataError, FederationError, IsoprotoError
from isoproto.fingerprint import package_folder
from isoproto.seeding import torch_generator
from models import FeatureModel, TextSpec

State = Literal["ok", "warning", "failed", "skipped"]

_CALL_S = 10.0
# Flower takes a node's signed time if it is at most so far from the SuperLink's clock.
_FAST_S, _SLOW_S = 5.0, 300.0
_MIB = 2**20
_SUPERNODE_MIB = 200  # the SuperNode and the process that starts others: what importing flwr 1.42 takes, and some
_GENERATIONS = 4  # model files that lie side by side at most
_NEW_CERTIFICATE = "take ca.pem anew from whoever runs the SuperLink, over a channel you trust"
_ASK_OPERATOR = "the SuperLink is down or starting, or the port is another service's: wait, then ask its operator"
_GPU_FILES = ("/dev/nvidia0", "/dev/nvhost-ctrl")  # a desktop's or server's, a Jetson's


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one check.

    Attributes:
        check: Its name.
        state: Whether the node can join, as far as this goes.
        text: What was found.
        advice: What to do about it.
        details: Figures, for programs.
    """

    check: str
    state: State
    text: str
    advice: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def examine(config: NodeConfig, feature_dim: int = 128) -> Iterator[Finding]:
    """Check, one after the other, all that a node needs; what depends on a check that failed is skipped.

    Args:
        config: The node's configuration.
        feature_dim: Width d of the federation's features, for the batch that is trained.
    """
    yield _packages()
    yield _user()
    yield _ports(config)
    name = _name(config)
    yield name
    link = _link(config) if name.state == "ok" else None
    yield link or _skipped("link", "the name is not known")
    answer: _Answer | None = None
    if link is None or link.state == "failed":
        yield _skipped("superlink", "there is no link")
    else:
        superlink, answer = _superlink(config)
        yield superlink
    yield _clock(answer) if answer else _skipped("clock", "the SuperLink cannot be asked")
    yield _key(config, reached=answer is not None)
    yield _sends(config)
    gpu = _gpu(config)
    yield gpu
    if gpu.state == "failed":
        yield from (_skipped(check, "the device cannot be used") for check in ("data", "training", "memory", "disk"))
        return
    client, data = _data(config, feature_dim)
    yield data
    model: FeatureModel | None = None
    if client is None or data.state == "failed":
        yield _skipped("training", "there are no data")
    elif not config.model and isinstance(client.spec, TextSpec):  # only pictures have models that are there by default
        yield _skipped("training", "the run's models are not known here; name a `model` to try it")
    else:
        model, training = _training(client, config.memory_mb)
        yield training
    yield _memory(config)
    yield _disk(config, model)


def _skipped(check: str, reason: str) -> Finding:
    return Finding(check, "skipped", reason)


def _packages() -> Finding:
    """Compare what is installed with what our package asks for; ray, which only simulations need, may be missing."""
    from packaging.requirements import Requirement

    try:
        texts = importlib.metadata.requires("isoproto") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout
        project = tomllib.loads((package_folder("isoproto").parent / "pyproject.toml").read_text("utf8"))
        texts = project["project"]["dependencies"]
    wanted = map(Requirement, texts)
    wrong, found = [], []
    for package in (one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})):
        try:
            version = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            wrong += [] if package.name in _NOT_ON_A_NODE else [f"{package.name} is missing"]
            continue
        if not package.specifier.contains(version, prereleases=True):  # NVIDIA's torch is 2.5.0a0+872d972e41.nv24.8
            wrong.append(f"{package.name} is {version}, wanted {package.specifier}")
        if package.name in ("flwr", "torch"):
            found.append(f"{package.name} {version}")
    text = ", ".join([f"Python {platform.python_version()} on {platform.machine()}", *found])
    if wrong:
        return Finding(
            "packages", "failed", f"{text}: {'; '.join(wrong)}", "pip install -r deploy/node-requirements.txt"
        )
    return Finding("packages", "ok", text)


# Drawn reports and torchvision's models are for those who use them.
_NOT_ON_A_NODE = ("matplotlib", "torchvision")


def _user() -> Finding:
    if os.geteuid() == 0:
        text = "these checks run as root, who may read and write what the node's user may not"
        return Finding("user", "warning", text, "run them as the node's user: sudo -u isoproto isoproto doctor")
    return Finding("user", "ok", f"number {os.geteuid()}, whom the node must run as too")


def _ports(config: NodeConfig) -> Finding:
    """See whether the node can have its local ports."""
    ports = {"runtime-port": config.runtime_port, "health-port": config.health_port}
    taken = [f"`{key}` {port}: {reason}" for key, port in ports.items() if port and (reason := _taken(port))]
    if not taken:
        return Finding("ports", "ok", f"{', '.join(str(port) for port in ports.values() if port)} can be had")
    text = "; ".join(taken)
    if _runs(config):
        return Finding("ports", "warning", f"{text}: this node is running", "stop it before it is started anew")
    advice = "choose another port, a different one for each node of a machine, or end the program that has it"
    return Finding("ports", "failed", text, advice)


def _taken(port: int) -> str:
    """Return why nobody can listen at a local port; empty if one can."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over do not count
        try:
            one.bind(("127.0.0.1", port))
        except OSError as err:
            return os.strerror(err.errno or 0)
    return ""


def _runs(config: NodeConfig) -> bool:
    """Whether this node's own SuperNode is there, as far as this system tells."""
    node_file = os.fsencode(config.node_file)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since, or is none of our business
            if node_file in path.read_bytes().split(b"\0"):
                return True
    return False


def _address(config: NodeConfig) -> tuple[str, int]:
    host, _, port = config.superlink.rpartition(":")
    return host.strip("[]"), int(port)


def _name(config: NodeConfig) -> Finding:
    host, port = _address(config)
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as err:
        return Finding(
            "name",
            "failed",
            f"{host} is not known here: {err.strerror or err}",
            "check `superlink` for a typing error, and this device's network and name server",
        )
    return Finding("name", "ok", f"{host} is {', '.join(sorted(found))}")


def _context(config: NodeConfig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.root_certificates)


def _link(config: NodeConfig) -> Finding:
    """Connect, and shake hands as a SuperNode does."""
    host, port = _address(config)
    try:
        context = None if config.insecure else _context(config)
    except OSError as err:
        reason = (getattr(err, "reason", None) or err.strerror or str(err)).lower().replace("_", " ")
        text = f"{config.root_certificates} cannot be used as the authority's certificate: {reason}"
        return Finding("link", "failed", text, _NEW_CERTIFICATE)
    try:
        with socket.create_connection((host, port), timeout=_CALL_S) as plain:
            if context is None:
                text, advice = (
                    f"{config.superlink} answers, without TLS",
                    "use `insecure` for trials on one machine only",
                )
                return Finding("link", "warning", text, advice)
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return Finding("link", "ok", f"{config.superlink} answers with {secure.version()}")
    except ssl.SSLCertVerificationError as err:
        reason = err.verify_message
        advice = _NEW_CERTIFICATE
        if "not valid for" in reason or "mismatch" in reason:
            advice = f"its operator adds this name: isoproto keys renew --host {host}"
        elif "not yet valid" in reason or "expired" in reason:
            advice = "set this device's clock; if it is right, the operator calls `isoproto keys renew`"
        return Finding("link", "failed", f"the SuperLink's certificate is refused: {reason}", advice)
    except ssl.SSLError as err:
        reason, advice = (err.reason or str(err)).lower().replace("_", " "), "the port may be another service's"
        if "wrong version number" in reason:
            advice = (
                "it speaks no TLS there: the operator starts it with certificates (docs/keys.md), or the port is wrong"
            )
        return Finding("link", "failed", f"{config.superlink} does not shake hands: {reason}", advice)
    except OSError as err:
        advice = "is the SuperLink running, is the port right, and does a firewall let this device out?"
        return Finding("link", "failed", f"{config.superlink} does not answer: {err.strerror or err}", advice)


class _Answer(NamedTuple):
    """When the SuperLink was asked by our clock, when it answered, and its own time as it told it."""

    before: float
    after: float
    date: str | None


def _superlink(config: NodeConfig) -> tuple[Finding, _Answer | None]:
    """Ask the SuperLink whether it serves; a proxy before it shakes hands also where it is down."""
    host, port = _address(config)
    if config.insecure:
        connection: http.client.HTTPConnection = http.client.HTTPConnection(host, port, timeout=_CALL_S)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=_CALL_S, context=_context(config))
    try:
        before = time.time()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        heard = _Answer(before, time.time(), answer.headers["Date"])
    except (OSError, http.client.HTTPException) as err:
        reason = f"{config.superlink} does not answer /health: {err}"
        return Finding("superlink", "failed", reason, _ASK_OPERATOR), None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        reason = f"{config.superlink} answers /health with {answer.status} {answer.reason}"
        return Finding("superlink", "failed", reason, _ASK_OPERATOR), None
    return Finding("superlink", "ok", "it serves"), heard


def _clock(answer: _Answer) -> Finding:
    """Compare this clock with the ``Date`` of an HTTP answer, which is good to a second."""
    try:
        told = parsedate_to_datetime(answer.date or "").timestamp() + 0.5  # it is cut to whole seconds
    except (TypeError, ValueError) as err:
        return Finding("clock", "warning", f"the SuperLink does not tell its time: {err}", "keep this clock on NTP")
    ahead, error = (answer.before + answer.after) / 2 - told, (answer.after - answer.before) / 2 + 0.5
    side = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.1f} s {side} the SuperLink's (known to {error:.1f} s)"
    advice = (
        f"it takes up to {_FAST_S:g} s ahead and {_SLOW_S:g} s behind: set the clock, and keep it on NTP (timedatectl)"
    )
    details = {"ahead_s": round(ahead, 2), "error_s": round(error, 2)}
    if ahead - error > _FAST_S or -ahead - error > _SLOW_S:
        return Finding("clock", "failed", text, advice, details)
    if ahead + error > _FAST_S or -ahead + error > _SLOW_S:
        return Finding("clock", "warning", text, advice, details)
    return Finding("clock", "ok", text, details=details)


def _key(config: NodeConfig, *, reached: bool) -> Finding:
    """Read the key, and ask the SuperLink whether it knows it.

    A request to be activated with a heartbeat that no node has is refused either way: for its heartbeat if the key
    is enrolled, for its key if not. Nothing changes at the SuperLink.
    """
    if config.insecure:
        return _skipped("key", "without TLS there is none")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = Path(config.private_key)
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as err:
        return Finding("key", "failed", f"cannot read {path}: {err.strerror}", "give it to the node's user: chown")
    except Exception as err:
        return Finding("key", "failed", f"{path} is no private key: {err}", "copy it anew, or ask for another one")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return Finding("key", "failed", f"{path} is not an elliptic-curve key", "use one of `isoproto keys add NODE`")
    if not reached:
        return Finding("key", "warning", "readable; whether it is enrolled is not known", "mend the link first")
    try:
        code = _asked_for_activation(config, key)
    except FederationError as err:
        return Finding("key", "failed", str(err), _ASK_OPERATOR)
    except Exception as err:
        text = f"whether it is enrolled cannot be told: {str(err).splitlines()[0]}"
        return Finding("key", "warning", text, "is this Flower's SuperLink, 1.42?")
    if code == "enrolled":
        return Finding("key", "ok", "enrolled")
    if code == "unknown":
        advice = f"the operator calls `isoproto keys enrol {path.stem}`; a key that was revoked needs a successor"
        return Finding("key", "failed", "the SuperLink does not know this key", advice)
    return Finding("key", "failed", "the SuperLink refuses its signature", "is this device's clock right?")


def _asked_for_activation(config: NodeConfig, key: Any) -> Literal["enrolled", "unknown", "refused"]:  # noqa: ANN401
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import ApiErrorCode
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    public = key.public_key()
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=-1.0)
    proof: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, public)]
    address, authority = config.superlink, config.root_certificates
    try:
        with FleetHttpClient.from_server_address(address, False, authority, interceptors=proof) as client:
            client.ActivateNode(request)
    except httpx.HTTPStatusError as err:
        answer = err.response
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return "refused"
        with suppress(ValueError, AttributeError):  # a proxy's own page, no object of Flower's
            code = answer.json().get("code")
            if code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
                return "enrolled"
            if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
                return "unknown"
        raise FederationError(
            f"{address} answers a node that wants to join with {answer.status_code} {answer.reason_phrase}: "
            f"{' '.join(answer.text.split())!r:.100}"
        ) from err
    raise RuntimeError("the SuperLink took a heartbeat that no node can have")


# What strategies ask for besides class means, as their settings are by default.
_ASKED = {"fedavg": ("head", "base"), "fedhpro": ("gradients", "head", "base"), "isoproto": ("gradients",)}


def _sends(config: NodeConfig) -> Finding:
    """Say what may leave the device, and whose runs will ask for more."""
    allowed = sorted(set(config.sends))
    *some, last = ["class means", "counts", *allowed]
    text = f"{', '.join(some)} and {last}{'' if allowed else ' alone'}"
    if lacking := [name for name, words in _ASKED.items() if not set(words) <= set(allowed)]:
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
        client = Client.of({"feature-dim": feature_dim}, config.for_client(), 0)
    except DataError as err:
        return None, Finding("data", "failed", str(err), "mend the data, or `data`, `classes` and `data-dir`")
    except (IsoprotoError, MemoryError) as err:
        return None, Finding("data", "failed", str(err) or "not enough memory", "mend the node's configuration")
    counts = [class_counts(labels, client.num_classes) for labels in (client.data.train_y, client.data.test_y)]
    train, test = (part.tolist() for part in counts)
    details = {name: {"train": a, "test": b} for name, a, b in zip(client.data.classes, train, test, strict=True)}
    held = {name: one for name, one in details.items() if one["train"] or one["test"]}
    table = ", ".join(f"{name} {one['train']}+{one['test']}" for name, one in list(held.items())[:20])
    table += f" and {len(held) - 20} more" if len(held) > 20 else ""
    text = f"{sum(train)} training and {sum(test)} test samples, {len(held)} of {len(train)} classes: {table}"
    few = {name: one["train"] for name, one in details.items() if 0 < one["train"] < config.min_class_samples}
    if not any(one["train"] >= config.min_class_samples for one in details.values()):
        text += f"; no class has {config.min_class_samples} training samples, so nothing would be sent"
        advice = "add data, or lower `min-class-samples` if you accept what that reveals (docs/edge.md)"
        return client, Finding("data", "failed", text, advice, details)
    if few:
        text += f"; kept back, below `min-class-samples`: {few}"
    if not sum(test):
        return client, Finding("data", "warning", text, "without test samples its accuracy is not known", details)
    return client, Finding("data", "ok", text, details=details)


def _training(client: Client, memory_mb: int) -> tuple[FeatureModel | None, Finding]:
    """Build the model and train on one batch."""
    config = client.config
    size = min(config.batch_size, len(client.data.train_y))
    batch = dataclasses.replace(client.data, train_x=client.data.train_x[:size], train_y=client.data.train_y[:size])
    settings = local_settings(config)
    try:
        with _limited(memory_mb):
            model = build_model(client.architecture, client.spec, client.device, seed=0)
            train(model, batch, settings, None, torch_generator(0, "doctor"))  # what is slow only once
            started = time.perf_counter()
            losses, _ = train(model, batch, settings, None, torch_generator(0, "doctor"))
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
    """Hold this process to what a process of the node may have."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * _MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _memory(config: NodeConfig) -> Finding:
    """Compare what this process took, which did what a node's process does, with what there is."""
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
    if free < _SUPERNODE_MIB:  # a process of the node finds what this one is about to give back
        advice = "end other programs, choose a smaller `model` or `batch-size`, or add swap"
        return Finding("memory", "failed", text, advice, {**details, "free_mib": free})
    limit = f"; at most {config.memory_mb} each" if config.memory_mb else ""
    return Finding("memory", "ok", text + limit, details={**details, "free_mib": free})


def _disk(config: NodeConfig, model: FeatureModel | None) -> Finding:
    """Write into the state folder, and see whether the generations of a model fit."""
    folder = Path(config.state_dir)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values()) if model else 0
    needed = _GENERATIONS * size // _MIB + 100  # and what Flower keeps: apps, logs
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
