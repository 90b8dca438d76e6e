"""Decide which clients take part: ask each node which clients it has, and leave out those that do not fit."""

import collections
import itertools
import json
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterable

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from isoproto import wire
from isoproto.client_names import client_order
from isoproto.config import RunConfig
from isoproto.errors import ConfigError, FederationError, WireError
from isoproto.fingerprint import fingerprint, package_folder
from isoproto.parts import parts_of
from isoproto.runs.run_folder import RunFolder
from isoproto.sampling import late_clients
from strategies.journal import Journal
from strategies.refusals import Refusals
from strategies.replies import content, one_line

# Seconds between checks for new nodes, and between lines of the log that say how many are missing.
_NODE_PAUSE, _NODE_NOTICE = 0.2, 5.0


# What a worker says that has imported other code under the names of our packages.
_FOREIGN = re.compile(r"isoproto needs its own package|No module named|cannot import name|has no attribute|other code")
_EMPTY_FOLDER = ". Start the SuperLink in an empty folder: a simulation's workers look there for packages first"


class Roster:
    """Keeps the clients of a federation, and the nodes that answer for them.

    Args:
        config: The run's settings.
        folder: The run folder, for ``nodes.json``.
        journal: Records which nodes and clients are refused.

    Attributes:
        clients: Each client's answer to the query, by name.
        hosts: The node that answers for each client.
        classes: The federation's class list.
        shared: Names, dtypes and shapes of the weights that clients share.
        frame: Feature map of the common frame, with its checksum, and number of coordinates; ``None`` before it is
            settled.
        late: Clients that train later than the others, or never.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, journal: Journal) -> None:
        self.clients: dict[str, wire.ClientInfo] = {}
        self.hosts: dict[str, int] = {}
        self.classes: tuple[str, ...] = ()
        self.shared: wire.Spec = {}
        self.frame: tuple[str, int] | None = None
        self.late: frozenset[str] = frozenset()
        self._config, self._folder, self._journal = config, folder, journal
        self._forgotten = frozenset(folder.forgotten)
        self._refusals = Refusals()

    # What is known of the clients

    def in_order(self) -> list[wire.ClientInfo]:
        """Return what is known of every client, sorted by name."""
        return [self.clients[name] for name in sorted(self.clients, key=client_order)]

    def reachable(self, present: Collection[int]) -> dict[str, int]:
        """Return the clients whose nodes are in ``present``, with the nodes."""
        return {client: node for client, node in self.hosts.items() if node in present}

    @property
    def simulated(self) -> bool:
        """Whether other processes simulate the clients. It is the same for all clients."""
        return any(info.worker for info in itertools.islice(self.clients.values(), 1))

    @property
    def workers(self) -> int:
        """Number of processes that simulate the clients; 0 if clients run in this process, or on real devices."""
        ids = {info.worker for info in self.clients.values()}
        return 0 if 0 in ids else len(ids)

    @property
    def partitions(self) -> int:
        """Number of shares that the run's data are split into; 0 on real devices.

        It is the median of what the clients report, so that no single client decides it.
        """
        return statistics.median_low([info.partitions for info in self.clients.values()] or [0])

    # Meeting the nodes

    def meet(self, grid: Grid, server_round: int, *, more_may_come: bool) -> None:
        """Wait for the nodes, ask each which clients it has, and decide which clients take part.

        Args:
            grid: Sends messages to the nodes.
            server_round: The last round that is over, for the metrics.
            more_may_come: Whether more nodes may connect later, or refused ones come back repaired. In a simulation
                all nodes are connected when the first one has answered.

        Raises:
            FederationError: If too few nodes came, or no node can be used.
            ConfigError: If the method shares whole models and the clients' differ.
        """
        deadline, notice = time.monotonic() + self._config.wait_timeout, 0.0
        while True:
            here = len(self.reachable(self.look(grid, server_round, self._config.wait_timeout)))
            wanted = self._config.min_nodes or self.partitions or 2
            all_heard = not more_may_come and self._heard_of_all(grid)
            if here >= wanted or (all_heard and not self._config.min_nodes):
                break
            now = time.monotonic()
            if all_heard or now > deadline:
                raise self._too_few(here, wanted, all_heard=all_heard)
            if now - notice > _NODE_NOTICE:
                notice = now
                self._journal.waiting(here, wanted, self._refusals.names())
            time.sleep(_NODE_PAUSE)
        self._settle(server_round)

    def look(self, grid: Grid, server_round: int, timeout: float) -> set[int]:
        """Return the connected nodes. New nodes are asked which clients they have, and refused if they do not fit."""
        present = set(grid.get_node_ids())
        hosts = set(self.hosts.values())
        self._refusals.forget(present, hosts)
        waiting = present - hosts - self._refusals.nodes
        if not waiting:
            return present
        for reply in self._answers(grid, sorted(waiting), timeout):
            node = reply.metadata.src_node_id
            if node not in waiting:
                self._journal.unasked(node)
                continue
            waiting.remove(node)
            self._refusals.answered(node)
            self._hear(reply, present, server_round)
        for node in waiting:
            self._refuse(server_round, node, f"no answer within {timeout:g} s")
        if self.clients:  # else the error that ends the run tells why
            self._journal.tell_refused()
        # Node ids are written as text, because JavaScript cannot hold such large numbers.
        self._folder.write_text("nodes.json", json.dumps({client: str(node) for client, node in self.hosts.items()}))
        return present

    def ask_anew(self, client: str) -> None:
        """Forget a client's node, so that the node is asked again which clients it has."""
        self.hosts.pop(client, None)

    def _heard_of_all(self, grid: Grid) -> bool:
        """Return whether every connected node takes part or was refused."""
        heard = {*self.hosts.values(), *self._refusals.nodes}
        return bool(heard) and heard >= set(grid.get_node_ids())

    def _too_few(self, here: int, wanted: int, *, all_heard: bool) -> FederationError:
        limit = "" if all_heard else f" within {self._config.wait_timeout:g} s (`wait-timeout`)"
        reasons = self._refusals.reasons()
        return FederationError(
            f"{here} of {wanted} nodes came that can take part{limit}{self._refusals.names()}"
            f"{f' ({reasons})' if reasons else ''}. Start the missing nodes, mend the refused ones, or lower "
            "`min-nodes`"
        )

    def _answers(self, grid: Grid, nodes: Iterable[int], timeout: float) -> list[Message]:
        """Ask nodes which clients they have, and return the replies sorted by node."""
        changes = self._config.changes()
        query = wire.Query(experiment=self._folder.experiment, fingerprint=fingerprint(), settings=changes)
        question = wire.write_query(query)
        replies = grid.send_and_receive([Message(question, node, MessageType.QUERY) for node in nodes], timeout=timeout)
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    def _hear(self, reply: Message, present: Collection[int], server_round: int) -> None:
        """Admit the clients of a node, or refuse them or the node."""
        node = reply.metadata.src_node_id
        try:
            infos, failed = wire.read_client_infos(content(reply), self._config.clients)
            for client, reason in failed.items():
                self._refuse(server_round, node, f"the client failed: {one_line(reason)}", client)
            for info in infos:
                if info.client in self._forgotten:
                    self._refuse(server_round, node, _was_forgotten(info.client), info.client)
                    continue
                self._check(info, present)
                self.hosts[info.client] = node  # it may be a new node if the client was restarted
                self.clients[info.client] = info
        except WireError as err:
            self._refuse(server_round, node, str(err))

    def _check(self, info: wire.ClientInfo, present: Collection[int]) -> None:
        """Raise a WireError if a client cannot take part."""
        _check_code(info)
        if info.feature_dim != self._config.feature_dim:
            raise WireError(
                f"client {info.client}, model {info.model!r}: feature width {info.feature_dim}, this federation "
                f"has `feature-dim = {self._config.feature_dim}`; give the model a projection to that width"
            )
        if self.classes and info.classes != self.classes:
            raise WireError(
                f"client {info.client}: its {len(info.classes)} classes {info.classes[:5]!r:.120} are not the "
                f"federation's {len(self.classes)} {self.classes[:5]!r:.120}"
            )
        if self.frame is not None and _frame(info) != self.frame:
            raise WireError(self._other_frame(info))
        if info.shared and not any(part.words for part in parts_of(self._config)):
            raise WireError(f"client {info.client}: it would share weights, and in this run nobody shares any")
        if self.shared and info.shared != self.shared:
            raise WireError(_other_weights(info))
        if self.classes and bool(info.worker) != self.simulated:
            raise WireError(_other_kind(info))
        if self.hosts.get(info.client) in present:
            raise WireError(f"client {info.client}: another node has this name; names and partitions are unique")

    def _refuse(self, server_round: int, node: int, reason: str, client: str = "") -> None:
        """Leave out a node, or one of its clients."""
        self._refusals.add(node, reason, client)
        self._journal.refused(server_round, node, client, reason)

    # Deciding who takes part

    def _settle(self, server_round: int) -> None:
        """Choose the class list and the shared weights that most clients have, and refuse the other clients."""
        if not self.clients:
            reasons = self._refusals.reasons()
            advice = _EMPTY_FOLDER if _FOREIGN.search(reasons) else ""
            raise FederationError(f"none of {len(self._refusals)} nodes can take part: {reasons}{advice}")
        # A node has one vote, even if it claims to simulate many clients. So one node cannot outvote the others.
        kinds = {self.hosts[info.client]: bool(info.worker) for info in self.clients.values()}
        simulated = statistics.median_low(kinds.values())
        self._keep(server_round, lambda info: bool(info.worker) == simulated, _other_kind)
        lists = collections.Counter(info.classes for info in self.clients.values())
        self.classes = lists.most_common(1)[0][0]
        self._keep(server_round, lambda info: info.classes == self.classes, _other_classes)
        self._settle_frame(server_round)
        self._settle_shared(server_round)
        self._settle_late()
        if self.simulated and self._config.over_sample:
            raise ConfigError(
                "`over-sample` leaves the slowest nodes behind, and a simulation goes on with their work while the "
                "next round waits for it; set over-sample = 0 there"
            )

    def _settle_frame(self, server_round: int) -> None:
        """Choose the feature map that most clients have behind the common frame, and refuse the other clients."""
        self.frame = collections.Counter(_frame(info) for info in self.clients.values()).most_common(1)[0][0]
        self._keep(server_round, lambda info: _frame(info) == self.frame, self._other_frame)

    def _other_frame(self, info: wire.ClientInfo) -> str:
        name, dim = self.frame or ("", 0)
        return (
            f"client {info.client}: its common frame is of map {info.frame or 'none'!r} with {info.frame_dim} "
            f"coordinates, the federation's of {name or 'none'!r} with {dim}. Statistics of two maps cannot be added; "
            "give the node the same map (`common.map`, or `map` in its configuration), of the same version"
        )

    def _settle_shared(self, server_round: int) -> None:
        """Choose the shared weights that more than half of the clients have, and refuse the other clients."""
        specs = collections.Counter(_shapes(info) for info in self.clients.values())
        spec, votes = specs.most_common(1)[0]
        if 2 * votes <= len(self.clients):
            raise ConfigError(
                f"`share = {self._config.share}` averages weights, so they must have the same shapes everywhere, but "
                f"the clients' models are {self.models()}. Name one architecture (models = 'cnn') or share less"
            )
        self._keep(server_round, lambda info: _shapes(info) == spec, _other_weights)
        self.shared = next(iter(self.clients.values())).shared

    def _settle_late(self) -> None:
        """Draw the clients that train later than the others."""
        if self._config.join_late:
            # Drawn from all partitions, also absent ones, so that a resumed run draws the same clients.
            everybody = {*self.clients, *map(str, range(self.partitions))}
            self.late = late_clients(sorted(everybody), self._config.join_late, seed=self._config.seed)

    def _keep(
        self,
        server_round: int,
        fits: Callable[[wire.ClientInfo], bool],
        reason: Callable[[wire.ClientInfo], str],
    ) -> None:
        """Refuse the nodes of clients for which ``fits`` returns false."""
        for name, info in list(self.clients.items()):
            if not fits(info):
                del self.clients[name]
                self._refuse(server_round, self.hosts.pop(name), reason(info))
        self._journal.tell_refused()

    def models(self) -> dict[str, int]:
        """Return how many clients have each architecture, sorted by its name."""
        return dict(sorted(collections.Counter(info.model for info in self.clients.values()).items()))


