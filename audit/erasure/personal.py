"""PII recognisers: regular expressions with check digits for likely personal data in free text. Pure.

They recognise data with a fixed form: an address, a number with a check digit. A name has none: no rule tells "Rubija" from
a word of a book. So names, places and ages are not found, and free text always counts as personal.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

KINDS = ("email", "iban", "card", "national_id", "ip", "phone")
PHONE_DIGITS = range(7, 16)  # fewer digits could be any number; E.164 allows at most 15
CONTEXT_CHARACTERS = 40  # before a number, searched for a word like "phone"

_EMAIL = re.compile(r"(?<![\w.+%'-])[\w.+%'-]{0,63}[\w+%]@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}\b")
_IBAN = re.compile(
    r"\b(?:[A-Za-z]{2}\d{2}[A-Za-z0-9]{11,30}|[A-Z]{2}\d{2}(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?)\b"
)
_CARD = re.compile(r"(?<![\w.-])(?:1800|2131|[2-6]\d{3})(?:[ -]?\d){8,15}(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f]{1,4}(?::{1,2}[0-9A-Fa-f]{1,4}){3,7}(?![\w:])")
_PHONE = re.compile(
    r"(?<![\w+.,/-])[+(]?\d(?:[ ./()-]{0,3}\d){6,14}(?: ?(?:x|ext\.?) ?\d{1,5})?(?![\w/-]|[.,]\d)"
)
_SOCIAL_SECURITY = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")
_INSURANCE = re.compile(r"\b(?![DFIQUV])[A-Z](?![DFIOQUV])[A-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b")
_DNI = re.compile(r"\b[XYZ]?\d{7,8}-?[A-Z]\b")
_NIR = re.compile(r"(?<![\w-])[12] ?\d{2} ?\d{2} ?\d{2} ?\d{3} ?\d{3} ?\d{2}(?![\w-])")
_FISCAL = re.compile(r"\b[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z]\b")

_PHONE_WORD = re.compile(
    r"\b(?:phone|telephone|tel|mobile|cell|fax|desk|call|called|dial|ring|sms|text|messages?|answering|whatsapp|telefon"
    r"|handy|téléphone|móvil|teléfono)\b",
    re.IGNORECASE,
)
_YEAR = r"(?:1[89]|20)\d\d"
_DATE = re.compile(
    rf"{_YEAR}([./-])\d{{1,2}}\1\d{{1,2}}(?: \d\d)?|\d{{1,2}}([./-])\d{{1,2}}\2{_YEAR}|{_YEAR}[ -]+{_YEAR}"
)
_VERSION = re.compile(r"\b(?:v|version|release) ?$", re.IGNORECASE)
_FULL_FORM = re.compile(r"(?:\+|00)\d.*|\(?\d{3}\)?[ .-]?\d{3}[.-]\d{4}.*|\(?0\d{1,4}\)?(?:[ -]\d{2,5}){2,4}")
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"


@dataclass(frozen=True, slots=True)
class Detection:
    """`text[start:end]` is likely personal data of this kind."""

    kind: str
    start: int
    end: int


def find(text: str) -> list[Detection]:
    """All detections, in the order of the text. They never overlap: the more reliable recogniser wins."""
    found: list[Detection] = []
    taken = bytearray(len(text))
    for kind, form, is_valid in _RECOGNISERS:
        for match in form.finditer(text):
            start, end = match.span()
            if not any(taken[start:end]) and (is_valid is None or is_valid(match)):
                found.append(Detection(kind, start, end))
                taken[start:end] = b"\1" * (end - start)
    return sorted(found, key=lambda one: one.start)


def _is_iban(match: re.Match[str]) -> bool:
    """ISO 13616: the number, read with its letters as numbers, is one more than a multiple of 97."""
    number = match[0].replace(" ", "").upper()
    return int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97 == 1


def _is_card(match: re.Match[str]) -> bool:
    """Luhn: every second digit from the right is doubled, and the sum of all digits is a multiple of ten."""
    digits = [int(sign) for sign in match[0] if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _is_ip_address(match: re.Match[str]) -> bool:
    """A valid IP address that is not preceded by a word like "version"."""
    try:
        ipaddress.ip_address(match[0])
    except ValueError:
        return False
    return not _VERSION.search(_context(match))


def _is_dni(match: re.Match[str]) -> bool:
    """Spain: the letter encodes the number modulo 23; X, Y and Z count as 0, 1 and 2."""
    number = match[0].replace("-", "")
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return len(digits) == 8 and _DNI_LETTERS[int(digits) % 23] == number[-1]  # noqa: PLR2004  by its definition


def _is_nir(match: re.Match[str]) -> bool:
    """France: the last two digits are 97 minus the others modulo 97."""
    digits = match[0].replace(" ", "")
    return 97 - int(digits[:-2]) % 97 == int(digits[-2:])


def _is_phone(match: re.Match[str]) -> bool:
    """A number with its area code, or after a word like "phone". Not a date, an ISBN, or a number with thousands."""
    number = match[0] if ")" in match[0] else match[0].removeprefix("(")
    digits = re.sub(r"\D", "", re.split("x|ext", number)[0])
    if len(digits) not in PHONE_DIGITS or _DATE.match(number) or _is_isbn(digits):
        return False
    return bool(_PHONE_WORD.search(_context(match)) or _FULL_FORM.fullmatch(number))


def _context(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - CONTEXT_CHARACTERS) : match.start()]


def _is_isbn(digits: str) -> bool:
    weighted = sum(int(digit) * (1, 3)[place % 2] for place, digit in enumerate(digits))
    return len(digits) == 13 and digits.startswith(("978", "979")) and weighted % 10 == 0  # noqa: PLR2004  ISBN-13


# The most reliable first.
_RECOGNISERS: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], bool] | None], ...] = (
    ("email", _EMAIL, None),
    ("iban", _IBAN, _is_iban),
    ("card", _CARD, _is_card),
    ("national_id", _SOCIAL_SECURITY, None),
    ("national_id", _INSURANCE, None),
    ("national_id", _DNI, _is_dni),
    ("national_id", _NIR, _is_nir),
    ("national_id", _FISCAL, None),
    ("ip", _IPV4, _is_ip_address),
    ("ip", _IPV6, _is_ip_address),
    ("phone", _PHONE, _is_phone),
)
