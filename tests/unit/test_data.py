import bz2
import errno
import hashlib
import io
import json
import logging
import os
import struct
import urllib.error
import urllib.request
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageOps

from isoproto.data import INFOS, ImageDataset, load_dataset, to_float
from isoproto.data.embedded import DOMAINS, FOLDER
from isoproto.data.folders import cache_folder, cached_array, data_folder
from isoproto.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))
    load_dataset.cache_clear()


@pytest.fixture
def _no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def pixels(n=6, height=4, width=5, channels=3):
    """Pictures [n, height, width, channels] whose bytes are all different for small sizes."""
    return (np.arange(n * height * width * channels) % 251).astype(np.uint8).reshape(n, height, width, channels)


def encoded(pictures, file_format="PNG"):
    """The bytes of picture files end to end, and their offsets; PNG gives the pixels back exactly."""
    files = []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, file_format)
        files.append(buffer.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    return np.frombuffer(b"".join(files), np.uint8), offsets


def arrays_pack(**changes):
    """Arrays of kind A: four training and two test pictures of two classes; None leaves an array out."""
    x = pixels()
    pack = {
        "train_x": x[:4],
        "train_y": np.array([0, 1, 0, 1]),
        "test_x": x[4:],
        "test_y": np.array([1, 0]),
        "classes": np.array(["cat", "dog"]),
    }
    return {key: value for key, value in (pack | changes).items() if value is not None}


def pictures_pack(pictures=None, **changes):
    """Arrays of kind B, six pictures of which the last two are for testing."""
    jpeg, offsets = encoded(pixels() if pictures is None else pictures)
    pack = {
        "jpeg": jpeg,
        "offsets": offsets,
        "labels": np.array([0, 1, 0, 1, 1, 0]),
        "split": np.array([0, 0, 0, 0, 1, 1], np.uint8),
        "classes": np.array(["cat", "dog"]),
    }
    return {key: value for key, value in (pack | changes).items() if value is not None}


def save(folder, pack, name="pets.npz"):
    np.savez(folder / name, **pack)
    return f"npz:{name}", str(folder)


def cache_files():
    return sorted(path for path in cache_folder().iterdir() if path.suffix != ".lock")


def test_digits4_is_bit_for_bit_the_set_it_was_made_from():
    digits = load_dataset("digits4")
    tensors = (digits.x, digits.y, digits.domain, digits.test)
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
    assert digest == "b59e1b5c0813500e18cfca4817f75353798d3d401be5649fb003178705283ec5"


def test_digits4_has_120_training_and_40_test_pictures_per_digit_and_domain():
    digits = load_dataset("digits4")
    cell = digits.test * 40 + digits.domain * 10 + digits.y
    assert torch.bincount(cell).tolist() == [120] * 40 + [40] * 40
    assert digits.domains == DOMAINS


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_file_of_digits4_is_small_and_says_whose_work_it_is(domain):
    path = FOLDER / f"{domain}.jsonl"
    header = json.loads(path.read_text("utf-8").splitlines()[0])
    assert path.stat().st_size < 1_000_000
    assert ("CC0" if domain == "print" else "CC BY 4.0") in header["notice"]
    assert header["notice"] in (path.parent / "NOTICE.md").read_text("utf-8")


def test_digits4_takes_no_argument():
    with pytest.raises(DataError, match="'digits4' takes no argument, got 'scan'"):
        load_dataset("digits4:scan")


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ConfigError, match=r"unknown data 'digit4'; `data` must be one of .*did you mean 'digits4'"):
        load_dataset("digit4")


def test_a_data_set_is_read_once_per_process(tmp_path):
    name = save(tmp_path, arrays_pack())
    assert load_dataset(*name) is load_dataset(*name)


@pytest.mark.parametrize("kind", ["npz", "imagefolder"])
def test_a_missing_path_is_named_in_full(kind, tmp_path):
    with pytest.raises(DataError, match=f"data '{kind}:pets': nothing found at {tmp_path / 'pets'}"):
        load_dataset(f"{kind}:pets", str(tmp_path))


