"""The strategy all methods share: who is asked, what is checked, how a round is folded into the state."""

import collections
import dataclasses
import itertools
import json
import logging
import math
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from isoproto import wire
from isoproto.client_names import client_order
from isoproto.config import AUTO, RunConfig
from isoproto.engines.machines import machines, most_workers
from isoproto.errors import ConfigError, FederationError, MoreSamples, WireError
from isoproto.fingerprint import fingerprint, package_folder
from isoproto.geometry.prototypes import average_prototypes, average_tensors
from isoproto.runs.evaluation import evaluation_figures
from isoproto.runs.metrics import accuracy_summary
from isoproto.runs.run_folder import RunFolder
from isoproto.sampling import cohort, cohort_size, late_clients, share_out
from strategies import hyper
from strategies.state import LastAccuracy, ServerState

_log = logging.getLogger("isoproto")

Reply = TypeVar("Reply")
# A message that was sent: to which node, and the group by which its reply is known among those of the node.
_Asked = tuple[int, str]

# Pause between looks for nodes that are still to come, in seconds, and between the lines that say so.
_NODE_PAUSE, _NODE_NOTICE = 0.2, 5.0
_NAMES = 9  # of refused nodes in one line
_ASK_AGAIN_S = 60.0  # after this a refused node is asked anew, and then after ever longer ones
_now = time.monotonic
_EXCEPTION = re.compile(r"^<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>$")  # how a SuperNode words one
_UNASKED = "ignored a reply of node %d that nobody waits for"
# What `auto` stands for where the method does not say: the flagship's choice (docs/adr/0006-flagship.md), and for
# lambda and gamma what was found under the product's optimiser (docs/adr/0003-weights.md).
_DEFAULTS = {
    "missing": "mask",
    "frame": "shared",
    "relation__shrink": 0.0,
    "hyper__init": "prototypes",
    "hyper__learning_rate": 0.002,
    "hyper__optimizer": "adam",
    "hyper__margin": "none",
    "hyper__form": "normalised",
    "hyper__pcl": 0.2,
    "hyper__pal": 0.2,
}
_WEIGHTS = {
    "none": (0.0, 0.0),
    "mse": (0.01, 0.01),
    "cosine": (0.1, 0.1),
    "gcsa": (0.3, 1.0),
    "rcsa": (0.3, 1.0),
}
# Settings of the structural loss: a method's defaults of them mean its own loss, and no other.
_OF_LOSS = ("lambda_", "gamma", "missing")


@dataclass(frozen=True, slots=True)
class Point:
    """A method as a point on the three axes."""

    prototypes: str
    alignment: str
    share: str


@dataclass(frozen=True, slots=True)
class Good:
    """A reply that passed every check."""

    info: wire.ClientInfo
    reply: wire.TrainReply
    bytes_up: int


