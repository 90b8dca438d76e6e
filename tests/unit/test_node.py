"""A device's configuration, a user's own code, a device's classes, and what `isoproto status` reads."""

import json
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from packaging.requirements import Requirement
from typer.testing import CliRunner

from isoproto.cli.main import app
from isoproto.data import ImageDataset, load_dataset, with_classes
from isoproto.deploy.launch import SUPERNODE, command, start
from isoproto.deploy.node import NodeConfig
from isoproto.deploy.status import newest_run, run_status
from isoproto.errors import ConfigError, DataError, FederationError, StateError
from isoproto.own_code import own_callable
from models import ModelSpec, TextSpec, create_model

ROOT = Path(__file__).parents[2]
SPEC = ModelSpec(channels=1, height=12, width=12, feature_dim=16, num_classes=3)

OWN = """
import torch
from torch import nn


def narrow(spec):
    return nn.Sequential(nn.Conv2d(spec.channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def wide(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.height * spec.width, 48))


def exact(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.height * spec.width, spec.feature_dim))


def misfit(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 16))


def scores(spec):
    return nn.Sequential(nn.Flatten(0), nn.Linear(288, 3))


def frozen(spec):
    return exact(spec).requires_grad_(False)


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(144, 16)

    def forward(self, x):
        with torch.no_grad():
            return self.layer(x.flatten(1))


def detached(spec):
    return Detached()


def broken(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), Log())


class Log(nn.Module):
    def forward(self, x):
        return (x * 0 - 1).log()


def vectors(spec):
    return nn.Embedding(spec.vocabulary, spec.length)


def words(spec):
    return nn.Sequential(vectors(spec), nn.Flatten())


def number(spec):
    return 3


def fails(spec):
    raise OSError("no weights here")


constant = 5


def data():
    pictures = torch.zeros(6, 8, 8, dtype=torch.uint8).numpy()
    return {"train_x": pictures, "train_y": [0, 1, 0, 1, 0, 1], "classes": ["cat", "dog"]}


def no_data():
    return 3


def half_data():
    return {"train_x": data()["train_x"]}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


# Own models


@pytest.mark.parametrize(("name", "linear"), [("narrow", True), ("wide", False), ("exact", False)])
def test_an_own_model_of_any_width_fits_the_federation(own, name, linear):
    model = create_model(f"{own}:{name}", SPEC, seed=3)
    assert any("widen.weight" in key for key, _ in model.named_parameters()) == linear
    features = model.features(torch.rand(5, 1, 12, 12))
    assert features.shape == (5, 16)
    features.sum().backward()
    assert all(p.grad is not None for p in model.base.parameters())


def test_an_own_model_for_texts_is_told_of_them_and_tried_on_token_ids(own):
    spec = TextSpec(vocabulary=30, length=7, feature_dim=16, num_classes=2)
    model = create_model(f"{own}:words", spec, seed=3)
    assert model.base.extractor[0].weight.shape == (30, 7)
    tokens = torch.tensor([[1, 2, 3, 0, 0, 0, 0], [29, 0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    assert model.features(tokens).shape == (2, 16)
    with pytest.raises(ConfigError, match=r"must map texts \(2, 7\) to features \[2, L\], got \(2, 7, 7\)"):
        create_model(f"{own}:vectors", spec, seed=3)


def test_an_own_model_is_a_function_of_the_seed_and_untouched_by_its_trial(own):
    first, second, other = (create_model(f"{own}:narrow", SPEC, seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    assert int(first["base.extractor.1.num_batches_tracked"]) == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("misfit", r"fails on pictures \(2, 1, 12, 12\): RuntimeError: mat1 and mat2"),
        ("scores", r"must map pictures \(2, 1, 12, 12\) to features \[2, L\], got \(3,\)"),
        ("frozen", r"has no weights that can be trained"),
        ("detached", r"no gradient reaches its weights"),
        ("broken", r"features that are not finite"),
        ("number", r"must return a torch.nn.Module, got int"),
        ("fails", r"cannot be built for .*OSError: no weights here"),
        ("constant", r"has no function 'constant'; it has \['narrow', 'wide'"),
        ("missing", r"has no function 'missing'"),
    ],
)
def test_an_own_model_that_cannot_be_used_is_told_why(own, name, reason):
    with pytest.raises(ConfigError, match=reason):
        create_model(f"{own}:{name}", SPEC, seed=0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere_at_all:net", r"No module named 'nowhere_at_all'; install it for .*, or name a file"),
        ("nowhere.py:net", r"there is no file .*nowhere\.py"),
        ("math:", r"names no function; write `module:callable`"),
        (":net", r"names no function"),
    ],
)
def test_a_name_of_nothing_is_told_of(name, reason):
    with pytest.raises(ConfigError, match=reason):
        own_callable(name, "model")


def test_a_file_that_fails_is_not_half_imported(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def net(spec): return 1\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"cannot be imported: ZeroDivisionError"):
        own_callable(f"{file}:net", "model")
    file.write_text("def net(spec): return 1\n")
    assert own_callable(f"{file}:net", "model")(None) == 1


# Own data and classes


def test_own_data_come_as_arrays(own):
    dataset = load_dataset("module:own.py:data", str(own.parent))
    assert (tuple(dataset.x.shape), dataset.classes) == ((6, 1, 8, 8), ("cat", "dog"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_data", r"must return an ImageDataset or a mapping .*got int"),
        ("half_data", r"array `train_y` is missing"),
        ("number", r"failed: TypeError"),
    ],
)
def test_own_data_that_cannot_be_used_are_told_of(own, name, reason):
    with pytest.raises(DataError, match=reason):
        load_dataset(f"module:own.py:{name}", str(own.parent))


def pets() -> ImageDataset:
    x = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 1, 4, 4)
    test = torch.tensor([False, False, False, False, True])
    return ImageDataset(x, torch.tensor([0, 1, 2, 1, 2]), test, ("ant", "bee", "cow"), source="pets")


def test_classes_are_numbered_as_in_the_federation():
    found = with_classes(pets(), ("cow", "dog", "bee", "ant"))
    assert found.y.tolist() == [3, 2, 0, 2, 0]
    assert found.classes == ("cow", "dog", "bee", "ant")


def test_samples_of_other_classes_are_refused_or_left_out():
    with pytest.raises(
        DataError, match=r"pets: 2 of 5 samples are of classes .*\{'cow': 2\}.*Did you mean \{'cow': 'cows'"
    ):
        with_classes(pets(), ("bee", "ant", "cows"))
    left = with_classes(pets(), ("bee", "ant"), outside="drop")
    assert (left.y.tolist(), left.x[:, 0, 0, 0].tolist()) == ([1, 0, 0], [0, 1, 3])
    assert not left.test.any()
    with pytest.raises(DataError, match="are none of the federation's"):
        with_classes(pets(), ("dog", "fox"), outside="drop")


# The configuration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ca.pem", "ward-3.key"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o600)
    return tmp_path


FILES = {"root-certificates": "ca.pem", "private-key": "ward-3.key"}
GOOD = {"superlink": "link:8000", **FILES, "data": "npz:x.npz"}


def test_paths_start_from_the_configuration(folder, monkeypatch):
    monkeypatch.chdir("/")
    text = [f"{key} = '{value}'" for key, value in GOOD.items()]
    text += ["model = 'own.py:net'", "state-dir = 'state'", "classes = ['a', 'b']", "may-send = ['gradients', 'head']"]
    (folder / "node.toml").write_text("\n".join(text))
    config = NodeConfig.read(folder / "node.toml")
    assert config.for_client() == {
        "name": "ward-3",
        "data": "npz:x.npz",
        "data-dir": str(folder),
        "classes": "a,b",
        "model": f"{folder}/own.py:net",
        "device": "auto",
        "state-dir": f"{folder}/state/models",
        "threads": 1,
        "min-class-samples": 5,
        "may-send": "gradients,head",
        "outside-classes": "refuse",
    }
    words = command(config)
    assert words[words.index("--auth-supernode-private-key") + 1] == str(folder / "ward-3.key")
    assert "--insecure" not in words


def test_flower_accepts_the_command_and_reads_the_same_configuration(folder):
    """Flower's own parser, on the command line and on the file that `start` writes."""
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    from isoproto.toml import to_toml

    config = NodeConfig.from_mapping({**GOOD, "name": 'it\'s "odd"', "state-dir": "s", "health-port": 9100}, folder)
    arguments = _parse_args_run_supernode().parse_args(command(config)[len(SUPERNODE) :])
    assert (arguments.superlink, arguments.port, arguments.insecure) == ("link:8000", 9094, False)
    assert arguments.health_server_address == "127.0.0.1:9100"
    Path(arguments.node_config).parent.mkdir()
    Path(arguments.node_config).write_text(to_toml(config.for_client()))
    assert parse_config_args([arguments.node_config]) == config.for_client()