@pytest.mark.parametrize("kind", ["npz", "imagefolder"])
def test_a_path_is_needed(kind):
    with pytest.raises(DataError, match=f"data '{kind}' needs a path"):
        load_dataset(kind)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path, arrays_pack())
    assert len(load_dataset("npz:~/pets.npz", "/elsewhere").x) == 6
    assert len(load_dataset("npz:pets.npz", "~").x) == 6


def test_without_data_dir_files_are_looked_up_in_our_own_folder(tmp_path):
    assert data_folder() == tmp_path / "home" / "data"


@pytest.mark.parametrize(
    ("platform", "variables", "wanted"),
    [
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/isoproto"),
        ("linux", {}, "/home/me/.cache/isoproto"),
        ("darwin", {}, "/home/me/Library/Caches/isoproto"),
    ],
)
def test_the_cache_lies_where_the_platform_keeps_caches(monkeypatch, platform, variables, wanted):
    for name in ("ISOPROTO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (variables | {"HOME": "/home/me"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder() == Path(wanted)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x": torch.zeros(2, 1, 4, 4)}, r"pictures must be torch.uint8 .* got torch.float32 \(2, 1, 4, 4\)"),
        ({"x": torch.zeros(2, 4, 4, dtype=torch.uint8)}, "pictures must be torch.uint8 of 4 dimension"),
        ({"x": torch.zeros(2, 4, 4, 1, dtype=torch.uint8)}, "must have 1 or 3 channels, got 4"),
        ({"x": torch.zeros(0, 1, 4, 4, dtype=torch.uint8)}, "holds no picture"),
        ({"y": torch.tensor([0, 2])}, r"labels must be in \[0, 2\), got 2 for sample 1"),
        ({"y": torch.tensor([-1, 0])}, r"labels must be in \[0, 2\), got -1 for sample 0"),
        ({"y": torch.tensor([0])}, r"labels must be torch.int64 of 1 dimension\(s\), 2 long, got torch.int64 \(1,\)"),
        ({"y": torch.tensor([0.0, 1.0])}, "labels must be torch.int64"),
        ({"test": torch.tensor([0, 1])}, "the official-test mask must be torch.bool"),
        ({"domain": torch.tensor([0, 1])}, "come together or not at all"),
        ({"domains": ("a", "b")}, "come together or not at all"),
        ({"domain": torch.tensor([0, 2]), "domains": ("a", "b")}, r"domains must be in \[0, 2\), got 2 for sample 1"),
    ],
)
def test_a_data_set_that_does_not_fit_together_is_refused(changes, text):
    good = {
        "x": torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        "y": torch.tensor([0, 1]),
        "test": torch.tensor([False, True]),
        "classes": ("cat", "dog"),
        "source": "pets",
    }
    ImageDataset(**good)
    with pytest.raises(DataError, match=f"^pets: .*{text}"):
        ImageDataset(**good | changes)


def test_to_float_maps_bytes_to_minus_one_to_one():
    x = to_float(torch.arange(256, dtype=torch.uint8))
    assert x.dtype == torch.float32
    assert (x[0], x[-1]) == (-1, 1)
    torch.testing.assert_close(x.diff(), torch.full((255,), 2 / 255))


def test_arrays_are_read_training_part_first(tmp_path):
    pets = load_dataset(*save(tmp_path, arrays_pack()))
    np.testing.assert_array_equal(pets.x.permute(0, 2, 3, 1).numpy(), pixels())
    assert pets.y.tolist() == [0, 1, 0, 1, 1, 0]
    assert pets.test.tolist() == [False] * 4 + [True] * 2
    assert pets.classes == ("cat", "dog")
    assert (pets.domain, pets.domains) == (None, ())
    assert pets.x.is_contiguous()


def test_arrays_may_have_domains(tmp_path):
    pack = arrays_pack(
        train_domain=np.array([0, 1, 1, 0]), test_domain=np.array([1, 1]), domains=np.array(["photo", "sketch"])
    )
    pets = load_dataset(*save(tmp_path, pack))
    assert pets.domain.tolist() == [0, 1, 1, 0, 1, 1]
    assert pets.domains == ("photo", "sketch")


