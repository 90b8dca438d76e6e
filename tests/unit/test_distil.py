"""Distillation from everybody's classifier, against plain loops and figures worked by hand."""

import dataclasses
import math

import pytest
import torch

from client_app.batched import Member, train_together
from client_app.training import LocalSettings, train
from isoproto.common.classifier import Classifier
from isoproto.common.own import Choice
from isoproto.common.samples import Everybodys, FrameSamples
from isoproto.config import RunConfig
from isoproto.data import ClientData
from isoproto.parts import Batch, View, parts_of, reported_terms
from isoproto.parts.distil import Distillation, DistilTerm, divergence, teacher_of
from models import ModelSpec, create_model

C, D, N = 3, 2, 7
SPEC = ModelSpec(channels=1, height=8, width=8, feature_dim=6, num_classes=C)
SETTINGS = LocalSettings(
    epochs=2,
    batch_size=3,
    optimizer="sgd",
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=0.0,
    proto_source="post-eval",
)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frame_samples(versions=2):
    nothing = Classifier(torch.zeros(C, D + 1), torch.ones(C, dtype=torch.bool))
    return FrameSamples(
        fit=randn(N, versions, D),
        fit_labels=torch.arange(N) % C,
        held=torch.zeros(0, versions, D),
        held_labels=torch.zeros(0, dtype=torch.int64),
        test=torch.zeros(0, D),
        num_classes=C,
        digests=(1, 2),
        choice=Choice(0.3, 0.5),
        own_fit=nothing,
        own=nothing,
    )


def classifier(seed, present=(True, True, True)):
    present = torch.tensor(present)
    return Classifier(randn(C, D + 1, seed=seed) * present.unsqueeze(1), present)


