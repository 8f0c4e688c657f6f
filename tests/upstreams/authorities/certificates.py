"""Certificates of an authority's tests: a root, what it issues, and each of its rules broken."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
STAMPING = ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True),)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
YEARS = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Identity:
    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_key(kind: str = "ec") -> Key:
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, 1024 if kind == "weak" else 2048)


def certificate_authority(
    name: str, by: Identity | None = None, path_length: int | None = None, *, is_ca: bool = True
) -> Identity:
    rules: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=is_ca, path_length=path_length if is_ca else None), True),
        (usage_of(key_cert_sign=True, crl_sign=True), True),
    ]
    return issued(name, by, rules)


def time_stamper(
    by: Identity,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = STAMPING,
    kind: str = "ec",
    **other: Any,
) -> Identity:
    usage = (usage_of(digital_signature=True), True)
    return issued("Test Time Stamps", by, [*extensions, usage], kind, **other)


def issued(
    name: str,
    by: Identity | None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    kind: str = "ec",
    began: datetime = BEGAN,
    ends: datetime = BEGAN + YEARS,
) -> Identity:
    key, subject = new_key(kind), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=by.certificate.subject if by else subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=began,
        not_valid_after=ends,
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return Identity(builder.sign(by.key if by else key, hashes.SHA256()), key)


def usage_of(**asked: bool) -> x509.KeyUsage:
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
        "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: asked.get(name, False) for name in every})