def test_arrays_may_be_grey_without_an_axis_for_it(tmp_path):
    x = pixels()[..., 0]
    assert load_dataset(*save(tmp_path, arrays_pack(train_x=x[:4], test_x=x[4:]))).x.shape == (6, 1, 4, 5)


def test_arrays_may_lack_a_test_part(tmp_path):
    pets = load_dataset(*save(tmp_path, arrays_pack(test_x=None, test_y=None)))
    assert pets.test.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"train_x": pixels()[:4] / 255}, r"array `train_x` must be uint8 \(0 to 255\), got float64"),
        ({"train_x": pixels()[:4].astype("U3")}, r"array `train_x` must be uint8 \[N, H, W, channels\], got <U3"),
        ({"train_x": pixels(4, 8, 8)}, r"must hold pictures of one shape, got \(4, 3, 8, 8\) and \(2, 3, 4, 5\)"),
        ({"train_y": np.array([0, 1])}, r"array `train_y` must be integer \[4\], got length 2"),
        ({"train_y": np.array([0.0, 1.0, 0.0, 1.0])}, r"array `train_y` must be integer \[4\], got float64"),
        ({"train_y": np.array([0, 1, 0, 9])}, r"labels must be in \[0, 2\), got 9 for sample 3"),
        ({"train_y": np.array([0, 1, 0, None])}, "array `train_y` cannot be read .*Object arrays"),
        ({"test_y": None}, r"array `test_y` is missing; wanted integer \[2\]"),
        ({"classes": None}, "array `classes` is missing; wanted text"),
        ({"classes": np.array(["cat", "cat"])}, "names of classes must differ, got 'cat' twice"),
        ({"classes": np.array([3, 5])}, r"array `classes` must be text \[names\], got int64"),
        ({"domains": np.array(["photo"])}, "array `train_domain` is missing"),
        ({"train_x": None}, "must hold `train_x` .* or `jpeg` .*, got train_y, test_x"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, text):
    name = save(tmp_path, arrays_pack(**changes))
    with pytest.raises(DataError, match=f"^{tmp_path / 'pets.npz'}: .*{text}"):
        load_dataset(*name)


@pytest.mark.parametrize("content", [b"", b"no data at all", b"\x93NUMPY cut short"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    (tmp_path / "pets.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"pets\.npz: not an npz file, or cut short"):
        load_dataset("npz:pets.npz", str(tmp_path))


def test_a_foreign_archive_is_refused(tmp_path):
    x, offsets = io.BytesIO(), io.BytesIO()
    np.save(x, np.zeros(1, np.uint8))
    np.save(offsets, np.array([0, 3]))
    with zipfile.ZipFile(tmp_path / "pets.npz", "w") as archive:
        for name, content in (("jpeg", b"raw"), ("offsets.npy", offsets.getvalue())):
            archive.writestr(name, content)
        for name in ("split", "labels", "classes"):
            archive.writestr(f"{name}.npy", x.getvalue())
    with pytest.raises(DataError, match=r"pets\.npz: array `jpeg` must be uint8 \[bytes\], got \|S3"):
        load_dataset("npz:pets.npz", str(tmp_path))
    (tmp_path / "pets.npz").write_bytes(b"junk" + (tmp_path / "pets.npz").read_bytes())
    load_dataset.cache_clear()
    with pytest.raises(DataError, match=r"pets\.npz: not an npz file"):
        load_dataset("npz:pets.npz", str(tmp_path))


def test_a_folder_is_no_npz(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        load_dataset(f"npz:{tmp_path}")


def test_encoded_pictures_are_decoded(tmp_path):
    pack = pictures_pack(domain=np.array([0, 0, 0, 1, 1, 1]), domains=np.array(["photo", "sketch"]))
    pets = load_dataset(*save(tmp_path, pack))
    np.testing.assert_array_equal(pets.x.permute(0, 2, 3, 1).numpy(), pixels())
    assert pets.y.tolist() == [0, 1, 0, 1, 1, 0]
    assert pets.test.tolist() == [False] * 4 + [True] * 2
    assert pets.domain.tolist() == [0, 0, 0, 1, 1, 1]
    assert pets.domains == ("photo", "sketch")


def test_grey_pictures_among_colour_become_colour(tmp_path):
    x = pixels()
    pets = load_dataset(*save(tmp_path, pictures_pack([x[0, ..., 0], *x[1:]])))
    assert pets.x.shape == (6, 3, 4, 5)
    np.testing.assert_array_equal(pets.x[0].numpy(), np.broadcast_to(x[0, ..., 0], (3, 4, 5)))


def test_grey_pictures_alone_stay_grey(tmp_path):
    pets = load_dataset(*save(tmp_path, pictures_pack(pixels()[..., 0])))
    np.testing.assert_array_equal(pets.x[:, 0].numpy(), pixels()[..., 0])


def test_pictures_are_resized_to_the_most_frequent_size(tmp_path, caplog):
    caplog.set_level(logging.INFO, "isoproto")
    pets = load_dataset(*save(tmp_path, pictures_pack([pixels(1, 8, 10)[0], *pixels()[1:]])))
    assert pets.x.shape == (6, 3, 4, 5)
    assert "1 of 6 pictures are resized to 5x4" in caplog.text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"offsets": None}, r"array `offsets` is missing"),
        ({"offsets": np.arange(7)}, r"array `offsets` must rise from 0 to the \d+ bytes of `jpeg`"),
        ({"offsets": encoded(pixels())[1][[0, 2, 1, 3, 4, 5, 6]]}, "array `offsets` must rise from 0"),
        ({"labels": np.array([0, 1])}, r"array `labels` must be integer \[6\], got length 2"),
        ({"labels": np.array([0, 1, 0, 1, 1, 2])}, r"labels must be in \[0, 2\), got 2 for sample 5"),
        ({"split": np.array([0, 0, 0, 0, 1, 2])}, r"array `split` must be 0 \(train\) or 1 \(test\), got \[0, 1, 2\]"),
        ({"domains": np.array(["photo"])}, "array `domain` is missing"),
    ],
)
def test_encoded_pictures_that_do_not_fit_are_refused(tmp_path, changes, text):
    name = save(tmp_path, pictures_pack(**changes))
    with pytest.raises(DataError, match=f"^{tmp_path / 'pets.npz'}: .*{text}"):
        load_dataset(*name)


