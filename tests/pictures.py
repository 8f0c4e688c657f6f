"""`make pictures` takes the pictures of the manual from the running product: Chromium, the sample book, a site with the panel."""

import base64
import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import numpy as np

from engine.wiring import SAMPLE_BOOK
from tests.conftest import ROOT, Running, running
from tests.product.browser import Page, browser
from tests.product.docusaurus import PLUGIN, run

PAGE = "engine/http/page/page.png"
PANEL = "docusaurus/panel.png"
PICTURES = (PAGE, PANEL)
BYTES_MAX = 120_000
_COLOURS_MAX = 256
_BOOK = "robot-course"
_QUESTION = "What is sensor fusion?"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-pictures-") as folder, browser() as page:
        build = _site(Path(folder) / "site")
        data_dir = Path(folder) / "data"
        with running(data_dir) as engine:
            _shoot_page(page, engine)
            _ingest(build, data_dir)
            with _gateway(build, engine) as site:
                _shoot_panel(page, site)
    for picture in PICTURES:
        print(f"{picture}: {(ROOT / picture).stat().st_size:,} bytes")


def _site(target: Path) -> Path:
    run("npm", "run", "build")
    run("node", PLUGIN / "e2e/make-site.mjs", "site", target, SAMPLE_BOOK)
    return target / "build"


def _shoot_page(page: Page, engine: Running) -> None:
    page.look(width=720)
    page.open(engine.url)
    page.focus("#key")
    page.type(engine.key)
    page.focus("#question")
    page.type(_QUESTION)
    page.press("Enter")
    page.wait("!!document.querySelector('#record')")
    page.read("document.querySelector('#record').open = true; document.activeElement.blur()")
    bottom = page.read("document.querySelector('#record').getBoundingClientRect().bottom + scrollY")
    page.shoot(ROOT / PAGE, height=bottom + 24)
    _paint_with_fewer_colours(page, ROOT / PAGE)


def _ingest(build: Path, data_dir: Path) -> None:
    export = build / "affidavit-content.json"
    run(
        sys.executable,
        "-m",
        "engine.cli",
        "ingest",
        export,
        "--book",
        _BOOK,
        "--data-dir",
        data_dir,
        cwd=ROOT,
    )


@contextmanager
def _gateway(build: Path, engine: Running) -> Iterator[str]:
    gateway = str(PLUGIN / "lib/gateway/main.js")
    process = subprocess.Popen(
        ["node", gateway, "--site", str(build), "--port=0", f"--engine={engine.url}", f"--book={_BOOK}"],
        stdout=subprocess.PIPE, text=True, env={"AFFIDAVIT_KEY": engine.key},
    )  # fmt: skip
    assert process.stdout
    try:
        yield next(said["url"] for said in map(json.loads, process.stdout) if said["event"] == "ready")
    finally:
        process.terminate()
        process.communicate()


def _shoot_panel(page: Page, site: str) -> None:
    page.look(width=1120, height=800)
    page.open(urljoin(site, "/book/docs/what-is-physical-ai"))
    page.wait("!!document.querySelector('.affidavit-button')")
    page.read("document.querySelector('.affidavit-button').click()")
    page.wait("!!document.querySelector('#affidavit-question')")
    page.focus("#affidavit-question")
    page.type(_QUESTION)
    page.press("Enter")
    page.wait("!!document.querySelector('.affidavit-sources a')")
    page.read("document.querySelector('.affidavit-sources a').click()")
    page.wait("CSS.highlights.has('affidavit') && document.body.innerText.includes('Opened on the page')")
    page.shoot_window(ROOT / PANEL)
    _paint_with_fewer_colours(page, ROOT / PANEL)


def _paint_with_fewer_colours(page: Page, file: Path) -> None:
    """As a PNG with a palette, which is a third of the size: the browser decodes it, and only writes full colour itself."""
    width, height, pixels = page.read(_PIXELS % base64.b64encode(file.read_bytes()).decode())
    image = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(-1, 4)[:, :3].astype(np.int32)
    colours, place, count = np.unique(image, axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-count)[:_COLOURS_MAX]]
    nearest = ((colours[:, None] - palette[None]) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    rows = np.insert(nearest[place.reshape(-1)].reshape(height, width), 0, 0, axis=1)
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + _chunk(b"PLTE", palette.astype(np.uint8).tobytes())
        + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


_PIXELS = """(async () => {
  const bytes = Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const pixels = canvas.getImageData(0, 0, image.width, image.height).data;
  let letters = "";
  for (let at = 0; at < pixels.length; at += 8192) letters += String.fromCharCode(...pixels.subarray(at, at + 8192));
  return [image.width, image.height, btoa(letters)];
})()"""


if __name__ == "__main__":
    main()