def data(samples, seed):
    labels = torch.arange(samples) % C
    noise = torch.randint(0, 200, (samples, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    return ClientData(noise.to(torch.uint8), labels, noise[:0].to(torch.uint8), labels[:0], tuple("abc"))


def term(samples, seed, weight=0.7):
    return DistilTerm(teacher=randn(samples, C, seed=seed).softmax(1), weight=weight)


def view(arrays, samples):
    return View(
        client="0",
        server_round=1,
        frame="shared",
        arrays=arrays,
        own_means=None,
        num_classes=C,
        feature_dim=6,
        samples=samples,
    )


def downlink(everything, rows, present):
    return {
        "common-classifier": everything,
        "common-rows": rows,
        "common-present": present,
        "common-plan": torch.tensor([1.0, 0.5, 0.0]),
    }


def test_a_divergence_worked_by_hand():
    """The network says 1/2, 1/4, 1/4; the teacher 1/2, 1/2, 0 and, of the second sample, what the network says."""
    logits = torch.tensor([[0.5, 0.25, 0.25]] * 2).log() + 3
    teacher = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    assert divergence(logits, teacher) == pytest.approx(0.5 * math.log(2) / 2, abs=1e-6)


def test_a_divergence_is_a_plain_loop():
    logits, teacher = randn(5, C, seed=1), randn(5, C, seed=2).softmax(1)
    total = 0.0
    for row, wanted in zip(logits.double().tolist(), teacher.double().tolist(), strict=True):
        everything = sum(map(math.exp, row))
        total += sum(q * math.log(q / (math.exp(z) / everything)) for z, q in zip(row, wanted, strict=True))
    assert divergence(logits, teacher) == pytest.approx(total / 5, abs=1e-6)


def test_it_pulls_as_the_cross_entropy_with_the_teachers_answers_does():
    logits, teacher = randn(5, C, seed=1).requires_grad_(), randn(5, C, seed=2).softmax(1)
    (slope,) = torch.autograd.grad(divergence(logits, teacher), logits)
    torch.testing.assert_close(slope, (logits.detach().softmax(1) - teacher) / 5)


def test_a_teacher_that_rules_a_class_out_gives_finite_gradients():
    logits = randn(N, C).requires_grad_()
    shared = Everybodys(classifier(1), classifier(2, (True, False, True)), 0.5, None)
    teacher = teacher_of(frame_samples(), shared)
    (slope,) = torch.autograd.grad(divergence(logits, teacher), logits)
    assert torch.equal(teacher[:, 1], torch.zeros(N))
    assert bool(slope.isfinite().all())


def test_the_teacher_is_the_classifier_without_held_out_samples_on_unchanged_samples():
    samples, shared = frame_samples(), Everybodys(classifier(1), classifier(2), 0.5, None)
    found = teacher_of(samples, shared)
    counts = [sum(label == c for label in samples.fit_labels.tolist()) + 0.1 for c in range(C)]
    for i in range(N):
        x = samples.fit[i, 0].tolist()
        rows = shared.without_held.rows.tolist()
        logits = [
            0.5 * (sum(w * v for w, v in zip(row, x, strict=False)) + row[-1]) + math.log(counts[c] / sum(counts))
            for c, row in enumerate(rows)
        ]
        everything = sum(map(math.exp, logits))
        assert found[i].tolist() == pytest.approx([math.exp(z) / everything for z in logits], abs=1e-6)


def test_a_batch_is_compared_with_the_answers_to_its_own_samples():
    own = term(N, 3)
    index, logits = torch.tensor([4, 0]), randn(2, C)
    (compare,) = own.batches([torch.zeros(2)])
    value = compare(Batch(torch.zeros(2), torch.zeros(2), logits, torch.zeros(2), index))
    torch.testing.assert_close(value, divergence(logits, own.teacher[[4, 0]]).view(1))


def test_there_is_no_term_before_there_is_a_classifier():
    part = Distillation(weight=2.0)
    assert part.terms(view({"common-known": torch.zeros(0)}, frame_samples())) == ()
    rows = torch.stack([classifier(1).rows, classifier(2).rows])
    arrays = downlink(classifier(3).rows, rows, torch.ones(C, dtype=torch.bool))
    (found,) = part.terms(view(arrays, frame_samples()))
    wanted = teacher_of(frame_samples(), Everybodys(classifier(3), classifier(2), 0.5, None))
    torch.testing.assert_close(found.teacher, wanted)
    assert found.weights.tolist() == [2.0]


def test_only_a_run_that_distils_reports_it():
    base = {"strategy": "local", "prototypes": "none", "alignment": "none", "share": "none", "frame": "shared"}
    plain = RunConfig(**base, common__map="standard")
    assert "distil" not in reported_terms(parts_of(plain))
    assert reported_terms(parts_of(dataclasses.replace(plain, common__distil=1.0)))[-2:] == ("distil", "total")
    assert parts_of(RunConfig(**base, common__map="none", common__distil=1.0)) == ()


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_every_sample_meets_its_own_teacher(augment):
    """Of all samples of an epoch, changed or not, each is compared with the teacher's answer to itself."""
    met = []

    class Spy(DistilTerm):
        def batches(self, labels):
            def compare(batch):
                met.append((batch.indices.tolist(), batch.labels.tolist()))
                return divergence(batch.logits, self.teacher[batch.indices]).view(1)

            return iter([compare] * len(labels))

    own = data(N, 0)
    spy = Spy(teacher=term(N, 3).teacher, weight=1.0)
    model = create_model("mlp", SPEC, 0)
    losses, _ = train(
        model, own, dataclasses.replace(SETTINGS, augment=augment), [spy], torch.Generator().manual_seed(0)
    )
    epochs = [met[: len(met) // 2], met[len(met) // 2 :]]
    for epoch in epochs:
        assert sorted(i for index, _ in epoch for i in index) == list(range(N))
        assert all(own.train_y[index].tolist() == labels for index, labels in epoch)
    assert losses["distil"] > 0


def test_clients_that_train_together_each_meet_their_own_teacher():
    """Padded batches and clients that finish early included: as each of them alone."""
    sizes = (7, 10, 1, 5)
    models = [create_model("mlp", SPEC, seed) for seed in range(len(sizes))]
    own = [data(size, seed) for seed, size in enumerate(sizes)]
    terms = [(term(size, 10 + seed),) for seed, size in enumerate(sizes)]
    members = [
        Member(
            parameters={name: p.detach().clone() for name, p in model.named_parameters()},
            data=samples,
            generator=torch.Generator().manual_seed(i),
            terms=of_client,
        )
        for i, (model, samples, of_client) in enumerate(zip(models, own, terms, strict=True))
    ]
    together = train_together(create_model("mlp", SPEC, 9), members, SETTINGS)
    for i, (model, samples, of_client) in enumerate(zip(models, own, terms, strict=True)):
        losses, _ = train(model, samples, SETTINGS, of_client, torch.Generator().manual_seed(i))
        torch.testing.assert_close(together[i].losses, losses, rtol=1e-4, atol=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(together[i].parameters[name], parameter.detach(), rtol=1e-4, atol=2e-5)


def test_a_network_comes_to_agree_with_a_teacher_that_contradicts_the_labels():
    own, wrong = data(30, 1), torch.nn.functional.one_hot((torch.arange(30) + 1) % C, C).float()
    model = create_model("mlp", SPEC, 0)
    settings = dataclasses.replace(SETTINGS, epochs=20, batch_size=10, learning_rate=0.02)
    train(model, own, settings, [DistilTerm(teacher=wrong, weight=10.0)], torch.Generator().manual_seed(0))
    with torch.no_grad():
        said = model.head(model.features(own.train_x.float() / 127.5 - 1)).argmax(1)
    assert int((said == wrong.argmax(1)).sum()) > 20
