"""Measure a secure sum: seconds of each step on a client and on the server, and bytes each way.

All clients and the server run one after the other in this process, on one thread. One client in ten drops out after it
has shared its secrets out, which costs the server most. The sum is compared with a plain one.

    python benchmarks/speed/secure.py [--force]
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import options, write_results

from isoproto.secure import client, server
from isoproto.secure.messages import Circle, Terms

WORK = ((20, 500_000), (20, 2_000_000), (200, 500_000), (200, 2_000_000))
DROPPED = 0.1


class Clock:
    """Adds up the seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and note how long it took."""
        began = time.perf_counter()
        result = function(*arguments)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return result


def measure(clients: int, length: int) -> dict[str, Any]:
    """Return seconds of a client, seconds of the server, and bytes of a client."""
    terms, clock = Terms(session="benchmark", length=length, minimum=2), Clock()
    states = {who: client.begin(terms, who) for who in range(clients)}
    sent = {who: clock("client", client.public_keys, states[who]) for who in states}
    roster = clock("server", server.roster, terms, sent)
    circle = clock("server", Circle.of, terms, roster)
    shares = {}
    for who in states:
        states[who], shares[who] = clock("client", client.share, states[who], roster)
    table = clock("server", server.table, circle, shares)
    vector, masked, answers = np.arange(length), np.zeros(length, dtype=np.int64), {}
    there = range(clients - round(DROPPED * clients))
    for who in there:
        states[who], one = clock("client", client.mask, states[who], table, vector)
        masked += one
    asked = clock("server", server.reveal, circle, table.ids, np.array(there))
    for who in there:
        states[who], answers[who] = clock("client", client.reveal, states[who], asked)
    total = clock("server", server.total, circle, table, asked, masked, answers)
    if not np.array_equal(total, len(there) * vector):
        raise AssertionError("the secure sum differs from the plain one")
    up = sent[0].nbytes + shares[0].rows.nbytes + shares[0].seal.nbytes + answers[0].nbytes
    down = sum(array.nbytes for message in (roster, table, asked) for array in message)
    seconds = {"client": clock.seconds["client"] / len(there), "server": clock.seconds["server"]}
    return {"seconds": seconds, "vector": vector.nbytes, "up": up, "down": down}


def main() -> None:
    """Measure and write benchmarks/results/secure.json."""
    arguments = options(__doc__)
    figures = {f"{clients} clients, {length:,} numbers": measure(clients, length) for clients, length in WORK}
    for name, found in figures.items():
        print(name, found)
    if not arguments.force:
        results = {"command": "python benchmarks/speed/secure.py", "dropped": DROPPED, "figures": figures}
        print("wrote", write_results("secure", results))


if __name__ == "__main__":
    main()
