"""A whole secure sum in one process, for tests."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from isoproto.secure import client, server
from isoproto.secure.client_state import ClientState
from isoproto.secure.messages import Circle, Reveal, Table, Terms


def entropy_of(client_id: int):
    """Return a source of bytes that gives a client the same secret in every run."""
    return lambda size: hashlib.shake_256(f"client {client_id}".encode()).digest(size)


@dataclass
class Sum:
    """All that has been said in a sum. ``gone[s]`` are clients that answer nothing from step s on."""

    terms: Terms
    vectors: dict[int, np.ndarray]
    gone: dict[int, Collection[int]] = field(default_factory=dict)
    states: dict[int, ClientState] = field(default_factory=dict)

    def there(self, step: int) -> list[int]:
        away = {who for s in range(step + 1) for who in self.gone.get(s, ())}
        return [who for who in self.states if who not in away]

    def keys(self):
        self.states = {who: client.begin(self.terms, who, entropy_of(who)) for who in self.vectors}
        roster = server.roster(self.terms, {who: client.public_keys(self.states[who]) for who in self.there(1)})
        self.roster, self.circle = roster, Circle.of(self.terms, roster)
        return self

    def share(self):
        sent = {}
        for who in self.there(2):
            self.states[who], sent[who] = client.share(self.states[who], self.roster)
        self.sent = sent
        self.table: Table = server.table(self.circle, sent)
        return self

    def mask(self):
        self.masked = {}
        for who in self.there(3):
            self.states[who], self.masked[who] = client.mask(self.states[who], self.table, self.vectors[who])
        arrived = np.array(sorted(self.masked), dtype=np.int64)
        self.asked: Reveal = server.reveal(self.circle, self.table.ids, arrived)
        return self

    def reveal(self):
        self.answers = {}
        for who in self.there(4):
            self.states[who], self.answers[who] = client.reveal(self.states[who], self.asked)
        return self

    def total(self) -> np.ndarray:
        masked = sum(self.masked[who] for who in self.asked.survivors.tolist())
        return server.total(self.circle, self.table, self.asked, masked, self.answers)

    def run(self) -> np.ndarray:
        return self.keys().share().mask().reveal().total()
