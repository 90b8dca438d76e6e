"""The strategy that all methods share: the five hooks of Flower, and how a round becomes the next state."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from isoproto import wire
from isoproto.config import MethodSettings, RunConfig
from isoproto.errors import ConfigError, FederationError
from isoproto.parts import LastAccuracy, Sent, ServerState, parts_of
from isoproto.runs.run_folder import RunFolder
from isoproto.sampling import cohort, cohort_size
from strategies.exchange import Exchange
from strategies.journal import Journal
from strategies.refusals import most_frequent
from strategies.replies import GoodTrainReply
from strategies.resolve import resolve
from strategies.roster import Roster


class PrototypeStrategy(Strategy):
    """Exchange of class prototypes, with every reply checked before it is used.

    In each round the server sends what the parts of the method declare, such as the global prototypes. Each client
    trains its own model with the loss terms of the parts, and evaluates it before and after. It sends back the class
    means of the classes that it holds, their counts and scatter, its accuracy and losses, and what the parts declare.

    A bad reply makes one client fail, with a named reason. It never makes a round fail.

    Args:
        config: The run's settings, resolved with ``resolve``.
        folder: The run folder, for metrics and checkpoints.
        state: The state to go on from, or ``None`` for a new run.

    Attributes:
        method: The method's values of settings that are `auto`. What the method does not decide is `auto` here, too.
        parts: The parts that the method is made of under the run's settings.
        roster: The clients that take part.
        state: The state after the last round; ``meet`` sets it first.
    """

    method: ClassVar[MethodSettings]

    def __init__(self, config: RunConfig, folder: RunFolder, state: ServerState | None = None) -> None:
        self.config = config
        self.parts = parts_of(config)
        self.folder = folder
        self._journal = Journal(config, folder)
        self.roster = Roster(config, folder, self._journal)
        self._exchange = Exchange(config, self.roster, self._journal)
        self._saved = state
        self._round = state.server_round if state else 0  # the current round, or the last one before any began
        self._wanted = 0  # good replies that close the current training round; 0: all
        self.state: ServerState

    @classmethod
    def resolve(cls, config: RunConfig) -> RunConfig:
        """Replace every ``auto`` by this method's value; see ``strategies.resolve``.

        Raises:
            ConfigError: If an alignment is asked for without prototypes to align to, or settings contradict each other.
        """
        return resolve(config, cls.method)

    def meet(self, grid: Grid, *, more_may_come: bool = True) -> None:
        """Wait for the nodes, decide which clients take part, and set the state to start from.

        Args:
            grid: Sends messages to the nodes.
            more_may_come: Whether more nodes may connect later; see ``Roster.meet``.

        Raises:
            FederationError: If too few nodes came, or no node can be used.
            ConfigError: If the clients do not fit the settings, or not the checkpoint.
        """
        self.roster.meet(grid, self._round, more_may_come=more_may_come)
        classes = self.roster.classes
        self.state = self._saved or ServerState.start(len(classes), self.config.feature_dim)
        if len(self.state.present) != len(classes):
            raise ConfigError(
                f"the checkpoint has {len(self.state.present)} classes, the clients now have {len(classes)}: "
                f"{classes[:5]!r:.120}. Restore the data of the run, or start a new one"
            )

    # The five hooks of a Flower strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that train in this round from those whose nodes are connected, and write their messages."""
        self._journal.begin_round()
        self._round = self.state.server_round + 1
        # A late node may delay the round no longer than a slow one.
        timeout = min(self.config.wait_timeout, self.config.round_timeout)
        here = self.roster.reachable(self.roster.look(grid, self._round, timeout))
        self._journal.note_presence(self._round, here)
        if not 0 < self.config.join_round <= self._round:
            here = {name: node for name, node in here.items() if name not in self.roster.late}
        fraction, more = self.config.fraction, self.config.over_sample
        names = cohort(list(here), fraction, seed=self.config.seed, server_round=self._round, over_sample=more)
        self._wanted = cohort_size(len(here), fraction) if more else 0
        return self._messages(MessageType.TRAIN, {name: here[name] for name in names})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, fold the good ones into the next state, and note what happened.

        Raises:
            FederationError: If too many rounds in a row had too few good replies.
        """
        training_s = self._journal.elapsed()
        good, failures = self._exchange.read(replies, wire.read_train_reply, enough=self._wanted)
        # A client without data does not fail, but its reply is not used.
        useful = [each for each in good if each.reply.means.samples]
        empty = len(useful) < self.config.min_replies
        latest = {each.info.client: _accuracy(each.info, each.reply.after, self._round) for each in good}
        self.state = dataclasses.replace(
            self.state if empty else self.next_state(useful),
            server_round=self._round,
            empty_rounds=self.state.empty_rounds + 1 if empty else 0,
            accuracy={**self.state.accuracy, **latest},
        )
        self._exchange.note_speed(good)
        asked, bytes_down = self._exchange.asked, self._exchange.bytes_down
        self._journal.note_round(
            self.state, good, failed=len(failures), asked=asked, bytes_down=bytes_down, training_s=training_s
        )
        if empty:
            self._bear_empty_round(failures, good=len(good), without_samples=len(good) - len(useful))
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write a message to every client whose node is connected, in the rounds that are evaluated."""
        done, every = self.state.server_round, self.config.evaluate_every
        if done != self.config.rounds and done != 0 and not (every and done % every == 0):
            self._exchange.ask_nobody()
            return []
        return self._messages(MessageType.EVALUATE, self.roster.reachable(set(grid.get_node_ids())))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check the replies and note every client's accuracy."""
        if not self._exchange.asked:
            return None
        good, failures = self._exchange.read(replies, wire.read_evaluate_reply)
        done = self.state.server_round
        if not good and done == self.config.rounds and not self._journal.evaluated():
            reason = most_frequent(collections.Counter(failures.values())) or "nobody answered"
            raise FederationError(f"no client could be evaluated in any round; in the last one: {reason}")
        if not good:
            return None
        latest = {each.info.client: _accuracy(each.info, each.reply, done) for each in good}
        self.state = dataclasses.replace(self.state, accuracy={**self.state.accuracy, **latest})
        one_model = self.config.share == "model" and bool(self.state.shared)
        self._journal.note_evaluation(done, good, late=self.roster.late, one_model=one_model)
        return None

    def summary(self) -> None:
        """Log the method, the clients and the models, and warn of a limit that nothing can reach."""
        if (wanted := self.config.min_contributors) > (here := len(self.roster.clients)):
            self._journal.out_of_reach(wanted, here)
        self._journal.takes_part(self.roster.models(), len(self.roster.classes), self.roster.workers)

    def enough(self, kind: str) -> int:
        """Return the number of replies without an error after which the server stops waiting; 0: it waits for all."""
        return self._wanted if kind == MessageType.TRAIN else 0

    # What a method changes

    def next_state(self, good: Sequence[GoodTrainReply]) -> ServerState:
        """Fold the good replies of clients with training samples, sorted by client, into the next state.

        The result depends on the state and the replies alone. The caller sets ``server_round`` and ``accuracy``.
        """
        sent = [Sent(g.reply.means, g.reply.scatter, g.reply.arrays, g.reply.shared, g.info.client) for g in good]
        state = dataclasses.replace(self.state, figures={})
        for part in self.parts:
            state = part.fold(self.state, state, sent)
        return state

    # Helpers

    def _messages(self, kind: str, clients: Mapping[str, int]) -> list[Message]:
        """Write the messages to some clients.

        Args:
            kind: Flower's type of the messages.
            clients: The clients, with their nodes.
        """
        arrays = {name: array for part in self.parts for name, array in part.downlink(self.state).items()}
        broadcast = wire.Broadcast(
            experiment=self.folder.experiment,
            server_round=self._round,
            settings=self.config.changes(),
            arrays=arrays,
            shared=self.state.shared,
        )
        limits = {name: limit for part in self.parts for name, limit in part.limits(self.state).items()}
        return self._exchange.messages(kind, clients, broadcast, limits)

    def _bear_empty_round(self, failures: Mapping[str, str], *, good: int, without_samples: int) -> None:
        """Log why the round is empty, and end the run after too many empty rounds."""
        config, empty = self.config, self.state.empty_rounds
        reasons = collections.Counter(failures.values())
        reasons["the client has no training samples"] = without_samples
        few = f"{good} of {config.min_replies} good replies (`min-replies`)"
        reason = most_frequent(reasons) or (few if good else "nobody was asked")
        self._journal.empty_round(self._round, reason)
        none_at_all = empty == self._round == config.rounds
        if empty >= config.max_empty_rounds or none_at_all:
            rounds = f"{empty} rounds in a row" if empty > 1 else "the only round"
            raise FederationError(
                f"{rounds} had fewer than {config.min_replies} good replies "
                f"(`min-replies`, `max-empty-rounds`); the last one: {reason}"
            )


def _accuracy(info: wire.ClientInfo, evaluation: wire.Evaluation, server_round: int) -> LastAccuracy:
    return LastAccuracy(evaluation.correct, evaluation.total, server_round, info.model)
