import hashlib
import logging

import numpy as np
import pytest
import torch

from isoproto.config import RunConfig
from isoproto.data import ImageDataset, load_dataset
from isoproto.data.partition import (
    ARGUMENTS,
    PARTITIONERS,
    ClientSplit,
    PartitionOptions,
    class_counts,
    client_data,
    partition_table,
    split_clients,
)
from isoproto.errors import ConfigError, DataError


def dataset(counts, test=0, domains=()):
    """One grey pixel per sample, ``counts[c]`` samples of class ``c``, the last ``test`` of each for testing."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    place = torch.cat([torch.arange(n) for n in counts])
    return ImageDataset(
        x=torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8),
        y=y,
        test=place >= torch.tensor(counts)[y] - test,
        classes=tuple(f"class{c}" for c in range(len(counts))),
        domain=place % len(domains) if domains else None,
        domains=domains,
        source="points",
    )


def deal(name, labels, clients, seed=0, domains=None, **options):
    rng = np.random.RandomState(seed)
    return PARTITIONERS[name](np.asarray(labels), domains, clients, rng, PartitionOptions(**options))


def table(labels, parts):
    """Samples per client and class ``[N, C]``."""
    return np.stack([class_counts(labels[part], labels.max() + 1) for part in parts])


# Published partition of 20 clients with seed 1 (algorithms of HtFLlib and FedSAF): classes, samples of each, alpha;
# (client, class) pairs in all, in training parts, in whole batches of 100 of them; smallest and largest client;
# accuracy in percent of always answering each client's most frequent class.
PUBLISHED = [
    (10, 6000, 0.1, 102, 101, 101, 1164, 5994, 74.2),
    (10, 6000, 0.5, 176, 175, 175, 1430, 4592, 38.6),
    (10, 6000, 1.0, 189, 189, 189, 1636, 3755, 33.6),
    (100, 600, 0.1, 921, 869, 867, 2607, 3359, 14.4),
    (100, 600, 0.5, 1702, 1643, 1638, 2600, 3181, 7.6),
    (100, 600, 1.0, 1881, 1860, 1857, 2783, 3141, 5.3),
    (200, 550, 0.1, 1853, 1759, 1757, 4805, 5878, 8.0),
    (200, 550, 0.5, 3469, 3385, 3384, 4693, 5702, 4.5),
    (200, 550, 1.0, 3813, 3767, 3767, 4948, 5788, 3.4),
    (200, 500, 0.1, 1776, 1690, 1688, 3261, 5465, 8.0),
    (200, 500, 0.5, 3444, 3354, 3342, 4495, 5262, 4.0),
    (200, 500, 1.0, 3802, 3750, 3750, 4730, 5082, 2.9),
]


@pytest.mark.parametrize("row", PUBLISHED)
def test_dirichlet_is_the_published_partition(row):
    classes, each, alpha, *wanted, floor = row
    data = dataset([each] * classes)
    shares = split_clients(data, partition="dirichlet", clients=20, seed=1, options=PartitionOptions(alpha=alpha))
    labels = data.y.numpy()
    held = table(labels, [np.concatenate([share.train, share.test]) for share in shares])
    train = table(labels, [share.train for share in shares])
    batches = table(labels, [share.train[: len(share.train) // 100 * 100] for share in shares])
    size = held.sum(1)
    assert [(held > 0).sum(), (train > 0).sum(), (batches > 0).sum(), size.min(), size.max()] == wanted
    assert 100 * held.max(1).sum() / held.sum() == pytest.approx(floor, abs=0.05)


@pytest.mark.parametrize(("clients", "smallest", "largest"), [(50, 660, 1469), (100, 275, 817), (200, 116, 476)])
def test_dirichlet_is_the_published_cross_device_partition(clients, smallest, largest):
    size = [len(part) for part in deal("dirichlet", np.repeat(np.arange(100), 600), clients, seed=1, alpha=0.1)]
    assert (min(size), max(size)) == (smallest, largest)


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_draws_again_until_no_client_is_very_small(seed):
    """A draw for these numbers is good about one time in four."""
    assert min(len(part) for part in deal("dirichlet", np.repeat(np.arange(10), 640), 20, seed=seed)) >= 40


@pytest.mark.parametrize("seed", range(20))
def test_a_large_alpha_is_uniform_and_a_small_one_is_not(seed):
    labels = np.repeat(np.arange(10), 600)
    uniform = table(labels, deal("dirichlet", labels, 10, seed=seed, alpha=1000))
    expected = uniform.sum(1, keepdims=True) / 10
    chi_square = ((uniform - expected) ** 2 / expected).sum(1)
    assert chi_square.max() < 16.9  # the 95 % quantile at 9 degrees of freedom

    skewed = np.sort(table(labels, deal("dirichlet", labels, 10, seed=seed, alpha=0.05)))
    share_of_two_classes = skewed[:, -2:].sum(1) / skewed.sum(1)
    assert np.median(share_of_two_classes) > 0.8


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_dirichlet_names_the_numbers_that_cannot_be_met_together(alpha):
    text = "2000 samples cannot give 200 clients at least 20 samples each .4000 are needed"
    with pytest.raises(DataError, match=text):
        deal("dirichlet", np.repeat(np.arange(10), 200), 200, alpha=alpha, min_samples=20)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-6, 1e-300])
@pytest.mark.parametrize("min_samples", [1, 5, 10])
def test_dirichlet_tops_up_where_no_draw_is_good(alpha, min_samples):
    labels = np.repeat(np.arange(10), 200)
    parts = deal("dirichlet", labels, 200, alpha=alpha, min_samples=min_samples)
    assert min(len(part) for part in parts) == min_samples
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(2000))
    assert (table(labels, parts) > 0).sum(1).mean() < 2.5


def test_dirichlet_leaves_clients_empty_only_if_asked():
    labels = np.repeat(np.arange(10), 200)
    assert min(len(part) for part in deal("dirichlet", labels, 200, alpha=0.01, min_samples=0)) == 0
    assert min(len(part) for part in deal("dirichlet", labels, 200, alpha=0.01, min_samples=1)) == 1


@pytest.mark.parametrize("alpha", [0.2, 10000])
@pytest.mark.parametrize("clients", [2, 10, 12, 30])
def test_dirichlet_equal_makes_equal_clients(alpha, clients):
    parts = deal("dirichlet_equal", np.repeat(np.arange(10), 60), clients, alpha=alpha)
    assert {len(part) for part in parts} == {600 // clients}
    assert len(np.unique(np.concatenate(parts))) == 600


def test_dirichlet_equal_keeps_the_skew():
    labels = np.repeat(np.arange(10), 600)
    held = table(labels, deal("dirichlet_equal", labels, 20, alpha=0.1))
    assert (held.max(1) / held.sum(1)).mean() > 0.4  # 0.1 without skew


def test_every_client_of_the_domain_partition_has_one_domain():
    domains = np.repeat([0, 1, 2, 3], 25)
    parts = deal("domain", np.zeros(100, int), 10, domains=domains)
    home = [set(domains[part].tolist()) for part in parts]
    assert all(len(names) == 1 for names in home)
    assert sorted(np.unique([names.pop() for names in home], return_counts=True)[1].tolist()) == [2, 2, 3, 3]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(100))


def test_fewer_clients_than_domains_have_different_ones():
    domains = np.repeat([0, 1, 2, 3], 25)
    homes = [sorted(domains[part][0] for part in deal("domain", np.zeros(100, int), 2, s, domains)) for s in range(20)]
    assert all(a != b for a, b in homes)
    assert len(np.unique(homes)) == 4  # which ones is a matter of the seed


def test_domains_do_not_go_in_step_with_client_numbers():
    domains = np.repeat([0, 1, 2, 3], 100)
    home = [domains[part][0] for part in deal("domain", np.zeros(400, int), 20, domains=domains)]
    assert len(set(home[::4])) > 1


def test_the_domain_partition_needs_domains():
    with pytest.raises(DataError, match="partition 'domain' needs a data set with domains"):
        deal("domain", [0, 1], 2)


def test_the_domain_partition_does_not_make_a_client_smaller_than_asked():
    with pytest.raises(DataError, match=r"would get 1 sample\(s\), fewer than `min-samples` = 2; use fewer clients"):
        deal("domain", np.zeros(100, int), 4, domains=np.array([0] * 3 + [1] * 97))


def test_one_domain_is_one_experiment_whatever_order_a_copy_has():
    """PACS has its photos first in a file, and by name in folders."""
    file, folders = ("photo", "art", "cartoon", "sketch"), ("art", "cartoon", "photo", "sketch")
    for names in (file, folders):
        data = dataset([40, 40], domains=names)
        shares = split_clients(data, partition="one_domain", clients=3, seed=0)
        assert [names[int(data.domain[share.train[0]])] for share in shares] == ["art", "cartoon", "photo"]


# Made before test samples of classes that a domain's clients lack were dealt out, and to stay as they are.
@pytest.mark.parametrize(
    ("partition", "clients", "split", "digest"),
    [
        ("domain", 20, "official", "a63466723872c97e"),
        ("domain", 20, "merged", "41ef1d58f1a07f03"),
        ("domain:2@0.3,1@0.9,0,1", 4, "official", "71f12f2632f66af7"),
        ("domain:2@0.3,1@0.9,0,1", 4, "merged", "27fe745ba15e7032"),
        ("dirichlet", 20, "official", "1cc722bbb6eeca92"),
        ("user_groups", 3, "official", "98974341d383b4de"),
        ("classes:0,1;2,3", 2, "official", "7a2bf3dcede76d19"),
    ],
)
def test_partitions_of_digits4_stay_as_they_are(partition, clients, split, digest):
    shares = split_clients(load_dataset("digits4"), partition=partition, clients=clients, seed=3, split=split)
    content = b"".join(np.concatenate([share.train, [-1], share.test]).tobytes() for share in shares)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_all_of_a_domain_is_tested_also_classes_that_its_clients_did_not_draw():
    """Each client draws two of 96 training pictures of its domain, so most of eight classes are left to the other."""
    data = dataset([32] * 8, test=8, domains=("x", "y"))
    for seed in range(5):
        options = PartitionOptions(min_samples=0)
        shares = split_clients(
            data, partition="domain:2@0.03,1", clients=3, seed=seed, options=options, split="official"
        )
        assert sorted(len(share.train) for share in shares) == [2, 2, 96]
        for share in shares:
            assert data.domain[share.test].unique().tolist() == data.domain[share.train].unique().tolist()
        assert np.array_equal(np.sort(np.concatenate([share.test for share in shares])), np.flatnonzero(data.test))


def test_a_class_that_nobody_learns_and_a_domain_without_clients_are_not_asked_about():
    data = dataset([40, 40, 40], test=10, domains=("x", "y"))
    (share,) = split_clients(data, partition="classes:0,2", clients=1, seed=0, split="official")
    assert data.y[share.test].unique().tolist() == [0, 2]
    (share,) = split_clients(data, partition="domain:1,0", clients=1, seed=0, split="official")
    assert data.domain[share.test].unique().tolist() == [0]


def test_shards_have_equal_sizes():
    labels = np.repeat(np.arange(10), 600)
    parts = deal("shards", labels, 12, classes_per_client=2)
    assert {len(part) for part in parts} == {500}
    assert ((table(labels, parts) > 0).sum(1) == 2).all()


def test_large_shards_go_with_small_ones():
    """Eight shards of 8, 7, ..., 1 samples over four clients: 8 + 1, 7 + 2, 6 + 3, 5 + 4."""
    parts = deal("shards", np.repeat(np.arange(8), np.arange(1, 9)), 4, classes_per_client=2)
    assert [len(part) for part in parts] == [9] * 4


def test_shards_use_every_class_where_there_are_places():
    held = table(labels := np.repeat(np.arange(10), 8), deal("shards", labels, 5, classes_per_client=2))
    assert held.sum(0).tolist() == [8] * 10


def test_shards_of_few_clients_leave_classes_unused(caplog):
    data = dataset([40] * 10)
    shares = split_clients(data, partition="shards", clients=3, seed=0)
    assert sum(len(share.train) + len(share.test) for share in shares) == 3 * 2 * 40
    assert "4 classes are held by no client and their 160 samples are not used: 'class" in caplog.text


def test_which_classes_shards_leave_unused_is_a_matter_of_the_seed():
    labels = np.repeat(np.arange(10), 4)
    used = [np.unique(labels[deal("shards", labels, 1, seed)[0]]).tolist() for seed in range(20)]
    assert all(len(classes) == 2 for classes in used)
    assert len(np.unique(used)) > 5


def test_shards_of_more_classes_than_there_are_are_refused():
    with pytest.raises(DataError, match=r"cannot give 4 clients 3 classes each: there are 2 classes with 80 samples"):
        deal("shards", np.repeat([0, 1], 40), 4, classes_per_client=3)


def test_chosen_label_sets_are_accepted_as_they_are(caplog):
    data = dataset([60] * 10)
    shares = split_clients(data, partition="classes:0,1,2,3,5;2,7,8;4", clients=3, seed=0)
    held = table(data.y.numpy(), [np.concatenate([share.train, share.test]) for share in shares])
    assert held.tolist() == [
        [60, 60, 30, 60, 0, 60, 0, 0, 0, 0],
        [0, 0, 30, 0, 0, 0, 0, 60, 60, 0],
        [0, 0, 0, 0, 60, 0, 0, 0, 0, 0],
    ]
    assert "2 classes are held by no client and their 120 samples are not used: 'class6', 'class9'" in caplog.text


def test_no_warning_if_every_class_has_a_holder(caplog):
    caplog.set_level(logging.WARNING)
    split_clients(dataset([60] * 4), partition="shards", clients=2, seed=0)
    assert caplog.records == []


def test_an_empty_label_set_is_an_empty_client_if_that_is_allowed():
    options = PartitionOptions(min_samples=0)
    shares = split_clients(dataset([40, 40]), partition="classes:0;;1", clients=3, seed=0, options=options)
    assert [(len(share.train), len(share.test)) for share in shares] == [(30, 10), (0, 0), (30, 10)]
    with pytest.raises(DataError, match=r"client 1 of 3 would get 0 sample\(s\), fewer than `min-samples` = 2"):
        split_clients(dataset([40, 40]), partition="classes:0;;1", clients=3, seed=0)


@pytest.mark.parametrize(
    ("partition", "text"),
    [
        ("classes", "must list the classes of each of the 2 clients, got 0 lists"),
        ("classes:0;1;0", "must list the classes of each of the 2 clients, got 3 lists"),
        ("classes:0;7", r"lists \[7\], but the data hold only the classes \[0, 1\]"),
        ("classes:cat;dog", "'classes:cat;dog' must be class numbers, with commas"),
    ],
)
def test_label_sets_that_do_not_fit_are_refused(partition, text):
    with pytest.raises(DataError, match=text):
        split_clients(dataset([40, 40]), partition=partition, clients=2, seed=0)


@pytest.mark.parametrize(
    ("partition", "text"),
    [
        (
            "domain:2",
            r"clients for each of the 2 domains, 2 clients in all, got \[2\]; write `partition = \"domain:3,7",
        ),
        ("domain:2,1", r"2 clients in all, got \[2, 1\]"),
        ("domain:1,one", "'domain:1,one' must name, for each domain, its clients"),
        ("domain:2@0.6,0", "'domain:2@0.6,0' must name, .* at most 1 for all of them together"),
        ("domain:1@0,1", "'domain:1@0,1' must name"),
        ("domain:1@nan,1", "'domain:1@nan,1' must name"),
        ("domain:1,1@0.01", r"client \d of 2 would get 0 sample\(s\), fewer than `min-samples` = 2"),
        ("nid2:half", "'nid2:half' must name a fraction, as in 'nid2:0.5'"),
        ("nid2:1", r"gives one-class clients a fraction in \(0, 1\) of their class, got 1"),
        ("pairs:-1", "'pairs:-1' must say how many clients have all classes"),
        ("pairs:3", "cannot give all classes to 3 of 2 clients; name fewer"),
    ],
)
def test_arguments_that_cannot_be_are_refused(partition, text):
    halves = dataset([40, 40], domains=("x", "y"))
    with pytest.raises(DataError, match=text):
        split_clients(halves, partition=partition, clients=2, seed=0)


@pytest.mark.parametrize("partition", ["domain", "domain:1,1", "one_domain", "user", "user_groups"])
def test_domains_are_asked_for_where_there_are_none(partition):
    with pytest.raises(DataError, match="needs a data set with domains, and this one has none"):
        split_clients(dataset([40, 40]), partition=partition, clients=2, seed=0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"partition": "dirichlett"}, r"unknown partition 'dirichlett'; .*did you mean 'dirichlet'"),
        ({"partition": "iid:3"}, "partition 'iid' takes no argument, got '3'"),
        (
            {"split": "oficial"},
            r"unknown split 'oficial'; `split` must be one of 'global', 'merged', 'official', 'stratified'",
        ),
        ({"clients": 0}, "the number of clients must be >= 1, got 0"),
        ({"seed": -1}, r"`partition-seed` must be in \[0, 4294967295\], got -1"),
        ({"seed": 2**32}, r"`partition-seed` must be in \[0, 4294967295\], got 4294967296"),
        ({"test_fraction": 1.0}, r"`test-fraction` must be in \[0, 1\), got 1.0"),
    ],
)
def test_a_setting_out_of_range_is_named(changes, text):
    with pytest.raises(ConfigError, match=text):
        split_clients(dataset([40, 40]), **{"partition": "iid", "clients": 2, "seed": 0} | changes)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 0}, "`alpha` must be finite and > 0, got 0"),
        ({"alpha": float("nan")}, "`alpha` must be finite and > 0, got nan"),
        ({"alpha": float("inf")}, "`alpha` must be finite and > 0, got inf"),
        ({"classes_per_client": 0}, "`classes-per-client` must be >= 1, got 0"),
        ({"min_samples": -1}, "`min-samples` must be >= 0, got -1"),
        ({"imbalance": 0.5}, "`imbalance` must be finite and >= 1, got 0.5"),
        ({"max_samples": -1}, "`max-samples` must be >= 0, got -1"),
        ({"imbalance": float("nan")}, "`imbalance` must be finite and >= 1, got nan"),
    ],
)
def test_an_option_out_of_range_is_named(options, text):
    with pytest.raises(ConfigError, match=text):
        PartitionOptions(**options)


def test_the_options_of_all_partitioners_come_from_the_settings_of_the_same_names():
    said = {"alpha": 0.3, "classes_per_client": 5, "min_samples": 7, "imbalance": 9.0, "max_samples": 11}
    assert PartitionOptions.of(RunConfig(**said)) == PartitionOptions(**said)
    assert PartitionOptions.of(RunConfig()) == PartitionOptions()


def test_a_new_partitioner_with_an_option_of_its_own_is_a_function_and_two_lines(monkeypatch):
    def every(labels, domains, clients, rng, options, *, step=1):
        return [np.arange(client, clients * step, clients) for client in range(clients)]

    monkeypatch.setitem(PARTITIONERS, "every", every)
    monkeypatch.setitem(ARGUMENTS, "every", ("step", int))
    shares = split_clients(dataset([20]), partition="every:3", clients=2, seed=0, test_fraction=0)
    assert [sorted(share.train.tolist()) for share in shares] == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("samples", "train", "test"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 3, 1), (7, 5, 2), (400, 300, 100)]
)
def test_a_quarter_of_a_clients_samples_is_its_test_part(samples, train, test):
    options = PartitionOptions(min_samples=1)
    (share,) = split_clients(dataset([samples]), partition="iid", clients=1, seed=0, options=options)
    assert (len(share.train), len(share.test)) == (train, test)


@pytest.mark.parametrize(("fraction", "train"), [(0, 10), (0.01, 9), (0.5, 5), (0.99, 1)])
def test_the_test_fraction_leaves_a_sample_in_either_part(fraction, train):
    (share,) = split_clients(dataset([10]), partition="iid", clients=1, seed=0, test_fraction=fraction)
    assert (len(share.train), len(share.test)) == (train, 10 - train)


def test_test_parts_of_the_merged_split_have_the_clients_own_class_shares():
    """Counts in a random quarter are hypergeometric, so squared standard scores average to 1."""
    data = dataset([640] * 10)
    scores = []
    for seed in range(10):
        shares = split_clients(data, partition="dirichlet", clients=20, seed=seed)
        train, test = (table(data.y.numpy(), [getattr(share, p) for share in shares]) for p in ("train", "test"))
        n, held, drawn = (train + test).sum(1, keepdims=True), train + test, test.sum(1, keepdims=True)
        mean = drawn * held / n
        variance = mean * (1 - held / n) * (n - drawn) / (n - 1)
        some = variance > 0
        scores.append((test - mean)[some] ** 2 / variance[some])
    assert np.concatenate(scores).mean() == pytest.approx(1, abs=0.15)


def test_the_official_split_deals_test_samples_in_proportion():
    data = dataset([40, 40], test=10, domains=("a", "b"))
    shares = split_clients(data, partition="classes:0,1;1;1", clients=3, seed=0, split="official")
    labels = data.y.numpy()
    assert table(labels, [share.train for share in shares]).tolist() == [[30, 10], [0, 10], [0, 10]]
    test = table(labels, [share.test for share in shares])
    assert test[:, 0].tolist() == [10, 0, 0]
    assert sorted(test[:, 1].tolist()) in ([2, 4, 4], [3, 3, 4])
    assert data.test[np.concatenate([share.test for share in shares])].all()
    assert not data.test[np.concatenate([share.train for share in shares])].any()


def test_official_test_samples_are_drawn_at_random():
    data = dataset([80], test=40)
    a, b = (split_clients(data, partition="classes:0;0", clients=2, seed=s, split="official")[0] for s in (0, 1))
    assert len(a.test) == len(b.test) == 20
    assert set(a.test.tolist()) != set(b.test.tolist())


def test_remainders_favour_no_client_number():
    """Eight classes of one test sample each: a client's chance is a half, whatever its number."""
    data = dataset([9] * 8, test=1)
    extra = np.zeros(2)
    for seed in range(40):
        shares = split_clients(
            data, partition="classes:0,1,2,3,4,5,6,7;0,1,2,3,4,5,6,7", clients=2, seed=seed, split="official"
        )
        extra += [len(share.test) for share in shares]
    assert extra.sum() == 320
    assert abs(extra[0] - 160) < 4 * np.sqrt(320) / 2


