"""Measure local training on a GPU. The data are generated, and only PyTorch and NumPy must be installed.

- An epoch of ResNet-18 in the training loop of a client, compared with an epoch in a bare loop. Both use bf16 autocast
  (`amp = bf16`), channels last and data on the device. The client's loop is also timed in float32.
- What GCSA, RCSA and HPCL + HPAL add to a training step.
- Memory after each of 20 rounds, in which the models of the clients take turns on the device.
- Small clients of one architecture in float32: trained together as one program (`cohort = on`), and one after the
  other. Clients on a GPU do not train together (docs/adr/0008-cohort.md). These figures show whether they should.

    python benchmarks/gpu/check.py [--small] [--device cuda] [--output FILE]

``make gpu-check`` runs this script. ``PYTHON=...`` names another interpreter. Without a GPU the script says so and does
a small run on the CPU with the project's small ResNet. That run shows that the script works; its figures mean nothing.
Without torchvision the script takes the small ResNet as well.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "speed")]  # nothing is installed
MISSING = [name for name in ("torch", "numpy") if not find_spec(name)]
if MISSING or sys.version_info < (3, 11):
    sys.exit(
        f"{sys.executable} is Python {sys.version.split()[0]} without {' and '.join(MISSING) or 'what 3.11 has'}; name "
        "an interpreter from 3.11 on that has PyTorch and NumPy: make gpu-check PYTHON=/path/to/python"
    )

import numpy as np  # noqa: E402
import torch  # noqa: E402
from settings import plain_settings  # noqa: E402
from torch.nn import functional  # noqa: E402

from client_app.batched import Member, train_together  # noqa: E402
from client_app.training import extract, train  # noqa: E402
from isoproto.data import ClientData  # noqa: E402
from isoproto.losses import LOSSES  # noqa: E402
from isoproto.losses.anchors import Anchors  # noqa: E402
from isoproto.parts.alignment import AlignmentTerm  # noqa: E402
from isoproto.parts.anchors import AnchorTerm  # noqa: E402
from isoproto.parts.base import LossTerm  # noqa: E402
from models import FeatureModel, ModelSpec, create_model  # noqa: E402


@dataclass(frozen=True)
class Size:
    """How large the measurement is."""

    samples: int
    batch: int
    classes: int
    width: int
    turns: int
    rounds: int
    clients: int
    model: str
    small_clients: int


FULL = Size(12800, batch=128, classes=100, width=512, turns=7, rounds=20, clients=4, model="resnet18", small_clients=32)
SMALL = Size(24, batch=8, classes=6, width=32, turns=1, rounds=2, clients=2, model="resnet", small_clients=3)
RATE = 0.01  # learning rate of every kind of training
TARGETS = {
    "epoch over a bare loop": 1.10,
    "step with an alignment": 1.05,
    "growth of memory over the rounds, MiB": 1.0,
    "small clients together, times as fast": 5.0,
}


def make_data(size: Size, device: torch.device) -> ClientData:
    """Random pictures 32x32x3 of all classes, on the device."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (size.samples, 3, 32, 32), dtype=torch.uint8, generator=generator).to(device)
    labels = (torch.arange(size.samples) % size.classes).to(device)
    return ClientData(pictures, labels, pictures[:0], labels[:0], tuple(map(str, range(size.classes))))


