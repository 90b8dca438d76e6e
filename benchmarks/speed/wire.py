"""Count the bytes of a training reply in protobuf, compared with the bytes of its rows, for each `wire.dtype`.

A row is a prototype of d = 512, or a mean gradient. The script counts replies with prototypes of some classes, replies
with gradients as well, and the broadcast from the server. Targets: in float32 a reply with 50 rows or more takes at
most 1.02 times the bytes of its rows, and a shorter reply at most 1.5 kB more than its rows. In int8 a reply with 50
rows takes at most 0.27 times as much as in float32. A busy machine does not matter, since only bytes are counted.

    python benchmarks/speed/wire.py
"""

from typing import Any

import torch
from machine import write_results

from isoproto import wire
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import reported_terms
from isoproto.wire.rounding import FORMATS

WIDTH, ROWS, CLASSES = 512, (5, 10, 20, 50, 100), 100
EXPERIMENT = "20260101-120000-0123456789abcdef"  # as long as those of a run
TARGETS = {"float32 over its rows, 50 rows and more": 1.02, "bytes over the rows, fewer": 1500, "int8 of float32": 0.27}


def make_reply(rows: int, gradients: bool) -> wire.TrainReply:
    """Return a reply whose numbers have as many digits as measured numbers have."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.arange(rows)
    means = torch.randn(rows, WIDTH, generator=generator)
    counts = torch.randint(1, 500, (rows,), generator=generator)
    accuracy = wire.Evaluation(correct=4321, total=9876, correct_prototype=4567)
    return wire.TrainReply(
        means=ClassRows(ids, means, counts, int(counts.sum())),
        scatter=1 / 3,
        losses=dict.fromkeys(reported_terms(()), 1 / 3),
        before=accuracy,
        after=accuracy,
        seconds=1 / 3,
        arrays={"grad": 1e-3 * means.flip(0)} if gradients else {},
    )


def reply_sizes(rows: int, dtype: str, gradients: bool = False) -> dict[str, float]:
    """Return the bytes of a reply and of its rows, their ratio and their difference."""
    reply = make_reply(rows, gradients)
    broadcast = wire.Broadcast(experiment=EXPERIMENT, server_round=100, settings={"wire.dtype": dtype})
    size = wire.serialised_bytes(wire.write_train_reply(reply, broadcast, client="123"))
    payload = wire.payload_bytes(reply, dtype)
    return {"bytes": size, "rows": payload, "ratio": size / payload, "over": size - payload}


def broadcast_bytes(dtype: str) -> int:
    """Return the bytes of a broadcast with prototypes of all classes and relations between them."""
    rows = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    broadcast = wire.Broadcast(
        experiment=EXPERIMENT,
        server_round=100,
        settings={"wire.dtype": dtype},
        arrays={"prototypes": rows, "present": torch.ones(CLASSES, dtype=torch.bool), "relations": rows @ rows.T},
    )
    return wire.serialised_bytes(wire.write_broadcast(broadcast))


def measure() -> dict[str, Any]:
    """Return all sizes, and the ratios of int8 and float16 to float32."""
    results: dict[str, Any] = {}
    for name, gradients in (("prototypes", False), ("prototypes and gradients", True)):
        sizes = {dtype: {str(rows): reply_sizes(rows, dtype, gradients) for rows in ROWS} for dtype in FORMATS}
        for found in sizes.values():
            for rows, figures in found.items():
                figures["of float32"] = figures["bytes"] / sizes["float32"][rows]["bytes"]
        results[name] = sizes
    down = {dtype: broadcast_bytes(dtype) for dtype in FORMATS}
    results["broadcast"] = {d: {"bytes": size, "of float32": size / down["float32"]} for d, size in down.items()}
    return results


def main() -> None:
    """Measure, print a table and write benchmarks/results/wire.json."""
    results = measure()
    for name in ("prototypes", "prototypes and gradients"):
        print(f"reply, {name}: rows, bytes, over the rows, ratio, of float32")
        for dtype, found in results[name].items():
            for rows, f in found.items():
                print(f"{dtype:8} {rows:>4} {f['bytes']:8} {f['over']:6} {f['ratio']:.4f} {f['of float32']:.4f}")
    print(f"broadcast of {CLASSES} classes:", {d: f["bytes"] for d, f in results["broadcast"].items()})
    command = "python benchmarks/speed/wire.py"
    print("wrote", write_results("wire", {"command": command, "width": WIDTH, "targets": TARGETS, "sizes": results}))


if __name__ == "__main__":
    main()
