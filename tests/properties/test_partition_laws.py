import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from isoproto.data import ImageDataset, load_dataset
from isoproto.data.partition import ARGUMENTS, PARTITIONERS, SPLITS, PartitionOptions, split_clients
from isoproto.data.partitioners import long_tail, thin
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
    own = {key: options.pop(key) for key, _ in ARGUMENTS.values() if key in options}
    return PARTITIONERS[name](labels, domains, clients, rng, PartitionOptions(**options), **own)


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
@example(name="dirichlet", sizes=[15], clients=1, alpha=0.001, min_samples=0, seed=0)  # a share that is infinite
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


@st.composite
def arguments(draw, name, clients):
    """Something that may follow the colon of a partition's name, for data of five classes and two domains."""
    if name == "classes":
        return ":" + ";".join(str(i % 5) for i in range(clients))
    if name == "domain":
        first = draw(st.integers(0, clients))
        counts = (first, clients - first)
        return ":" + ",".join(f"{n}@{draw(st.sampled_from([0.1, 0.5, 0.99])) / max(1, n):.4f}" for n in counts)
    more = {"nid2": ":0.9", "nid2_equal": ":0.9", "pairs": ":1"}
    return draw(st.sampled_from(["", more.get(name, "")]))


@unhurried
@given(
    name=st.sampled_from(sorted(PARTITIONERS)),
    split=st.sampled_from(sorted(SPLITS)),
    data=datasets(),
    clients=st.integers(1, 12),
    imbalance=st.sampled_from([1.0, 1.0, 7.5, 100.0]),
    min_samples=st.integers(0, 4),
    seed=seeds,
    more=st.data(),
)
def test_every_partition_is_disjoint_and_fills_every_client(
    name, split, data, clients, imbalance, min_samples, seed, more
):
    """No sample twice, whatever is asked for; only what has to be refused is, with its reason."""
    partition = name + more.draw(arguments(name, clients))
    options = PartitionOptions(classes_per_client=1, min_samples=min_samples, imbalance=imbalance)
    try:
        shares = split_clients(data, partition=partition, clients=clients, seed=seed, options=options, split=split)
    except DataError as error:
        shares, refusal = [], str(error)
    if not shares:
        assert re.search(
            r"`min-samples`|cannot make|cannot give|lists \[|each of the 1 domains|needs official", refusal
        )
        return
    parts = [share.train for share in shares] + [share.test for share in shares[: 1 if split == "global" else None]]
    used = np.concatenate(parts)  # what everybody is tested on counts once
    assert len(shares) == clients
    assert len(np.unique(used)) == len(used)
    sizes = [len(s.train) + (len(s.test) if split == "merged" else 0) for s in shares]
    assert min(sizes) >= min_samples
    if split in ("official", "global"):
        assert not data.test[np.concatenate([share.train for share in shares])].any()
    drops = name in ("classes", "domain", "nid2_equal", "user", "one_domain", "pairs", "shards") or imbalance > 1
    if not drops and split == "merged":
        assert len(used) == len(data.y)


@unhurried
@given(sizes=class_sizes, clients=st.integers(1, 12), share=st.floats(0.05, 0.95), seed=seeds)
def test_nid2_is_one_client_with_everything_among_clients_of_one_class(sizes, clients, share, seed):
    labels = shuffled_labels(sizes, seed)
    *few, everything = deal("nid2", labels, clients, seed, one_class_share=share, min_samples=0)
    assert all(len(np.unique(labels[part])) <= 1 for part in few)
    assert np.array_equal(np.sort(np.concatenate([*few, everything])), np.arange(len(labels)))
    taken = np.bincount(labels[np.concatenate([*few, everything[:0]])].astype(int), minlength=len(sizes))
    assert np.count_nonzero(taken) <= clients - 1
    assert all(abs(n - share * size) <= 0.5 for n, size in zip(taken, sizes, strict=True) if n)
    equal = deal("nid2_equal", labels, clients, seed, one_class_share=share, min_samples=0)[-1]
    kept = np.bincount(labels[equal].astype(int), minlength=len(sizes))
    assert all(abs(n - (1 - share) * size) <= 0.5 + 1e-9 for n, size in zip(kept, sizes, strict=True))


