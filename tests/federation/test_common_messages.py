"""What messages of `isoproto` hold, round by round. Their sizes are those that docs/wire-schema.md gives."""

import json
from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from tests.fakes import When

FRAME = {"strategy": "isoproto", "common.dim": 8, "common.features": 4, "common.rank": 6, "models": "mlp", "rounds": 5}
DUMP = Path(__file__).parent / "common_messages.json"


def arrays_of(content):
    """The arrays of a message, by name, such as `float32 [3, 12]`."""
    record = content["arrays"] if "arrays" in content else ArrayRecord()
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in record.items()}


@pytest.fixture(scope="module")
def messages(tmp_path_factory, pictures):
    """Message and reply of client 0 in each of five rounds, and the run."""
    from isoproto.engines.in_process import task_identity
    from tests.conftest import Federation

    found = {}

    def look(grid, message, honest):
        reply = honest()
        found[f"round {message.content['config']['round']}"] = {
            "train message": arrays_of(message.content),
            "reply": arrays_of(reply.content),
        }
        assert "model" not in message.content
        assert "model" not in reply.content
        return [reply]

    with task_identity():
        federation = Federation(tmp_path_factory.mktemp("messages"), pictures)
        run = federation.run(federation.grid((look, When("train", [1, 2, 3, 4, 5], [0]))), FRAME)
    return found, run


def test_statistics_losses_and_gradients_travel_and_nothing_else(messages):
    """The dump of five train messages and their replies lies beside this file, for people to read."""
    assert messages[0] == json.loads(DUMP.read_text())


def test_sizes_are_those_of_the_page(messages):
    """Bytes of the rows in a reply: statistics 12 K + 4 K D + 4 R D + 20, losses 4 V T + 536, gradients 4 C E."""
    found, run = messages
    assert run.failures() == {}
    for line in run.of("client", client="0"):
        reply = found[f"round {line['round']}"]["reply"]
        shapes = {name: json.loads(text.split(" ", 1)[1]) for name, text in reply.items()}
        wanted = 0
        if "common-sums" in shapes:
            (k, d), (r, _) = shapes["common-sums"], shapes["common-factor"]
            wanted += 12 * k + 4 * k * d + 4 * r * d + 20
        if "common-losses" in shapes:
            v, t = shapes["common-losses"]
            wanted += 4 * v * t + 536
        if "common-gradient" in shapes:
            c, e = shapes["common-gradient"]
            wanted += 4 * c * e
        assert line["bytes"]["up_rows"] == wanted > 0, line["round"]
