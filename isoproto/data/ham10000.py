"""Read HAM10000 in its authors' layout: pictures in folders, and a table of their diagnoses."""

import hashlib
from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.imagefolder import dataset_of_files, read_tree
from isoproto.data.rows import table_rows
from isoproto.errors import DataError

_TABLE = "HAM10000_metadata.csv"
_COLUMNS = ("image_id", "lesion_id", "dx")
_TEST_SHARE = 0.2


def read_ham10000(root: Path, side: int) -> ImageDataset:
    """Read ``HAM10000_metadata.csv`` and the pictures ``IMAGE_ID.jpg`` in any folder under ``root``.

    These pictures have no official split. Here a fifth of the lesions makes the test part, so that no lesion is in both
    parts. The choice depends on the names of the lesions alone. Without the table the pictures must lie as
    ``load_imagefolder`` wants them.

    Raises:
        DataError: If the table cannot be read, lacks a column or a cell, or names a picture that is missing.
    """
    table = root / _TABLE
    if not table.is_file():
        return read_tree(root, side)
    found = {path.stem: path for path in root.rglob("*.jpg")}
    files, kinds, test = [], [], []
    for line, row in table_rows(table):
        if not all(row.get(column) for column in _COLUMNS):
            raise DataError(
                f"{table}, line {line}: must have the columns {', '.join(_COLUMNS)}, none of them empty, got "
                f"{dict(row)!r:.200}; get the table again"
            )
        if row["image_id"] not in found:
            raise DataError(f"{table}, line {line}: there is no {row['image_id']}.jpg under {root}; unpack all of them")
        files.append(found[row["image_id"]])
        kinds.append(row["dx"])
        test.append(_tests(row["lesion_id"]))
    return dataset_of_files(root, files, kinds, test, side=side)


def _tests(lesion: str) -> bool:
    return int(hashlib.sha256(lesion.encode()).hexdigest()[:8], 16) < _TEST_SHARE * 2**32