def make_model(size: Size, device: torch.device, seed: int) -> tuple[str, FeatureModel]:
    """Return the name and the model to measure, placed as a client places it; the small ResNet without torchvision."""
    name = size.model if find_spec("torchvision") else "resnet"
    model = create_model(name, ModelSpec(3, 32, 32, size.width, size.classes), seed)
    return name, model.place(device, rearrange=True)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, including the time until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def bare_epoch(model: FeatureModel, data: ClientData, size: Size) -> None:
    """Train for one epoch as a script without a federation would."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)
    for index in torch.randperm(len(data.train_y), device=data.train_y.device).split(size.batch):
        with torch.autocast(data.train_x.device.type, torch.bfloat16):
            loss = functional.cross_entropy(model(data.train_x[index].float() / 255), data.train_y[index])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def make_kinds(size: Size, device: torch.device) -> dict[str, list[LossTerm]]:
    """Return the loss terms of each kind of step."""
    prototypes = torch.randn(size.classes, size.width, generator=torch.Generator().manual_seed(1)).to(device)
    present = torch.ones(size.classes, dtype=torch.bool, device=device)
    kinds: dict[str, list[LossTerm]] = {"cross-entropy": []}
    for name in ("gcsa", "rcsa"):
        loss = LOSSES[name]
        target = loss.target(prototypes, present)
        kinds[name] = [AlignmentTerm(loss=loss, target=target, present=present, lambda_=1.0, gamma=1.0)]
    anchors = Anchors.of(prototypes / size.width**0.5, prototypes, present, margin=0.1, form="normalised")
    kinds["hpcl + hpal"] = [AnchorTerm(anchors=anchors, pcl=1.0, pal=1.0)]
    return kinds


def measure_epochs(size: Size, device: torch.device) -> dict[str, Any]:
    """Return the median seconds of an epoch of each kind, and their ratios to the bare loop and to cross-entropy.

    The kinds take turns, so that all of them see the same machine.
    """
    data, kinds = make_data(size, device), make_kinds(size, device)
    names = ["bare", "float32", *kinds]
    architecture, _ = make_model(size, device, seed=0)
    models = {name: make_model(size, device, seed=0)[1] for name in names}

    def epoch(name: str, turn: int) -> None:
        generator = torch.Generator().manual_seed(turn)
        if name == "bare":
            bare_epoch(models[name], data, size)
        elif name == "float32":
            train(models[name], data, plain_settings(size.batch, RATE), [], generator)
        else:
            train(models[name], data, plain_settings(size.batch, RATE, amp="bf16"), kinds[name], generator)

    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(size.turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            measured = seconds(lambda name=name, turn=turn: epoch(name, turn), device)
            if turn:  # the first turn is the warm-up
                found[name].append(measured)

    def ratio(name: str, reference: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name], found[reference], strict=True))

    return {
        "model": architecture,
        "seconds per epoch": {name: statistics.median(each) for name, each in found.items()},
        "epoch over a bare loop": ratio("cross-entropy", "bare"),
        "bf16 over float32": ratio("cross-entropy", "float32"),
        "step with an alignment": {name: ratio(name, "cross-entropy") for name in kinds if name != "cross-entropy"},
    }


def measure_memory(size: Size, device: torch.device) -> dict[str, Any]:
    """Return the MiB on the device after each round, in which every client's model comes and goes; nothing on a CPU."""
    data, host = make_data(size, device), [make_model(size, device, i)[1].cpu() for i in range(size.clients)]
    after, peak = [], 0.0
    for number in range(size.rounds):
        for index, model in enumerate(host):
            model.to(device)
            generator = torch.Generator().manual_seed(number)
            train(model, data, plain_settings(size.batch, RATE, amp="bf16"), [], generator)
            extract(model, data.train_x)
            host[index] = model.cpu()
        if device.type == "cuda":
            after.append(torch.cuda.memory_allocated(device) / 2**20)
            peak = torch.cuda.max_memory_allocated(device) / 2**20
    return {"MiB after each round": after, "peak MiB": peak, "growth MiB": after[-1] - after[0] if after else None}


def measure_batched(size: Size, device: torch.device) -> dict[str, dict[str, float]]:
    """Return the seconds of training small clients together and one by one, for each architecture.

    Each client has 15 to 60 pictures and trains in batches of 10.
    """
    return {name: together_and_apart(name, size, device) for name in ("mlp", "tiny_cnn")}