@pytest.mark.parametrize(("clients", "full"), [(10, 5), (50, 10)])
def test_the_paper_s_pairs(clients, full):
    """AG-NID: every pair of the four classes comes before one comes twice, and nothing is left over."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 700))
    parts = deal("pairs", labels, clients, seed=3, full_clients=full)
    held = [tuple(np.unique(labels[part])) for part in parts]
    assert [len(classes) for classes in held] == [2] * (clients - full) + [4] * full
    assert len(set(held[:5])) == 5
    assert len(np.unique(np.concatenate(parts))) == 2800
    for name in range(4):
        sizes = [n for part in parts if (n := (labels[part] == name).sum())]
        assert max(sizes) - min(sizes) <= 1


@unhurried
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=25), clients=st.integers(1, 25), seed=seeds)
def test_users_stay_whole(counts, clients, seed):
    users = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    labels = np.zeros(len(users), int)
    if clients > len(counts):
        for name in ("user", "user_groups", "one_domain"):
            with pytest.raises(DataError, match=f"{name}' cannot make {clients} clients of {len(counts)} domains"):
                deal(name, labels, clients, seed, domains=users)
        return
    largest = deal("user", labels, clients, seed, domains=users, min_samples=1)
    assert [len(part) for part in largest] == sorted(counts)[-clients:]
    assert all(len(np.unique(users[part])) == 1 for part in largest)
    groups = deal("user_groups", labels, clients, seed, domains=users, min_samples=1)
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(len(users)))
    assert sum(len(np.unique(users[part])) for part in groups) == len(counts)
    assert max(map(len, groups)) - min(map(len, groups)) <= max(counts)
    names = tuple(f"user {i:02}" for i in np.random.default_rng(seed).permutation(len(counts)))
    ordered = deal("one_domain", labels, clients, seed, domains=users, domain_names=names, min_samples=1)
    assert [{names[user] for user in users[part]} for part in ordered] == [{f"user {i:02}"} for i in range(clients)]


def test_the_paper_s_digits_by_counts_and_fractions():
    """FedHPro's domain skew: 20 clients, 3, 7, 6 and 4 of a domain, each with its own hundredth of it."""
    domains = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [60_000, 7_291, 73_257, 25_000]))
    shares = tuple((count, 0.01) for count in (3, 7, 6, 4))
    parts = deal("domain", np.zeros(len(domains), int), 20, seed=1, domains=domains, domain_shares=shares)
    sizes = sorted((int(domains[part[0]]), len(part)) for part in parts)
    assert sizes == [(0, 600)] * 3 + [(1, 72)] * 7 + [(2, 732)] * 6 + [(3, 250)] * 4
    assert len(np.unique(np.concatenate(parts))) == sum(size for _, size in sizes)
    assert [int(domains[part[0]]) for part in parts] != [home for home, _ in sizes]


