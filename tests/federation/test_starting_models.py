"""Where a client's model starts from: the last good one, never a broken one, never silently a new one."""

import pytest

from isoproto.errors import FederationError


def test_a_diverged_client_fails_with_the_numbers_and_keeps_its_last_good_model(federation):
    settings = {"strategy": "local", "rounds": 2, "max-empty-rounds": 5, "learning-rate": 1e30, "batch-size": 8}
    run = federation.run(settings=settings)

    reasons = run.failures()
    assert len(reasons) == 8  # four clients, two rounds: the second round started from finite models again
    for (_, client), reason in reasons.items():
        assert f"DivergenceError: client {client}: training" in reason
        assert "Lower `learning-rate` (1e+30)" in reason
    assert not list((federation.folder / "state").rglob("*.safetensors"))
    assert run.summary["accuracy"]["mean"] == run.summary["accuracy"]["initial"]


def test_an_unknown_starting_point_is_told_of_and_nobody_starts_anew_in_silence(federation):
    with pytest.raises(FederationError, match=r"`init-from` names experiment 'gone'.*holds no model of this client"):
        federation.run(settings={"init-from": "gone"})


def test_a_run_can_start_from_the_models_of_another(federation):
    first = federation.run(settings={"strategy": "local"})
    second = federation.run(
        settings={"strategy": "local", "init-from": (first.path / "experiment").read_text().strip()}
    )
    assert second.summary["accuracy"]["initial"] == first.summary["accuracy"]["mean"]
