"""What a server makes of prototypes beyond their mean: a common frame, relations, and hyper-prototypes.

Plain functions of the state, the settings and the replies. What they keep between rounds lies in
``ServerState.memory``: ``distances`` and ``seen`` of the averaged relations (``directions-`` before them for RCSA's),
``learned``, the sum of all that gradient matching has added to the hyper-prototypes, and the server's own head.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.config import RunConfig
from isoproto.errors import FrameError
from isoproto.geometry.frames import (
    Relations,
    align,
    average_dissimilarities,
    average_relations,
    centre,
    embed,
    shrink,
    shrink_dissimilarities,
    similarity_map,
)
from isoproto.geometry.prototypes import Contribution, average_prototypes
from isoproto.losses import LOSSES
from isoproto.matching.classifier_retrain import fit_meta_features, train_classifier
from isoproto.matching.feature_gradients import prototype_head
from isoproto.matching.hyperproto import anchor_cosines, initial_vectors, match_gradients, movement, summaries
from isoproto.matching.starts import hyper_start
from isoproto.seeding import torch_generator
from strategies.state import ServerState

_log = logging.getLogger("isoproto")

Head = tuple[Tensor, Tensor]

# Losses that compare relations between classes, not coordinates.
RELATIONAL = frozenset(name for name, loss in LOSSES.items() if loss.relations)
# Classes up to which the metrics hold similarity matrices.
_MOST_SHOWN = 30
_META_FEATURES = 50  # per class, as in the published code
# Training of the server's own head on uploaded prototypes: FedGH's recipe.
_HEAD_EPOCHS, _HEAD_BATCH, _HEAD_RATE = 100, 100, 0.01


class Sent(NamedTuple):
    """What the server's functions need of one client's reply.

    Attributes:
        contribution: Its class means.
        scatter: Variance of its features about them.
        gradients: Its mean feature gradients, ``[P, d]``, or ``None``.
        classifier: Its mean classifier gradients, ``[P, C, d]`` and ``[P, C]``, or ``None``.
    """

    contribution: Contribution
    scatter: float
    gradients: Tensor | None
    classifier: tuple[Tensor, Tensor] | None = None


def uses_relations(config: RunConfig) -> bool:
    """Whether the server sends relations, and not only prototypes, to a relational loss."""
    relational = config.structural in RELATIONAL and config.anchors == "global"
    return relational and (config.frame != "shared" or float(config.relation__shrink) > 0)


def downlink(state: ServerState, config: RunConfig) -> dict[str, Any]:
    """Return what a broadcast holds besides prototypes and weights, by field of ``wire.Broadcast``."""
    parts: dict[str, Any] = {}
    if uses_relations(config):
        parts["relations"] = relation_target(state, config).float()
    if config.prototypes != "hyper":
        return parts
    known = bool(state.present.any())
    if config.anchored and config.anchors == "global":
        if config.frame == "shared" and (known or config.hyper__init == "normal"):
            parts["directions"], parts["means"] = (t.float() for t in summaries(vectors(state, config)))
        elif config.frame != "shared" and "learned" in state.memory:
            parts["hyper"] = vectors(state, config).float()
    if config.learns and config.hyper__head == "server":
        parts["head"] = server_head(state, config)
    return parts


def vectors(state: ServerState, config: RunConfig) -> Tensor:
    """Return the hyper-prototypes S ``[C, I, d]``: where they started, and what they have learned."""
    return hyper_start(config, state.prototypes, state.present) + state.memory.get("learned", torch.zeros(()))


def relation_target(state: ServerState, config: RunConfig) -> Tensor:
    """Return the relations that clients align to, ``[C, C]``: those of the federation pulled towards the simplex."""
    beta, present = float(config.relation__shrink), state.present
    if not present.any():  # before round 1: the simplex, which needs no data
        beta, present = 1.0, torch.ones_like(present)
    gram = LOSSES[config.structural].kind == "gram"
    name = "distances" if gram else "directions-distances"
    if name in state.memory:
        distances = state.memory[name]
    else:
        p = state.prototypes.double()
        rows = p if gram else functional.normalize(p, dim=1)
        # Before there are prototypes, classes are as far apart as orthogonal directions.
        distances = _squared_distances(rows) if state.present.any() else 2.0 - 2.0 * torch.eye(len(p))
    return (
        shrink(centre(distances, present), beta, present) if gram else shrink_dissimilarities(distances, beta, present)
    )


def server_head(state: ServerState, config: RunConfig) -> Head:
    """Return the server's own linear head: its last one, or one drawn from the seed."""
    if "head-weight" in state.memory:
        return state.memory["head-weight"], state.memory["head-bias"]
    classes, width = state.prototypes.shape
    weight = torch.randn(classes, width, generator=torch_generator(config.seed, "server-head")) / width**0.5
    return weight, torch.zeros(classes)