def test_a_corrupt_picture_is_named(tmp_path):
    pack = pictures_pack()
    pack["jpeg"] = pack["jpeg"].copy()
    pack["jpeg"][pack["offsets"][3] :][:20] = 0
    name = save(tmp_path, pack)
    with pytest.raises(DataError, match=r"pets\.npz, picture 3: not a readable picture"):
        load_dataset(*name)


def test_half_a_picture_is_refused(tmp_path):
    pack = pictures_pack(np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8))
    last = pack["offsets"][5]
    keep = (pack["offsets"][6] + last) // 2
    pack |= {"jpeg": pack["jpeg"][:keep], "offsets": np.append(pack["offsets"][:6], keep)}
    name = save(tmp_path, pack)
    with pytest.raises(DataError, match=r"pets\.npz, picture 5: not a readable picture"):
        load_dataset(*name)


def test_pictures_of_16_bits_are_refused(tmp_path):
    name = save(tmp_path, pictures_pack(pixels()[..., 0].astype(np.uint16)))
    with pytest.raises(DataError, match=r"picture 0: must have 8 bits a channel, got mode I;16; save it as 8-bit"):
        load_dataset(*name)


def test_colour_of_16_bits_is_refused(tmp_path):
    """Pillow opens it as colour of 8 bits, in which values below 256 are all 0."""
    signature, size = b"\x89PNG\r\n\x1a\n", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + struct.pack(">6H", *[50, 200, 50, 200, 50, 200]) for _ in range(2)))
    chunks = ((b"IHDR", size), (b"IDAT", rows), (b"IEND", b""))
    folder = tmp_path / "pets" / "cat"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(
        signature
        + b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    )
    with pytest.raises(DataError, match=r"a\.png: must have 8 bits a channel, got mode RGB;16B; save it as 8-bit"):
        load_dataset(f"imagefolder:{tmp_path / 'pets'}", "")


