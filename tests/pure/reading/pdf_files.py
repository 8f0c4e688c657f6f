"""PDF files made for a test: text at known places, and trees and streams that do harm."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from pypdf import PdfWriter
from pypdf.generic import (
    ArrayObject,
    DecodedStreamObject,
    DictionaryObject,
    NameObject,
    NumberObject,
    PdfObject,
    StreamObject,
)

LEADING = 14.0
TOP = 720.0
LEFT = 72.0
# The bytes 1, 2 and 3 of the font are the ligatures fi, fl and ffi.
TO_UNICODE = b"""/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def
1 begincodespacerange <00> <ff> endcodespacerange
3 beginbfchar <01> <FB01> <02> <FB02> <03> <FB03> endbfchar
1 beginbfrange <20> <7e> <0020> endbfrange endcmap end end"""


@dataclass(frozen=True)
class Ink:
    """A line of text somewhere on a page."""

    text: str
    y: float
    x: float = LEFT
    size: float = 12.0


def column(*lines: str, top: float = TOP, size: float = 12.0, leading: float = LEADING) -> list[Ink]:
    """Lines below one another; an empty one is a gap, a leading tab an indent."""
    return [
        Ink(line.lstrip("\t"), top - number * leading, LEFT + 24 * line.startswith("\t"), size)
        for number, line in enumerate(lines)
        if line
    ]


def made(*pages: list[Ink], finish: Callable[[PdfWriter], object] = lambda _: None) -> bytes:
    writer = PdfWriter()
    font = writer._add_object(_font(writer))
    for inks in pages:
        _add_page(writer, inks, font)
    finish(writer)
    stream = BytesIO()
    writer.write(stream)
    return stream.getvalue()


def _font(writer: PdfWriter) -> DictionaryObject:
    map_stream = DecodedStreamObject()
    map_stream.set_data(TO_UNICODE)
    return DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
            NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
            NameObject("/ToUnicode"): writer._add_object(map_stream),
        }
    )


def _add_page(writer: PdfWriter, inks: list[Ink], font: PdfObject) -> None:
    page = writer.add_blank_page(width=612, height=792)
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(b"\n".join(_drawn(ink) for ink in inks))
    page[NameObject("/Contents")] = writer._add_object(stream.flate_encode())


def _drawn(ink: Ink) -> bytes:
    text = re.sub(rb"([\\()])", rb"\\\1", ink.text.encode("cp1252"))
    return b"BT /F1 %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET" % (ink.size, ink.x, ink.y, text)


def with_bomb(image: bool) -> bytes:
    """64 MiB of zeros that are 64 KiB in the file, thrice over."""
    data = zlib.compress(zlib.compress(zlib.compress(bytes(300 * 1024 * 1024), 9), 9), 9)

    def put(writer: PdfWriter) -> None:
        stream = StreamObject()
        stream._data = data
        stream[NameObject("/Filter")] = ArrayObject([NameObject("/FlateDecode")] * 3)
        if image:
            stream[NameObject("/Subtype")] = NameObject("/Image")
            reference = writer._add_object(stream)
            images = DictionaryObject({NameObject("/Im"): reference})
            writer.pages[0]["/Resources"].get_object()[NameObject("/XObject")] = images  # type: ignore[index]
        else:
            writer.pages[0][NameObject("/Contents")] = writer._add_object(stream)

    return made([*column("Robots fall.")], finish=put)


def looped_pages(writer: PdfWriter) -> None:
    tree = writer._root_object["/Pages"]
    tree["/Kids"].append(tree.indirect_reference)  # type: ignore[index]


def deep_pages(writer: PdfWriter) -> None:
    """A tree of a thousand floors."""
    root = writer._root_object
    below = root.raw_get("/Pages")
    for _ in range(1000):
        below = writer._add_object(
            DictionaryObject(
                {
                    NameObject("/Type"): NameObject("/Pages"),
                    NameObject("/Kids"): ArrayObject([below]),
                    NameObject("/Count"): NumberObject(1),
                }
            )
        )
    root[NameObject("/Pages")] = below
