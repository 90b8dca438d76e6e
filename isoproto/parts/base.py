"""The base class of the parts that methods are made of. A part has both halves, the server's and the client's.

A part declares what it sends, and the rest of the code follows from the declaration: how the arrays are written, read,
checked and counted, what a device's owner is asked, and how reports name the loss terms. Parts import no Flower, no
strategy and not the client app, so that both sides can import them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from isoproto.config import RunConfig
    from isoproto.geometry.prototypes import ClassRows
    from isoproto.parts.state import ServerState
    from isoproto.parts.view import View

Arrays = Mapping[str, Tensor]
"""Arrays of a message by the names of their fields."""


class Axis(NamedTuple):
    """An axis that may have any length from ``least`` to ``most``; ``noun`` says of what."""

    least: int
    most: int
    noun: str


AXES: Mapping[str, Axis] = {
    "I": Axis(1, 64, "vectors per class"),
    "V": Axis(1, 64, "classifiers"),
    "T": Axis(1, 64, "temperatures"),
    "K": Axis(0, 2**16, "classes"),
    "R": Axis(0, 2**15, "directions"),
    "N": Axis(0, 2**20, "entries"),
    "H": Axis(1, 64, "holders of shares"),
}
"""Axes whose length is that of the array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a message.

    Attributes:
        name: Key of the array in the message.
        shape: Its axes: ``C`` classes of the federation, ``P`` classes that the client sends class means of, ``d``
            feature width, ``D`` coordinates of the common frame, ``E`` one more and ``L`` numbers in packed
            statistics; a letter in ``AXES`` for an axis whose length the array says; or a number.
        dtype: Type of its numbers in the message, unless it is ``rounded``.
        rounded: Whether its rows are numbers that may travel rounded, as `wire.dtype` says.
        together: Name of the group that the field belongs to. Fields of a group come together or not at all.
        mask: Field whose entries say which rows are read. The other rows may hold anything.
        symmetric: Whether the array is a symmetric matrix, which rounding row by row would break.
        may_send: Word that the owner of a device must allow before the array leaves it; empty if none is needed.
        noun: What an error text calls the array.
    """

    name: str
    shape: str
    dtype: torch.dtype = torch.float32
    rounded: bool = False
    together: str = ""
    mask: str = ""
    symmetric: bool = False
    may_send: str = ""
    noun: str = ""


class Limit(NamedTuple):
    """How long a row that a client sends may be.

    Attributes:
        longest: Largest Euclidean norm.
        reason: End of the sentence "row of class 3 has norm 7, ..."; it holds ``{:.3g}`` for the number.
    """

    longest: float
    reason: str


LimitOf = Callable[[Mapping[str, Tensor]], Limit]
"""The limit of a field's rows, given the weights in the same reply."""


class Sent(NamedTuple):
    """One client's reply, after all checks.

    Attributes:
        means: Class means of the classes that the client sent: ``[P, d]``, their ids, and samples behind each.
        scatter: Mean squared distance of a feature from its class mean.
        arrays: What parts measured, by the names of their fields; the axis ``P`` is that of ``means``.
        shared: The client's weights by name.
        client: The client's name.
    """

    means: ClassRows
    scatter: float
    arrays: Arrays
    shared: Mapping[str, Tensor]
    client: str = ""

    def rows(self, name: str) -> ClassRows | None:
        """Return an array as rows per class ``[P, ...]`` flattened to ``[P, m]``, or ``None`` if it was not sent."""
        array = self.arrays.get(name)
        return None if array is None else self.means._replace(rows=array.unsqueeze(-1).flatten(1))


class Batch(NamedTuple):
    """A batch of B training samples, as a loss term gets it.

    Attributes:
        inputs: Pictures or token ids as the model gets them.
        features: Features of the samples, ``[B, d]``, in full precision.
        logits: Logits of the model's head, ``[B, C]``, in full precision.
        labels: Classes of the samples, ``[B]``, int64.
        indices: Positions of the samples in the client's training data, ``[B]``, int64.
    """

    inputs: Tensor
    features: Tensor
    logits: Tensor
    labels: Tensor
    indices: Tensor


