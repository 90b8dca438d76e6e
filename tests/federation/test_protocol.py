"""The papers' protocols in whole federations: the averaged model, classes and domains, clients that join late."""

import numpy as np
import pytest
import torch

from client_app.own_model import load_model
from client_app.training import extract
from isoproto.data import load_dataset
from tests import fakes
from tests.conftest import FEDAVG
from tests.fakes import When, write_pictures

LATE = {"join-late": 0.5, "join-round": 3, "rounds": 4, "evaluate-every": 1}


def trained(run):
    """Return who trained in each round."""
    return [{line["client"] for line in run.of("client", round=r["round"])} for r in run.of("round")]


def test_the_averaged_model_is_tested_on_the_whole_test_set_and_by_domain(federation, tmp_path):
    """Done again by hand with the model that the server holds."""
    pictures = write_pictures(tmp_path / "domains.npz", domains=2)
    settings = {**FEDAVG, "data": f"npz:{pictures}", "partition": "domain:3,1", "rounds": 2, "evaluate-every": 1}
    grid = federation.grid()
    run = federation.run(grid, settings)
    data = load_dataset(settings["data"])
    client = federation.client(grid.context(0).node_config, {**settings, "init": "per-architecture"})
    model = load_model(client, "none", before=1).model
    shared = {k.removeprefix("shared."): t for k, t in run.server().items() if k.startswith("shared.")}
    model.load_state_dict(shared)
    rates, right, samples = {}, 0, 0
    for i in range(4):
        other = federation.client(grid.context(i).node_config, settings)
        correct = (model.head(extract(model, other.data.test_x)).argmax(1) == other.data.test_y).numpy()
        rates.setdefault(other.domain, []).extend(correct)
        right, samples = right + correct.sum(), samples + len(correct)
    assert samples == len(data.y) // 4
    summary = run.summary
    assert summary["global"]["accuracy"] == pytest.approx(right / samples)
    each = {figures["domain"]: figures["accuracy"] for figures in summary["domains"]["each"]}
    assert each == pytest.approx({name: np.mean(hits) for name, hits in rates.items()})
    assert summary["domains"]["mean"] == pytest.approx(np.mean([np.mean(hits) for hits in rates.values()]))
    assert [line["one_model"] for line in run.of("evaluation")] == [False, True, True]
    assert run.of("evaluation")[-1]["global_accuracy"] == summary["global"]["accuracy"]


def test_own_models_have_no_averaged_one_but_figures_by_class(plain):
    summary, (line,) = plain.summary, plain.of("evaluation", round=3)
    assert summary["global"]["accuracy"] is None
    predicted = np.sum([entry["class_predicted"] for entry in line["clients"]], axis=0)
    assert predicted.sum() == sum(entry["total"] for entry in line["clients"])
    right, samples = (np.sum([e[k] for e in line["clients"]], axis=0) for k in ("class_correct", "class_total"))
    assert summary["classes"]["accuracy"] == pytest.approx(list(right / samples))
    assert line["macro_f1"] == pytest.approx(np.mean(2 * right / (samples + predicted)))
    domains = summary["domains"]
    assert (domains["mean"], domains["each"], domains["best"], domains["best_each"]) == (None, [], None, [])


def test_late_clients_are_evaluated_and_not_trained_until_they_join(federation):
    run = federation.run(settings=LATE)
    late = {entry["client"] for entry in run.of("evaluation")[0]["clients"] if entry["late"]}
    everybody = {"0", "1", "2", "3"}
    assert len(late) == 2
    assert trained(run) == [everybody - late] * 2 + [everybody] * 2
    figures = run.summary["late"]
    assert (figures["clients"], figures["joined"]) == (2, 3)
    first, final = run.of("evaluation", round=2)[0], run.of("evaluation", round=4)[0]
    assert figures["before"] == first["late_mean"]
    assert figures["mean"] == final["late_mean"]
    assert run.summary["accuracy"]["mean"] == pytest.approx((figures["mean"] + figures["others"]) / 2)
    # Untrained until then: with nothing shared, their accuracy is that of the start.
    assert run.of("evaluation", round=0)[0]["late_mean"] == first["late_mean"]


def test_clients_may_never_join_and_still_be_tested_with_the_averaged_model(federation):
    run = federation.run(settings={**FEDAVG, **LATE, "join-round": 0, "epochs": 5, "learning-rate": 0.1})
    assert {len(names) for names in trained(run)} == {2}
    starts = [line["late_mean"] for line in run.of("evaluation")]
    assert len(set(starts)) > 1
    assert run.summary["late"]["joined"] is None
    assert run.summary["late"]["before"] == run.summary["late"]["mean"] == starts[-1]


def test_a_resumed_run_keeps_the_same_clients_from_training(federation):
    whole = federation.run(settings=LATE)
    with pytest.raises(fakes.Killed):
        federation.run(federation.grid((fakes.killed(after=False), When("train", [2]))), LATE)
    resumed = federation.run(settings={**LATE, "resume": federation.newest().path.name})
    assert trained(resumed) == trained(whole)
    assert torch.equal(resumed.server()["prototypes"], whole.server()["prototypes"])
