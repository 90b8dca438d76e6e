"""Make the embedded data set: ``python tools/make_digits4.py embed_digits4.npz``.

Reads the arrays ``train_x``, ``train_y``, ``train_domain``, ``test_x``, ``test_y``, ``test_domain`` and ``domains``.
Writes one file ``isoproto/data/digits4/<domain>.jsonl`` per domain, which ``isoproto.data.embedded`` reads back bit for
bit. A Flower bundle carries text files only, so the pictures are in base64.
"""

import base64
import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).parents[1] / "isoproto" / "data" / "digits4"
COLUMNS = 40
MAX_BYTES = 1_000_000  # of one file, so that the bundle stays small

OPTDIGITS = (
    "'Optical Recognition of Handwritten Digits' by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, "
    "https://archive.ics.uci.edu/dataset/80"
)
PENDIGITS = (
    "'Pen-Based Recognition of Handwritten Digits' by E. Alpaydin and F. Alimoglu, UCI Machine Learning Repository, "
    "1998, https://archive.ics.uci.edu/dataset/81"
)
CC_BY = "licensed under CC BY 4.0, https://creativecommons.org/licenses/by/4.0/"
NOTICES = {
    "scan": f"Made from {OPTDIGITS}, {CC_BY}. Changed: a selection of the 32x32 bitmaps, as 8-bit grey pictures.",
    "pen": f"Made from {PENDIGITS}, {CC_BY}. Changed: a selection; pen strokes drawn as lines into 32x32 pictures.",
    "print": "Printed digits rendered for this project, dedicated to the public domain under CC0 1.0, "
    "https://creativecommons.org/publicdomain/zero/1.0/.",
    "scene": f"Made from {OPTDIGITS}, {CC_BY}. Changed: a selection of the bitmaps (others than in 'scan'), blended "
    "over random textures, 32 grey levels.",
}


def main(source: str) -> None:
    """Write the four files and ``NOTICE.md``."""
    with np.load(source, allow_pickle=False) as pack:
        arrays = {key: pack[key] for key in pack.files}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for k, domain in enumerate(arrays["domains"].tolist()):
        rows = {part: arrays[f"{part}_domain"] == k for part in ("train", "test")}
        x = np.concatenate([arrays[f"{part}_x"][rows[part], :, :, 0] for part in rows])
        labels = {part: "".join(map(str, arrays[f"{part}_y"][rows[part]])) for part in rows}
        header = {"data": "digits4", "domain": domain, "notice": NOTICES[domain]}
        lines = [header, labels, {"png": base64.b64encode(png_sheet(x)).decode()}]
        path = FOLDER / f"{domain}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        size = path.stat().st_size
        assert size < MAX_BYTES, f"{path} has {size} bytes, wanted less than {MAX_BYTES}"
        print(f"{path.name}: {len(x)} pictures, {size} bytes")
    notices = "".join(f"* **{domain}** (`{domain}.jsonl`): {text}\n" for domain, text in NOTICES.items())
    (FOLDER / "NOTICE.md").write_text(f"# Notice for the embedded digits\n\n{notices}", "utf-8")


def png_sheet(x: np.ndarray) -> bytes:
    """Lay out pictures ``[N, H, W]`` row by row, ``COLUMNS`` in a row, as one PNG."""
    count, height, width = x.shape
    sheet = x.reshape(count // COLUMNS, COLUMNS, height, width).swapaxes(1, 2)
    buffer = io.BytesIO()
    Image.fromarray(sheet.reshape(-1, COLUMNS * width)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    main(sys.argv[1])