def test_all_that_is_wrong_is_told_at_once(folder):
    wrong = {"superlink": "link", "private-key": "no.key", "threads": 0, "treads": 1, "may-send": ["weights"]}
    with pytest.raises(ConfigError) as told:
        NodeConfig.from_mapping(wrong, folder)
    lines = str(told.value).splitlines()
    assert lines[0] == "7 problems in the node configuration:"
    for part in ("`treads`", "`threads` must be >= 1", "'link' is not an address", "`root-certificates` is missing"):
        assert part in str(told.value)
    assert "no.key" in str(told.value)
    assert "`data` is missing" in str(told.value)
    assert "`may-send` must be of 'base', 'gradients', 'head', 'logits', 'statistics', 'twin', got ['weights']" in str(
        told.value
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"insecure": True}, "`insecure` excludes `root-certificates`"),
        ({"partition-id": 3, "num-partitions": 3}, "`partition-id` 3 must be below `num-partitions`, 3"),
        ({"batch-size": 1}, "`batch-size` must be 0 or >= 2"),
        ({"classes": ["a", "a"]}, "`classes` must be different names"),
        ({"outside-classes": "ignore"}, "`outside-classes` must be one of 'refuse', 'drop'"),
        ({"trusted-entities": "keys.yaml"}, r"there is no file .*keys\.yaml"),
        ({"memory-mb": -1}, "`memory-mb` must be >= 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(folder, change, reason):
    with pytest.raises(ConfigError, match=reason):
        NodeConfig.from_mapping({**GOOD, **change}, folder)


def public(key: object) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


ED25519, NISTP384 = public(ed25519.Ed25519PrivateKey.generate()), public(ec.generate_private_key(ec.SECP384R1()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", r"must map names to keys, `NAME: ssh-ed25519 \.\.\.`, one at least, got \{\}"),
        ("- key", r"must map names to keys.* got \['key'\]"),
        ("a: [", r"must map names to keys.* got 'while parsing"),
        ("\udcff", r"must map names to keys.* got .*decode"),
        ("hub: garbage", r"the key of 'hub' must be of ed25519, `ssh-ed25519 \.\.\.`, got 'garbage'"),
        ("hub: 3", r"the key of 'hub' must be of ed25519.* got 3"),
        (f"hub: {ED25519}\nold: {NISTP384}", r"the key of 'old' must be of ed25519.* got 'ecdsa"),
    ],
)
def test_trusted_entities_that_flower_would_refuse_or_that_check_nothing_are_told_of(folder, text, reason):
    (folder / "keys.yaml").write_bytes(text.encode("utf8", "surrogateescape"))
    with pytest.raises(ConfigError, match=rf"1 problem in .*\n  `trusted-entities`: {folder}/keys\.yaml.*{reason}"):
        NodeConfig.from_mapping({**GOOD, "trusted-entities": "keys.yaml"}, folder)


def test_trusted_entities_that_flower_takes_are_taken(folder):
    from flwr.supernode.cli.flower_supernode import _try_obtain_trusted_entities, _validate_public_keys_ed25519

    (folder / "keys.yaml").write_text(f"hub: {ED25519}\n")
    config = NodeConfig.from_mapping({**GOOD, "trusted-entities": "keys.yaml"}, folder)
    found = _try_obtain_trusted_entities(Path(config.trusted_entities))
    assert found == {"hub": ED25519}
    _validate_public_keys_ed25519(found)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_key_that_others_can_read_or_change_is_refused(folder, mode):
    (folder / "ward-3.key").chmod(mode)
    with pytest.raises(ConfigError, match=r"`private-key`: others on this device .*ward-3\.key; chmod 600 .*ward-3"):
        NodeConfig.from_mapping(GOOD, folder)


def test_files_that_this_user_cannot_read_are_told_of():
    code = f"""
import os, tempfile
from pathlib import Path
from isoproto.deploy.node import ConfigError, NodeConfig
"link".encode("idna")  # to have it imported: a user without rights may not see where Python lies
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
with tempfile.TemporaryDirectory() as folder:
    for name in ("ca.pem", "ward-3.key"):
        Path(folder, name).touch(0o600)
    for name in ("ca.pem", "ward-3.key", "."):
        Path(folder, name).chmod(0)
        try:
            NodeConfig.from_mapping({GOOD!r}, Path(folder))
        except ConfigError as err:
            print(str(err).replace(folder, "HERE"))
        Path(folder, name).chmod(0o700)
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    right = "Permission denied; name another file, or give this user the right"
    certificate, key = (f"  `{what}`: cannot read HERE/{name}: {right}" for what, name in FILES.items())
    one, two = "1 problem in the node configuration:", "2 problems in the node configuration:"
    assert told.splitlines() == [one, certificate, one, key, two, certificate, key]


def test_more_memory_than_this_user_may_have_is_refused(folder, monkeypatch):
    monkeypatch.setattr("isoproto.deploy.node.resource.getrlimit", lambda _: (2**30, 2**31))
    assert NodeConfig.from_mapping({**GOOD, "memory-mb": 2048}, folder).memory_mb == 2048
    with pytest.raises(
        ConfigError, match=r"`memory-mb` must be at most 2048, this user's limit \(ulimit -Hd\), got 2049"
    ):
        NodeConfig.from_mapping({**GOOD, "memory-mb": 2049}, folder)


def test_what_a_node_keeps_is_its_users_alone(folder, monkeypatch):
    started = []
    monkeypatch.setattr("isoproto.deploy.launch.os.execve", lambda *words: started.append(words))
    monkeypatch.chdir(folder)
    config = NodeConfig.from_mapping({**GOOD, "state-dir": "state"}, folder)
    start(config)
    assert len(started) == 1
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder / "state", *(folder / "state").iterdir())}
    assert found == {"state": 0o700, "models": 0o700, "flower": 0o700, "node-config.toml": 0o600}


@pytest.mark.parametrize("name", ["state", "state/flower"])
def test_a_file_where_a_folder_of_the_node_should_be_is_told_of(folder, monkeypatch, name):
    monkeypatch.setattr("isoproto.deploy.launch.os.execve", pytest.fail)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("")
    with pytest.raises(StateError, match=rf"cannot make the folder {folder}/{name}: File exists; choose another one"):
        start(NodeConfig.from_mapping({**GOOD, "state-dir": "state"}, folder))


def test_a_file_that_is_no_toml_is_told_of(tmp_path):
    (tmp_path / "node.toml").write_text("superlink = ")
    with pytest.raises(ConfigError, match=r"cannot read .*node\.toml: Invalid value"):
        NodeConfig.read(tmp_path / "node.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        NodeConfig.read(tmp_path / "none.toml")


# What a node needs


def test_a_nodes_requirements_are_ours_without_what_only_others_need():
    lines = (ROOT / "deploy/node-requirements.txt").read_text().splitlines()
    node = {r.name: r.specifier for r in map(Requirement, (line for line in lines if line and line[0] != "#"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ours = {r.name: r.specifier for r in map(Requirement, project)}
    assert {name: spec for name, spec in ours.items() if name not in ("matplotlib", "torchvision")} == node


def test_a_node_runs_without_ray_torchvision_and_matplotlib():
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "torchvision", "matplotlib"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
import client_app.app, client_app.doctor, isoproto.cli.main, isoproto.deploy.node
from client_app.client import Client
from client_app.own_model import skeleton
client = Client.of({"models": "cnn"}, {"data": "digits4", "name": "n", "model": "resnet"}, 0)
assert skeleton(client.architecture, client.spec, client.device).width == 128
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# isoproto status


def run_folder(root: Path, *, summary: bool = False) -> Path:
    folder = root / "20260101-000000-fedsaf-aa"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('strategy = "fedsaf"\nrounds = 9\n')
    (folder / "experiment").write_text("aa\n")
    shares = [
        {"client": n, "model": m, "train": [3], "test": [1], "domain": ""} for n, m in (("a", "cnn"), ("b", "resnet"))
    ]
    (folder / "partition.json").write_text(json.dumps({"classes": ["x"], "partitions": 2, "clients": shares}))
    common = {"loss": {}, "scatter": 0.0, "samples": 3, "seconds": 1.0, "bytes": {"up": 1, "down": 1, "up_rows": 1}}
    accuracy = {"before": 0.25, "after": 0.5}
    lines = [
        {
            "kind": "client",
            "round": 1,
            "client": "a",
            "model": "cnn",
            "accuracy": accuracy,
            "correct": 1,
            "total": 2,
            **common,
        },
        {"kind": "failure", "round": 1, "client": "b", "reason": "no answer"},
        {"kind": "failure", "round": 2, "client": "b", "reason": "its node went away"},
        {"kind": "failure", "round": 2, "client": "node 77", "reason": "other classes"},
    ]
    lines.append(
        {
            "kind": "client",
            "round": 2,
            "client": "late",
            "model": "cnn4",
            "accuracy": accuracy,
            "correct": 1,
            "total": 2,
            **common,
        }
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text("first\nround 2 of 9\n")
    return folder


def test_status_tells_models_last_round_and_failures(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "nodes.json").write_text('{"a": "5", "b": "6"}')
    nodes = [
        {"name": "a", "node-id": "5", "status": "online"},
        {"name": "b", "node-id": "6", "status": "offline"},
        {"name": "", "node-id": "8", "status": "online"},
        {"name": "d", "node-id": "77", "status": "online"},
    ]
    now = run_status(newest_run(tmp_path), nodes)
    assert (now.run, now.state, now.rounds, now.said) == (folder.name, "running", 9, "round 2 of 9")
    found = {one.client: one for one in now.clients}
    assert list(found) == ["a", "b", "node 77", "late"]
    assert (found["a"].model, found["a"].online, found["a"].last_round, found["a"].accuracy) == ("cnn", True, 1, 0.5)
    assert (found["b"].model, found["b"].online, found["b"].last_round, found["b"].failures) == (
        "resnet",
        False,
        None,
        2,
    )
    assert found["b"].last_failure == "round 2: its node went away"
    assert (found["node 77"].node, found["node 77"].online) == ("d", True)
    assert (found["late"].model, found["late"].last_round, found["late"].online) == ("cnn4", 2, None)
    assert now.strangers == ["8"]


def test_status_finds_the_node_of_a_client_that_has_a_partitions_number(tmp_path):
    """As in docker-compose.yml: the run says 0 and 1, the SuperLink knows nodes by name or number alone."""
    folder = run_folder(tmp_path)
    for name in ("partition.json", "metrics.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(
            text.replace('"client": "a"', '"client": "0"').replace('"client": "b"', '"client": "1"')
        )
    (folder / "nodes.json").write_text('{"0": "5", "1": "6"}')
    nodes = [
        {"name": "node-0", "node-id": "5", "status": "online"},
        {"name": "", "node-id": "6", "status": "offline"},
    ]
    found = {one.client: (one.node, one.online) for one in run_status(folder, nodes).clients}
    assert found["0"] == ("node-0", True)
    assert found["1"] == ("6", False)
    assert run_status(folder, nodes).strangers == []
    assert run_status(folder).clients[0].online is None


def test_status_waits_before_there_are_clients(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "partition.json").unlink()
    (folder / "metrics.jsonl").unlink()
    (folder / "log.txt").write_text("waiting for nodes: 1 of 3 are there\n")
    now = run_status(folder)
    assert (now.state, now.round, now.clients) == ("waiting", 0, [])
    assert now.said == "waiting for nodes: 1 of 3 are there"


def test_a_run_that_died_without_a_word_is_silent_in_the_end(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "config.toml").write_text('strategy = "fedsaf"\nrounds = 9\nround-timeout = 60.0\nwait-timeout = 5.0\n')
    written = max(path.stat().st_mtime for path in folder.iterdir())
    assert run_status(folder, now=written + 179).state == "running"
    assert run_status(folder, now=written + 181).state == "silent"
    assert run_status(folder, known={"status": "running"}, now=written + 181).state == "running"
    (folder / "partition.json").unlink()
    assert run_status(folder, now=written + 14).state == "waiting"
    assert run_status(folder, now=written + 16).state == "silent"


def test_a_run_that_the_superlink_knows_to_be_over_is_not_running(tmp_path):
    folder = run_folder(tmp_path)
    over = {"status": "finished:failed", "status-details": "no heartbeat"}
    now = run_status(folder, known=over)
    assert (now.state, now.said) == ("failed", "the SuperLink says finished:failed: no heartbeat")
    (folder / "summary.json").write_text('{"status": "completed"}')
    assert run_status(folder, known={**over, "status": "finished:completed"}).state == "completed"


def test_watching_ends_with_the_run_that_the_superlink_is_asked_for(tmp_path, monkeypatch):
    folder = run_folder(tmp_path)
    (folder / "flower-run").write_text("17")
    asked = []

    def ask(words):
        asked.append(words)
        return {"nodes": [], "runs": [{"status": "finished:failed", "status-details": "dead"}]}

    monkeypatch.setattr("isoproto.deploy.enrolment.ask_flower", ask)
    words = ["status", "--watch", "9", "--json", "--connection", "here", "--output-dir", str(tmp_path)]
    shown = CliRunner().invoke(app, words)
    assert json.loads(shown.output)["state"] == "failed"
    assert asked == [["supernode", "list", "here"], ["ls", "here", "--run-id", "17"]]

    def forgot(words):
        if words[0] == "ls":
            raise FederationError("Run ID not found")
        return {"nodes": [{"node-id": "8", "status": "online"}]}

    monkeypatch.setattr("isoproto.deploy.enrolment.ask_flower", forgot)
    shown = CliRunner().invoke(app, ["status", "--connection", "here", "--output-dir", str(tmp_path)])
    assert "not in this run yet: 8" in shown.output
    assert "the SuperLink does not say all: Run ID not found" in shown.output
    monkeypatch.setattr("isoproto.deploy.enrolment.ask_flower", ask)
    (folder / "flower-run").write_text("0")
    asked.clear()
    shown = CliRunner().invoke(app, ["status", "--connection", "here", "--output-dir", str(tmp_path)])
    assert "running" in shown.output
    assert len(asked) == 1


def test_watching_ends_when_nothing_is_written_any_more(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "config.toml").write_text('strategy = "fedsaf"\nrounds = 9\nround-timeout = 1e-9\n')
    shown = CliRunner().invoke(app, ["status", "--watch", "9", "--output-dir", str(tmp_path)])
    assert "silent, round 0 of 9" in shown.output
    assert "isoproto resume" in shown.output


def test_a_refused_node_that_came_back_is_its_client(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "nodes.json").write_text('{"a": "5", "b": "6", "late": "77"}')
    found = {one.client: one for one in run_status(folder).clients}
    assert list(found) == ["a", "b", "late"]
    assert (found["late"].last_round, found["late"].failures) == (2, 1)
    assert found["late"].last_failure == "round 2: other classes"


def test_the_command_shows_it(tmp_path):
    run_folder(tmp_path)
    shown = CliRunner().invoke(app, ["status", "--output-dir", str(tmp_path)])
    assert "b: round 2: its node went away\n" in shown.output  # a whole line, however narrow the table is
    assert "node 77: round 2: other classes\n" in shown.output
    assert shown.exit_code == 0, shown.output
    assert "running, round 0 of 9" in shown.output
    told = CliRunner().invoke(app, ["status", "--json", "--output-dir", str(tmp_path)])
    assert json.loads(told.output)["clients"][0]["client"] == "a"
    with pytest.raises(ConfigError, match="there is no run in"):
        newest_run(tmp_path / "none")


def test_own_data_arrays_may_be_numpy_of_any_integer(tmp_path):
    (tmp_path / "more.py").write_text(
        "import numpy as np\ndef data(): return {'train_x': np.zeros((4, 8, 8), np.uint8), "
        "'train_y': np.array([0, 0, 1, 1], np.uint8), 'classes': np.array(['a', 'b'])}\n"
    )
    assert load_dataset("module:more.py:data", str(tmp_path)).y.dtype == torch.int64


_LINGERS = """
import sys, threading, time
import isoproto.deploy.supernode as supernode
def given_up():
    threading.Thread(target=time.sleep, args=(60,)).start()  # as Flower's local server does
    {ending}
supernode.flower_supernode = given_up
supernode.main()
"""


@pytest.mark.parametrize(
    ("ending", "status", "told"), [("return", 1, ""), ("raise OSError('cut off')", 1, "OSError: cut off")]
)
def test_a_supernode_that_gave_up_ends_whatever_its_threads_do(ending, status, told):
    """Else nobody starts it again."""
    command = [sys.executable, "-c", _LINGERS.format(ending=ending)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status
    assert told in done.stderr


def test_the_command_for_containers_becomes_the_supernode_with_flowers_own_arguments(monkeypatch):
    started = []
    monkeypatch.setattr("isoproto.deploy.launch.os.execv", lambda *words: started.append(words))
    words = ["--help", "--superlink=link:1", "--node-config", 'data="x y"', "-c", "more"]
    done = CliRunner().invoke(app, ["supernode", *words])
    assert done.exit_code == 0, done.output
    assert started == [(SUPERNODE[0], [*SUPERNODE, *words])]


def test_a_supernode_that_was_told_to_end_says_so(tmp_path):
    done = subprocess.run([*SUPERNODE, "--no-such"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such" in done.stderr
