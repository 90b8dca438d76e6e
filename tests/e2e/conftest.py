import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ray_folder() -> Iterator[None]:
    """Ray's files go with the tests; the folder's name is short, since Ray keeps sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="e2e", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "RAY_TMPDIR", str(folder))
        yield
    shutil.rmtree(folder, ignore_errors=True)