Compare = Callable[[Batch], Tensor]
"""The values of a loss term for one batch, shape ``[number of names]``."""


class LossTerm:
    """A term that a client adds to its loss in a round.

    The loss of a batch is ``entropy * cross_entropy + weights @ values``. ``values`` are the values of all terms, and
    ``entropy`` is the product of the factors of all terms.

    Attributes:
        names: Names of the values in metrics and reports.
        weights: Weights of the values, shape ``[number of names]``, on the client's device.
        entropy: Factor of the model's cross-entropy.
        module: A second module that the term trains with a separate optimiser; ``None`` for none.
        clip: Largest norm of the gradients of either module; 0 does not limit it.
    """

    names: tuple[str, ...]
    entropy: float = 1.0
    module: nn.Module | None = None
    clip: float = 0.0

    @property
    def weights(self) -> Tensor:
        """Weights of the values, shape ``[number of names]``."""
        raise NotImplementedError

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison for each batch of an epoch.

        A term may compute what depends on the labels alone here, for all batches at once.

        Args:
            labels: Classes of each batch's samples, shape ``[B]``, int64.
        """
        raise NotImplementedError


class Measured(NamedTuple):
    """A client's model, as a part measures it before or after training.

    Attributes:
        features: Features of the n training samples in eval mode, ``[n, d]``.
        labels: Classes of the samples, ``[n]``, int64.
        head: Returns the model's linear head, ``(weight [C, d], bias [C])``. It raises if the head is not linear.
        logits: Computes the logits of features.
        view: What the server sent, and the client's own class means.
        held: Computes the logits of the samples that are held out, ``[m, C]``.
    """

    features: Tensor
    labels: Tensor
    head: Callable[[], tuple[Tensor, Tensor]]
    logits: Callable[[Tensor], Tensor]
    view: View
    held: Callable[[], Tensor] = lambda: torch.zeros(0, 0)


class Answer(NamedTuple):
    """What a part sends in a round, and what it remembers on the client from then on.

    Attributes:
        arrays: What it sends, by the names in ``up``.
        memory: What it remembers, by names of its own.
        problem: Why it sends less than the server waits for; empty if it does not.
    """

    arrays: Arrays
    memory: Arrays
    problem: str = ""


class Part:
    """A part of a method. Subclasses are frozen dataclasses whose fields are the settings that they need.

    The class declares what can travel and which names in the settings stand for it. An instance belongs to a run, and
    says what is used under the settings of the run. An attribute of the class may take the place of a property.

    Attributes:
        makes: Values of the setting `prototypes` that use this part.
        aligns: Names that this part adds to the setting `alignment`.
        needs_prototypes: Whether those names need prototypes of the server. A run without any refuses them.
        down: Arrays that the server may send.
        up: Arrays that a client may send besides its class means.
        reports: Names of its loss terms.
        words: Words that a device's owner allows for weights that travel; empty if none travel.
        owns: Name of a second module that it keeps on each client; empty for none.
        remembers: Name of the file in which a client keeps what ``answer`` remembers; empty if it remembers nothing.
        uses_means: Whether it uses the class means that clients send. They send none if no part of a method does.
        predictors: Ways to predict that an evaluation counts beside each other; see ``isoproto.wire.PREDICTORS``.
    """

    makes: ClassVar[tuple[str, ...]] = ()
    aligns: ClassVar[tuple[str, ...]] = ()
    needs_prototypes: ClassVar[bool] = False
    down: ClassVar[tuple[Field, ...]] = ()
    up: ClassVar[tuple[Field, ...]] = ()
    reports: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[tuple[str, ...]] = ()
    owns: ClassVar[str] = ""
    remembers: ClassVar[str] = ""
    uses_means: ClassVar[bool] = True
    predictors: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, config: RunConfig) -> Self | None:
        """Return the part under a run's settings, or ``None`` if the run does not use it."""
        raise NotImplementedError

    @classmethod
    def conflict(cls, config: RunConfig) -> str:
        """Return the error text if settings of this part contradict each other; empty if none do.

        It is called in every run, also in one that does not use the part, after `auto` was replaced.
        """
        return ""

    @property
    def sends(self) -> tuple[Field, ...]:
        """The arrays of ``up`` that a client sends under the settings of the run."""
        return ()

    @property
    def asks(self) -> frozenset[str]:
        """Words that a device's owner must have allowed in `may-send`."""
        return frozenset(field.may_send for field in self.sends if field.may_send)

    @property
    def needs_means(self) -> bool:
        """Whether a client needs its own class means before it trains."""
        return False

    @property
    def measures(self) -> str:
        """When a client measures what it sends: ``before`` or ``after`` training; empty for nothing to measure."""
        return ""

    # The server's half

    def downlink(self, state: ServerState) -> Arrays:
        """Return the arrays to send, by the names in ``down``."""
        return {}

    def limits(self, state: ServerState) -> Mapping[str, LimitOf | None]:
        """Return, for each array that clients may send in this round, how long its rows may be.

        ``None`` stands for the setting `max-norm`.

        Args:
            state: What the clients were sent.
        """
        return {field.name: None for field in self.sends}

    def fault(self, arrays: Arrays, declared: Sequence[int]) -> str:
        """Return what is impossible in the arrays of a client's reply; empty if nothing is.

        Shapes, types and the lengths of rows have been checked.

        Args:
            arrays: What the client sent, by the names in ``up``.
            declared: Training samples of each class that the client declared; empty if not known.
        """
        return ""

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Fold the clients' replies into the state.

        Args:
            before: The state that the clients were sent.
            after: The state that earlier parts in ``PARTS`` have made from ``before`` and the replies.
            sent: The good replies, at least one, sorted by client. A client may have sent no class.
        """
        return after

    # The client's half

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return what the client adds to its loss in this round."""
        return ()

    def measure(self, measured: Measured) -> Arrays:
        """Return what the client sends, by the names in ``up``.

        An array whose first axis is ``P`` has one row for each of the C classes here. Those of classes that travel are
        taken out of it.
        """
        return {}

    def measure_in_frame(self, view: View) -> Arrays:
        """Return what a client without a model sends, by the names in ``up``; nothing unless the part can do without.

        Args:
            view: What the server sent, and the client's samples in the common frame.
        """
        return {}

    def answer(self, view: View, memory: Arrays) -> Answer:
        """Return what the client sends that depends on what it remembers, and what it remembers then.

        It is called only if the part has a name in ``remembers``, also on a client without a model. What it remembers
        is on the disk before the reply leaves. It is never set back: a repeated round finds what the round itself kept.

        Args:
            view: What the server sent, and the client's samples in the common frame.
            memory: What the part remembers; empty at first.
        """
        return Answer({}, memory)

    def shared(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> Mapping[str, Tensor]:
        """Return the weights that travel, by name. They are the modules' own tensors, not copies.

        Args:
            model: The client's model.
            modules: The second modules on the client, by the ``owns`` of their parts.
        """
        return {}


class PartState:
    """Tensors that a part keeps on the server between rounds. Subclasses are frozen dataclasses of tensors.

    A field's name in kebab-case is its name in the checkpoint, below ``memory.``; it must be unique among all parts.

    Example:
        >>> @dataclass(frozen=True)
        ... class Momentum(PartState):
        ...     last_step: Tensor
        >>> from isoproto.parts.state import ServerState
        >>> start = ServerState.start(num_classes=2, feature_dim=1)
        >>> Momentum.of(start) is None
        True
        >>> Momentum.of(Momentum(torch.ones(2, 1)).put(start)).last_step
        tensor([[1.],
                [1.]])
    """

    @classmethod
    def of(cls, state: ServerState) -> Self | None:
        """Return what the part kept, or ``None`` if it has not kept anything yet."""
        names = {field.name: field.name.replace("_", "-") for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if not set(names.values()) <= state.memory.keys():
            return None
        return cls(**{field: state.memory[name] for field, name in names.items()})

    def put(self, state: ServerState) -> ServerState:
        """Return ``state`` with these tensors in its memory."""
        kept = {f.name.replace("_", "-"): getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return dataclasses.replace(state, memory={**state.memory, **kept})
