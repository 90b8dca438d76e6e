"""Write a round's messages, and check the replies."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from isoproto import wire
from isoproto.client_names import client_order
from isoproto.config import RunConfig
from isoproto.engines.share_out import share_out_to_hosts
from isoproto.errors import MoreSamples, WireError
from isoproto.parts import parts_of, reported_terms
from isoproto.parts.base import LimitOf
from strategies.journal import Journal
from strategies.replies import GoodReply, GoodTrainReply, Reply, content, parts, success
from strategies.roster import Roster

Limits = Mapping[str, LimitOf | None]

# Key of an outstanding message: (node id, group id). A node may have several; the group id tells them apart.
_Key = tuple[int, str]


class Exchange:
    """Writes the messages of a round, and checks the replies.

    Args:
        config: The run's settings.
        roster: The clients that take part.
        journal: Records bad replies.

    Attributes:
        bytes_down: Size of the content of each of the newest messages.
    """

    def __init__(self, config: RunConfig, roster: Roster, journal: Journal) -> None:
        self.bytes_down = 0
        self._config, self._roster, self._journal = config, roster, journal
        self._asked: dict[_Key, list[wire.Expected]] = {}
        self._round = 0
        self._terms = reported_terms(parts_of(config))
        parts = parts_of(config)
        self._faults = tuple(part.fault for part in parts)
        self._predictors = tuple(name for part in parts for name in part.predictors)
        self._rates: dict[str, float] = {}  # architecture -> seconds per sample, a running mean

    @property
    def asked(self) -> int:
        """Number of clients that the newest messages are for."""
        return sum(map(len, self._asked.values()))

    def ask_nobody(self) -> None:
        """Expect no replies."""
        self._asked = {}

    def messages(
        self, kind: str, clients: Mapping[str, int], broadcast: wire.Broadcast, limits: Limits
    ) -> list[Message]:
        """Write the messages to some clients, and remember what the replies are checked against.

        Args:
            kind: Flower's type of the messages.
            clients: The clients to ask, with their nodes.
            broadcast: The content, equal for all clients.
            limits: For each array that clients may send, how long its rows may be; see ``wire.Expected``.
        """
        written = wire.write_broadcast(broadcast)
        self.bytes_down = wire.serialised_bytes(written)
        self._round = broadcast.server_round
        groups = self._groups(clients)
        keys: list[_Key] = [(node, f"{self._round}.{number}") for number, (node, _) in enumerate(groups)]
        self._asked = {
            key: [self._expected(client, broadcast, limits) for client in group]
            for key, (_, group) in zip(keys, groups, strict=True)
        }
        return [self._message(kind, key, written) for key in keys]

    def read(
        self, replies: Iterable[Message], read: Callable[[RecordDict, wire.Expected], Reply], enough: int = 0
    ) -> tuple[list[GoodReply[Reply]], dict[str, str]]:
        """Return the good replies sorted by client, and the reason of every bad or missing one by client.

        Args:
            replies: The replies that came.
            read: Checks and decodes the reply of one client.
            enough: Number of replies without an error after which the server stopped waiting. Clients that have not
                replied then have not failed. 0: all clients have to reply.
        """
        good: list[GoodReply[Reply]] = []
        failures: dict[str, str] = {}
        waiting = dict(self._asked)
        answered = 0
        for message in replies:
            if (asked := self._take(waiting, message)) is not None:
                answered += not message.has_error()
                good += self._check(message, asked, read, failures)
        if 0 < enough <= answered:
            waiting.clear()
        for expected in itertools.chain.from_iterable(waiting.values()):
            failures[expected.client] = f"no reply within {self._config.round_timeout:g} s (`round-timeout`)"
        self._journal.failed(self._round, failures)
        return sorted(good, key=lambda each: client_order(each.info.client)), failures

    def note_speed(self, good: Sequence[GoodTrainReply]) -> None:
        """Update the seconds per sample of each architecture from the replies."""
        for each in good:
            rate = each.reply.seconds / max(1, _samples(each.info))
            self._rates[each.info.model] = (self._rates.get(each.info.model, rate) + rate) / 2

    # Out

    def _groups(self, clients: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """Return which clients travel in one message, and to which node it goes."""
        if self._roster.simulated:
            return share_out_to_hosts(clients, self._roster.hosts, self._cost, self._roster.workers)
        return [(node, [client]) for client, node in clients.items()]

    def _cost(self, client: str) -> float | None:
        """Estimate the seconds of a client's round. Return ``None`` if its architecture has not been measured yet."""
        info = self._roster.clients[client]
        rate = self._rates.get(info.model)
        return None if rate is None else rate * _samples(info)

    def _expected(self, client: str, broadcast: wire.Broadcast, limits: Limits) -> wire.Expected:
        config = self._config
        return wire.Expected(
            client=client,
            experiment=broadcast.experiment,
            server_round=broadcast.server_round,
            num_classes=len(self._roster.classes),
            feature_dim=config.feature_dim,
            max_norm=config.max_norm,
            limits=limits,
            terms=self._terms,
            dtype=config.wire__dtype,
            shared=self._roster.shared,
            train_counts=self._roster.clients[client].train_counts,
            frame_dim=self._roster.clients[client].frame_dim,
            faults=self._faults,
            predictors=self._predictors,
        )

    def _message(self, kind: str, key: _Key, written: RecordDict) -> Message:
        """Return the message of a key. In a simulation it names the clients that the worker answers for."""
        node, group_id = key
        if self._roster.simulated:
            written = wire.address(written, [expected.client for expected in self._asked[key]])
        return Message(written, node, kind, ttl=self._config.round_timeout, group_id=group_id)

    # In

    def _take(self, waiting: dict[_Key, list[wire.Expected]], message: Message) -> list[wire.Expected] | None:
        """Remove from ``waiting`` what a reply answers, and return it; ``None`` if the reply answers no message."""
        node, group_id = message.metadata.src_node_id, message.metadata.group_id
        if node == SUPERLINK_NODE_ID and message.has_error():  # the SuperLink answers for a node that went away
            node = next((asked for asked, group in waiting if group == group_id), node)
        asked = waiting.pop((node, group_id), None)
        if asked is None and node != SUPERLINK_NODE_ID:
            self._journal.unasked(node)
        return asked

    def _check(
        self,
        message: Message,
        asked: Sequence[wire.Expected],
        read: Callable[[RecordDict, wire.Expected], Reply],
        failures: dict[str, str],
    ) -> list[GoodReply[Reply]]:
        """Return the good replies that one message holds, and add the others' reasons to ``failures``."""
        clients, simulated = [expected.client for expected in asked], self._roster.simulated
        try:
            contents = parts(message, clients) if simulated else [content(message)]
        except WireError as err:
            failures.update(dict.fromkeys(clients, str(err)))
            return []
        good = []
        for expected, part in zip(asked, contents, strict=True):
            try:
                reply = read(success(part), expected)
                good.append(GoodReply(self._roster.clients[expected.client], reply, wire.serialised_bytes(part)))
            except WireError as err:
                failures[expected.client] = str(err)
                if isinstance(err, MoreSamples) and not simulated:
                    self._roster.ask_anew(expected.client)  # the device may have more data than before
        return good


def _samples(info: wire.ClientInfo) -> int:
    return sum(info.train_counts + info.test_counts)