def gradient_head(state: ServerState, config: RunConfig) -> Head | None:
    """Return the head that clients take gradients through; ``None`` if it is their own, or there is none yet."""
    if config.hyper__head == "server":
        return server_head(state, config)
    if config.hyper__head == "prototype" and state.present.any():
        return prototype_head(state.prototypes, state.present)
    return None


# The next state


def published(contributions: Sequence[Contribution], num_classes: int, minimum: int) -> list[Contribution]:
    """Leave out classes that fewer than ``minimum`` clients have sent."""
    if minimum <= 1:
        return list(contributions)
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in contributions)])
    enough = torch.bincount(ids, minlength=num_classes) >= minimum
    return [
        c._replace(class_ids=c.class_ids[keep], means=c.means[keep], counts=c.counts[keep])
        for c in contributions
        for keep in (enough[c.class_ids],)
    ]


def relate(state: ServerState, config: RunConfig, sent: Sequence[Sent]) -> ServerState:
    """Average relations, and bring all prototypes into the common frame."""
    classes, width = state.prototypes.shape
    contributions = published([s.contribution for s in sent], classes, config.min_contributors)
    memory = dict(state.memory)
    relations = average_relations(
        contributions,
        [s.scatter for s in sent],
        classes,
        debias=config.relation__debias,
        previous=_remembered(state, config, ""),
        minimum=config.min_contributors,
    )
    memory |= {"distances": relations.distances, "seen": relations.seen}
    loss = LOSSES.get(config.structural)
    if loss is not None and loss.kind == "dissimilarities":
        prefix = "directions-"
        directions = average_dissimilarities(
            contributions, classes, previous=_remembered(state, config, prefix), minimum=config.min_contributors
        )
        memory |= {
            prefix + "distances": directions.distances,
            prefix + "seen": directions.seen,
        }
    figures = dict(state.figures)
    prototypes = state.prototypes
    try:
        gram = centre(relations.distances, relations.present)
        if config.frame == "gram":
            gram = shrink(gram, float(config.relation__shrink), relations.present)
        new = bool((relations.present & ~state.present).any())
        if config.frame == "gram" or new:
            embedding = embed(gram, relations.present, width, onto=prototypes if state.present.any() else None)
            prototypes, figures["cut"] = embedding.vectors, embedding.cut
        if config.frame == "procrustes":
            # A class that the reference lacks would be seen in projection only: then it is made anew.
            known = relations.present if new else state.present
            prototypes = align(
                contributions, prototypes, known, iterations=8 if new else 2, minimum=config.min_contributors
            ).vectors
    except FrameError as err:
        _log.warning("round %d: the frame of the round before is kept: %s", state.server_round + 1, err)
        return dataclasses.replace(state, age=state.age + 1)
    present = relations.present
    fresh = torch.zeros_like(present)
    fresh[torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in contributions)])] = True
    return dataclasses.replace(
        state,
        prototypes=prototypes * present.unsqueeze(1),
        present=present,
        age=torch.where(fresh, 0, state.age + 1),
        memory=memory,
        figures=figures,
    )


