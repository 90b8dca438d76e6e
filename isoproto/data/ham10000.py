"""HAM10000 as its makers pack it: pictures in folders, their diagnoses in a table."""

import csv
import hashlib
from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.imagefolder import dataset_of_files, read_tree
from isoproto.errors import DataError

_TABLE = "HAM10000_metadata.csv"
_COLUMNS = ("image_id", "lesion_id", "dx")
_TEST_SHARE = 0.2


def read_ham10000(root: Path, side: int) -> ImageDataset:
    """Read ``HAM10000_metadata.csv`` and the pictures ``IMAGE_ID.jpg`` in any folder under ``root``.

    There is no official split of these pictures. A fifth is the test part here, by lesion, so that no lesion is on
    both sides; it depends on the names of the lesions alone. Without the table the pictures must lie as
    ``load_imagefolder`` wants them.

    Raises:
        DataError: If the table lacks a column, or names a picture that is missing.
    """
    table = root / _TABLE
    if not table.is_file():
        return read_tree(root, side)
    found = {path.stem: path for path in root.rglob("*.jpg")}
    with table.open(encoding="utf8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not set(_COLUMNS) <= rows[0].keys():
        raise DataError(f"{table}: must be a table with the columns {', '.join(_COLUMNS)}; get it again")
    for row in rows:
        if row["image_id"] not in found:
            raise DataError(f"{table}: there is no {row['image_id']}.jpg under {root}; unpack all of them")
    files = [found[row["image_id"]] for row in rows]
    return dataset_of_files(root, files, [r["dx"] for r in rows], [_tests(r["lesion_id"]) for r in rows], side=side)


def _tests(lesion: str) -> bool:
    return int(hashlib.sha256(lesion.encode()).hexdigest()[:8], 16) < _TEST_SHARE * 2**32
