"""Pictures of what gradient matching does, from runs of ours: FedHPro's Fig. 4 and Fig. 2.

Fig. 4: L_GM against the matching step, round by round. Fig. 2: how far averaged prototypes and hyper-prototypes are
from *central* ones, the class means of all training pictures pooled, under the averaged model (so one architecture
only, and in simulation only: nobody could pool the pictures otherwise).

    python benchmarks/reproduce/diagnostics.py    # docs/figures/*.svg, benchmarks/results/diagnostics.json; 3 minutes
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from cells import EARLIER, ROOT
from matplotlib.figure import Figure

import server_app.app
from benchmarks.record import record
from client_app.app import make_app
from client_app.training import extract
from isoproto.config import RunConfig
from isoproto.data import load_dataset
from isoproto.engines.in_process import InProcessGrid, in_process_host, task_identity
from isoproto.geometry.class_sums import ClassSums
from isoproto.parts import ServerState
from isoproto.parts.hyper import HyperPrototypes
from isoproto.runs.run_folder import show_log
from models import ModelSpec, create_model
from strategies import STRATEGIES

CLIENTS, ROUNDS, SHOWN = 20, 15, (2, 3, 5, 8, 15)
COMMON = {"data": "digits4", "partition": "domain", "rounds": ROUNDS}
RUNS: dict[str, dict[str, Any]] = {
    "FedHPro, averaged model": {"strategy": "fedhpro", "models": "cnn"},
    "FedHPro, head only": {"strategy": "fedhpro", "share": "head"},
    "isoproto": {"strategy": "isoproto_anchors"},
    # Its form with prototypes as anchors, which a frame has to bring together.
    "isoproto, prototypes at 0.2": EARLIER,
}
FIGURES = ROOT / "docs" / "figures"


def run(settings: dict[str, Any]) -> tuple[RunConfig, list[ServerState], list[dict[str, Any]]]:
    """Run a federation; return its resolved settings, the state after each round, and the figures of each round."""
    states: list[ServerState] = []
    save = server_app.app.save_checkpoint

    def keep(folder: Path, checkpoint: Any) -> None:
        states.append(ServerState.from_checkpoint(checkpoint))
        save(folder, checkpoint)

    server_app.app.save_checkpoint = keep
    try:
        with tempfile.TemporaryDirectory() as folder, task_identity():
            asked = {**settings, "output-dir": f"{folder}/runs", "state-dir": f"{folder}/state"}
            path = server_app.app.run_federation(InProcessGrid(make_app(in_process_host), CLIENTS), asked)
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    finally:
        server_app.app.save_checkpoint = save
    config = STRATEGIES[settings["strategy"]].resolve(RunConfig.from_mapping(settings))
    return config, states[1:], [line["hyper"] for line in lines if line["kind"] == "round"]


def distances(config: RunConfig, states: list[ServerState]) -> dict[str, list[float]]:
    """Mean distance of both kinds of prototypes from the central ones, in radii of these, after each round."""
    data = load_dataset(config.data, config.data_dir)
    spec = ModelSpec(*data.x.shape[1:], config.feature_dim, len(data.classes))
    train = ~data.test
    part = HyperPrototypes.of(config)
    if part is None:
        raise ValueError("the run has no hyper-prototypes")
    found: dict[str, list[float]] = {"averaged prototypes": [], "hyper-prototypes": []}
    for state in states:
        model = create_model(config.models, spec, 0)
        model.load_state_dict(state.shared)
        central = ClassSums.of(extract(model, data.x[train]), data.y[train], len(data.classes)).mean()
        radius = (central - central.mean(0)).norm(dim=1).mean()
        for name, rows in zip(found, (state.prototypes, part.vectors(state).mean(1)), strict=True):
            found[name].append(float((rows - central).norm(dim=1).mean() / radius))
    return found


def main() -> None:
    """Run the federations and draw."""
    show_log(30)
    torch.set_num_threads(1)
    FIGURES.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    matching = Figure(figsize=(14, 3.4), layout="constrained")
    for axes, (name, settings) in zip(matching.subplots(1, len(RUNS)), RUNS.items(), strict=True):
        config, states, figures = run({**COMMON, **settings})
        curves = {r: f["matching"] for r, f in enumerate(figures, 1) if "matching" in f}
        results[name] = {
            "matching": curves,
            "agreement": [f.get("agreement") for f in figures],
            "movement": [f["movement"] for f in figures],
        }
        for server_round in SHOWN:
            if server_round in curves:
                axes.plot(curves[server_round], label=f"round {server_round}")
        axes.set(title=name, xlabel="matching step", ylabel="L_GM per class", yscale="log")
        axes.legend(fontsize="small")
        if config.share == "model":
            results[name]["distance"] = distances(config, states)
    matching.savefig(FIGURES / "gradient-matching.svg", metadata={"Date": None})
    central = Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = central.subplots()
    for name, values in results["FedHPro, averaged model"]["distance"].items():
        axes.plot(range(1, ROUNDS + 1), values, marker="o", label=name)
    axes.set(xlabel="round", ylabel="distance from central prototypes, in radii", yscale="log")
    axes.legend()
    central.savefig(FIGURES / "central-prototypes.svg", metadata={"Date": None})
    content = {"command": "python benchmarks/reproduce/diagnostics.py", "settings": COMMON, "runs": results}
    record("diagnostics", content)


if __name__ == "__main__":
    main()
