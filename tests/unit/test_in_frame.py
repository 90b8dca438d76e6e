"""What a client keeps of its own classifiers."""

import pytest
import torch

from client_app.in_frame import _own
from tests.points import randn


@pytest.mark.parametrize("place", [130, 300, -40, -1])
def test_damaged_classifiers_are_made_anew(tmp_path, monkeypatch, place):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path))
    labels = torch.arange(20) % 3
    arguments = (randn(18, 2, 6), randn(2, 2, 6, seed=1), labels[:18], labels, 3, ["a", "b"])
    whole = _own(*arguments)
    (entry,) = (tmp_path / "cache").glob("own-*.npy")
    content = bytearray(entry.read_bytes())
    content[place] ^= 0x41
    entry.unlink()  # the arrays above are mapped from this file
    entry.write_bytes(content)
    again = _own(*arguments)
    assert again[0] == whole[0]
    assert all(map(torch.equal, (again[1].rows, again[2].rows), (whole[1].rows, whole[2].rows)))
    entry.unlink()
    entry.write_bytes(content[:-9])
    assert torch.equal(_own(*arguments)[2].rows, whole[2].rows)
