"""The compose files: Flower takes every command line in them, and nothing in them is open by default."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from client_app.client import Client
from isoproto.config import RunConfig, read_overrides
from isoproto.data import class_counts
from isoproto.deploy.launch import SUPERNODE
from isoproto.errors import ConfigError
from strategies import STRATEGIES
from strategies.names import unknown_names
from tests.fakes import write_pictures

ROOT = Path(__file__).parents[2]
FILES = ("docker-compose.yml", "deploy/server.yml", "deploy/node.yml")
PARSERS = {"flower-superlink": _parse_args_run_superlink, "flower-supernode": _parse_args_run_supernode}
SETTINGS = {  # those without a default
    name: value.strip("'")
    for name, value in re.findall(r"^(\w+)=(.*)", (ROOT / "deploy/node.env.example").read_text(), re.MULTILINE)
    if name in ("ISOPROTO_SUPERLINK", "ISOPROTO_NODE", "ISOPROTO_NODE_CONFIG")
}
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")


def filled_in(text: str) -> str:
    """Put settings, else the defaults, into a text, as compose does."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if name in SETTINGS:
            return SETTINGS[name]
        assert kind == ":-", f"{match[0]} has no default, so it must be in SETTINGS"
        return rest

    return _VARIABLE.sub(value, text)