def together_and_apart(name: str, size: Size, device: torch.device) -> dict[str, float]:
    """Return the seconds of both ways for one architecture, and how far their final weights differ."""
    spec, own = ModelSpec(1, 32, 32, 128, 10), plain_settings(10, RATE)
    models = [create_model(name, spec, seed).place(device, rearrange=True) for seed in range(size.small_clients)]
    starts = [{key: tensor.detach().clone() for key, tensor in model.named_parameters()} for model in models]
    source = torch.Generator().manual_seed(0)
    data = []
    for samples in torch.randint(15, 61, (size.small_clients,), generator=source).tolist():
        pictures = torch.randint(0, 256, (samples, 1, 32, 32), dtype=torch.uint8, generator=source).to(device)
        labels = torch.randint(0, 10, (samples,), generator=source)
        data.append(ClientData(pictures, labels, pictures[:0], labels[:0], tuple("0123456789")))

    def one_by_one() -> list[dict[str, torch.Tensor]]:
        for i, (model, start, held) in enumerate(zip(models, starts, data, strict=True)):
            model.load_state_dict(start)
            train(model, held, own, [], torch.Generator().manual_seed(i))
        return [dict(model.named_parameters()) for model in models]

    def together() -> list[dict[str, torch.Tensor]]:
        members = [
            Member(parameters=start, data=held, generator=torch.Generator().manual_seed(i))
            for i, (start, held) in enumerate(zip(starts, data, strict=True))
        ]
        return [trained.parameters for trained in train_together(models[0], members, own)]

    loop, program = (one_by_one(), together())  # this first call of each is the warm-up
    apart = max(
        float((one[key] - other[key]).detach().abs().max())
        for one, other in zip(loop, program, strict=True)
        for key in one
    )
    found = [(seconds(one_by_one, device), seconds(together, device)) for _ in range(size.turns)]
    looped, joined = (statistics.median(each) for each in zip(*found, strict=True))
    return {"one by one": looped, "together": joined, "times as fast": looped / joined, "weights apart": apart}


def check(size: Size, device: torch.device) -> dict[str, Any]:
    """Run all measurements."""
    epochs, memory = measure_epochs(size, device), measure_memory(size, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    machine = {
        "processor": name,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }
    sizes = {field: getattr(size, field) for field in Size.__dataclass_fields__}
    found = {**epochs, "memory": memory, "cohort": measure_batched(size, device)}
    return {"command": "make gpu-check", "machine": machine, "size": sizes, "targets": TARGETS, **found}


def table(results: dict[str, Any]) -> str:
    """Return the results as text for people."""
    targets, memory = results["targets"], results["memory"]
    lines = [f"{results['machine']['processor']}, PyTorch {results['machine']['torch']}, {results['model']}"]
    lines += [f"{name:24} {1e3 * value:10.1f} ms per epoch" for name, value in results["seconds per epoch"].items()]
    bare = results["epoch over a bare loop"]
    lines.append(f"{'epoch over a bare loop':24} {bare:10.3f}, target {targets['epoch over a bare loop']}")
    lines.append(f"{'bf16 over float32':24} {results['bf16 over float32']:10.3f}")
    lines += [
        f"{'with ' + name:24} {value:10.3f} of a step, target {targets['step with an alignment']}"
        for name, value in results["step with an alignment"].items()
    ]
    lines += [
        f"{name + ', together':24} {found['times as fast']:10.2f} times as fast, target "
        f"{targets['small clients together, times as fast']}; weights {found['weights apart']:.0e} apart"
        for name, found in results["cohort"].items()
    ]
    if memory["growth MiB"] is not None:
        growth = f"growth {memory['growth MiB']:.1f} MiB, target {targets['growth of memory over the rounds, MiB']}"
        lines.append(f"{'memory, peak':24} {memory['peak MiB']:10.1f} MiB, {growth}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="only show that it works")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    arguments = parser.parse_args()
    device, small = torch.device(arguments.device), arguments.small
    if device.type != "cuda" and not small:
        print("no GPU: running small, on the CPU; its figures mean nothing and are not recorded", file=sys.stderr)
        small = True
    results = check(SMALL if small else FULL, device)
    print(table(results))
    if not small:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
        print("wrote", arguments.output)


if __name__ == "__main__":
    main()