def _check_code(info: wire.ClientInfo) -> None:
    """Raise a WireError if a client runs other code than this server."""
    ours = fingerprint()
    if info.fingerprint != ours:
        raise WireError(
            f"client {info.client} runs other code: fingerprint {info.fingerprint} from {info.folder}, this "
            f"server {ours} from {package_folder('server_app')}. Update the client's copy; in simulation, "
            "start the SuperLink in an empty folder"
        )


def _other_classes(info: wire.ClientInfo) -> str:
    return f"client {info.client}: its class list {info.classes[:5]!r:.120} is not the others'"


def _was_forgotten(client: str) -> str:
    return (
        f"client {client} was forgotten (`isoproto forget`), so its statistics are not asked for again; "
        f"`isoproto forget RUN {client} --may-return` lets it come back when the run is resumed"
    )


def _other_kind(info: wire.ClientInfo) -> str:
    return f"client {info.client}: it {'is' if info.worker else 'is not'} simulated, unlike the others"


def _other_weights(info: wire.ClientInfo) -> str:
    return f"client {info.client}, model {info.model!r}: the weights it would share differ from the others'"


def _frame(info: wire.ClientInfo) -> tuple[str, int]:
    return info.frame, info.frame_dim


def _shapes(info: wire.ClientInfo) -> tuple[object, ...]:
    return tuple(sorted(info.shared.items()))