def _remembered(state: ServerState, config: RunConfig, prefix: str) -> Relations | None:
    if config.stale == "drop" or prefix + "distances" not in state.memory:
        return None
    return Relations(state.memory[prefix + "distances"], state.memory[prefix + "seen"], state.present)


def learn(before: ServerState, after: ServerState, config: RunConfig, sent: Sequence[Sent]) -> ServerState:
    """Match gradients: move the hyper-prototypes so that the head's gradients at them point as at real samples.

    Args:
        before: The state that clients were sent.
        after: The state with this round's prototypes and averaged weights.
        config: The run's settings.
        sent: What the clients sent.
    """
    figures: dict[str, Any] = dict(after.figures)
    memory = dict(after.memory)
    classes, width = after.prototypes.shape
    own = config.hyper__head == "shared"
    head = _used_head(before, after, config) if own else gradient_head(before, config)
    base = after if own or not before.present.any() else before
    rows = [
        s.contribution._replace(means=s.gradients, class_ids=s.contribution.class_ids)
        for s in sent
        if s.gradients is not None
    ]
    if head is not None and rows:
        gradients = average_prototypes(rows, classes, width, weighting=config.hyper__grad_weight)
        start = vectors(base, config)
        matching = match_gradients(
            start,
            *head,
            gradients.vectors,
            gradients.present & (gradients.holders >= config.min_contributors),
            steps=config.hyper__steps,
            learning_rate=float(config.hyper__learning_rate),
            optimizer=config.hyper__optimizer,
            distance=config.hyper__distance,
        )
        learned = memory.get("learned", torch.zeros(()))
        moved = learned + (matching.vectors - start).float()
        memory["learned"] = torch.where(moved.isfinite().flatten(1).all(1).view(-1, 1, 1), moved, learned)
        used = max(1, int(matching.used.sum()))
        figures |= {
            "agreement": _agreement(rows, classes),
            "matched_classes": int(matching.used.sum()),
            "matching": [round(value, 9) for value in (matching.losses / used).tolist()],
        }
    after = dataclasses.replace(after, memory=memory)
    if config.hyper__head == "server":
        contributions = published([s.contribution for s in sent], classes, config.min_contributors)
        weight, bias = _trained(server_head(before, config), after, config, contributions)
        after = dataclasses.replace(after, memory={**after.memory, "head-weight": weight, "head-bias": bias})
    return dataclasses.replace(after, figures=figures)


def describe(state: ServerState, config: RunConfig, sent: Sequence[Sent]) -> ServerState:
    """Add to the round's figures what hyper-prototypes look like now."""
    figures: dict[str, Any] = dict(state.figures)
    now = vectors(state, config)
    figures["movement"] = movement(now, hyper_start(config, state.prototypes, state.present))
    held = torch.ones_like(state.present) if config.hyper__init == "normal" else state.present
    if (cosines := anchor_cosines(now, held)) is not None:
        figures["anchor_cosine"] = {"min": cosines[0], "mean": cosines[1]}
    if len(held) <= _MOST_SHOWN:
        alike = {"hyper": _similarity(centre(_squared_distances(summaries(now)[1]), held))}
        if "distances" in state.memory:
            distances = state.memory["distances"]
        else:
            contributions = [s.contribution for s in sent]
            distances = average_relations(contributions, [s.scatter for s in sent], len(held)).distances
        alike["clients"] = _similarity(centre(distances, state.present))
        figures["similarity"] = alike
    return dataclasses.replace(state, figures=figures)


def _squared_distances(rows: Tensor) -> Tensor:
    return torch.cdist(rows.double(), rows.double()).square()


def _similarity(gram: Tensor) -> list[list[float]]:
    """Cosines of classes as seen from their mean; 0 for absent ones."""
    inverse = gram.diagonal().clamp(min=1e-30).rsqrt() * (gram.diagonal() > 0)
    cosines = (gram * inverse.unsqueeze(1) * inverse).clamp(-1, 1)
    return [[round(value, 4) for value in row] for row in cosines.tolist()]


