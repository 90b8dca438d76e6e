"""One client: the server's settings, the node's configuration and the data, resolved into one value."""

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from client_app.device import choose_device, use_threads
from client_app.owner import check_code, check_may_send, check_places
from client_app.share import partition_of, share_of
from client_app.store import ClientStore
from isoproto import paths
from isoproto.config import RunConfig, Scalar
from isoproto.data import ClientData, hold_out
from isoproto.engines.host import REAL_DEVICE, Host
from isoproto.errors import ConfigError
from isoproto.own_code import is_own
from isoproto.parts import Part, needs_models, parts_of
from isoproto.seeding import torch_generator
from isoproto.settings.sections import NO_MODEL
from models import ModelSpec, TextSpec, architecture_for

# Settings of the run that a node's configuration overrides.
_NODE_SETTINGS = ("data", "data-dir", "classes", "device", "state-dir", "batch-size")
_FLOOR = "min-class-samples"


@dataclass(frozen=True)
class Client:
    """One client: its settings, data and device while this process answers a message.

    Attributes:
        name: Stable name: the partition id as text, or the node's name.
        partitions: Number of partitions that the node's configuration names; 0 on a device with data of its own.
        config: The run's settings; settings of the node replace those of the run.
        architecture: Name of the client's model; ``none`` if it has none.
        data: Its samples.
        domain: Domain of its data, or empty.
        spec: Shape of a sample, number of classes, feature width and head that its model must have.
        device: Device that its model is on.
        host: Whether it is simulated, and by which worker.
        words: The characters that each token id stands for; empty for pictures.
        own_map: Its own feature map, ``FILE.py:callable``, as the node names it, or in a simulation the run; empty if
            neither does.
    """

    name: str
    partitions: int
    config: RunConfig
    architecture: str
    data: ClientData
    domain: str
    spec: ModelSpec | TextSpec
    device: torch.device
    host: Host = REAL_DEVICE
    words: tuple[str, ...] = ()
    own_map: str = ""

    @classmethod
    def of(
        cls, settings: Mapping[str, Scalar], node: Mapping[str, Any], node_id: int, host: Host = REAL_DEVICE
    ) -> "Client":
        """Resolve the server's settings and the node's configuration into a client.

        Args:
            settings: The run's settings, as the server sends them.
            node: The node's configuration.
            node_id: Flower's number of the node.
            host: Whether the client is simulated. A real device refuses code and folders that only the server names.

        Raises:
            ConfigError: If a setting cannot be used.
            DataError: If its data cannot be read.
        """
        config = _settings_of(settings, node)
        partition, partitions = partition_of(node)
        name = str(partition) if partition is not None else str(node.get("name", f"node-{node_id}"))
        check_may_send(config, node, name)
        architecture = str(node.get("model") or architecture_for(config.models, partition or 0))
        if architecture == NO_MODEL and (reason := needs_models(config)):
            raise ConfigError(f"client {name} has no model (`model = 'none'`), but {reason}")
        if not host.simulated:
            check_code(config, node, architecture, name)
            check_places(config, node, name)
        use_threads(int(node.get("threads", 1)))
        share = share_of(config, str(node.get("outside-classes", "refuse")), partition, partitions)
        device = choose_device(config.device)
        if config.amp != "off" and not torch.amp.is_autocast_available(device.type):
            raise ConfigError(f"client {name}: PyTorch has no autocast on its device {device}; set amp = 'off'")
        data = share.data
        if config.framed:
            data = hold_out(data, config.common__holdout, torch_generator(config.seed, "held-out", name))
        own_map = str(node.get("map") or (config.common__map if is_own(config.common__map) else ""))
        return cls(
            name, partitions, config, architecture, data, share.domain, share.spec, device, host, share.words, own_map
        )

    @property
    def has_model(self) -> bool:
        """Whether it has a network. A client without one takes part by the common frame alone."""
        return self.architecture != NO_MODEL

    @property
    def num_classes(self) -> int:
        """Number of classes C of the federation."""
        return self.spec.num_classes

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the run's method."""
        return parts_of(self.config)

    @functools.cached_property
    def test_digest(self) -> int:
        """A checksum of the test data. A saved accuracy holds only for the test data that it was measured on."""
        return zlib.crc32(self.data.test_x.numpy().tobytes(), zlib.crc32(self.data.test_y.numpy().tobytes()))

    def store(self, experiment: str) -> ClientStore:
        """Return the store of the client's model in an experiment."""
        return ClientStore(paths.state_dir(self.config.state_dir), experiment, self.name)


def _settings_of(settings: Mapping[str, Scalar], node: Mapping[str, Any]) -> RunConfig:
    """Return the run's settings, some replaced by those of the node.

    Raises:
        ConfigError: If a setting of either cannot be used.
    """
    of_node = {key: node[key] for key in (*_NODE_SETTINGS, _FLOOR) if key in node}
    RunConfig.from_mapping(of_node, source="node config")
    if "data" in of_node:  # a relative path in the node's configuration must not start from a folder of the server
        of_node.setdefault("data-dir", "")
    if _FLOOR in of_node:  # the larger of the two limits counts
        of_node[_FLOOR] = max(of_node[_FLOOR], int(settings.get(_FLOOR, 1)))
    return RunConfig.from_mapping({**settings, **of_node})
