"""Write down what happens in a federation: every line of metrics, and every line of the log."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from isoproto import wire
from isoproto.client_names import client_order
from isoproto.config import RunConfig
from isoproto.engines.machines import idle_cores, machines
from isoproto.parts import ServerState, parts_of, reported_terms
from isoproto.runs.evaluation import evaluation_figures
from isoproto.runs.metrics import accuracy_summary
from isoproto.runs.run_folder import RunFolder
from isoproto.settings.sections import NO_MODEL
from strategies.refusals import refused_name, some_of
from strategies.replies import GoodEvaluation, GoodTrainReply

_log = logging.getLogger("isoproto")


# Mean squared distance of features from their class means below which they do not vary.
_FLAT = 1e-9


class Journal:
    """Writes a run's metrics and log.

    Args:
        config: The run's settings.
        folder: The run folder that the metrics are written to.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._born = time.perf_counter()
        self._started = 0.0
        self._here: frozenset[str] | None = None  # the clients that could be asked in the last round
        self._flat: set[str] = set()  # clients whose features were found not to vary
        self._refused: dict[str, list[str]] = {}  # reason -> nodes and clients that are not told of yet

    # Meeting the clients

    def waiting(self, here: int, wanted: int, refused: str) -> None:
        """Log how many of the wanted nodes can take part. ``refused`` names the refused nodes."""
        _log.info("waiting for nodes: %d of %d are there%s", here, wanted, refused)

    def refused(self, server_round: int, node: int, client: str, reason: str) -> None:
        """Record that a node does not take part, or one of its clients if ``client`` is not empty."""
        self._refused.setdefault(reason, []).append(refused_name(node, client))
        self._folder.record("failure", round=server_round, client=client or f"node {node}", reason=reason)

    def tell_refused(self) -> None:
        """Log who was refused since the last call, each reason once."""
        for reason, names in self._refused.items():
            _log.warning("%s cannot take part: %s", some_of(names), reason)
        self._refused.clear()

    def takes_part(self, models: Mapping[str, int], classes: int, workers: int) -> None:
        """Log the method, the clients and the models.

        Args:
            models: Number of clients of each architecture.
            classes: Number of classes.
            workers: Processes that simulate the clients; 0 if there are none.
        """
        config, clients = self._config, sum(models.values())
        _log.info(
            "%s: prototypes %s, alignment %s (lambda %s, gamma %s), share %s; %d clients, %d classes, models %s",
            config.strategy,
            config.prototypes,
            config.alignment,
            config.lambda_,
            config.gamma,
            config.share,
            clients,
            classes,
            models,
        )
        if workers:
            here = machines()
            _log.info("%d clients at once on %s", workers, here)
            if advice := idle_cores(here, clients=clients, workers=workers):
                _log.warning("%s", advice)

    def out_of_reach(self, wanted: int, here: int) -> None:
        """Log that too few clients take part for any class to be sent to them."""
        _log.warning(
            "`min-contributors` = %d, but %d clients take part: no class reaches it, so clients get nothing of each "
            "other unless more clients come",
            wanted,
            here,
        )

    # Replies

    def unasked(self, node: int) -> None:
        """Log that a reply is ignored."""
        _log.warning("ignored a reply of node %d that nobody waits for", node)

    def failed(self, server_round: int, failures: Mapping[str, str]) -> None:
        """Record why each client failed, and log each reason once, with the clients that it holds for."""
        alike: dict[str, list[str]] = {}
        for client in sorted(failures, key=client_order):
            alike.setdefault(failures[client], []).append(client)
            self._folder.record("failure", round=server_round, client=client, reason=failures[client])
        for reason, clients in alike.items():
            who = "client" if len(clients) == 1 else "clients"
            _log.warning("round %d, %s %s: %s", server_round, who, some_of(clients), reason)

    # Rounds

    def begin_round(self) -> None:
        """Start the clock of a round."""
        self._started = time.perf_counter()

    def note_presence(self, server_round: int, here: Collection[str]) -> None:
        """Log and record which clients have gone since the last round, and which have come."""
        before, self._here = self._here, frozenset(here)
        if before is None:
            return
        for what, names in (("gone", before - self._here), ("come", self._here - before)):
            if clients := sorted(names, key=client_order):
                _log.info("round %d: %s %s", server_round, some_of([f"client {name}" for name in clients]), what)
            for client in clients:
                self._folder.record("presence", round=server_round, client=client, here=what == "come")

    def elapsed(self) -> float:
        """Return the seconds since the round began."""
        return time.perf_counter() - self._started

    def empty_round(self, server_round: int, reason: str) -> None:
        """Log that a round had too few good replies."""
        _log.warning("round %d is empty and changes nothing: %s", server_round, reason)

    def note_round(
        self,
        state: ServerState,
        good: Sequence[GoodTrainReply],
        *,
        failed: int,
        asked: int,
        bytes_down: int,
        training_s: float,
    ) -> None:
        """Record a round: a line of metrics for each good reply, one for the round, and a line in the log.

        Args:
            state: The state after the round.
            good: The good replies, sorted by client.
            failed: Number of clients without a good reply.
            asked: Number of clients that were asked.
            bytes_down: Size of the message that each client was sent.
            training_s: Seconds from the beginning of the round to its last reply.
        """
        rows = 0
        for each in good:
            rows += self._note_client(state.server_round, each, bytes_down)
        self._warn_of_flat_features(state.server_round, good)
        known = list(state.accuracy.values())
        fresh = sum(a.server_round == state.server_round and a.total > 0 for a in known)
        bytes_up = sum(each.bytes_up for each in good)
        line = {
            "clients": asked,
            "failed": failed,
            "accuracy": {**accuracy_summary([a.correct for a in known], [a.total for a in known]), "fresh": fresh},
            "loss": _mean_losses(good, reported_terms(parts_of(self._config))),
            "classes": int(state.present.sum()),
            "hyper": state.figures,
            "bytes": {"up": bytes_up, "down": bytes_down * asked, "up_rows": rows},
            "seconds": self._seconds(training_s),
        }
        self._folder.record("round", round=state.server_round, **line)
        self._log_round(state.server_round, line, len(good))

    def _warn_of_flat_features(self, server_round: int, good: Sequence[GoodTrainReply]) -> None:
        """Log, once a client, that its network gives all samples of a class the same features."""
        flat = [
            each.info.client
            for each in good
            if each.info.model != NO_MODEL
            and each.reply.scatter < _FLAT
            and sum(each.info.train_counts) > 2 * len(each.info.classes)
            and each.info.client not in self._flat
        ]
        if flat:
            self._flat.update(flat)
            names = some_of([f"client {name}" for name in flat])
            _log.warning(
                "round %d: the features of %s do not vary within a class, so the model learns nothing of single "
                "samples; look at the model, or lower `learning-rate`",
                server_round,
                names,
            )

    def _seconds(self, training_s: float) -> dict[str, float]:
        """Return the seconds of the round, of its training and of the server, and those since the start."""
        elapsed = self.elapsed()
        return {
            "round": elapsed,
            "train": training_s,
            "server": elapsed - training_s,
            "since_start": time.perf_counter() - self._born,
        }

    def _log_round(self, server_round: int, line: Mapping[str, Any], good: int) -> None:
        """Log a round in one line, with an estimate of the time for the remaining rounds."""
        accuracy, loss, elapsed = line["accuracy"]["mean"], line["loss"]["total"], line["seconds"]["round"]
        left = elapsed * (self._config.rounds - server_round)
        _log.info(
            "round %d/%d  accuracy %s  loss %s  clients %d/%d  up %.1f kB  %.1f s  left %d:%02d",
            server_round,
            self._config.rounds,
            "-" if accuracy is None else f"{accuracy:.4f}",
            "-" if loss is None else f"{loss:.4f}",
            good,
            line["clients"],
            line["bytes"]["up"] / 1e3,
            elapsed,
            *divmod(round(left), 60),
        )

    def _note_client(self, server_round: int, good: GoodTrainReply, bytes_down: int) -> int:
        """Record a client's metrics, and return the bytes of the rows in its message."""
        reply = good.reply
        rows = wire.payload_bytes(reply, self._config.wire__dtype)
        self._folder.record(
            "client",
            round=server_round,
            client=good.info.client,
            model=good.info.model,
            accuracy={"before": _ratio(reply.before), "after": _ratio(reply.after)},
            correct=reply.after.correct,
            total=reply.after.total,
            loss={name.replace("-", "_"): value for name, value in reply.losses.items()},
            scatter=reply.scatter,
            samples=reply.means.samples,
            seconds=reply.seconds,
            bytes={"up": good.bytes_up, "down": bytes_down, "up_rows": rows},
            **_predictors(reply.after),
        )
        return rows

    def evaluated(self) -> bool:
        """Return whether any evaluation before the current round has had an answer."""
        return any(line["kind"] == "evaluation" for line in self._folder.lines())

    def note_evaluation(
        self, server_round: int, good: Sequence[GoodEvaluation], late: frozenset[str], one_model: bool
    ) -> None:
        """Record an evaluation of all clients.

        Args:
            server_round: The last round that is over.
            good: The good replies, sorted by client.
            late: Clients that train later than the others, or never.
            one_model: Whether all clients were evaluated with the same model.
        """
        entries = [_evaluation_entry(each, late) for each in good]
        figures = evaluation_figures(entries, one_model=one_model)
        self._folder.record("evaluation", round=server_round, clients=entries, one_model=one_model, **figures)