def picture_folder(root, pictures):
    """Write pictures under names such as `cat/a.png`, and return the data set's name."""
    for name, picture in pictures.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(root / name)
    return f"imagefolder:{root}", ""


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_transparent_places_are_white(mode, tmp_path):
    """A shape that is in the alpha channel alone is seen."""
    alpha = np.zeros((8, 8), np.uint8)
    alpha[2:6, 2:6] = 255
    black = Image.fromarray(np.zeros((8, 8), np.uint8))
    black.putalpha(Image.fromarray(alpha))
    shape = black.convert("RGBA").quantize() if mode == "P" else black.convert(mode)
    found = load_dataset(*picture_folder(tmp_path / "pets", {"cat/a.png": shape})).x
    assert found[0, 0].tolist() == np.where(alpha, 0, 255).tolist()


def test_files_of_several_pictures_are_told_of(tmp_path, caplog):
    pages = [Image.new("L", (8, 8), shade) for shade in (10, 20, 30)]
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    pages[0].save(tmp_path / "pets" / "cat" / "a.tiff", save_all=True, append_images=pages[1:])
    pages[1].save(tmp_path / "pets" / "cat" / "b.png")
    found = load_dataset(f"imagefolder:{tmp_path / 'pets'}", "")
    assert found.x[:, 0, 0, 0].tolist() == [10, 20]
    assert "1 of 2 files hold several pictures; the first one of each is taken" in caplog.text


@pytest.mark.parametrize("test", ["validation", "valid", "dev", "Test", "testing", "eval"])
def test_parts_have_other_names_too(test, tmp_path):
    grey = Image.new("L", (8, 8))
    names = [f"{part}/{kind}/a.png" for part in ("Training", test) for kind in ("cat", "dog")]
    found = load_dataset(*picture_folder(tmp_path / "pets", dict.fromkeys(names, grey)))
    assert (found.classes, found.domains, sorted(found.test.tolist())) == (
        ("cat", "dog"),
        (),
        [False, False, True, True],
    )


def test_folders_that_are_numbers_are_classes_by_size(tmp_path):
    pictures = {f"{number}/a.png": Image.new("L", (8, 8), number) for number in range(12)}
    found = load_dataset(*picture_folder(tmp_path / "pets", pictures))
    assert found.classes == tuple(map(str, range(12)))
    assert sorted(zip(found.y.tolist(), found.x[:, 0, 0, 0].tolist(), strict=True)) == [(i, i) for i in range(12)]


def test_names_that_look_alike_are_one_class(tmp_path):
    grey = Image.new("L", (8, 8))
    names = ["train/caf\u00e9/a.png", "test/cafe\u0301/a.png"]
    found = load_dataset(*picture_folder(tmp_path / "pets", dict.fromkeys(names, grey)))
    assert found.classes == ("caf\u00e9",)


def test_a_folder_whose_name_is_not_utf8_is_named(tmp_path):
    folder = os.fsencode(tmp_path) + b"/pets/caf\xe9"
    os.makedirs(folder)
    Image.new("L", (8, 8)).save(os.fsdecode(folder) + "/a.png")
    with pytest.raises(DataError, match=r"the name b'caf\\xe9' is not UTF-8; rename it"):
        load_dataset(f"imagefolder:{tmp_path / 'pets'}", "")


def read_again(name):
    load_dataset.cache_clear()
    return load_dataset(*name)


def test_pictures_are_decoded_once_and_then_read_from_the_cache(tmp_path):
    name = save(tmp_path, pictures_pack())
    load_dataset(*name)
    (entry,) = cache_files()
    np.save(entry, np.load(entry) + 1)
    np.testing.assert_array_equal(read_again(name).x.permute(0, 2, 3, 1).numpy(), pixels() + 1)


def test_a_copied_and_touched_file_is_not_decoded_again(tmp_path):
    load_dataset(*save(tmp_path, pictures_pack()))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "pets.npz").write_bytes((tmp_path / "pets.npz").read_bytes())
    os.utime(copy / "pets.npz", (0, 0))
    load_dataset("npz:pets.npz", str(copy))
    assert len(cache_files()) == 1


