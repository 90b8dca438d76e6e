"""The configuration of a device that takes part in a federation, ``node.toml``."""

import dataclasses
import os
import resource
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoproto import paths
from isoproto.config import Scalar, read_fields, refuse
from isoproto.data import class_names
from isoproto.deploy.connection import check_address
from isoproto.errors import ConfigError
from isoproto.own_code import absolute, is_own
from isoproto.settings.rules import number, one_of

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of a device. Its owner makes them, and the settings of a server never override them.

    Attributes:
        superlink: Where the SuperLink is, ``HOST:PORT``.
        root_certificates: File with the certificate of the authority that signed the SuperLink's certificate.
        private_key: File with the key by which the SuperLink recognises this device.
        insecure: Use neither TLS nor a key. For trials on one machine.
        trusted_entities: Flower's YAML file of keys. The device then runs only apps from Flower's Hub that one of
            these keys signed, and no app that was built locally. Empty: it runs any app.
        name: The client's name in the federation. By default the name of the key's file.
        data: The device's data: a known name, ``imagefolder:FOLDER``, ``npz:FILE``, ``csv:FILE``, ``jsonl:FILE`` or
            ``module:FILE.py:callable``.
        data_dir: Folder that relative paths of data start from. By default the configuration's folder.
        partition_id: Number of the device's share of the data that the run names, which must lie on this device. Use it
            instead of ``data``; -1: not used.
        num_partitions: How many shares there are; needed with ``partition_id``.
        classes: The federation's classes in its order. Empty: the classes that the run names, else those of the data.
        outside_classes: What happens to samples of other classes: ``refuse`` is an error, ``drop`` leaves them out.
        model: A known name, or ``module:callable`` or ``FILE.py:callable`` that makes a feature extractor. ``none``:
            this device has no model, and takes part by the common frame alone. Empty: the model that the run names.
        map: The device's own feature map for runs with `common.map = own`: ``module:callable`` or ``FILE.py:callable``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        batch_size: Size of a mini-batch; 0: the size that the run sets.
        threads: How many CPU threads each process of the node uses.
        memory_mb: MiB of memory for data that each process of the node may use; 0: no limit.
        state_dir: Folder in which the device keeps its models and Flower's files.
        min_class_samples: The device sends nothing about a class with fewer samples. The run may ask for more.
        may_send: What may leave the device besides class means, counts and accuracies: ``statistics``,
            ``gradients``, ``logits``, and the weights ``head``, ``base`` and ``twin``.
        runtime_port: Local port between the SuperNode and the processes that it starts. Nodes on one machine need
            different ports.
        health_port: Local port that answers ``isoproto health``; 0: none.
    """

    superlink: str = ""
    root_certificates: str = ""
    private_key: str = ""
    insecure: bool = False
    trusted_entities: str = ""
    name: str = ""
    data: str = ""
    data_dir: str = ""
    partition_id: int = number(-1, -1)
    num_partitions: int = number(0, 0)
    classes: str = ""
    outside_classes: str = one_of("refuse", "refuse", "drop")
    model: str = ""
    map: str = ""
    device: str = "auto"
    batch_size: int = number(0, 0)
    threads: int = number(1, 1, 1024)
    memory_mb: int = number(0, 0, 2**30)
    state_dir: str = ""
    min_class_samples: int = number(5, 1)
    may_send: str = ""
    runtime_port: int = number(9094, 1, 65535)
    health_port: int = number(0, 0, 65535)

    @classmethod
    def read(cls, path: Path) -> "NodeConfig":
        """Read the configuration from a TOML file; relative paths start from the file's folder.

        Raises:
            ConfigError: If the file cannot be read. Or with a list of everything that is wrong in it.
        """
        try:
            values = tomllib.loads(path.read_text("utf-8-sig"))
        except (OSError, ValueError) as err:
            raise ConfigError(f"cannot read {path}: {err}") from err
        return cls.from_mapping(values, path.parent.absolute(), source=f"node configuration {path.name}")

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, Any], folder: Path, *, source: str = "node configuration"
    ) -> "NodeConfig":
        """Read the configuration from a mapping, and report everything that is wrong with it at once.

        Args:
            values: The settings by key. A list may be a list, or text with commas.
            folder: The folder that relative paths start from.
            source: Where the settings come from, for the error text.

        Raises:
            ConfigError: With every unknown key, wrong value, missing setting and missing file.

        Example:
            >>> NodeConfig.from_mapping({"superlink": "here", "treads": 2, "device": 1}, Path())
            Traceback (most recent call last):
            isoproto.errors.ConfigError: 6 problems in the node configuration:
              unknown key `treads` (did you mean `threads`?)
              `device` must be text, got 1
              `superlink`: 'here' is not an address; give HOST:PORT without scheme, such as 127.0.0.1:8000
              `root-certificates` is missing; name the certificate of the SuperLink's authority, ca.pem
              `private-key` is missing; name this node's key, made by `isoproto keys add NODE`
              `data` is missing; name this device's data, such as 'imagefolder:photos', or `partition-id`
        """
        flat = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in values.items()}
        found, problems = read_fields(_FIELDS, flat)
        for key in ("root_certificates", "private_key", "trusted_entities", "state_dir", "data_dir"):
            if found.get(key):
                found[key] = str((folder / Path(found[key]).expanduser()).absolute())
        found.setdefault("data_dir", str(folder.absolute()))
        found.setdefault("state_dir", str(paths.state_dir().absolute()))
        for key in ("model", "map"):
            found[key] = absolute(found.get(key, ""), folder)
        config = cls(**found)
        refuse([*problems, *(text for text in config._problems() if not _named_already(text, values, found))], source)
        return config if config.name else dataclasses.replace(config, name=config._default_name())

    def _default_name(self) -> str:
        if self.partition_id >= 0:
            return str(self.partition_id)
        return Path(self.private_key).stem if self.private_key else os.uname().nodename

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with settings that have the right type."""
        yield from self._connection_problems()
        yield from self._resource_problems()
        try:
            class_names(self.classes)
        except ConfigError as err:
            yield str(err)
        if self.map and not is_own(self.map):
            yield f"`map` must name a function, `module:callable` or `FILE.py:callable`, got {self.map!r}"
        yield from self._consent_problems()

    def _consent_problems(self) -> Iterator[str]:
        """Yield the words in `may-send` that no part of a method asks for."""
        if not self.sends:
            return
        from isoproto.parts import CONSENT  # imports torch, which a node without such words need not wait for

        if unknown := [word for word in self.sends if word not in CONSENT]:
            yield f"`may-send` must be of {', '.join(map(repr, CONSENT))}, got {unknown}"

    def _connection_problems(self) -> Iterator[str]:
        """Yield what is wrong with the address, the certificate and the keys."""
        try:
            check_address(self.superlink)
        except ConfigError as err:
            yield f"`superlink`: {err}"
        if self.insecure and (self.root_certificates or self.private_key):
            yield "`insecure` excludes `root-certificates` and `private-key`: without TLS there is neither"
        missing = {
            "root-certificates": "name the certificate of the SuperLink's authority, ca.pem",
            "private-key": "name this node's key, made by `isoproto keys add NODE`",
        }
        for key, advice in {} if self.insecure else missing.items():
            path = getattr(self, key.replace("-", "_"))
            if not path:
                yield f"`{key}` is missing; {advice}"
            elif problem := _unreadable(path):
                yield f"`{key}`: {problem}"
            elif key == "private-key" and Path(path).stat().st_mode & 0o077:
                yield f"`{key}`: others on this device can read {path}; chmod 600 {path}"
        if self.trusted_entities:
            yield from (f"`trusted-entities`: {problem}" for problem in _trust_problems(self.trusted_entities))

    def _resource_problems(self) -> Iterator[str]:
        """Yield what is wrong with the settings of memory, data and mini-batches."""
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard != resource.RLIM_INFINITY and self.memory_mb * _MIB > hard:
            yield f"`memory-mb` must be at most {hard // _MIB}, this user's limit (ulimit -Hd), got {self.memory_mb}"
        if not self.data and self.partition_id < 0:
            yield "`data` is missing; name this device's data, such as 'imagefolder:photos', or `partition-id`"
        if self.partition_id >= 0 and self.partition_id >= self.num_partitions:
            yield f"`partition-id` {self.partition_id} must be below `num-partitions`, {self.num_partitions}"
        if self.batch_size == 1:
            yield "`batch-size` must be 0 or >= 2: BatchNorm cannot train on one sample, got 1"

    @property
    def sends(self) -> tuple[str, ...]:
        """The words of ``may_send``, one by one."""
        return tuple(word.strip() for word in self.may_send.split(",") if word.strip())

    def for_client(self) -> dict[str, Scalar]:
        """Return the settings that ``client_app`` reads, as Flower's node configuration."""
        chosen: dict[str, Scalar] = {
            "name": self.name,
            "data-dir": self.data_dir,
            "device": self.device,
            "state-dir": str(Path(self.state_dir) / "models"),
            "threads": self.threads,
            "min-class-samples": self.min_class_samples,
            "may-send": ",".join(self.sends),
            "outside-classes": self.outside_classes,
        }
        for key in ("data", "classes", "model", "map", "batch_size"):
            if value := getattr(self, key):
                chosen[key.replace("_", "-")] = value
        if self.partition_id >= 0:
            chosen |= {"partition-id": self.partition_id, "num-partitions": self.num_partitions}
        return chosen

    @property
    def node_file(self) -> Path:
        """The file into which :func:`isoproto.deploy.launch.start` writes Flower's node configuration."""
        return Path(self.state_dir) / "node-config.toml"


