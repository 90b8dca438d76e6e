"""What every data set and every partitioner must hold; a new one is tested here without a new test."""

import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

from isoproto.data import DATASETS, PARTITIONERS, PartitionOptions, client_data, load_dataset, split_clients
from isoproto.data.partition import SPLITS
from isoproto.errors import DataError

EMBEDDED = ("digits4",)
OWN = ("npz", "imagefolder", "csv", "jsonl", "hf")  # a path or an id belongs to the name
# "classes" needs an argument: the classes of each client.
PARTITIONS = [*sorted(set(PARTITIONERS) - {"classes"}), "classes:0,1,2;2,3,4;4,5,6,7;7,8,9", "domain:2@0.3,1@0.9,0,1"]
# Whole domains, which cannot be cut for more clients, and of which nothing is drawn but the test parts.
WHOLE = ("one_domain", "user", "user_groups")
FLEXIBLE = [name for name in PARTITIONS if ":" not in name and name not in WHOLE]
CLIENTS = 4


@pytest.fixture
def _nothing_there(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))


def share_of(partition, split="merged", clients=CLIENTS, **options):
    return split_clients(
        load_dataset("digits4"),
        partition=partition,
        clients=clients,
        seed=3,
        options=PartitionOptions(**options),
        split=split,
    )


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_set_is_whole(name):
    data = load_dataset(name)
    assert torch.equal(data.y[data.test].unique(), torch.arange(len(data.classes)))
    assert torch.equal(data.y[~data.test].unique(), torch.arange(len(data.classes)))
    assert (data.x.flatten(1).max(1).values > data.x.flatten(1).min(1).values).all()  # no blank picture


@pytest.mark.usefixtures("_nothing_there")
@pytest.mark.parametrize("name", sorted(set(DATASETS) - {*EMBEDDED, "module"}))
def test_a_set_that_is_absent_says_where_it_was_looked_for(name, tmp_path):
    asked = name if ":" in name or name not in OWN else f"{name}:absent"
    with pytest.raises(DataError, match=rf"data '{asked}': (?s:.*){tmp_path}.*`data-dir`"):
        load_dataset(asked, str(tmp_path))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_clients_are_disjoint_and_not_empty(partition, split):
    shares = share_of(partition, split)
    tests = [share.test for share in shares]
    if split == "global":  # all are tested on the same samples, which nobody trains on
        assert all(np.array_equal(test, tests[0]) for test in tests)
        tests = tests[:1]
    used = np.concatenate([*(share.train for share in shares), *tests])
    assert len(shares) == CLIENTS
    assert len(np.unique(used)) == len(used)
    assert all(len(share.train) and len(share.test) for share in shares)
    assert all(part.dtype == np.int64 for share in shares for part in (share.train, share.test))


@pytest.mark.parametrize(
    ("partition", "split"),
    [(name, split) for name in PARTITIONS for split in SPLITS if name not in WHOLE or split == "merged"],
)
def test_another_seed_deals_otherwise(partition, split):
    data = load_dataset("digits4")
    a, b = (split_clients(data, partition=partition, clients=CLIENTS, seed=s, split=split)[0] for s in (0, 1))
    assert not np.array_equal(np.sort(a.train), np.sort(b.train))


@pytest.mark.parametrize("split", sorted(set(SPLITS) - {"global"}))
@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_client_is_tested_on_what_it_trains_on(partition, split):
    for share in share_of(partition, split):
        data = client_data(load_dataset("digits4"), share)
        train, test = (torch.bincount(y, minlength=10) / len(y) for y in (data.train_y, data.test_y))
        # Total variation; a random quarter of 200 samples and more stays far below.
        assert (train - test).abs().sum() / 2 < 0.15


@pytest.mark.parametrize("partition", WHOLE)
def test_whole_domains_are_not_cut(partition):
    with pytest.raises(DataError, match=rf"'{partition}' cannot make 5 clients of 4 domains.*partition 'domain'"):
        share_of(partition, clients=5)


@pytest.mark.parametrize("partition", FLEXIBLE)
def test_too_many_clients_are_refused_with_the_numbers(partition):
    with pytest.raises(DataError, match=r"4000 .*`(min-samples|classes-per-client)`"):
        share_of(partition, clients=4000)


@pytest.mark.parametrize("partition", FLEXIBLE)
def test_one_client_and_a_client_per_few_samples_are_no_special_cases(partition):
    for clients in (1, 600):
        assert min(len(share.train) for share in share_of(partition, clients=clients)) >= 1
