"""A citation, compared with the passage that it quotes: its excerpt, and where it stands. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from audit.proof.verdict import Verdict


def differences(cited: Mapping[str, Any], passage: Mapping[str, Any] | None) -> Iterator[tuple[Verdict, str]]:
    """Each difference of a citation from the passage that it names. `KeyError` or `TypeError` if it is not one.

    Whether the passage is as it was ingested is another question: `passage_id`.
    """
    if passage is None:
        yield Verdict.MISSING, f"the passage {cited['chunk_id']} is missing"
        return
    if passage["text"][cited["start"] : cited["end"]] != cited["excerpt"] or not cited["excerpt"]:
        message = f"characters {cited['start']} to {cited['end']} of the passage {cited['chunk_id']} have another text"
        yield Verdict.TAMPERED, message
    for name, value in _place(passage, cited["start"]).items():
        if cited[name] != value:
            yield Verdict.TAMPERED, f"its {name} differs from the passage {cited['chunk_id']}"


def _place(passage: Mapping[str, Any], start: int) -> dict[str, str | None]:
    place = {"chapter": passage["chapter"], "filename": passage["filename"]}
    for begin, end, heading, anchor, page, *_ in passage["sentences"]:
        if begin <= start < end:
            url = f"{passage['url']}#{anchor}" if anchor else passage["url"]
            return place | {"section": heading, "page": page, "url": url}
    return place | {"section": None, "page": None, "url": None}