def test_domains_count_in_the_official_split():
    data = dataset([80, 80], test=20, domains=("a", "b"))
    shares = split_clients(data, partition="domain", clients=2, seed=0, split="official")
    for share in shares:
        assert len(set(data.domain[share.train].tolist())) == 1
        assert set(data.domain[share.test].tolist()) == set(data.domain[share.train].tolist())
        assert len(share.test) == 20


def test_the_global_split_trains_on_the_same_and_tests_on_everything():
    data = dataset([40, 40], test=10)
    shares, official = (
        split_clients(data, partition="dirichlet", clients=3, seed=0, split=split) for split in ("global", "official")
    )
    for share, other in zip(shares, official, strict=True):
        assert share.train.tolist() == other.train.tolist()
        assert share.test.tolist() == np.flatnonzero(data.test).tolist()


HAM10000 = (327, 514, 1099, 115, 1113, 6705, 142)  # published sizes of its classes


@pytest.mark.parametrize("test", [0, 20])  # the copy's own test part is no matter
def test_the_stratified_split_draws_fedhpros_test_part_of_ham10000(test):
    data = dataset(HAM10000, test=test)
    (a,), (b,) = (
        split_clients(data, partition="iid", clients=1, seed=seed, split="stratified", test_fraction=0.11013)
        for seed in (0, 1)
    )
    assert (len(a.train), len(a.test)) == (8_912, 1_103)
    assert sorted([*a.train.tolist(), *a.test.tolist()]) == list(range(10_015))
    wanted = np.array(HAM10000) * 1_103 / 10_015
    assert np.abs(class_counts(data.y[a.test], 7) - wanted).max() <= 1
    assert set(a.test.tolist()) != set(b.test.tolist())


