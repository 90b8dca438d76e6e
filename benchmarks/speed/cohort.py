"""Measure how many times faster small clients train together as one program than one after the other.

Reference work on one thread: 32 clients with 15 to 60 samples of 1x32x32 pixels, batches of 10, one epoch, SGD with
momentum, feature width 128, ten classes. There are rows without alignment, with FedSAF's alignment, and with a single
client. Both ways must give the same weights.

``step`` answers another question: how much faster is one step of 16 clients if ``torch.vmap`` makes one program of it?
This works for any architecture. Convolutions are either grouped (oneDNN) or written as batched products of patches.
All batches have the same length here.

    python benchmarks/speed/cohort.py [--repeats 7] [--force]
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from machine import median_seconds, options, write_results
from settings import plain_settings
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional

from client_app.batched import Member, train_together
from client_app.training import train
from isoproto.data import ClientData
from isoproto.losses import LOSSES
from isoproto.parts.alignment import AlignmentTerm
from models import FeatureModel, ModelSpec, create_model

CLIENTS, STEP_CLIENTS, BATCH, WIDTH, CLASSES = 32, 16, 10, 128, 10
TARGETS = {"mlp": 3.0, "tiny_cnn": 1.5}
STEPS = ("mlp", "tiny_cnn", "cnn", "resnet", "mobilenet", "inception")
SETTINGS = plain_settings(BATCH, 0.02)


def generator(seed: int) -> torch.Generator:
    """Return a new source of random numbers."""
    return torch.Generator().manual_seed(seed)


def client_data(seed: int, device: torch.device) -> ClientData:
    """Return the data of a small client; the pictures are noise."""
    samples = int(torch.randint(15, 61, (), generator=generator(seed)))
    x = torch.randint(0, 256, (samples, 1, 32, 32), generator=generator(seed), dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (samples,), generator=generator(seed))
    return ClientData(x.to(device), y, x[:0], y[:0], tuple("0123456789"))


def terms_of(name: str, device: torch.device) -> tuple[AlignmentTerm, ...]:
    """Return what FedSAF adds to the loss; nothing without an alignment."""
    if name == "none":
        return ()
    prototypes, present = torch.randn(CLASSES, WIDTH, generator=generator(0)), torch.ones(CLASSES, dtype=torch.bool)
    target = LOSSES[name].target(prototypes, present).to(device)
    return (AlignmentTerm(loss=LOSSES[name], target=target, present=present.to(device), lambda_=1.0, gamma=1.0),)


def seconds(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each function, including the time until a GPU has finished."""
    if not torch.cuda.is_available():
        return median_seconds(functions, repeats)

    def finished(function: Callable[[], object]) -> None:
        function()
        torch.cuda.synchronize()

    return median_seconds([functools.partial(finished, function) for function in functions], repeats)


def whole_training(name: str, loss: str, clients: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Return the milliseconds per client both ways, and how far the resulting weights differ."""
    spec = ModelSpec(1, 32, 32, WIDTH, CLASSES)
    models = [create_model(name, spec, seed).to(device) for seed in range(clients)]
    starts = [{key: t.detach().clone() for key, t in model.named_parameters()} for model in models]
    data = [client_data(seed, device) for seed in range(clients)]
    terms = terms_of(loss, device)

    def together() -> list[dict[str, Tensor]]:
        members = [
            Member(parameters=start, data=own, generator=generator(seed), terms=terms)
            for seed, (start, own) in enumerate(zip(starts, data, strict=True))
        ]
        return [trained.parameters for trained in train_together(models[0], members, SETTINGS)]

    def one_by_one() -> None:
        for seed, (model, start, own) in enumerate(zip(models, starts, data, strict=True)):
            model.load_state_dict(start)
            train(model, own, SETTINGS, terms, generator(seed))

    one_by_one()
    apart = max(
        float((tensor - got[key]).detach().abs().max())
        for model, got in zip(models, together(), strict=True)
        for key, tensor in model.named_parameters()
    )
    if apart > 1e-5:
        raise AssertionError(f"{name}, {loss}: weights differ by {apart}")
    loop, batched = seconds([one_by_one, together], repeats)
    return {"loop": 1e3 * loop / clients, "cohort": 1e3 * batched / clients, "ratio": loop / batched, "apart": apart}


def products(self: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a convolution as a product of patches, which ``torch.vmap`` turns into a batched product."""
    if self.groups != 1:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
    sides = zip(x.shape[2:], self.padding, self.kernel_size, self.stride, strict=True)
    rows, columns = ((side + 2 * int(pad) - kernel) // step + 1 for side, pad, kernel, step in sides)
    patches = functional.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
    maps = weight.flatten(1) @ patches
    if bias is not None:
        maps = maps + bias.unsqueeze(1)
    return maps.view(len(x), -1, rows, columns)


def one_step(name: str, repeats: int) -> dict[str, float]:
    """Return the microseconds per client of a step in a loop, and how many times faster ``torch.vmap`` is."""
    spec = ModelSpec(3, 32, 32, WIDTH, CLASSES)
    models = [create_model(name, spec, seed).train() for seed in range(STEP_CLIENTS)]
    x = torch.rand(STEP_CLIENTS, BATCH, 3, 32, 32, generator=generator(0))
    y = torch.randint(0, CLASSES, (STEP_CLIENTS, BATCH), generator=generator(1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True) for model in models]
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type] # a list of models is one of modules
    optimizer = torch.optim.SGD(parameters.values(), lr=0.01, momentum=0.9, fused=True)

    def loop() -> None:
        for i, (model, own) in enumerate(zip(models, optimizers, strict=True)):
            own.zero_grad()
            functional.cross_entropy(model(x[i]), y[i]).backward()
            own.step()

    def together(shape: FeatureModel) -> None:
        logits = torch.vmap(lambda p, b, pictures: functional_call(shape, (p, b), (pictures,)))(parameters, buffers, x)
        optimizer.zero_grad()
        (functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / BATCH).backward()
        optimizer.step()

    def patched() -> None:
        with mock.patch.object(nn.Conv2d, "_conv_forward", products):
            together(models[0])

    looped, grouped, multiplied = seconds([loop, lambda: together(models[0]), patched], repeats)
    return {"loop": 1e6 * looped / STEP_CLIENTS, "grouped": looped / grouped, "products": looped / multiplied}


def main() -> None:
    """Measure and write benchmarks/results/cohort.json."""
    arguments = options(__doc__, repeats=7)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"unit": "ms per client and epoch", "targets": TARGETS}
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        rows = results[device] = {}
        print(f"{device:22} one by one  together")
        for name in TARGETS:
            for loss, clients in (("none", CLIENTS), ("none", 4), ("none", 1), ("gcsa", CLIENTS)):
                row = whole_training(name, loss, clients, torch.device(device), arguments.repeats)
                rows[f"{name}, {clients} clients, {loss}"] = row
                print(f"{name:9}{clients:3}, {loss:8}{row['loop']:8.2f} ms{row['cohort']:8.2f} ms {row['ratio']:5.2f}x")
    print("one step, vmap            loop   grouped  products")
    results["step"] = {"unit": "us per client in a loop, and times as fast"}
    for name in STEPS:
        row = results["step"][name] = one_step(name, arguments.repeats)
        print(f"{name:22}{row['loop']:6.0f} us{row['grouped']:8.2f}x{row['products']:8.2f}x")
    if not arguments.force:
        command = f"python benchmarks/speed/cohort.py --repeats {arguments.repeats}"
        print("wrote", write_results("cohort", {"command": command, **results}))


if __name__ == "__main__":
    main()