def _agreement(rows: Sequence[Contribution], classes: int) -> float | None:
    """Mean cosine of two clients' gradients of a class, over all pairs and the classes that have some."""
    if not rows:
        return None
    ids = torch.cat([row.class_ids for row in rows])
    units = functional.normalize(torch.cat([row.means for row in rows]).double(), dim=1)
    total = torch.zeros(classes, units.shape[1], dtype=torch.float64).index_add_(0, ids, units)
    holders = torch.bincount(ids, minlength=classes)
    pairs = holders * (holders - 1)
    if not pairs.any():
        return None
    own = torch.zeros(classes, dtype=torch.float64).index_add_(0, ids, units.square().sum(1))
    return float(((total.square().sum(1) - own)[pairs > 0] / pairs[pairs > 0]).mean())


def retrain(before: ServerState, after: ServerState, config: RunConfig, sent: Sequence[Sent]) -> ServerState:
    """Replace the averaged classifier by one trained on features that produce the clients' classifier gradients."""
    head = _used_head(before, after, config)
    rows = [s for s in sent if s.classifier is not None]
    if head is None or not rows:
        return after
    classes, width = after.prototypes.shape
    of_weight, of_bias = (
        average_prototypes(
            [s.contribution._replace(means=s.classifier[i].flatten(1)) for s in rows if s.classifier],
            classes,
            classes * (width if i == 0 else 1),
            weighting=config.hyper__grad_weight,
        )
        for i in (0, 1)
    )
    stream = ("creff", before.server_round)
    start = after.memory.get("meta")
    if start is None:
        start = initial_vectors(classes, _META_FEATURES, width, torch_generator(config.seed, "creff"))
    enough = of_weight.present & (of_weight.holders >= config.min_contributors)
    fitted = fit_meta_features(start, *head, of_weight.vectors.view(classes, classes, width), of_bias.vectors, enough)
    known = enough | after.memory.get("meta-known", torch.zeros_like(enough))
    if not known.any():
        return after
    weight, bias = train_classifier(fitted, known, generator=torch_generator(config.seed, *stream))
    return dataclasses.replace(
        after,
        shared={**after.shared, "head.weight": weight, "head.bias": bias},
        memory={**after.memory, "meta": fitted, "meta-known": known},
    )


def _used_head(before: ServerState, after: ServerState, config: RunConfig) -> Head | None:
    """Return the averaged classifier nearest to those that clients took gradients through.

    Before training it is the one that they were sent, if they were sent one; after it, theirs are averaged now.
    """
    early = config.hyper__grad_point == "before-training"
    return (_shared_head(before.shared) if early else None) or _shared_head(after.shared)


def _shared_head(shared: Mapping[str, Tensor]) -> Head | None:
    return (shared["head.weight"], shared["head.bias"]) if {"head.weight", "head.bias"} <= shared.keys() else None


def _trained(head: Head, state: ServerState, config: RunConfig, contributions: Sequence[Contribution]) -> Head:
    """Train the server's head on the clients' class means, each brought into the common frame."""
    rows, labels = [], []
    for c in contributions:
        if config.frame == "shared":
            rows.append(c.means)
            labels.append(c.class_ids)
            continue
        common = state.present[c.class_ids]
        try:
            there = similarity_map(c.means[common], state.prototypes[c.class_ids[common]], c.counts[common])
        except FrameError as err:
            _log.warning("a client's class means are left out of the server's head: %s", err)
            continue
        if there is not None:
            rows.append(there.forward(c.means))
            labels.append(c.class_ids)
    if not rows:
        return head
    x, y = torch.cat(rows), torch.cat(labels)
    weight, bias = (t.clone().requires_grad_() for t in head)
    optimizer = torch.optim.SGD([weight, bias], lr=_HEAD_RATE)
    generator = torch_generator(config.seed, "server-head", state.server_round)
    for _ in range(_HEAD_EPOCHS):
        for index in torch.randperm(len(y), generator=generator).split(_HEAD_BATCH):
            loss = functional.cross_entropy(x[index] @ weight.T + bias, y[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return weight.detach(), bias.detach()
