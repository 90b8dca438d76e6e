"""Runs at a SuperLink that answers as Flower 1.42's does."""

import tomllib
from pathlib import Path

import pytest

from isoproto.deploy.deployment import run_at
from isoproto.engines.flower import app_folder
from isoproto.errors import FederationError

NUMBER = 17_456_789_012_345_678_901


class Link:
    def __init__(self, status, details=""):
        self.status, self.details = status, details
        self.asked = []

    def ask(self, words):
        if words[0] == "run":
            self.settings = tomllib.loads(Path(words[-1]).read_text())
            self.asked.append(words[:-1])
            return {"success": True, "run-id": NUMBER}
        self.asked.append(words)
        return {"runs": [{"run-id": str(NUMBER), "status": self.status, "status-details": self.details}]}


def test_the_run_is_started_followed_and_asked_about():
    link = Link("finished:completed")
    run_at("here", {"resume": "4f2a"}, ask=link.ask, follow=link.asked.append)
    assert link.settings == {"resume": "4f2a"}
    assert link.asked == [
        ["run", str(app_folder()), "here", "--run-config"],
        ["log", str(NUMBER), "here"],
        ["ls", "here", "--run-id", str(NUMBER)],
    ]


@pytest.mark.parametrize(
    ("status", "details", "told"),
    [("finished:failed", "", "see the log above"), ("finished:failed", "no nodes", "no nodes"), ("running", "", "log")],
)
def test_a_run_that_did_not_complete_is_an_error(status, details, told):
    link = Link(status, details)
    with pytest.raises(FederationError, match=f"run {NUMBER} at 'here' is '{status}': .*{told}"):
        run_at("here", {}, ask=link.ask, follow=lambda words: None)