@pytest.mark.parametrize(
    ("classes", "most", "imbalance", "total"),
    [
        *[(10, 5000, 10, 20_431), (10, 5000, 50, 13_996), (10, 5000, 100, 12_406)],
        *[(100, 500, 10, 19_573), (100, 500, 50, 12_608), (100, 500, 100, 10_847)],
        *[(200, 500, 10, 39_072), (200, 500, 50, 25_082), (200, 500, 100, 21_549)],
    ],
)
def test_the_papers_long_tails(classes, most, imbalance, total):
    labels = np.repeat(np.arange(classes), most)
    kept = np.bincount(labels[long_tail(labels, classes, imbalance, np.random.RandomState(0))])
    assert kept.sum() == total
    assert (kept[0], kept[-1]) == (most, most // imbalance)


@unhurried
@given(sizes=class_sizes, imbalance=st.floats(1.001, 1e6), seed=seeds)
def test_a_long_tail_takes_samples_away_at_random_and_no_class_wholly(sizes, imbalance, seed):
    labels = shuffled_labels(sizes, seed)
    kept = long_tail(labels, len(sizes), imbalance, np.random.RandomState(seed))
    left = np.bincount(labels[kept], minlength=len(sizes))
    assert len(np.unique(kept)) == len(kept)
    assert ((left > 0) == (np.array(sizes) > 0)).all()
    wanted = np.sum(sizes) / len(sizes) * imbalance ** (-np.arange(len(sizes)) / max(1, len(sizes) - 1))
    assert (left <= np.maximum(1, wanted + 1e-6)).all()
    assert np.array_equal(long_tail(labels, len(sizes), 1, np.random.RandomState(seed)), np.arange(len(labels)))


@unhurried
@given(sizes=class_sizes, most=st.integers(1, 300), seed=seeds)
def test_thinning_leaves_each_group_its_share(sizes, most, seed):
    groups = shuffled_labels(sizes, seed)
    kept = thin(groups, most, np.random.RandomState(seed))
    assert len(kept) == min(most, len(groups))
    assert (np.diff(kept) > 0).all()
    left = np.bincount(groups[kept], minlength=len(sizes))
    assert (np.abs(left - np.array(sizes) * len(kept) / len(groups)) < 1).all()
    assert np.array_equal(thin(groups, 0, np.random.RandomState(seed)), np.arange(len(groups)))


@pytest.mark.parametrize("split", sorted(SPLITS))
def test_fewer_samples_are_of_all_classes_domains_and_parts(split):
    digits = load_dataset("digits4")
    options = PartitionOptions(max_samples=400)
    shares = split_clients(digits, partition="domain", clients=4, seed=0, options=options, split=split)
    used = np.unique(np.concatenate([part for share in shares for part in (share.train, share.test)]))
    assert len(used) == 400
    kinds = 10 * digits.domain[used] + digits.y[used]
    assert np.abs(np.bincount(kinds, minlength=40) - 10).max() <= 1
    assert abs(int(digits.test[used].sum()) - 100) <= 40
    if split in ("official", "global"):
        assert not digits.test[np.concatenate([share.train for share in shares])].any()


def test_a_long_tail_leaves_the_official_test_part_balanced():
    digits = load_dataset("digits4")
    options = PartitionOptions(imbalance=20.0)
    shares = split_clients(digits, partition="iid", clients=5, seed=0, options=options, split="official")
    train, test = (
        np.bincount(digits.y[np.concatenate([getattr(share, part) for share in shares])].numpy(), minlength=10)
        for part in ("train", "test")
    )
    assert train.tolist() == sorted(train, reverse=True)
    assert 18 <= train[0] / train[-1] <= 22
    assert np.array_equal(test, np.bincount(digits.y[digits.test].numpy()))


@pytest.mark.parametrize("clients", [50, 100, 200])
@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_equal"])
def test_hundreds_of_clients_of_almost_one_class_come_to_an_end(name, clients):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = deal(name, labels, clients, seed=1, alpha=0.01, min_samples=10)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(6000))
    assert min(map(len, parts)) >= 10


def test_the_order_in_which_pictures_were_written_is_irrelevant(tmp_path):
    """A folder lists its files in any order; they are sorted by their names, and so is the split."""
    names = [f"{domain}/{label}/{i}.png" for domain in "xy" for label in ("cat", "dog") for i in range(6)]
    found = []
    for folder, reverse in (("forth", False), ("back", True)):
        for number, name in sorted(enumerate(names), reverse=reverse):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number * 10).save(path)
        data = load_dataset(f"imagefolder:{tmp_path / folder}")
        shares = split_clients(data, partition="dirichlet", clients=3, seed=0)
        found.append([data.x[part, 0, 0, 0].tolist() for share in shares for part in (share.train, share.test)])
    assert found[0] == found[1]
    assert sorted(np.concatenate(found[0])) == [number * 10 for number in range(24)]


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
    label, domain = data.y.numpy(), data.domain.numpy()
    group = label + len(data.classes) * domain
    for g in np.unique(group):
        held = np.array([(group[share.train] == g).sum() for share in shares])
        if not held.any() and np.isin(g % len(data.classes), label[train]):  # of a class that other domains have
            held = np.array([(domain[share.train] == g // len(data.classes)).sum() for share in shares])
        given_out = np.array([(group[share.test] == g).sum() for share in shares])
        available = (group[data.test.numpy()] == g).sum()
        exact = held * available / max(1, held.sum())
        rounded_up = given_out > np.floor(exact + 1e-9)
        remainder = exact - np.floor(exact + 1e-9)
        assert (np.abs(given_out - exact) < 1).all()
        assert remainder[rounded_up].min(initial=1) >= remainder[~rounded_up].max(initial=0) - 1e-9
        assert given_out.sum() == (available if held.any() else 0)