class PrototypeStrategy(Strategy):
    """Exchange of class prototypes, with every reply checked before it is used.

    The server sends, per round and participant, the global prototypes with their mask (and weights, if the
    method shares some). The client trains its own model, with the alignment terms that the settings name,
    and evaluates it before and after. Back come the class means of the classes it holds, their counts, one
    scatter number, its accuracy and losses.

    A bad reply is one failed client with a named reason, never a failed round.

    Args:
        config: The run's settings, resolved with ``resolve``.
        folder: Where metrics and checkpoints go.
        state: The state to go on from, or ``None`` for a new run.
    """

    point: ClassVar[Point]
    # Settings that the method decides where they are `auto`; see `resolve`.
    defaults: ClassVar[Mapping[str, float | str]] = {}

    def __init__(self, config: RunConfig, folder: RunFolder, state: ServerState | None = None) -> None:
        self.config = config
        self.folder = folder
        self.clients: dict[str, wire.ClientInfo] = {}
        self.classes: tuple[str, ...] = ()
        self.late: frozenset[str] = frozenset()  # clients that train later than the others, or never
        self._saved = state
        self._round = state.server_round if state else 0  # the one under way
        self._hosts: dict[str, int] = {}  # client -> node id
        self._refused: dict[tuple[int, str], str] = {}  # node id and one of its clients, or empty: all -> reason
        self._again: dict[int, tuple[float, float]] = {}  # refused node -> when it is asked anew, and the pause then
        self._asked: dict[_Asked, list[wire.Expected]] = {}
        self._wanted = 0  # good replies that close the training round under way; 0: all
        self._bytes_down = 0
        self._born = time.perf_counter()
        self._started = 0.0
        self._rates: dict[str, float] = {}  # architecture -> seconds per sample, a running mean
        self._spec: wire.Spec = {}
        self.state: ServerState

    @classmethod
    def resolve(cls, config: RunConfig) -> RunConfig:
        """Replace every ``auto`` by what this method stands for.

        The method's own defaults hold whatever the alignment, but for ``lambda``, ``gamma`` and ``missing``: they
        belong to its structural loss, and another one has its own.

        Raises:
            ConfigError: If an alignment is asked for without prototypes to align to, or settings contradict each other.
        """
        prototypes = cls.point.prototypes if config.prototypes == AUTO else config.prototypes
        if prototypes == "none":
            if config.alignment not in (AUTO, "none"):
                raise ConfigError(
                    f"`alignment = {config.alignment}` needs global prototypes, and strategy {config.strategy!r} with "
                    f"`prototypes = {config.prototypes}` has none; set prototypes = 'mean', or leave the alignment out"
                )
            config = dataclasses.replace(config, alignment="none")
        point = {k: v for k, v in dataclasses.asdict(cls.point).items() if getattr(config, k) == AUTO}
        config = dataclasses.replace(config, **point)
        weights = dict(zip(("lambda_", "gamma"), _WEIGHTS.get(config.structural, (0.0, 0.0)), strict=True))
        common = config.frame in (AUTO, "shared")
        head = "shared" if config.share in ("head", "model") and common else "prototype"
        another = config.structural != dataclasses.replace(config, alignment=cls.point.alignment).structural
        own = {key: value for key, value in cls.defaults.items() if not (another and key in _OF_LOSS)}
        chosen: dict[str, Any] = {**_DEFAULTS, "hyper__head": head, **weights, **own}
        if not common:  # noise has no meaning in coordinates that are found first
            chosen["hyper__init"] = "prototypes"
        config = dataclasses.replace(config, **{k: v for k, v in chosen.items() if getattr(config, k) == AUTO})
        if config.heads != "linear" and config.share in ("head", "model"):
            raise ConfigError(
                f"`share = {config.share}` averages heads, which takes equal linear ones, and `heads = {config.heads}` "
                "deals out others; set heads = 'linear', or share = 'none' or 'base'"
            )
        if config.hyper__retrain != "none" and config.share not in ("head", "model"):
            raise ConfigError("`hyper.retrain` replaces the averaged classifier; it takes share = 'head' or 'model'")
        if config.prototypes == "hyper" and config.hyper__head == "shared" and config.share not in ("head", "model"):
            raise ConfigError(
                f"`hyper.head = shared` is the averaged classifier, and `share = {config.share}` averages none; "
                "set share = 'head' (or 'model'), or hyper.head = 'prototype' or 'server'"
            )
        if config.prototypes == "hyper" and config.hyper__head == "shared" and config.frame != "shared":
            raise ConfigError(
                f"`hyper.head = shared` is a head for the clients' coordinates, and `frame = {config.frame}` takes "
                "gradients in others; set hyper.head = 'prototype' or 'server', or frame = 'shared'"
            )
        if config.anchors == "private" and config.structural not in ("", *hyper.RELATIONAL):
            raise ConfigError(
                f"`anchors = private` leaves no prototypes for `alignment = {config.alignment}` to align to; "
                "set anchors = 'own', or an alignment of relations: gcsa or rcsa"
            )
        if config.frame == "gram" and config.hyper__init == "normal":
            raise ConfigError(
                "`hyper.init = normal` is noise in coordinates, and `frame = gram` has none to begin with; "
                "set frame = 'shared', or hyper.init = 'prototypes'"
            )
        if config.share in ("base", "model"):
            # Averaging networks that start from different weights destroys them.
            config = dataclasses.replace(config, init="per-architecture")
        return config

    # Meeting the clients

    def meet(self, grid: Grid, *, more_may_come: bool = True) -> None:
        """Wait for the nodes, ask each who it is, and settle who takes part.

        Args:
            grid: How to reach them.
            more_may_come: Whether nodes may come, or come back mended, later than the others. In a simulation all are
                there by the time that one has answered.

        Raises:
            FederationError: If too few came, or none of them can be used.
            ConfigError: If the method shares whole models and the clients' differ.
        """
        deadline, notice = time.monotonic() + self.config.wait_timeout, 0.0
        while True:
            here = len(self._reachable(self._query(grid, self.config.wait_timeout)))
            wanted = self.config.min_nodes or self.partitions or 2
            heard = {*self._hosts.values(), *(node for node, _ in self._refused)}
            all_heard = not more_may_come and bool(heard) and heard >= set(grid.get_node_ids())
            if here >= wanted or (all_heard and not self.config.min_nodes):
                break
            now = time.monotonic()
            if all_heard or now > deadline:
                limit = "" if all_heard else f" within {self.config.wait_timeout:g} s (`wait-timeout`)"
                reasons = _told(collections.Counter(self._refused.values()))
                raise FederationError(
                    f"{here} of {wanted} nodes came that can take part{limit}{self._refused_in_words()}"
                    f"{f' ({reasons})' if reasons else ''}. Start the missing nodes, mend the refused ones, or lower "
                    "`min-nodes`"
                )
            if now - notice > _NODE_NOTICE:
                notice = now
                _log.info("waiting for nodes: %d of %d are there%s", here, wanted, self._refused_in_words())
            time.sleep(_NODE_PAUSE)
        self._settle()

    def _query(self, grid: Grid, timeout: float) -> set[int]:
        """Return the nodes that are there; new ones are asked who they are, and refused if they cannot be used."""
        present = set(grid.get_node_ids())
        # Its owner may have mended what was wrong with a node that was away, or away between two looks.
        hosts = set(self._hosts.values())
        self._again = {node: times for node, times in self._again.items() if node in present - hosts}
        due = {node for node, (when, _) in self._again.items() if when <= _now()}
        self._refused = {key: reason for key, reason in self._refused.items() if key[0] in present - due}
        waiting = present - hosts - {node for node, _ in self._refused}
        if not waiting:
            return present
        query = wire.Query(experiment=self.folder.experiment, fingerprint=fingerprint(), settings=self.config.changes())
        content = wire.write_query(query)
        messages = [Message(content, node, MessageType.QUERY) for node in sorted(waiting)]
        replies = grid.send_and_receive(messages, timeout=timeout)
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            if node not in waiting:
                _log.warning(_UNASKED, node)
                continue
            waiting.remove(node)
            _, pause = self._again.get(node, (0.0, _ASK_AGAIN_S))
            self._again[node] = (_now() + pause, 2 * pause)
            try:
                infos, failed = wire.read_client_infos(_content(reply), self.config.clients)
                for client, reason in failed.items():
                    self._refuse(node, f"the client failed: {_one_line(reason)}", client)
                for info in infos:
                    self._admit(node, info, present)
            except WireError as err:
                self._refuse(node, str(err))
        for node in waiting:
            self._refuse(node, f"no answer within {timeout:g} s")
        # As text: such numbers are too long for JavaScript's.
        self.folder.write_text("nodes.json", json.dumps({client: str(node) for client, node in self._hosts.items()}))
        return present

    def _admit(self, node: int, info: wire.ClientInfo, present: Collection[int]) -> None:
        own = fingerprint()
        if info.fingerprint != own:
            raise WireError(
                f"client {info.client} runs other code: fingerprint {info.fingerprint} from {info.folder}, this "
                f"server {own} from {package_folder('server_app')}. Update the client's copy; in simulation, "
                "start the SuperLink in an empty folder"
            )
        if info.feature_dim != self.config.feature_dim:
            raise WireError(
                f"client {info.client}, model {info.model!r}: feature width {info.feature_dim}, this federation "
                f"has `feature-dim = {self.config.feature_dim}`; give the model a projection to that width"
            )
        if self.classes and info.classes != self.classes:
            raise WireError(
                f"client {info.client}: its {len(info.classes)} classes {info.classes[:5]!r:.120} are not the "
                f"federation's {len(self.classes)} {self.classes[:5]!r:.120}"
            )
        if self.config.share == "none" and info.shared:
            raise WireError(f"client {info.client}: it would share weights, and in this run nobody shares any")
        if self._spec and info.shared != self._spec:
            raise WireError(_other_weights(info))
        if self.classes and bool(info.worker) != self.simulated:
            raise WireError(_other_kind(info))
        if self._hosts.get(info.client) in present:
            raise WireError(f"client {info.client}: another node has this name; names and partitions are unique")
        self._hosts[info.client] = node  # a new one if the client was started again
        self.clients[info.client] = info

    def _refuse(self, node: int, reason: str, client: str = "") -> None:
        """Leave a node out, or one of the clients that it stands for."""
        self._refused[node, client] = reason
        name = client or f"node {node}"
        _log.warning("%s does not take part: %s", _refused_name(node, client), reason)
        self.folder.record("failure", round=self._round, client=name, reason=reason)

    def _refused_in_words(self) -> str:
        names = sorted(_refused_name(node, client) for node, client in self._refused)
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        return f"; refused: {', '.join(names[:_NAMES])}{more}" if names else ""

    def _settle(self) -> None:
        """Agree on the class list and on what is shared, now that the first clients are known."""
        if not self.clients:
            told = _told(collections.Counter(self._refused.values()))
            raise FederationError(
                f"none of {len(self._refused)} nodes can take part: {told}. If this tells of code that is not this "
                "app's, start the SuperLink in an empty folder: a simulation's workers look there for packages first"
            )
        # A node has one vote, however many clients it says it simulates: it does not make a simulation of the others.
        kinds = {self._hosts[info.client]: bool(info.worker) for info in self.clients.values()}
        simulated = statistics.median_low(kinds.values())
        self._keep(lambda info: bool(info.worker) == simulated, _other_kind)
        lists = collections.Counter(info.classes for info in self.clients.values())
        self.classes = lists.most_common(1)[0][0]
        self._keep(lambda info: info.classes == self.classes, _other_classes)
        specs = collections.Counter(_shapes(info) for info in self.clients.values())
        spec, votes = specs.most_common(1)[0]
        if 2 * votes <= len(self.clients):
            models = dict(sorted(collections.Counter(info.model for info in self.clients.values()).items()))
            raise ConfigError(
                f"`share = {self.config.share}` averages weights, so they must have the same shapes everywhere, but "
                f"the clients' models are {models}. Name one architecture (models = 'cnn') or share less"
            )
        self._keep(lambda info: _shapes(info) == spec, _other_weights)
        self._spec = next(iter(self.clients.values())).shared
        if self.config.join_late:
            # Of all partitions, present or not, so that a resumed run keeps the same ones from training.
            everybody = {*self.clients, *map(str, range(self.partitions))}
            self.late = late_clients(sorted(everybody), self.config.join_late, seed=self.config.seed)
        if self.simulated and self.config.over_sample:
            raise ConfigError(
                "`over-sample` leaves the slowest nodes behind, and a simulation goes on with their work while the "
                "next round waits for it; set over-sample = 0 there"
            )
        self.state = self._saved or ServerState.start(len(self.classes), self.config.feature_dim)
        if len(self.state.present) != len(self.classes):
            raise ConfigError(
                f"the checkpoint has {len(self.state.present)} classes, the clients now have {len(self.classes)}: "
                f"{self.classes[:5]!r:.120}. Restore the data of the run, or start a new one"
            )

    def _keep(self, fits: Callable[[wire.ClientInfo], bool], reason: Callable[[wire.ClientInfo], str]) -> None:
        """Leave out the clients that do not fit."""
        for name, info in list(self.clients.items()):
            if not fits(info):
                del self.clients[name]
                self._refuse(self._hosts.pop(name), reason(info))

    def clients_in_order(self) -> list[wire.ClientInfo]:
        """Return what is known of every client, sorted by name."""
        return [self.clients[name] for name in sorted(self.clients, key=client_order)]

    @property
    def simulated(self) -> bool:
        """Whether other processes simulate the clients, all of which are of one kind."""
        return any(info.worker for info in itertools.islice(self.clients.values(), 1))

    @property
    def workers(self) -> int:
        """Processes that simulate the clients; 0 if they run in this one, or are real devices."""
        ids = {info.worker for info in self.clients.values()}
        return 0 if 0 in ids else len(ids)

    @property
    def partitions(self) -> int:
        """Parts that the run's data are dealt out in, 0 on devices: the middle of what clients say, no single one's."""
        return statistics.median_low([info.partitions for info in self.clients.values()] or [0])

    # The five hooks of a Flower strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the cohort of the round among the clients that are there, and write its messages."""
        self._started = time.perf_counter()
        self._round = self.state.server_round + 1
        # One that comes in late holds the others up no longer than one that is slow.
        here = self._reachable(self._query(grid, min(self.config.wait_timeout, self.config.round_timeout)))
        if not 0 < self.config.join_round <= self._round:
            here = {name: node for name, node in here.items() if name not in self.late}
        more = self.config.over_sample
        drawn = cohort(
            list(here), self.config.fraction, seed=self.config.seed, server_round=self._round, over_sample=more
        )
        self._wanted = cohort_size(len(here), self.config.fraction) if more else 0
        return self._messages(MessageType.TRAIN, {name: here[name] for name in drawn})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, fold the good ones into the next state, and note what happened."""
        trained = time.perf_counter()
        good, failures = self._read(replies, wire.read_train_reply, enough=self._wanted)
        # A client without data is no failure, but there is nothing to learn from it.
        useful = [Good(self.clients[c], r, size) for c, r, size in good if r.contribution.samples]
        empty = len(useful) < self.config.min_replies
        self.state = dataclasses.replace(
            self.state if empty else self.next_state(useful),
            server_round=self._round,
            empty_rounds=self.state.empty_rounds + 1 if empty else 0,
            accuracy={**self.state.accuracy, **self._accuracies(good)},
        )
        self._note_round(good, failures, trained - self._started)
        if empty:
            reasons = collections.Counter(failures.values())
            reasons["the client has no training samples"] = len(good) - len(useful)
            few = f"{len(good)} of {self.config.min_replies} good replies (`min-replies`)"
            told = _told(reasons) or (few if good else "nobody was asked")
            _log.warning("round %d is empty and changes nothing: %s", self._round, told)
            if self.state.empty_rounds >= self.config.max_empty_rounds:
                raise FederationError(
                    f"{self.state.empty_rounds} rounds in a row had fewer than {self.config.min_replies} good replies "
                    f"(`min-replies`, `max-empty-rounds`); the last one: {told}"
                )
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write a message to every client that is there, in the rounds that are evaluated."""
        done, every = self.state.server_round, self.config.evaluate_every
        if done != self.config.rounds and done != 0 and not (every and done % every == 0):
            self._asked = {}
            return []
        return self._messages(MessageType.EVALUATE, self._reachable(set(grid.get_node_ids())))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check the replies and note every client's accuracy."""
        if not self._asked:
            return None
        good, _ = self._read(replies, wire.read_evaluate_reply)
        if not good:
            return None
        latest = {
            client: LastAccuracy(e.correct, e.total, self.state.server_round, self.clients[client].model)
            for client, e, _ in good
        }
        self.state = dataclasses.replace(self.state, accuracy={**self.state.accuracy, **latest})
        entries = [
            {
                "client": client,
                "model": self.clients[client].model,
                "correct": e.correct,
                "total": e.total,
                "correct_prototype": e.correct_prototype,
                "class_correct": e.class_correct,
                "class_total": e.class_total,
                "class_predicted": e.class_predicted,
                "domain": self.clients[client].domain,
                "late": client in self.late,
            }
            for client, e, _ in good
        ]
        one_model = self.config.share == "model" and bool(self.state.shared)
        figures = evaluation_figures(entries, one_model=one_model)
        self.folder.record("evaluation", round=self.state.server_round, clients=entries, one_model=one_model, **figures)
        return None

    def summary(self) -> None:
        """Log what takes part."""
        models = dict(sorted(collections.Counter(info.model for info in self.clients.values()).items()))
        _log.info(
            "%s: prototypes %s, alignment %s (lambda %s, gamma %s), share %s; %d clients, %d classes, models %s",
            self.config.strategy,
            self.config.prototypes,
            self.config.alignment,
            self.config.lambda_,
            self.config.gamma,
            self.config.share,
            len(self.clients),
            len(self.classes),
            models,
        )
        here = machines()
        if self.workers:
            _log.info("%d clients at once on %s", self.workers, here)
            if self.workers >= most_workers() < min(here.cpus, len(self.clients)):
                _log.warning(
                    "cores are idle: Flower keeps %d workers busy at most, 4 more than the machine that the run was "
                    "started on has cores, and no more than 32 (docs/scale.md)",
                    most_workers(),
                )
            elif not here.gpus and self.workers < min(here.cpus, len(self.clients)):
                _log.warning(
                    "cores are idle: each client reserves several CPUs, Flower's default. Let all work with "
                    '--federation-config "num-supernodes=%d client-resources-num-cpus=1"',
                    len(self.clients),
                )

    def enough(self, kind: str) -> int:
        """Return after how many good replies to messages of a kind the others need not be waited for; 0: all."""
        return self._wanted if kind == MessageType.TRAIN else 0

    # What a method changes

    def next_state(self, good: Sequence[Good]) -> ServerState:
        """Fold the good replies of clients with training samples, sorted by client, into the next state.

        A function of the state and the replies alone; ``server_round`` and ``accuracy`` are seen to by the
        caller.
        """
        state, config = dataclasses.replace(self.state, figures={}), self.config
        if config.share != "none" and good:
            shared = average_tensors([dict(g.reply.shared) for g in good], [g.reply.contribution.samples for g in good])
            state = dataclasses.replace(state, shared=shared)
        sent = [hyper.Sent(g.reply.contribution, g.reply.scatter, g.reply.gradients, g.reply.classifier) for g in good]
        if config.prototypes != "none":
            state = self._averaged(state, good) if config.frame == "shared" else hyper.relate(state, config, sent)
        if config.learns:
            state = hyper.learn(self.state, state, config, sent)
        if config.hyper__retrain != "none":  # last: no client took gradients through a head that is trained only now
            state = hyper.retrain(self.state, state, config, sent)
        return hyper.describe(state, config, sent) if config.prototypes == "hyper" else state

    def _averaged(self, state: ServerState, good: Sequence[Good]) -> ServerState:
        config = self.config
        mean = average_prototypes(
            [g.reply.contribution for g in good],
            *state.prototypes.shape,
            weighting=config.proto_weight,
        )
        fresh = mean.present & (mean.holders >= config.min_contributors)
        kept = state.present & ~fresh & (config.stale == "keep")
        vectors = torch.where(fresh.unsqueeze(1), mean.vectors, state.prototypes)
        present = fresh | kept
        return dataclasses.replace(
            state,
            prototypes=vectors * present.unsqueeze(1),
            present=present,
            age=torch.where(fresh, 0, state.age + 1),
        )

    # Helpers

    def _reachable(self, present: Collection[int]) -> dict[str, int]:
        """Return the clients whose nodes are there, with the nodes."""
        return {client: node for client, node in self._hosts.items() if node in present}

    def _messages(self, kind: str, nodes: Mapping[str, int]) -> list[Message]:
        """Write one message for each client in ``nodes`` and remember what its reply is held against."""
        known = self.config.prototypes != "none" and bool(self.state.present.any())
        content = wire.write_broadcast(
            wire.Broadcast(
                experiment=self.folder.experiment,
                server_round=self._round,
                settings=self.config.changes(),
                prototypes=self.state.prototypes if known else None,
                present=self.state.present if known else None,
                shared=self.state.shared,
                **hyper.downlink(self.state, self.config),
            )
        )
        limit = self._gradient_limit()
        self._bytes_down = wire.serialised_bytes(content)
        groups = [[client] for client in nodes]
        hosts = list(nodes.values())
        if self.simulated:
            groups = share_out(nodes, self._cost, self.workers)
            # Flower's simulation looks at the nodes in the order of their partitions, whenever messages were sent.
            in_order = dict.fromkeys(self._hosts[client] for client in sorted(self._hosts, key=client_order))
            hosts = [node for node in in_order if node in nodes.values()]
        pairs = zip(itertools.cycle(hosts), groups, strict=False)
        asked = {(node, f"{self._round}.{number}"): group for number, (node, group) in enumerate(pairs)}
        self._asked = {
            key: [
                wire.Expected(
                    client=client,
                    experiment=self.folder.experiment,
                    server_round=self._round,
                    num_classes=len(self.classes),
                    feature_dim=self.config.feature_dim,
                    max_norm=self.config.max_norm,
                    max_gradient=limit,
                    dtype=self.config.wire__dtype,
                    classifier=self.config.hyper__retrain != "none",
                    shared=self._spec if self.config.share != "none" else {},
                    train_counts=self.clients[client].train_counts,
                )
                for client in group
            ]
            for key, group in asked.items()
        }
        return [
            Message(
                wire.address(content, group) if self.simulated else content,
                node,
                kind,
                ttl=self.config.round_timeout,
                group_id=group_id,
            )
            for (node, group_id), group in asked.items()
        ]

    def _gradient_limit(self) -> float:
        config = self.config
        if not config.learns:
            return 0.0
        if config.hyper__head == "shared":
            early = config.hyper__grad_point == "before-training"
            sent = self.state.shared.get("head.weight") if early else None
            return math.inf if sent is None else wire.gradient_limit(sent)  # of the client's own, which it sends
        head = hyper.gradient_head(self.state, config)
        return wire.gradient_limit(head[0]) if head else 0.0

    def _cost(self, client: str) -> float | None:
        """Seconds that a client's round is going to take, from those of its architecture; ``None`` before any."""
        info = self.clients[client]
        rate = self._rates.get(info.model)
        return None if rate is None else rate * sum(info.train_counts + info.test_counts)

    def _read(
        self, replies: Iterable[Message], read: Callable[[RecordDict, wire.Expected], Reply], enough: int = 0
    ) -> tuple[list[tuple[str, Reply, int]], dict[str, str]]:
        """Return the good replies sorted by client with their sizes; note and return the reason of every other one.

        Where ``enough`` of them came, nobody waited for those that are missing.
        """
        good: dict[str, tuple[str, Reply, int]] = {}
        failures: dict[str, str] = {}
        waiting = dict(self._asked)
        answered = 0
        for message in replies:
            node, group_id = message.metadata.src_node_id, message.metadata.group_id
            if node == SUPERLINK_NODE_ID and message.has_error():  # in place of a node that went away
                node = next((asked for asked, group in waiting if group == group_id), node)
            asked = waiting.pop((node, group_id), None)
            if asked is None:
                if node != SUPERLINK_NODE_ID:
                    _log.warning(_UNASKED, node)
                continue
            answered += not message.has_error()
            try:
                contents = _parts(message, asked) if self.simulated else [_content(message)]
            except WireError as err:
                failures |= {expected.client: str(err) for expected in asked}
                continue
            for expected, content in zip(asked, contents, strict=True):
                try:
                    _require_success(content)
                    good[expected.client] = (expected.client, read(content, expected), wire.serialised_bytes(content))
                except WireError as err:
                    failures[expected.client] = str(err)
                    if isinstance(err, MoreSamples) and not self.simulated:
                        self._hosts.pop(expected.client, None)  # a device's data may grow: it is asked anew
        if 0 < enough <= answered:
            waiting.clear()
        for expected in itertools.chain.from_iterable(waiting.values()):
            failures[expected.client] = f"no reply within {self.config.round_timeout:g} s (`round-timeout`)"
        for client in sorted(failures, key=client_order):
            _log.warning("round %d, client %s: %s", self._round, client, failures[client])
            self.folder.record("failure", round=self._round, client=client, reason=failures[client])
        return [good[client] for client in sorted(good, key=client_order)], failures

    def _note_speed(self, client: str, seconds: float) -> None:
        info = self.clients[client]
        rate = seconds / max(1, sum(info.train_counts + info.test_counts))
        self._rates[info.model] = (self._rates.get(info.model, rate) + rate) / 2

    def _accuracies(self, good: Sequence[tuple[str, wire.TrainReply, int]]) -> dict[str, LastAccuracy]:
        return {
            client: LastAccuracy(reply.after.correct, reply.after.total, self._round, self.clients[client].model)
            for client, reply, _ in good
        }

    def _note_round(
        self, good: Sequence[tuple[str, wire.TrainReply, int]], failures: Mapping[str, str], training_s: float
    ) -> None:
        """Record the lines of a round and log it."""
        server_round, folder = self.state.server_round, self.folder
        rows = 0
        for client, reply, size in good:
            self._note_speed(client, reply.seconds)
            payload = wire.payload_bytes(reply, self.config.wire__dtype)
            rows += payload
            folder.record(
                "client",
                round=server_round,
                client=client,
                model=self.clients[client].model,
                accuracy={"before": _ratio(reply.before), "after": _ratio(reply.after)},
                correct=reply.after.correct,
                total=reply.after.total,
                loss={name.replace("-", "_"): value for name, value in reply.losses.items()},
                scatter=reply.scatter,
                samples=reply.contribution.samples,
                seconds=reply.seconds,
                bytes={"up": size, "down": self._bytes_down, "up_rows": payload},
            )
        known = list(self.state.accuracy.values())
        accuracy = accuracy_summary([a.correct for a in known], [a.total for a in known])
        fresh = sum(a.server_round == server_round and a.total > 0 for a in known)
        elapsed = time.perf_counter() - self._started
        trained = [reply.losses for _, reply, _ in good if reply.contribution.samples]
        losses = {
            name.replace("-", "_"): sum(each[name] for each in trained) / len(trained) if trained else None
            for name in wire.LOSSES
        }
        asked = sum(map(len, self._asked.values()))
        folder.record(
            "round",
            round=server_round,
            clients=asked,
            failed=len(failures),
            accuracy={**accuracy, "fresh": fresh},
            loss=losses,
            classes=int(self.state.present.sum()),
            hyper=self.state.figures,
            bytes={"up": sum(size for _, _, size in good), "down": self._bytes_down * asked, "up_rows": rows},
            seconds={
                "round": elapsed,
                "train": training_s,
                "server": elapsed - training_s,
                "since_start": time.perf_counter() - self._born,
            },
        )
        left = elapsed * (self.config.rounds - server_round)
        _log.info(
            "round %d/%d  accuracy %s  loss %s  clients %d/%d  up %.1f kB  %.1f s  left %d:%02d",
            server_round,
            self.config.rounds,
            "-" if accuracy["mean"] is None else f"{accuracy['mean']:.4f}",
            "-" if losses["total"] is None else f"{losses['total']:.4f}",
            len(good),
            asked,
            sum(size for _, _, size in good) / 1e3,
            elapsed,
            *divmod(round(left), 60),
        )


