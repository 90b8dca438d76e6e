"""A model that training breaks is one failed reply, and is not kept."""


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