def mapped(value: Any) -> Any:
    """Fill in every text of a YAML document."""
    if isinstance(value, dict):
        return {key: mapped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [mapped(each) for each in value]
    return filled_in(value) if isinstance(value, str) else value


def service(path: Path, name: str) -> dict[str, Any]:
    """Return a service with all that it extends."""
    own = mapped(yaml.safe_load(path.read_text())["services"][name])
    base = own.pop("extends", None)
    if base is None:
        return own
    return service(path.parent / base["file"] if "file" in base else path, base["service"]) | own


def document(file: str) -> dict[str, Any]:
    return mapped(yaml.safe_load((ROOT / file).read_text()))


SERVICES = [(file, name) for file in FILES for name in document(file)["services"]]


@pytest.fixture(params=SERVICES, ids=[f"{file}:{name}" for file, name in SERVICES])
def found(request):
    file, name = request.param
    return service(ROOT / file, name)


def test_there_is_a_superlink_a_proxy_and_nodes():
    assert [name for _, name in SERVICES] == [
        *("superlink", "proxy", "node-0", "node-1", "node-2"),
        *("superlink", "proxy"),
        "node",
    ]


def test_flower_takes_the_command_line_and_it_asks_for_tls_and_keys(found):
    if "command" not in found:
        assert found["build"]["target"] == "proxy"
        return
    tool, *words = found["command"]
    arguments, unknown = PARSERS[tool]().parse_known_args(words)
    assert not unknown
    assert not arguments.insecure
    secrets = {f"/run/secrets/{each['target'] if isinstance(each, dict) else each}" for each in found["secrets"]}
    if tool == "flower-superlink":
        assert arguments.enable_supernode_auth
        assert not arguments.runtime_dependency_install
        assert secrets == {arguments.ssl_ca_certfile, arguments.ssl_certfile, arguments.ssl_keyfile}
        assert arguments.host == "0.0.0.0"
        assert arguments.database.startswith("/var/lib/isoproto/")
    else:
        assert secrets == {arguments.root_certificates, arguments.auth_supernode_private_key}
        assert not arguments.runtime_dependency_install
        assert {"partition-id", "data"} & parse_config_args([arguments.node_config]).keys()
    assert arguments.health_server_address in found["healthcheck"]["test"][1]
    assert found["healthcheck"]["test"][1].endswith("|| exit 1"), "Docker reserves status 2"


def entered(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the entrypoint of the image on this machine."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "ISOPROTO_HOME": str(tmp_path)}
    command = ["sh", str(ROOT / "deploy/entrypoint.sh"), *words]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_entrypoint_starts_the_supernode_as_a_device_does(tmp_path):
    assert SUPERNODE[-1] not in (ROOT / "deploy/entrypoint.sh").read_text(), "a second place for the command line"
    done = entered(tmp_path, "flower-supernode", "--no-such")
    assert done.returncode == 2, done.stderr
    assert "unrecognized arguments: --no-such" in done.stderr
    assert "the SuperNode ended by itself, with status 2" in done.stderr


def test_the_entrypoint_runs_any_other_command(tmp_path):
    done = entered(tmp_path, "sh", "-c", "echo it ran; exit 3")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "it ran")


def test_a_container_has_no_more_rights_than_it_needs(found):
    assert found["read_only"] is True
    assert not found["user"].startswith(("0", "root"))
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["restart"] == "unless-stopped"
    assert found["mem_limit"]
    assert found["logging"]["driver"] == "json-file"
    assert not {"privileged", "network_mode", "pid", "cap_add", "env_file"} & found.keys()


def test_the_superlinks_port_is_open_to_its_own_host_alone(found):
    ports = found.get("ports", [])
    if found.get("command", [""])[0] == "flower-superlink":
        assert ports == ["127.0.0.1:8000:8000"]
        assert list(found["networks"]) == ["server"]
    elif "command" in found:
        assert ports == []
        assert found.get("networks", ["nodes"]) == ["nodes"]
    else:
        assert ports == ["8443:8443"]


@pytest.mark.parametrize("file", FILES)
def test_what_services_name_is_defined_and_secrets_are_files(file):
    here = document(file)
    services = [service(ROOT / file, name) for name in here["services"]]
    for kind in ("secrets", "networks"):
        used = itertools.chain.from_iterable(each.get(kind, []) for each in services)
        assert {each["source"] if isinstance(each, dict) else each for each in used} == here.get(kind, {}).keys()
    volumes = [each.partition(":")[0] for each in itertools.chain(*(s.get("volumes", []) for s in services))]
    assert {name for name in volumes if not name.startswith((".", "/"))} == here["volumes"].keys()
    assert len(volumes) == len(set(volumes)), "two containers share a volume"
    assert all(list(secret) == ["file"] for secret in here["secrets"].values())


@pytest.mark.parametrize(
    ("file", "gpus"), [("docker-compose.yml", "compose.gpu.yml"), ("deploy/node.yml", "deploy/node.gpu.yml")]
)
def test_gpus_are_for_the_nodes(file, gpus):
    nodes = {name for where, name in SERVICES if where == file and name.startswith("node")}
    services = document(gpus)["services"]
    assert services.keys() == nodes
    (device,) = next(iter(services.values()))["deploy"]["resources"]["reservations"]["devices"]
    assert all(each == {"deploy": {"resources": {"reservations": {"devices": [device]}}}} for each in services.values())
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_a_device_is_called_as_its_key(monkeypatch):
    monkeypatch.setitem(SETTINGS, "ISOPROTO_NODE", "node-7")
    node = service(ROOT / "deploy/node.yml", "node")
    assert parse_config_args([node["command"][-1].partition("=")[2]])["name"] == "node-7"
    assert document("deploy/node.yml")["secrets"]["node.key"]["file"].endswith("/node-7.key")
    example = (ROOT / "deploy/node.env.example").read_text()
    assert example.count("node-0") == 1


@pytest.mark.parametrize("setting", ["ISOPROTO_KEYS_DIR", "ISOPROTO_DATA"])
def test_what_a_node_keeps_beside_its_compose_file_is_not_committed(setting):
    (folder,) = re.findall(rf"^{setting}=\./(\w+)$", (ROOT / "deploy/node.env.example").read_text(), re.MULTILINE)
    assert f"/deploy/{folder}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_node_has_a_key_and_a_share_of_its_own():
    nodes = [service(ROOT / FILES[0], f"node-{number}") for number in range(3)]
    configs = [parse_config_args([node["command"][-1].partition("=")[2]]) for node in nodes]
    assert [(one["partition-id"], one["num-partitions"]) for one in configs] == [(0, 3), (1, 3), (2, 3)]
    assert [node["secrets"][1]["source"] for node in nodes] == [f"node-{number}.key" for number in range(3)]
    assert len({tuple(node["command"][:-1]) for node in nodes}) == 1


def resolved(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a server sends."""
    config = RunConfig.from_mapping(values)
    return STRATEGIES[config.strategy].resolve(config).changes()


@pytest.mark.parametrize(("file", "name"), [pair for pair in SERVICES if pair[1].startswith("node")])
def test_a_node_says_what_may_leave_and_takes_part_in_the_run_of_deployments(file, name, tmp_path):
    node = parse_config_args([service(ROOT / file, name)["command"][-1].partition("=")[2]])
    assert (node["min-class-samples"], node["may-send"]) == (5, "gradients,statistics")
    run = resolved(read_overrides([str(ROOT / "conf/deploy.toml")]))
    if "data" in node:
        node["data"] = f"npz:{write_pictures(tmp_path / 'pictures.npz')}"
    client = Client.of({**run, "models": "cnn"}, node, 0)
    # As in a simulation, where the least is one sample: no class of the data that are built in is smaller.
    assert set(class_counts(client.data.train_y, client.num_classes)) <= {0, *range(5, 10_000)}
    with pytest.raises(ConfigError, match="asks for base, head, and `may-send` of this node allows gradients, stat"):
        Client.of({**resolved({"strategy": "fedavg"}), "models": "cnn"}, node, 0)


def test_the_proxy_lets_nothing_but_fleet_and_health_through():
    text = (ROOT / "deploy/nginx.conf").read_text()
    passing = re.findall(r"location ([^{]+?) \{(?:[^{}]|\{[^}]*\})*?proxy_pass", text)
    assert passing == ["/v1/fleet/", "= /health"]
    assert "client_max_body_size 16m" in text
    assert "proxy_ssl_verify on" in text


def test_images_are_of_this_version_with_pytorch_pinned():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {s["image"].rpartition(":")[2] for s in (service(ROOT / f, n) for f, n in SERVICES)} == {version}
    assert re.search(r"^torch==[\d.]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "--constraint constraints.txt" in dockerfile
    packages = dockerfile.partition("AS packages")[2].partition("\nFROM")[0]
    arguments = re.findall(r"^ARG (PIP_\w+)", packages, re.MULTILINE)
    assert len(arguments) == 5
    assert all(f" {name}=${name}" in packages for name in arguments), "the classic builder forgets ARGs after a stage"
    assert all(user == "1000:1000" for user in re.findall(r"^USER (.*)", dockerfile, re.MULTILINE))


def test_no_key_can_get_into_an_image():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    assert not [line for line in lines if line.startswith("!") and ("key" in line or line.endswith("deploy"))]


@pytest.mark.parametrize("example", ["server", "node"])
def test_the_examples_of_settings_name_real_ones_and_tell_their_defaults(example):
    told = dict(re.findall(r"^(\w+)=(.*)", (ROOT / f"deploy/{example}.env.example").read_text(), re.MULTILINE))
    files = ("docker-compose.yml", "deploy/common.yml", f"deploy/{example}.yml")
    used = _VARIABLE.findall("".join((ROOT / file).read_text() for file in files))
    assert told.items() <= {(name, default if kind == ":-" else told.get(name)) for name, kind, default in used}


def test_the_preset_of_deployments_can_be_read():
    config = RunConfig.from_mapping(read_overrides([str(ROOT / "conf/deploy.toml")]), check=unknown_names)
    assert (config.min_class_samples, config.min_contributors) == (5, 2)
    assert config.min_nodes >= 2
    assert config.round_timeout < RunConfig().round_timeout