def test_a_file_with_other_pictures_is_decoded_even_if_size_and_time_are_the_same(tmp_path):
    bitmaps = {"file_format": "BMP"}  # not compressed, so that both files are equally long
    for x in (pixels(), pixels()[::-1]):
        jpeg, offsets = encoded(x, **bitmaps)
        name = save(tmp_path, pictures_pack(jpeg=jpeg, offsets=offsets))
        os.utime(tmp_path / "pets.npz", (0, 0))
        np.testing.assert_array_equal(read_again(name).x.permute(0, 2, 3, 1).numpy(), x)


def test_a_broken_cache_entry_is_made_anew(tmp_path):
    name = save(tmp_path, pictures_pack())
    load_dataset(*name)
    (entry,) = cache_files()
    for content in (b"", entry.read_bytes()[:-1], b"no array"):
        entry.unlink()
        entry.write_bytes(content)
        np.testing.assert_array_equal(read_again(name).x.permute(0, 2, 3, 1).numpy(), pixels())


def test_where_the_cache_cannot_be_written_one_warning_is_logged(tmp_path, caplog):
    (tmp_path / "home").write_text("a file where the folder should be")
    name = save(tmp_path, pictures_pack())
    for _ in range(2):
        np.testing.assert_array_equal(read_again(name).x.permute(0, 2, 3, 1).numpy(), pixels())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"cannot be kept in {tmp_path / 'home' / 'cache'}" in warnings[0]


def test_a_full_disk_leaves_no_rest_of_a_file(monkeypatch, caplog):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert cached_array("full", lambda: np.arange(3, dtype=np.uint8)).tolist() == [0, 1, 2]
    assert "No space left on device" in caplog.text
    assert cache_files() == []


def test_many_writers_of_one_entry_leave_one_whole_file():
    wanted = np.arange(100_000).astype(np.uint8)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: cached_array("race", wanted.copy), range(16)))
    assert all(np.array_equal(result, wanted) for result in results)
    assert [path.name for path in cache_files()] == ["race.npy"]


def make_folder(root, *paths):
    """One picture per path, of a colour of its own."""
    for i, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (i, 2 * i, 3 * i)).save(root / path)


def test_a_folder_per_class(tmp_path):
    make_folder(tmp_path, "dog/a.png", "cat/b.png", "cat/a.png", "cat/._b.png", "cat/notes.PNG")
    (tmp_path / "cat" / "readme.txt").write_text("no picture")
    pets = load_dataset(f"imagefolder:{tmp_path}")
    assert pets.classes == ("cat", "dog")
    assert pets.y.tolist() == [0, 0, 0, 1]
    assert pets.x[:, 0, 0, 0].tolist() == [2, 1, 4, 0]
    assert pets.x.shape == (4, 3, 4, 5)
    assert not pets.test.any()
    assert pets.domains == ()


@pytest.mark.parametrize("test", ["test", "val"])
def test_folders_of_the_official_parts(tmp_path, test):
    make_folder(tmp_path, "train/cat/a.png", "train/dog/a.png", f"{test}/dog/a.png")
    pets = load_dataset("imagefolder:.", str(tmp_path))
    assert sorted(zip(pets.y.tolist(), pets.test.tolist(), strict=True)) == [(0, False), (1, False), (1, True)]


def test_folders_of_domains(tmp_path):
    make_folder(tmp_path, "train/photo/cat/a.png", "train/sketch/dog/a.png", "test/sketch/cat/a.png")
    pets = load_dataset(f"imagefolder:{tmp_path}")
    assert pets.domains == ("photo", "sketch")
    assert pets.domain.tolist() == [1, 0, 1]
    assert pets.y.tolist() == [0, 0, 1]


def test_a_class_may_be_called_train(tmp_path):
    make_folder(tmp_path, "train/a.png", "plane/a.png")
    assert load_dataset(f"imagefolder:{tmp_path}").classes == ("plane", "train")


def test_pictures_of_a_folder_are_resized_on_request(tmp_path):
    make_folder(tmp_path / "pets", "cat/a.png", "dog/a.png")
    pets = load_dataset("imagefolder:pets@8", str(tmp_path))
    assert pets.x.shape == (2, 3, 8, 8)
    assert load_dataset("imagefolder:pets", str(tmp_path)).x.shape == (2, 3, 4, 5)