def _evaluation_entry(good: GoodEvaluation, late: frozenset[str]) -> dict[str, Any]:
    predictors = _predictors(good.reply)
    samples = {"samples": sum(good.info.train_counts)} if predictors else {}
    return {
        "client": good.info.client,
        "model": good.info.model,
        "correct": good.reply.correct,
        "total": good.reply.total,
        "correct_prototype": good.reply.correct_prototype,
        "class_correct": good.reply.class_correct,
        "class_total": good.reply.class_total,
        "class_predicted": good.reply.class_predicted,
        "domain": good.info.domain,
        "late": good.info.client in late,
        **samples,
        **predictors,
    }


def _predictors(evaluation: wire.Evaluation) -> dict[str, Any]:
    """Return the counts of an evaluation's predictors; empty if it has only one, so that its line stays as it was."""
    counts = dict(evaluation.predictors)
    if not counts:
        return {}
    compared = {"gained": evaluation.gained, "lost": evaluation.lost} if "alone" in counts else {}
    return {"predictors": counts, **compared}


def _mean_losses(good: Sequence[GoodTrainReply], names: Sequence[str]) -> dict[str, float | None]:
    """Return the mean of each loss over the clients that trained a model; ``None`` if none did."""
    trained = [each.reply.losses for each in good if each.reply.means.samples and each.info.model != NO_MODEL]
    return {
        name.replace("-", "_"): sum(losses[name] for losses in trained) / len(trained) if trained else None
        for name in names
    }


def _ratio(evaluation: wire.Evaluation) -> float | None:
    return evaluation.correct / evaluation.total if evaluation.total else None
