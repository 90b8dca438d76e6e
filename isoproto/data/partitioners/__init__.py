"""Partitioners: ways to deal a data set out to clients. A new one is a file here and a line in the table."""

from collections.abc import Callable
from typing import Any

from isoproto.data.partitioners.base import Indices, Labels, Partitioner, PartitionOptions
from isoproto.data.partitioners.dirichlet import dirichlet_equal_partition, dirichlet_partition
from isoproto.data.partitioners.domain import domain_partition, one_domain_partition, parse_domain_shares
from isoproto.data.partitioners.iid import iid_partition
from isoproto.data.partitioners.label_sets import label_sets_partition, parse_label_sets
from isoproto.data.partitioners.long_tail import long_tail
from isoproto.data.partitioners.nid2 import nid2_equal_partition, nid2_partition, parse_share
from isoproto.data.partitioners.pairs import pairs_partition, parse_full_clients
from isoproto.data.partitioners.shards import shards_partition
from isoproto.data.partitioners.thin import thin
from isoproto.data.partitioners.user import user_groups_partition, user_partition

__all__ = ["ARGUMENTS", "PARTITIONERS", "Indices", "Labels", "PartitionOptions", "Partitioner", "long_tail", "thin"]

PARTITIONERS: dict[str, Partitioner] = {
    "iid": iid_partition,
    "dirichlet": dirichlet_partition,
    "dirichlet_equal": dirichlet_equal_partition,
    "domain": domain_partition,
    "one_domain": one_domain_partition,
    "user": user_partition,
    "user_groups": user_groups_partition,
    "shards": shards_partition,
    "classes": label_sets_partition,
    "nid2": nid2_partition,
    "nid2_equal": nid2_equal_partition,
    "pairs": pairs_partition,
}

ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "classes": ("label_sets", parse_label_sets),
    "domain": ("domain_shares", parse_domain_shares),
    "nid2": ("one_class_share", parse_share),
    "nid2_equal": ("one_class_share", parse_share),
    "pairs": ("full_clients", parse_full_clients),
}
"""Partitioners with an option of their own: the keyword of the function, and how to read the text behind the colon."""