def test_a_changed_folder_is_decoded_again(tmp_path):
    make_folder(tmp_path / "pets", "cat/a.bmp", "dog/a.bmp")  # not compressed, so of equal length whatever they show
    load_dataset("imagefolder:pets", str(tmp_path))
    Image.new("RGB", (5, 4), (200, 0, 0)).save(tmp_path / "pets" / "cat" / "a.bmp")
    assert read_again(("imagefolder:pets", str(tmp_path))).x[0, 0, 0, 0] == 200


@pytest.mark.parametrize(
    "paths", [("a.png", "cat/a.png"), ("cat/a.png", "photo/cat/a.png"), ("1/2/3/a.png",), ("train/a.png", "test/a.png")]
)
def test_a_folder_of_mixed_layout_is_refused(tmp_path, paths):
    make_folder(tmp_path, *paths)
    with pytest.raises(
        DataError, match=r"a\.png: pictures must all lie as class/name\.png or all as domain/class/name"
    ):
        load_dataset(f"imagefolder:{tmp_path}")


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path}: no pictures found; wanted class/name.png"):
        load_dataset(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("files", [("IMG_1.HEIC", "readme.txt"), (".DS_Store",), ()])
@pytest.mark.parametrize("empty", ["train/photo/bird", "train/sketch", "test"])
def test_a_folder_of_a_class_or_domain_without_a_picture_is_refused(tmp_path, files, empty):
    make_folder(tmp_path, "train/photo/cat/a.png", "train/photo/dog/a.png")
    (tmp_path / empty).mkdir(parents=True)
    for file in files:
        (tmp_path / empty / file).write_text("no picture")
    shown = r"\['IMG_1.HEIC', 'readme.txt'\]" if len(files) > 1 else ".*"
    with pytest.raises(
        DataError, match=f"{tmp_path / empty}: no picture in this folder, .*got {shown}; put some there"
    ):
        load_dataset(f"imagefolder:{tmp_path}")


def test_a_folder_that_is_a_link_is_refused_rather_than_lost(tmp_path):
    make_folder(tmp_path, "pets/cat/a.png", "dog/a.png")
    (tmp_path / "pets" / "dog").symlink_to(tmp_path / "dog")
    with pytest.raises(DataError, match=r"pets/dog: .* \(links to folders are not followed\)"):
        load_dataset("imagefolder:pets", str(tmp_path))


def test_files_that_are_no_pictures_are_counted_once(tmp_path, caplog):
    pets = tmp_path / "pets"
    make_folder(pets, "cat/a.png", "dog/a.png", "dog/.cache/b.png")
    for file in ("cat/a.heic", "cat/b.HEIC", "LICENSE", ".DS_Store", "cat/.hidden.txt"):
        (pets / file).write_text("no picture")
    for _ in range(2):
        assert len(read_again((f"imagefolder:{pets}",)).x) == 2
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert warning == (
        f"{pets}: 3 files are no pictures by their names and are passed over: 2 of .heic, 1 of no suffix"
    )


def test_a_link_to_a_picture_that_is_not_there_is_named(tmp_path):
    make_folder(tmp_path, "cat/a.png", "dog/a.png")
    (tmp_path / "cat" / "b.jpg").symlink_to("../.git/annex/objects/b.jpg")
    with pytest.raises(
        DataError, match=r"cat/b\.jpg: a link to \.\./\.git/annex/objects/b\.jpg, where nothing .*annex get"
    ):
        load_dataset(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_of_cameras_are_turned_upright(tmp_path, orientation):
    """Pillow's own ``exif_transpose`` says what is up; a published set stays as everybody reads it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "pacs" / "cat").mkdir(parents=True)
    path = tmp_path / "pacs" / "cat" / "a.png"
    Image.fromarray(pixels(1, 8, 12)[0]).save(path, exif=exif)
    with Image.open(path) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image)).transpose(2, 0, 1)
    np.testing.assert_array_equal(load_dataset("imagefolder:pacs", str(tmp_path)).x[0].numpy(), wanted)
    own, published = (load_dataset(name, str(tmp_path)) for name in ("imagefolder:pacs@64", "pacs"))
    assert torch.equal(own.x, published.x) == (orientation == 1)


def test_camera_data_that_cannot_be_read_say_nothing(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels(1, 8, 12)[0]).save(tmp_path / "cat" / "a.png", exif=b"Exif\0\0no TIFF header")
    assert load_dataset(f"imagefolder:{tmp_path}").x.shape == (1, 3, 8, 12)


def test_a_corrupt_picture_of_a_folder_is_named(tmp_path):
    make_folder(tmp_path, "cat/a.png", "dog/a.png")
    (tmp_path / "dog" / "b.jpg").write_bytes(b"\xff\xd8 not a picture")
    with pytest.raises(DataError, match=f"{tmp_path / 'dog' / 'b.jpg'}: not a readable picture"):
        load_dataset(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("file", ["usps.npz", "digits_usps.npz"])
def test_a_pack_in_data_dir_is_used(tmp_path, file):
    np.savez(tmp_path / file, **arrays_pack())
    assert load_dataset("usps", str(tmp_path)).classes == ("cat", "dog")


def idx(array):
    """MNIST's file format: two zero bytes, type uint8, number of dimensions, the dimensions, the bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_torchvisions_mnist_files_are_read(tmp_path, name, folder):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    x = pixels(5, 28, 28, 1)[..., 0]
    for part, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(x[rows]))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(5, dtype=np.uint8)[rows]))
    digits = load_dataset(name, str(tmp_path))
    np.testing.assert_array_equal(digits.x[:, 0].numpy(), x)
    assert digits.y.tolist() == [0, 1, 2, 3, 4]
    assert digits.test.tolist() == [False] * 3 + [True] * 2
    assert len(digits.classes) == 10


