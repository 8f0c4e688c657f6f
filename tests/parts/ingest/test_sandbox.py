"""A process of its own for files: the same documents, and no harm from a reader that fails in any way."""

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ingest.files import inside, load, read_all
from ingest.read import READERS, UnreadableError, read, sandbox
from ingest.read.document import Document, Kept
from ingest.read.sandbox import MIB, READ_S, Sandbox
from tests.pure.reading.pdf_files import column, made

PAGE = PurePosixPath("docs/walking.md")
TEXT = b"---\ntitle: Walking\nmodule: 2\ntags: [gait]\n---\n\nIt walks.\n\n## Falling\n\nIt falls. It \xe2\x80\x9crises\xe2\x80\x9d.\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with Sandbox() as opened:
        yield opened


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose Markdown reader does what the file says, in Python."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import sys
        from pathlib import PurePosixPath
        import ingest.read
        from ingest.read.document import Document, Piece, Section

        def perform(content, path):
            text = "It walks."
            title = "Walking"
            scope = {"title": title, "text": text}
            exec(content.decode(), scope)
            pieces = (Piece(scope["text"], 1, "prose", "Walking", "", "walking"),)
            return Document("x", scope["title"], "/x", "y", (Section("Walking", pieces),))

        ingest.read.READERS[".md"] = perform
        """)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def one(opened: Sandbox, content: bytes, path: PurePosixPath) -> Document:
    (document,) = opened.documents(content, path)
    return document


def perform(opened: Sandbox, code: str) -> str:
    """What the reader of this process would say: the text of its document."""
    return one(opened, code.encode(), PAGE).sections[0].pieces[0].text


def fails(opened: Sandbox, code: str) -> str:
    with pytest.raises(UnreadableError) as failed:
        perform(opened, code)
    return str(failed.value)


# --- The same as without it


@pytest.mark.parametrize("suffix", sorted(READERS))
def test_documents_are_the_same(shared: Sandbox, suffix: str) -> None:
    path = PAGE.with_suffix(suffix)
    if suffix != ".pdf":
        assert one(shared, TEXT, path) == read(TEXT, path)


def test_the_words_of_a_reader_are_kept(shared: Sandbox) -> None:
    with pytest.raises(UnreadableError) as inside_error:
        one(shared, b"\xff\xfe", PAGE)
    with pytest.raises(UnreadableError) as outside_error:
        read(b"\xff\xfe", PAGE)
    assert str(inside_error.value) == str(outside_error.value)


# --- Limits


def test_a_file_that_is_too_large_is_not_read(shared: Sandbox) -> None:
    with pytest.raises(UnreadableError, match="is larger than 64 MiB"):
        one(shared, bytes(64 * MIB + 1), PAGE)


def test_a_name_that_is_no_text(shared: Sandbox) -> None:
    with pytest.raises(UnreadableError, match="name that is not UTF-8"):
        one(shared, TEXT, PurePosixPath("\udcff.md"))


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True: pass", "takes longer than 2 s to read"),
        ("import time; time.sleep(60)", "takes longer than 2 s to read"),
        ("bytearray(4 << 30)", "needs more than 256 MiB of memory to read"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "needs more than 256 MiB of memory to read"),
        ("import os; os._exit(3)", "makes its reader crash (code 3)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "makes its reader crash (signal 11)"),
        ("import os; os.close(0); os.kill(os.getpid(), 9)", "makes its reader crash (signal 9)"),
        ("raise SystemExit(0)", "makes its reader crash (code 0)"),
        ("def f(): f()\nf()", "is nested too deeply"),
        ("1 / 0", "cannot be read: ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\x1b[2J\\nlines' + 9999 * 'x')", "two [2J lines" + "x" * 487),
        ("text = 'a\\ud800b'", "contains unpaired surrogates, which are not characters"),
        ("text = 'a\\x00b'", "its reader returned an invalid document"),
        ("title = 7", "its reader returned an invalid document"),
        ("text = 'x' * (65 << 20)", "holds more than 64 MiB of text"),
    ],
)  # fmt: skip
def test_what_a_reader_may_not_do(code: str, said: str) -> None:
    """Who is not to be late has the time that a busy machine takes."""
    seconds = 2.0 if said.startswith("takes longer") else READ_S
    with Sandbox(seconds=seconds, memory_bytes=256 * MIB) as opened:
        assert fails(opened, code) == said
        assert perform(opened, "text = 'Next.'") == "Next."


@pytest.mark.usefixtures("readers")
def test_a_reader_writes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "written"
    with Sandbox() as opened:
        said = fails(opened, f"from pathlib import Path; Path({str(file)!r}).write_text('x')")
    assert "File too large" in said
    assert file.read_text() == ""


@pytest.mark.usefixtures("readers")
def test_what_a_reader_prints_is_no_answer() -> None:
    with Sandbox() as opened:
        assert perform(opened, "import os; print('x' * 99999, flush=True); os.write(1, b'y')") == "It walks."


@pytest.mark.usefixtures("readers")
def test_a_reader_sees_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    with Sandbox() as opened:
        assert "secret" not in perform(opened, "import os; text = repr(dict(os.environ))")


@pytest.mark.usefixtures("readers")
def test_the_worker_stays_while_files_are_sound() -> None:
    with Sandbox() as opened:
        assert len({perform(opened, "import os; text = str(os.getpid())") for _ in range(5)}) == 1


@pytest.mark.usefixtures("readers")
def test_a_file_is_not_judged_by_the_files_before_it() -> None:
    """What fails in a worn process is read again in a new one."""
    hoard = "import sys\nsys.hoard = getattr(sys, 'hoard', b'') + bytes(150 << 20)"
    with Sandbox(memory_bytes=256 * MIB) as opened:
        assert [perform(opened, hoard) for _ in range(4)] == ["It walks."] * 4


@pytest.mark.usefixtures("readers")
def test_the_name_and_the_digest_are_not_the_readers() -> None:
    with Sandbox() as opened:
        document = one(opened, b"", PAGE)
    assert document.filename == PAGE.as_posix()
    assert document.sha256.startswith("e3b0c44298fc")


@pytest.mark.parametrize(
    "reply",
    [b"", b"{}", b"null", b"\x80\x04.", b'{"error": 7}', b"[" * 100_000, b'{"error": "x"', b'"\\ud800"'],
)
def test_no_reply_is_trusted(reply: bytes) -> None:
    with pytest.raises(UnreadableError, match="invalid document"):
        sandbox._documents(reply, b"", PAGE)


@pytest.mark.parametrize(
    "change",
    [
        {"title": None}, {"module": "x"}, {"tags": "gait"}, {"names": []},
        {"sections": [[0, [["x", 1, "poem", 0, 0, 0]]]]}, {"sections": [[0, [["x", 1, "prose", 0, 0]]]]},
        {"sections": [[0, [["x", 1, "prose", 0, 0, 9]]]]}, {"sections": [[9, []]]},
        {"sections": [[0, [["a\0b", 1, "prose", 0, 0, 0]]]]}, {"url": "\0"},
    ],
)  # fmt: skip
def test_no_field_is_trusted(change: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "filename": "x",
        "title": "",
        "url": "",
        "module": None,
        "difficulty": None,
        "tags": [],
        "names": ["Walking"],
    }
    sound["sections"] = [[0, [["a\nb", 1, "prose", 0, 0, 0]]]]
    (document,) = sandbox._documents(json.dumps({"pages": [sound]}).encode(), b"", PAGE)
    assert document.sections[0].pieces[0].text == "a\nb"
    with pytest.raises(UnreadableError, match="invalid document"):
        sandbox._documents(json.dumps({"pages": [sound | change]}).encode(), b"", PAGE)


# --- Its process


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_no_process_is_left() -> None:
    with Sandbox() as opened:
        assert opened._worker is None
        one(opened, TEXT, PAGE)
        assert opened._worker
        process = opened._worker._process.pid
        assert lives(process)
    assert not lives(process)
    opened.close()


def test_it_can_be_used_again_after_it_was_closed() -> None:
    opened = Sandbox()
    one(opened, TEXT, PAGE)
    opened.close()
    assert one(opened, TEXT, PAGE).title == "Walking"
    opened.close()


def test_a_worker_that_was_killed_between_two_files(shared: Sandbox) -> None:
    one(shared, TEXT, PAGE)
    assert shared._worker
    os.kill(shared._worker._process.pid, signal.SIGKILL)
    assert one(shared, TEXT, PAGE).title == "Walking"


@pytest.mark.usefixtures("readers")
def test_an_interrupted_file_does_not_answer_for_the_next() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Sandbox() as opened:
            perform(opened, "")
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                perform(opened, "import time; time.sleep(1); text = 'Old.'")
            assert perform(opened, "text = 'New.'") == "New."
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """Even if that was killed and could not say good-bye."""
    script = tmp_path / "reads.py"
    script.write_text(
        "import os\nfrom pathlib import PurePosixPath\nfrom ingest.read.sandbox import Sandbox\n"
        "s = Sandbox()\ns.documents(b'x', PurePosixPath('a.md'))\n"
        "print(s._worker._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=False)
    worker = int(ended.stdout)
    for _ in range(100):
        if not lives(worker):
            return
        time.sleep(0.1)
    pytest.fail("the worker goes on")


def test_a_worker_that_does_not_start_is_not_the_files_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectolax.py").write_text("raise ImportError")
    (tmp_path / "markdown_it.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Sandbox() as opened, pytest.raises(RuntimeError, match="does not start"):
        one(opened, TEXT, PAGE)


# --- Which files


def test_inside(tmp_path: Path) -> None:
    book = tmp_path / "book"
    (book / "part").mkdir(parents=True)
    (tmp_path / "bookshop").mkdir()
    (tmp_path / "secret.md").touch()
    (book / "out.md").symlink_to(tmp_path / "secret.md")
    (book / "up").symlink_to(tmp_path)
    (book / "part" / "in.md").symlink_to(book / "a.md")
    assert inside(book, book / "a.md")
    assert inside(book, book / "part" / "in.md")
    assert inside(book, book / "part" / ".." / "a.md")
    assert not inside(book, book / "out.md")
    assert not inside(book, book / "up" / "secret.md")
    assert not inside(book, book / ".." / "secret.md")
    assert not inside(book, tmp_path / "bookshop" / "a.md")


def test_load(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    good, pipe, out, endless = (tmp_path / "book" / name for name in ("a.md", "b.md", "c.md", "d.md"))
    good.write_bytes(b"x" * MIB)
    os.mkfifo(pipe)
    out.symlink_to("/etc/hostname")
    endless.symlink_to(endless)
    assert load(tmp_path / "book", good, MIB) == b"x" * MIB
    good.write_bytes(b"x" * (MIB + 1))
    for path, said in (
        (good, "larger than 1 MiB"),
        (pipe, "is not a regular file"),
        (out, "leads out"),
        (tmp_path / "book" / "e", "does not exist"),
    ):
        with pytest.raises(UnreadableError, match=said):
            load(tmp_path / "book", path, MIB)
    with pytest.raises(UnreadableError):
        load(tmp_path / "book", endless)


# --- Progress


# Seen red: a PDF of a thousand pages was one step, "Reading files 1/1".
def test_the_pages_of_a_pdf_are_counted_while_it_is_read(shared: Sandbox) -> None:
    pages: list[tuple[int, int]] = []
    book = made(*(column(f"Robots walk on page {number}.") for number in range(1, 6)))
    found = shared.documents(book, PAGE.with_suffix(".pdf"), lambda done, of: pages.append((done, of)))
    assert pages == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert "page 5" in found[0].sections[0].pieces[-1].text


async def test_only_a_large_pdf_says_its_pages(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    (tmp_path / "large.pdf").write_bytes(made(*([column("Robots walk.")] * 50)))
    (tmp_path / "small.pdf").write_bytes(made(column("Robots walk.")))

    async def take(_: Document | Kept) -> None: ...

    await read_all([tmp_path], lambda *step: said.append(step), take)
    assert [of for what, _, of in said if what == "Pages of large.pdf"] == [50] * 50
    assert {what for what, _, _ in said} == {"Reading files", "Pages of large.pdf"}


def test_a_notice_of_a_hostile_worker_is_checked() -> None:
    heard: list[tuple[int, int]] = []
    for done, of in ((0, 0), (2, 1)):
        sandbox._hear(lambda *step: heard.append(step), struct.pack("!II", done, of))
    assert heard == []
    with pytest.raises(UnreadableError, match="invalid notice"):
        sandbox._hear(lambda *_: None, b"\x1b[2J")
