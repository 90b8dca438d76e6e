"""Check that a run asks for no more than the owner of a device permits: data to send, code to run, folders to use."""

from collections.abc import Mapping
from typing import Any

from isoproto.config import RunConfig
from isoproto.data.folders import data_folder, lies_in
from isoproto.errors import ConfigError
from isoproto.own_code import is_own
from isoproto.parts import parts_of
from models import architecture_for


def asked_of_owner(config: RunConfig) -> frozenset[str]:
    """Return what a run asks clients to send besides class means, in the words of ``may-send``.

    Args:
        config: The run's settings, resolved.

    Example:
        >>> sorted(asked_of_owner(RunConfig(strategy="fedavg", share="model")))
        ['base', 'head']
    """
    return frozenset().union(*(part.asks for part in parts_of(config)))


def check_may_send(config: RunConfig, node: Mapping[str, Any], client: str) -> None:
    """Refuse a run that asks the client to send more than the node's owner permits.

    Raises:
        ConfigError: If the run asks for more than ``may-send`` of the node allows.
    """
    if "may-send" not in node:
        return
    allowed = {word.strip() for word in str(node["may-send"]).split(",")}
    if missing := sorted(asked_of_owner(config) - allowed):
        raise ConfigError(
            f"client {client}: strategy {config.strategy!r} asks for {', '.join(missing)}, and `may-send` of this node "
            f"allows {', '.join(sorted(allowed - {''})) or 'nothing'} besides class means. Its owner may add "
            "it, or the server choose a strategy that does without"
        )


def check_code(config: RunConfig, node: Mapping[str, Any], architecture: str, client: str) -> None:
    """Refuse a run config that names code for a real device to import. Only the device's owner may name code.

    Args:
        config: The run's settings.
        node: The node's configuration. What it names itself is permitted.
        architecture: The client's model.
        client: The client's name, for the error text.

    Raises:
        ConfigError: If the run config names code.
    """
    if "model" not in node and is_own(architecture):
        raise _foreign_code("models", architecture, "model", client)
    if "data" not in node and config.data.startswith("module:"):
        raise _foreign_code("data", config.data, "data", client)
    if "map" not in node and is_own(config.common__map):
        raise _foreign_code("common.map", config.common__map, "map", client)
    second = architecture_for(config.models, 0)  # not the node's own `model`
    if is_own(second) and any(part.owns for part in parts_of(config)):
        raise ConfigError(
            f"client {client}: the server's run config names code for this device to import, `models = {second!r}` for "
            f"a second model beside the client's own. Name an architecture of isoproto first in `models`"
        )


def _foreign_code(key: str, value: str, node_key: str, client: str) -> ConfigError:
    return ConfigError(
        f"client {client}: the server's run config names code for this device to import, `{key} = {value!r}`; only "
        f"the node's own configuration may. Set `{node_key}` there"
    )


def check_places(config: RunConfig, node: Mapping[str, Any], client: str) -> None:
    """Refuse a run config that names folders of a real device. Only its owner says where a run reads and writes.

    Raises:
        ConfigError: If the run config names data outside the node's folder, or a folder to write to.
    """
    folder = data_folder(str(node.get("data-dir", "")))
    if "data" not in node and not lies_in(folder, config.data, config.data_dir):
        raise ConfigError(
            f"client {client}: the server's run config names data outside of this node's folder for it, {folder}: "
            f"`data = {config.data!r}`, `data-dir = {config.data_dir!r}`. Name data by a path below that folder, or "
            "let the node's owner set `data-dir` or `data` in its own configuration"
        )
    if config.state_dir and "state-dir" not in node:
        raise ConfigError(
            f"client {client}: the server's run config names a folder of this device to write to, `state-dir = "
            f"{config.state_dir!r}`; only the node's own configuration may. Leave it out of the run config"
        )
