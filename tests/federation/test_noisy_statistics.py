"""Noise in clients' statistics, in whole federations: what travels, what is promised, and what is refused."""

import json

import numpy as np
import pytest
import torch

from isoproto.common.pooled import Packing
from isoproto.errors import ConfigError
from isoproto.privacy.accountant import Release, epsilon_of
from isoproto.report import privacy_line, read_run, write_report
from tests import fakes
from tests.fakes import Killed, When
from tests.federation.test_secure_statistics import FRAME, LENGTH, kept, members, pool_of, put_of

NOISE = {
    **FRAME,
    "common.noise": 0.5,
    "common.holdout": 0,
    "common.copies": 0,
    "common.shrink": 0.3,
    "common.temperature": 0.5,
    "common.delta": 1e-4,
    "rounds": 2,
}
BOTH = {**NOISE, "common.secure": True, "min-contributors": 4, "rounds": 4}


def deviation_of(noise):
    return float(np.std(noise.numpy() / 2.0**24))


def test_each_client_adds_its_own_noise(federation):
    grid = federation.grid()
    run = federation.run(grid, NOISE)
    assert not run.failures()
    assert members(run) == {0, 1, 2, 3}
    sent = [torch.from_numpy(grid.history["train", 1, c]["arrays"]["pool-vector"].numpy()) for c in range(4)]
    assert pool_of(run).pool_total.equal(sum(sent))
    noises = [s - put_of(federation, run, c, NOISE).pending.statistics for c, s in enumerate(sent)]
    expected = 0.5 * 3**0.5 * 4
    for noise in noises:  # of 204 numbers the deviation is within 20 % with a chance of 0.9999
        assert deviation_of(noise) == pytest.approx(expected, rel=0.2)
    assert abs(np.corrcoef([n.double().numpy() for n in noises])[0, 1]) < 0.3
    assert "pool-vector" not in grid.history["train", 2, 0]["arrays"]


def test_the_secure_sum_shares_the_noise_out(federation):
    run = federation.run(settings=BOTH)
    total = pool_of(run).pool_total
    exact = sum(put_of(federation, run, c, BOTH).pending.statistics for c in range(4))
    assert deviation_of(total - exact) == pytest.approx(0.5 * 3**0.5 * 4, rel=0.2)
    assert Packing(4.0, 0.5, 4).deviation(LENGTH, 4) == pytest.approx(0.5 * 3**0.5 * 4, rel=1e-4)


def test_epsilon_is_in_metrics_summary_and_report(federation):
    run = federation.run(settings=NOISE)
    wanted = {"epsilon": epsilon_of([Release(0.5)], 1e-4), "delta": 1e-4, "unit": "one training sample", "releases": 1}
    assert [line["hyper"]["privacy"] for line in run.of("round")] == [wanted, wanted]
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["privacy"] == wanted
    line = privacy_line(summary)
    assert line.startswith(f"Privacy: epsilon {wanted['epsilon']:.3g} at delta 0.0001 for one training sample, 1 rel")
    assert line in (run.path / "log.txt").read_text()
    page = write_report(read_run(run.path).folder).read_text()
    assert line.partition(".")[0] in page


def test_without_noise_nothing_is_promised(federation):
    run = federation.run(settings={**FRAME, "rounds": 1})
    assert "privacy" not in json.loads((run.path / "summary.json").read_text())


def test_a_repeated_message_has_the_same_noise(federation):
    """Two different noises around the same statistics would be two releases."""
    grid = federation.grid((fakes.killed(after=True), When("train", [1], [3])))
    with pytest.raises(Killed):
        federation.run(grid, NOISE)
    again = federation.grid()
    run = federation.run(again, {"resume": federation.newest().path.name})
    for client in range(4):
        one, other = (g.history["train", 1, client]["arrays"]["pool-vector"].numpy() for g in (grid, again))
        assert (one == other).all()
    assert run.of("round")[-1]["hyper"]["privacy"]["releases"] == 1


def test_a_lost_reply_is_sent_again_as_it_was(federation):
    grid = federation.grid((fakes.lost, When("train", [1], [0])))
    run = federation.run(grid, {**NOISE, "round-timeout": 1.0})
    first, second = (grid.history["train", r, 0]["arrays"]["pool-vector"].numpy() for r in (1, 2))
    assert (first == second).all()
    assert members(run) == {0, 1, 2, 3}


def test_noise_leaves_a_classifier_that_can_be_solved(federation):
    run = federation.run(settings={**NOISE, "common.noise": 30.0})
    assert not run.failures()
    assert bool(kept(run).rows.isfinite().all())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"common.rounds": 2}, "common.rounds = 0"),
        ({"common.shrink": 0.0, "common.holdout": 0.1}, "common.shrink and common.temperature above 0"),
        ({"common.holdout": 0.1}, "common.holdout = 0"),
        ({"min-class-samples": 2}, "min-class-samples = 1"),
        ({"common.copies": 1}, "common.copies = 0"),
        ({"strategy": "fedavg", "common.map": "standard", "models": "mlp"}, "share = 'none'"),
        ({"common.map": "none"}, "strategy = 'isoproto'"),
    ],
)
def test_settings_that_noise_does_not_cover_are_refused(federation, changed, told):
    with pytest.raises(ConfigError, match=rf"`common.noise = 0.5`.*{told}"):
        federation.run(settings={**NOISE, **changed})


def test_without_the_accountant_it_says_what_to_install(federation, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(ConfigError, match=r"pip install 'isoproto\[privacy\]'"):
        federation.run(settings=NOISE)
