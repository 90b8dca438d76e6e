"""Grids whose nodes misbehave, and small data to run them on.

A fault is a function of the grid, the message that was sent and the reply that the node would give; it returns
the replies that come back instead. ``FaultyGrid`` applies it to the messages that ``When`` picks.
"""

import contextlib
import copy
import errno
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

import isoproto.parts
from isoproto.engines.in_process import InProcessGrid
from isoproto.parts import Part
from isoproto.wire.broadcast import DOWN
from isoproto.wire.train_reply import UP

Fault = Callable[["FaultyGrid", Message, Callable[[], Message]], Iterable[Message]]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that types a command of isoproto and returns its exit status, output and error output."""
    from isoproto.cli import main as cli

    monkeypatch.setenv("ISOPROTO_JOBS", "1")  # what a test replaces is replaced in this process alone

    def typed(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["isoproto", *words])
        with pytest.raises(SystemExit) as ended:
            sys.exit(cli.main())
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return typed


class Killed(BaseException):
    """Stands for the process being killed: no ``except Exception`` sees it."""


@dataclass(frozen=True)
class When:
    """Which messages a fault befalls; ``None`` stands for all."""

    kind: str | None = None
    rounds: Collection[int] | None = None
    clients: Collection[int] | None = None

    def __call__(self, kind: str, server_round: int, client: int) -> bool:
        return (
            self.kind in (None, kind)
            and (self.rounds is None or server_round in self.rounds)
            and (self.clients is None or client in self.clients)
        )


class FaultyGrid(InProcessGrid):
    """An in-process grid whose nodes misbehave on request.

    Args:
        client_app: The ClientApp of all nodes.
        clients: Number of nodes.
        faults: Pairs of what to do and when; the first that applies is taken.
        apps: Other ClientApps of some partitions.
        node_configs: Node configuration that some partitions have besides.
        away: Tells of a partition, and the newest round that was sent out (0 before any), whether its node is gone.
        shuffle: Order in which the replies of a batch come back: a permutation of their number.
    """

    def __init__(
        self,
        client_app: ClientApp,
        clients: int,
        faults: Sequence[tuple[Fault, When]] = (),
        *,
        apps: Mapping[int, ClientApp] | None = None,
        node_configs: Mapping[int, Mapping[str, Any]] | None = None,
        away: Callable[[int, int], bool] = lambda client, newest: False,
        shuffle: Callable[[int], Iterable[int]] = range,
    ) -> None:
        super().__init__(client_app, clients)
        self.newest = 0
        self.sent: list[tuple[str, int, int]] = []  # kind, round, partition
        self.history: dict[tuple[str, int, int], RecordDict] = {}  # the content of every honest reply
        self._faults, self._apps, self._away, self._shuffle = faults, apps or {}, away, shuffle
        self._partitions = {node: int(c.node_config["partition-id"]) for node, c in self._contexts.items()}
        for client, extra in (node_configs or {}).items():
            self.context(client).node_config.update(extra)
        self._came: dict[str, list[tuple[float, Message]]] = {}

    def node(self, client: int) -> int:
        """Return the present node id of a partition."""
        return next(node for node, partition in reversed(self._partitions.items()) if partition == client)

    def context(self, client: int) -> Context:
        """Return the context of a partition's node."""
        return self._contexts[self.node(client)]

    def restart(self, client: int) -> None:
        """Let a partition's node come back under another id, as a SuperNode without a fixed key does."""
        old = self.node(client)
        new = max(self._contexts) + 1
        self._contexts[new] = self._contexts.pop(old)
        self._partitions[new] = client

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self._contexts if not self._away(self._partitions[node], self.newest)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        order = list(self._shuffle(len(messages)))
        ids = super().push_messages(messages[i] for i in order)
        return list(ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now, ready = time.monotonic(), []
        for name in list(message_ids):
            self._replies.pop(name, None)
            waiting = self._came.get(name, [])
            ready += [reply for due, reply in waiting if due <= now]
            self._came[name] = [(due, reply) for due, reply in waiting if due > now]
        return ready

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        client, kind = self._partitions[node], message.metadata.message_type
        server_round = int(message.content["config"].get("round", 0))
        if kind == "train":
            self.newest = server_round
        self.sent.append((kind, server_round, client))

        def honest() -> Message:
            app, self._app = self._app, self._apps.get(client, self._app)
            try:
                reply = super(FaultyGrid, self).answer(message)
            finally:
                self._app = app
            if not reply.has_error():
                self.history[kind, server_round, client] = copy.deepcopy(reply.content)
            return reply

        fault = next((f for f, when in self._faults if when(kind, server_round, client)), None)
        replies = [honest()] if fault is None or node not in self._contexts else list(fault(self, message, honest))
        due = time.monotonic()
        name = message.metadata.message_id
        self._came[name] = [(due + getattr(reply, "delay_s", 0.0), reply) for reply in replies]
        return replies[0] if replies else message


# Faults


def altered(edit: Callable[[RecordDict], None]) -> Fault:
    """The node's reply after ``edit`` changed its content in place."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        reply = honest()
        if not reply.has_error():
            edit(reply.content)
        return [reply]

    return fault


def dropped(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The node never gets the message."""
    return []


def lost(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The node does its work, and its reply never arrives."""
    honest()
    return []


def raising(reason: str) -> Fault:
    """The node's ClientApp raises before it has done anything."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        return [Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)]

    return fault


def interrupting(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The user presses Ctrl-C while the node is at work."""
    raise KeyboardInterrupt


def twice(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The node's reply arrives two times."""
    reply = honest()
    return [reply, copy.deepcopy(reply)]


def delayed(seconds: float) -> Fault:
    """The node's reply takes its time."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        reply = honest()
        reply.__dict__["delay_s"] = seconds
        return [reply]

    return fault


def from_node(node: int) -> Fault:
    """The node's reply, and a copy that claims to come from another node."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        reply = honest()
        forged = copy.deepcopy(reply)
        forged.metadata.__dict__["_src_node_id"] = node
        return [forged, reply]

    return fault


def gone(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The node goes away with the message, and the SuperLink says so in its place."""
    told = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
    told.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    return [told]


def replayed(server_round: int) -> Fault:
    """The node answers with what it said in an earlier round."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        reply = honest()
        kind, client = message.metadata.message_type, grid._partitions[message.metadata.dst_node_id]
        return [Message(copy.deepcopy(grid.history[kind, server_round, client]), reply_to=message)] if reply else []

    return fault


def killed(*, after: bool) -> Fault:
    """The whole process dies before the node has done its work, or after."""

    def fault(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
        if after:
            honest()
        raise Killed

    return fault


def restarted(grid: FaultyGrid, message: Message, honest: Callable[[], Message]) -> list[Message]:
    """The node answers, then comes back under another id."""
    reply = honest()
    grid.restart(grid._partitions[message.metadata.dst_node_id])
    return [reply]


# Disks


@contextlib.contextmanager
def small_files(limit: int) -> Iterator[None]:
    """Let every file that this process writes end at ``limit`` bytes: the write that passes it fails half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let the disk be found full when written data are flushed to it, as file systems that delay allocation do."""
    with pytest.MonkeyPatch.context() as patch:

        def fsync(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", fsync)
        yield


# Data


def write_pictures(path: Path, *, samples: int = 240, classes: int = 4, side: int = 8, domains: int = 0) -> Path:
    """Write a learnable set of small grey pictures as an npz file: one pattern a class, and noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    patterns = rng.integers(0, 200, (classes, side, side))
    pictures = np.clip(patterns[labels] + rng.normal(20, 15, (samples, side, side)), 0, 255).astype(np.uint8)
    arrays = {"train_x": pictures, "train_y": labels, "classes": np.array(list("abcdefghij")[:classes])}
    if domains:
        arrays |= {
            "train_domain": np.arange(samples) // classes % domains,
            "domains": np.array([f"domain-{i}" for i in range(domains)]),
        }
    np.savez(path, **arrays)
    return path


# Parts


def add_part(monkeypatch: pytest.MonkeyPatch, part: type[Part]) -> None:
    """Put a part where ``PARTS`` ends, as one more line there does."""
    monkeypatch.setattr("isoproto.parts.PARTS", (*isoproto.parts.PARTS, part))
    for known, declared in ((DOWN, part.down), (UP, part.up)):
        for field in declared:
            monkeypatch.setitem(known, field.name, field)
