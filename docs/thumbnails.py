"""Make docs/tutorials/thumbnails: of each notebook one of its plots, small, for the gallery.

python docs/thumbnails.py
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

from PIL import Image, ImageOps

ROOT = Path(__file__).parents[1]
SIZE = (480, 240)
PLOTS = {  # the number of a plot in its notebook
    "01_quickstart": 1,
    "02_table": 1,
    "03_text": 1,
    "04_images": 3,
    "05_recommendation": 1,
    "06_custom_loop": 0,
    "07_streaming": 0,
    "08_tfrecords_to_served": 1,
}


def plots(notebook: Path) -> list[bytes]:
    """The plots of a notebook, as PNG files."""
    cells = json.loads(notebook.read_text())["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]


def main() -> None:
    """Write all of them."""
    for name, number in PLOTS.items():
        plot = Image.open(io.BytesIO(plots(ROOT / "notebooks" / f"{name}.ipynb")[number])).convert("RGB")
        small = ImageOps.pad(plot, SIZE, Image.Resampling.LANCZOS, color="white")
        small.quantize(64).save(ROOT / "docs" / "tutorials" / "thumbnails" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
