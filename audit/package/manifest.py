"""The files of a package and its signed manifest: see `audit/__init__.py`, 17. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from audit.errors import NoteError, PackageError
from audit.proof.bundle import HASH
from audit.proof.canonical import canonical_json, read_line
from audit.proof.keys import HeadSigner, KeyRing, PublicKey
from audit.proof.note import of_base64, to_base64

FORMAT = "affidavit package 1"
README, PAGE, AUDITOR, KEYS = "README.md", "verifier.html", "auditor.pyz", "keys.pub"
SPREADSHEET, PASSAGES, ERASURES = "records.csv", "passages.jsonl", "erasures.jsonl"
COVERAGE, QUERIES, MANIFEST = "coverage.json", "queries.json", "manifest.json"
HEAD, POLICY, STAMPS = "heads/head.note", "witnesses.policy", "stamps/"
ALWAYS = frozenset({README, AUDITOR, KEYS, SPREADSHEET, PASSAGES, ERASURES, COVERAGE, QUERIES, MANIFEST})
ANCHORS_MAX = 64  # of a month
FILE_BYTES_MAX = 256 * 2**20  # of a file that is not read line by line

_MONTH = r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])"
# In the order in which they stand in the ZIP.
_FORMS = tuple(
    map(
        re.compile,
        (
            r"README\.md", r"verifier\.html", r"auditor\.pyz", r"keys\.pub", rf"records/{_MONTH}\.jsonl", r"records\.csv",
            rf"checkpoints/{_MONTH}\.note", rf"anchors/{_MONTH}/[0-9]{{12}}\.note", rf"consistency/{_MONTH}\.json",
            r"heads/head\.note", rf"heads/{_MONTH}\.tlog-proof", r"witnesses\.policy",
            r"stamps/[0-9a-z-]{1,100}\.(?:tsr|pem)", r"passages\.jsonl", r"erasures\.jsonl", r"coverage\.json",
            r"queries\.json", r"manifest\.json",
        ),
    )
)  # fmt: skip
_FIELDS = {
    "format", "origin", "made_at", "from", "to", "chosen", "redacted", "event", "counts", "files", "key_id", "signature",
}  # fmt: skip
_CHOICES, _COUNTS = (
    {"case", "client", "user", "query"},
    {"records", "withheld", "erased", "passages", "anchors"},
)
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class ListedFile(NamedTuple):
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class PackageManifest:
    origin: str
    made_at: datetime
    since: datetime
    until: datetime
    chosen: Mapping[str, Any]
    is_redacted: bool
    event: UUID
    counts: Mapping[str, int]
    files: Mapping[str, ListedFile]
    key_id: str = ""
    signature: bytes = b""
    signed: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Whether the period alone chose the records."""
        return not self.chosen.keys() & {"client", "user", "query"}

    @property
    def months(self) -> list[date]:
        """Those that have any file."""
        folders = ("records/", "checkpoints/", "consistency/", "anchors/")
        return sorted(
            {month_in(name) for name in self.files if name.startswith(folders) and place_of(name) is not None}
        )

    def is_signed_by(self, keys: Iterable[PublicKey]) -> bool:
        signers = KeyRing.of(keys).head_keys(self.made_at)
        return any(key.key_id == self.key_id and key.verify(self.signature, self.signed) for key in signers)


def sign_manifest(manifest: PackageManifest, key: HeadSigner) -> bytes:
    """The last file of a package."""
    body = {
        "format": FORMAT, "origin": manifest.origin, "made_at": time_text(manifest.made_at),
        "from": time_text(manifest.since), "to": time_text(manifest.until), "chosen": dict(manifest.chosen),
        "redacted": manifest.is_redacted, "event": str(manifest.event), "counts": dict(manifest.counts),
        "files": {name: file._asdict() for name, file in manifest.files.items()}, "key_id": key.key_id,
    }  # fmt: skip
    signature = to_base64(key.sign(_signed_text(body)))
    return canonical_json(body | {"signature": signature}) + b"\n"


def open_manifest(content: bytes) -> PackageManifest:
    """The manifest, if it is written exactly as `sign_manifest` does it. Its signature is not checked."""
    body = read_line(content, "The manifest", PackageError)
    if body.keys() != _FIELDS or body["format"] != FORMAT:
        raise PackageError(f"The manifest does not have exactly the fields of “{FORMAT}”")
    try:
        return _opened(body)
    except (ValueError, TypeError, KeyError, AttributeError, NoteError):
        raise PackageError("A field of the manifest does not have a value of its kind") from None


def place_of(name: str) -> int | None:
    """Where in the order of a package a file of this name stands; None if none may have it."""
    return next((place for place, form in enumerate(_FORMS) if form.fullmatch(name)), None)


def order_of(name: str) -> tuple[int, str]:
    place = place_of(name)
    return (len(_FORMS) if place is None else place, name)


def month_in(name: str) -> date:
    """The month in the name of a file of one month."""
    return date.fromisoformat(f"{name.split('/')[1][:7]}-01")


def size_in(name: str) -> int:
    """The size in the name of an anchored head."""
    return int(name.rsplit("/", 1)[1].removesuffix(".note"))


def records_name(month: date) -> str:
    return f"records/{month:%Y-%m}.jsonl"


def checkpoint_name(month: date) -> str:
    return f"checkpoints/{month:%Y-%m}.note"


def consistency_name(month: date) -> str:
    return f"consistency/{month:%Y-%m}.json"


def anchor_name(month: date, size: int) -> str:
    return f"anchors/{month:%Y-%m}/{size:012d}.note"


def proof_name(month: date) -> str:
    """Of the proof that an anchored head of the month is in the log of heads."""
    return f"heads/{month:%Y-%m}.tlog-proof"


def time_text(moment: datetime) -> str:
    """As in a row. Not strftime: it writes the year 1 with one digit."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def read_time(text: str) -> datetime:
    moment = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    if time_text(moment) != text:
        raise ValueError(text)
    return moment


def _opened(body: Mapping[str, Any]) -> PackageManifest:
    texts = (body["origin"], body["key_id"])
    chosen, counts, redacted = body["chosen"], body["counts"], body["redacted"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(redacted, bool):
        raise TypeError
    if not chosen.keys() <= _CHOICES or counts.keys() != _COUNTS or str(UUID(body["event"])) != body["event"]:
        raise ValueError
    if not all(type(number) is int and number >= 0 for number in counts.values()):
        raise TypeError
    unsigned = {name: value for name, value in body.items() if name != "signature"}
    return PackageManifest(
        body["origin"], read_time(body["made_at"]), read_time(body["from"]), read_time(body["to"]), chosen, redacted,
        UUID(body["event"]), counts, {name: _listed(file) for name, file in body["files"].items()}, body["key_id"],
        of_base64(body["signature"]), _signed_text(unsigned),
    )  # fmt: skip


def _listed(file: Mapping[str, Any]) -> ListedFile:
    if (
        file.keys() != {"sha256", "size"}
        or type(file["size"]) is not int
        or not HASH.fullmatch(file["sha256"])
    ):
        raise ValueError
    return ListedFile(file["sha256"], file["size"])


def _signed_text(body: Mapping[str, Any]) -> bytes:
    return b"affidavit package\n" + canonical_json(dict(body)) + b"\n"
