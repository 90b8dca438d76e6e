import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoproto.data import ImageDataset
from isoproto.data.partition import PARTITIONERS, PartitionOptions, split_clients
from isoproto.errors import DataError

COVERING = ("iid", "dirichlet", "dirichlet_equal")  # use every sample, whatever the data; shards and domain: below

unhurried = settings(deadline=None)  # a busy machine is no reason to fail
seeds = st.integers(0, 2**32 - 1)
alphas = st.sampled_from([1e-9, 1e-3, 0.05, 0.5, 1.0, 1e3, 1e9])
# Sizes of classes; a class may be empty.
class_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


def shuffled_labels(sizes, seed):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def deal(name, labels, clients, seed, domains=None, **options):
    rng = np.random.RandomState(seed)
    return PARTITIONERS[name](labels, domains, clients, rng, PartitionOptions(**options))


@st.composite
def datasets(draw):
    """A data set with training and test samples of some classes and two domains."""
    size = draw(st.integers(4, 120))
    rng = np.random.default_rng(draw(seeds))
    return ImageDataset(
        x=torch.zeros(size, 1, 1, 1, dtype=torch.uint8),
        y=torch.from_numpy(rng.integers(0, draw(st.integers(1, 5)), size)),
        test=torch.from_numpy(np.arange(size) % draw(st.integers(2, 5)) == 0),
        classes=tuple("abcde"),
        domain=torch.from_numpy(rng.integers(0, 2, size)),
        domains=("photo", "sketch"),
    )


@unhurried
@given(
    name=st.sampled_from(COVERING),
    sizes=class_sizes,
    clients=st.integers(1, 30),
    alpha=alphas,
    min_samples=st.integers(0, 8),
    seed=seeds,
)
def test_every_sample_lands_in_exactly_one_client_and_none_has_too_few(name, sizes, clients, alpha, min_samples, seed):
    labels = shuffled_labels(sizes, seed)
    if len(labels) < clients * min_samples:
        numbers = f"{len(labels)} samples cannot give {clients} clients at least {min_samples} samples each"
        with pytest.raises(DataError, match=numbers):
            deal(name, labels, clients, seed, alpha=alpha, min_samples=min_samples)
        return
    parts = deal(name, labels, clients, seed, alpha=alpha, min_samples=min_samples)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(len(part) for part in parts) >= min_samples


@unhurried
@given(name=st.sampled_from(["iid", "dirichlet_equal"]), sizes=class_sizes, clients=st.integers(1, 30), seed=seeds)
def test_equal_clients_differ_by_at_most_one_sample(name, sizes, clients, seed):
    size = [len(part) for part in deal(name, shuffled_labels(sizes, seed), clients, seed, min_samples=0)]
    assert max(size) - min(size) <= 1


@unhurried
@given(samples=st.integers(1, 100), domains=st.integers(1, 5), clients=st.integers(1, 12), seed=seeds)
def test_domains_are_dealt_evenly_and_disjointly(samples, domains, clients, seed):
    domain = np.random.default_rng(seed).permutation(np.arange(samples) % domains)
    parts = deal("domain", np.zeros(samples, int), clients, seed, domains=domain, min_samples=0)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert all(len(np.unique(domain[part])) <= 1 for part in parts)
    if clients >= len(np.unique(domain)):
        assert len(used) == samples
    for name in np.unique(domain[used]):
        size = [len(part) for part in parts if len(part) and domain[part[0]] == name]
        assert max(size) - min(size) <= 1


@unhurried
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    clients=st.integers(1, 15),
    classes=st.integers(1, 4),
    seed=seeds,
)
def test_shards_give_each_client_its_number_of_classes_and_about_one_size(sizes, clients, classes, seed):
    labels = shuffled_labels(sizes, seed)
    options = {"classes_per_client": classes, "min_samples": 0}
    if sum(min(clients, size) for size in sizes) < clients * classes:
        with pytest.raises(DataError, match=f"cannot give {clients} clients {classes} classes each"):
            deal("shards", labels, clients, seed, **options)
        return
    parts = deal("shards", labels, clients, seed, **options)
    held = np.stack([np.bincount(labels[part], minlength=len(sizes)) for part in parts])
    assert ((held > 0).sum(1) == classes).all()
    assert held.sum(1).max() - held.sum(1).min() <= held.max() + classes
    assert (held.sum(0) <= sizes).all()
    if clients * classes >= len(sizes):
        assert held.sum(0).tolist() == sizes


@unhurried
@given(
    name=st.sampled_from(sorted(set(PARTITIONERS) - {"classes"})),
    data=datasets(),
    clients=st.integers(1, 4),
    seed=seeds,
)
def test_the_same_seed_deals_the_same_and_no_global_generator_moves(name, data, clients, seed):
    def shares():
        options = PartitionOptions(classes_per_client=1, min_samples=0)
        try:
            return split_clients(data, partition=name, clients=clients, seed=seed, options=options)
        except DataError as error:
            return str(error)

    before = np.random.get_state()[1:3]  # noqa: NPY002 - it is the one that must not be used
    first, second = shares(), shares()
    after = np.random.get_state()[1:3]  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert before[1] == after[1]
    if isinstance(first, str):
        assert first == second
    else:
        for a, b in zip(first, second, strict=True):
            assert np.array_equal(a.train, b.train)
            assert np.array_equal(a.test, b.test)


@unhurried
@given(data=datasets(), clients=st.integers(1, 6), fraction=st.floats(0, 0.99), seed=seeds)
def test_merged_parts_are_disjoint_and_complete(data, clients, fraction, seed):
    options = PartitionOptions(min_samples=0)
    shares = split_clients(
        data, partition="dirichlet", clients=clients, seed=seed, options=options, test_fraction=fraction
    )
    everything = np.concatenate([np.concatenate([share.train, share.test]) for share in shares])
    assert np.array_equal(np.sort(everything), np.arange(len(data.y)))
    for share in shares:
        assert len(share.train) >= 1 or len(share.test) == 0
        assert len(share.test) >= 1 or len(share.train) <= 1 or fraction == 0


@unhurried
@given(data=datasets(), clients=st.integers(1, 6), seed=seeds)
def test_official_test_samples_follow_the_training_counts_of_class_and_domain(data, clients, seed):
    options = PartitionOptions(min_samples=0)
    shares = split_clients(data, partition="dirichlet", clients=clients, seed=seed, options=options, split="official")
    train, test = (np.concatenate([getattr(share, part) for share in shares]) for part in ("train", "test"))
    assert np.array_equal(np.sort(train), np.flatnonzero(~data.test.numpy()))
    assert len(np.unique(test)) == len(test)
    assert data.test[test].all()
    group = (data.y + len(data.classes) * data.domain).numpy()
    for g in np.unique(group):
        held = np.array([(group[share.train] == g).sum() for share in shares])
        given_out = np.array([(group[share.test] == g).sum() for share in shares])
        available = (group[data.test.numpy()] == g).sum()
        exact = held * available / max(1, held.sum())
        rounded_up = given_out > np.floor(exact + 1e-9)
        remainder = exact - np.floor(exact + 1e-9)
        assert (np.abs(given_out - exact) < 1).all()
        assert remainder[rounded_up].min(initial=1) >= remainder[~rounded_up].max(initial=0) - 1e-9
        assert given_out.sum() == (available if held.any() else 0)
