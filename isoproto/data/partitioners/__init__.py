"""Ways to deal a data set out to clients; a new one is a file here and a line in the table."""

from isoproto.data.partitioners.base import Indices, Labels, Partitioner, PartitionOptions
from isoproto.data.partitioners.dirichlet import dirichlet_equal_partition, dirichlet_partition
from isoproto.data.partitioners.domain import domain_partition
from isoproto.data.partitioners.iid import iid_partition
from isoproto.data.partitioners.label_sets import label_sets_partition, parse_label_sets
from isoproto.data.partitioners.natural import natural_partition
from isoproto.data.partitioners.shards import shards_partition

__all__ = ["PARTITIONERS", "Indices", "Labels", "PartitionOptions", "Partitioner", "parse_label_sets"]

PARTITIONERS: dict[str, Partitioner] = {
    "iid": iid_partition,
    "dirichlet": dirichlet_partition,
    "dirichlet_equal": dirichlet_equal_partition,
    "domain": domain_partition,
    "natural": natural_partition,
    "shards": shards_partition,
    "classes": label_sets_partition,
}