def test_torchvisions_usps_files_are_read(tmp_path):
    for file, lines in (("usps.bz2", 10), ("usps.t.bz2", 2)):
        values = " ".join(f"{i + 1}:{1 if i == 0 else -1}" for i in range(256))
        text = "\n".join(f"{k + 1} {values} " for k in range(lines))
        (tmp_path / file).write_bytes(bz2.compress(text.encode()))
    digits = load_dataset("usps", str(tmp_path))
    assert digits.x.shape == (12, 1, 16, 16)
    assert digits.x.sum((1, 2, 3)).tolist() == [255] * 12
    assert digits.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "cls", "part"),
    [
        ("cifar10", "CIFAR10", {"data": pixels(4, 8, 8), "targets": [0, 1, 2, 0], "classes": ["a", "b", "c"]}),
        ("svhn", "SVHN", {"data": pixels(4, 8, 8).transpose(0, 3, 1, 2), "labels": np.array([0, 1, 2, 0])}),
    ],
)
def test_torchvisions_colour_layouts_come_out_channels_first(tmp_path, monkeypatch, name, cls, part):
    class Part(SimpleNamespace):
        def __len__(self):
            return len(self.data)

    for pattern in INFOS[name].torchvision.files:
        (tmp_path / pattern).parent.mkdir(exist_ok=True)
        (tmp_path / pattern.replace("*", "data_batch_1")).write_bytes(b"")
    monkeypatch.setattr(torchvision.datasets, cls, lambda **_: Part(**part))
    colour = load_dataset(name, str(tmp_path))
    np.testing.assert_array_equal(colour.x.permute(0, 2, 3, 1).numpy(), np.concatenate([pixels(4, 8, 8)] * 2))
    assert colour.y.tolist() == [0, 1, 2, 0] * 2
    assert colour.test.tolist() == [False] * 4 + [True] * 4
    assert len(colour.classes) == 3


@pytest.mark.usefixtures("_no_network")
def test_what_is_nowhere_says_where_it_was_looked_for_and_how_to_get_it(tmp_path):
    text = (
        rf"data 'cifar10': found none of {tmp_path / 'cifar10.npz'}, {tmp_path / 'cifar-10-batches-py'}/\* "
        r"\(torchvision's\)\. `isoproto data cifar10 --download` fetches it; or point `data-dir`"
    )
    with pytest.raises(DataError, match=text):
        load_dataset("cifar10", str(tmp_path))


def test_a_name_of_torchvision_takes_no_argument():
    with pytest.raises(DataError, match="'cifar10' takes no argument, got 'x'"):
        load_dataset("cifar10:x")