_FIELDS: dict[str, "dataclasses.Field[Any]"] = {f.name.replace("_", "-"): f for f in dataclasses.fields(NodeConfig)}


def _unreadable(path: str) -> str:
    """Return why this user cannot read a file, or an empty text if they can."""
    try:
        with open(path, "rb"):
            return ""
    except FileNotFoundError:
        return f"there is no file {path}"
    except OSError as err:
        return f"cannot read {path}: {err.strerror}; name another file, or give this user the right"


def _trust_problems(path: str) -> Iterator[str]:
    """Yield why Flower would refuse a file of trusted entities, or accept it and check nothing."""
    import yaml
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if problem := _unreadable(path):
        yield problem
        return
    try:
        keys = yaml.safe_load(Path(path).read_text("utf-8-sig"))
    except (ValueError, yaml.YAMLError) as err:
        keys = " ".join(str(err).split())
    if not isinstance(keys, dict) or not keys:
        yield f"{path} must map names to keys, `NAME: ssh-ed25519 ...`, one at least, got {keys!r:.200}"
        return
    for name, key in keys.items():
        try:
            good = isinstance(load_ssh_public_key(str(key).encode()), Ed25519PublicKey)
        except (ValueError, UnsupportedAlgorithm):
            good = False
        if not good:
            yield f"{path}: the key of {name!r} must be of ed25519, `ssh-ed25519 ...`, got {key!r:.60}"


def _named_already(problem: str, values: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a problem is about a setting whose value was refused before, so that it is reported once."""
    key = problem.partition("`")[2].partition("`")[0]
    return key in values and key.replace("-", "_") not in found
