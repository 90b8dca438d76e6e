"""Where a client's model starts from: the last good one, never a broken one, never silently a new one."""

import pytest
import torch

import client_app.local_round
from isoproto.errors import FederationError


def test_a_diverged_client_fails_with_the_numbers_and_keeps_its_last_good_model(federation):
    settings = {"strategy": "local", "rounds": 2, "max-empty-rounds": 5, "learning-rate": 1e30, "batch-size": 8}
    with pytest.raises(FederationError, match="2 rounds in a row had fewer than 1 good replies"):
        federation.run(settings=settings)
    run = federation.newest()

    reasons = run.failures()
    assert len(reasons) == 8  # four clients, two rounds: the second round started from finite models again
    for (_, client), reason in reasons.items():
        assert f"DivergenceError: client {client}: training" in reason
        assert "Lower `learning-rate` (1e+30)" in reason
    assert not list((federation.folder / "state").rglob("*.safetensors"))
    assert run.summary["accuracy"]["mean"] == run.summary["accuracy"]["initial"]


def test_a_client_whose_second_model_diverged_keeps_both_models_of_the_round_before(federation, monkeypatch):
    train = client_app.local_round.train

    def breaks(model, data, settings, terms, generator):
        result = train(model, data, settings, terms, generator)
        with torch.no_grad():
            next(terms[0].module.parameters()).fill_(torch.nan)
        return result

    monkeypatch.setattr(client_app.local_round, "train", breaks)
    with pytest.raises(FederationError, match="the only round had"):
        federation.run(settings={"strategy": "fml", "models": "mlp", "rounds": 1})
    run = federation.newest()
    assert set(run.failures()) == {(1, client) for client in "0123"}
    assert all("diverged, 1 of 12 tensors" in reason for reason in run.failures().values())
    assert not list((federation.folder / "state").rglob("*.safetensors"))


def test_a_model_too_deep_for_the_pictures_is_refused_before_round_1(federation):
    """Its clients would fail in every round, and the run would go on with the others."""
    run = federation.run(settings={"models": "googlenet,mlp", "rounds": 1})
    reasons = run.failures()
    assert {where for where, _ in reasons} == {0}
    assert all("model 'googlenet' does not fit pictures of 8x8: " in reason for reason in reasons.values())
    assert {line["model"] for line in run.of("client")} == {"mlp"}


@pytest.mark.parametrize(("first", "second"), [("local", "fml"), ("fml", "local"), ("fml", "fml")])
def test_a_run_with_another_second_model_can_start_from_the_models_of_another(federation, first, second):
    settings = {"models": "mlp,tiny_cnn", "rounds": 1}
    before = federation.run(settings={**settings, "strategy": first})
    after = federation.run(settings={**settings, "strategy": second, "init-from": before.summary["experiment"]})
    assert not after.failures()
    assert after.of("evaluation", round=0)[0]["clients"] == before.of("evaluation", round=1)[0]["clients"]


def test_an_unknown_starting_point_is_told_of_and_nobody_starts_anew_in_silence(federation):
    with pytest.raises(FederationError, match=r"`init-from` names experiment 'gone'.*holds no model of this client"):
        federation.run(settings={"init-from": "gone"})


def test_a_run_can_start_from_the_models_of_another(federation):
    first = federation.run(settings={"strategy": "local"})
    second = federation.run(
        settings={"strategy": "local", "init-from": (first.path / "experiment").read_text().strip()}
    )
    assert second.summary["accuracy"]["initial"] == first.summary["accuracy"]["mean"]
