"""Write a file and a log table of how many samples of each class every client holds."""

import json
import logging

import numpy as np

from isoproto.data import partition_table
from isoproto.runs.run_folder import RunFolder
from strategies.roster import Roster

_log = logging.getLogger("isoproto")


def note_partition(folder: RunFolder, roster: Roster) -> None:
    """Write ``partition.json``, and log the number of training samples of each client and class."""
    clients = roster.in_order()
    rows = [
        {
            "client": info.client,
            "model": info.model,
            "train": info.train_counts,
            "test": info.test_counts,
            "domain": info.domain,
        }
        for info in clients
    ]
    # There may be fewer clients than partitions, because some nodes did not come or were refused.
    partitions = roster.partitions or len(clients)
    partition = {"classes": roster.classes, "partitions": partitions, "clients": rows}
    folder.write_text("partition.json", json.dumps(partition))
    counts, names = np.array([info.train_counts for info in clients]), [info.client for info in clients]
    table = partition_table(counts, clients=names, classes=roster.classes)
    _log.info("training samples of each client and class:\n%s", table)