def test_the_stratified_split_draws_from_each_domain_and_deals_as_the_official_one():
    data = dataset([100, 60], domains=("a", "b"))
    shares = split_clients(data, partition="domain:1@0.2,1", clients=2, seed=0, split="stratified", test_fraction=0.3)
    domain, label = data.domain.numpy(), data.y.numpy()
    assert sorted((len(share.train), len(share.test)) for share in shares) == [(11, 24), (56, 24)]
    for share in shares:
        assert len({*domain[share.train], *domain[share.test]}) == 1
        assert table(label, [share.test]).tolist() == [[15, 9]]


@pytest.mark.parametrize("split", ["official", "global"])
@pytest.mark.parametrize("test", [0, 40])
def test_both_official_parts_are_needed(test, split):
    with pytest.raises(DataError, match=rf'points: `split = "{split}"` needs .*use `split = "merged"`'):
        split_clients(dataset([40, 40], test=test), partition="iid", clients=2, seed=0, split=split)


def test_client_data_are_tensors_of_their_own():
    digits = load_dataset("digits4")
    data = client_data(digits, ClientSplit(train=np.array([3, 0]), test=np.array([4800])))
    assert torch.equal(data.train_x, digits.x[[3, 0]])
    assert data.train_y.tolist() == digits.y[[3, 0]].tolist()
    assert data.test_y.tolist() == [int(digits.y[4800])]
    assert data.classes == digits.classes
    assert data.train_x.is_contiguous()
    data.train_x.zero_()
    assert digits.x[0].any()


def test_client_data_may_be_empty():
    nobody = np.empty(0, np.int64)
    data = client_data(load_dataset("digits4"), ClientSplit(nobody, nobody))
    assert data.train_x.shape == data.test_x.shape == (0, 1, 32, 32)
    assert len(data.train_y) == len(data.test_y) == 0


def test_a_table_of_200_clients_and_100_classes_stays_readable():
    labels = np.repeat(np.arange(100), 600)
    text = partition_table(table(labels, deal("dirichlet", labels, 200, seed=1))).splitlines()
    assert text[0].startswith("200 clients, 60000 samples; a client has 116 to 476 samples (median ")
    assert len(text) == 1 + 1 + 40 + 1
    assert text[-1].split() == ["...", "and", "160", "clients", "more"]
    assert max(len(line) for line in text[1:]) <= 100


def test_a_table_lists_the_largest_classes_where_not_all_fit():
    counts = np.zeros((1, 50), np.int64)
    counts[0, [3, 44, 7]] = [5, 120, 7]
    assert partition_table(counts).splitlines()[-1] == "     0      132        3 | 44:120 7:7 3:5"


def test_a_table_shows_an_empty_client():
    assert partition_table(np.array([[0, 0]])).splitlines()[-1] == "     0        0        0 | . ."
