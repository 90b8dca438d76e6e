"""Federations whose rows travel rounded (`wire.dtype`): every strategy, both ways, the same every time."""

import pytest

from strategies import STRATEGIES


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("strategy", ["fedproto", "fedhpro", "isoproto_anchors"])
def test_a_federation_runs_on_rounded_rows(federation, strategy, dtype):
    assert STRATEGIES[strategy].method.prototypes in ("mean", "hyper")
    one = {"models": "resnet"} if STRATEGIES[strategy].method.share == "model" else {}
    run = federation.run(settings={"strategy": strategy, "wire.dtype": dtype, **one})
    assert run.failures() == {}
    assert run.summary["status"] == "completed"


def test_rounding_says_what_it_saves_and_repeats_itself(federation):
    wide = {"strategy": "isoproto_anchors", "feature-dim": 128}
    runs = [federation.run(settings={**wide, "wire.dtype": dtype}) for dtype in ("float32", "int8", "int8")]
    whole, rounded, again = (run.of("round")[-1]["bytes"] for run in runs)
    assert rounded["up_rows"] < 0.3 * whole["up_rows"]
    assert rounded["down"] < whole["down"]
    assert rounded == again
    accuracies = [[line["accuracy"] for line in run.of("round")] for run in runs[1:]]
    losses = [[line["loss"] for line in run.of("round")] for run in runs[1:]]
    assert accuracies[0] == accuracies[1]
    assert losses[0] == losses[1]