def _refused_name(node: int, client: str) -> str:
    return f"client {client} of node {node}" if client else f"node {node}"


def _other_classes(info: wire.ClientInfo) -> str:
    return f"client {info.client}: its class list {info.classes[:5]!r:.120} is not the others'"


def _other_kind(info: wire.ClientInfo) -> str:
    return f"client {info.client}: it {'is' if info.worker else 'is not'} simulated, unlike the others"


def _other_weights(info: wire.ClientInfo) -> str:
    return f"client {info.client}, model {info.model!r}: the weights it would share differ from the others'"


def _shapes(info: wire.ClientInfo) -> tuple[object, ...]:
    return tuple(sorted(info.shared.items()))


def _told(reasons: "collections.Counter[str]") -> str:
    """Return the most frequent reasons with how often they came."""
    return "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3) if count)


def _content(message: Message) -> RecordDict:
    """Return a reply's content; an error reply is a WireError with the client's own words."""
    if message.has_error():
        if message.error.code == ErrorCode.NODE_UNAVAILABLE:
            raise WireError("its node went away: the SuperLink does not hear from it any more")
        reason = _EXCEPTION.sub(r"\1: \2", _one_line(message.error.reason))
        raise WireError(f"the client failed: {reason} (code {message.error.code})")
    return message.content


def _parts(message: Message, asked: Sequence[wire.Expected]) -> list[RecordDict]:
    """Return the content of each client that one message asked."""
    return list(wire.split(_content(message), [expected.client for expected in asked]).values())


def _require_success(content: RecordDict) -> None:
    if reason := wire.read_failure(content):
        raise WireError(f"the client failed: {_one_line(reason)}")


def _one_line(reason: object) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in str(reason)).split())[:1000]


def _ratio(evaluation: wire.Evaluation) -> float | None:
    return evaluation.correct / evaluation.total if evaluation.total else None
