"""A time stamp counts only if a pinned authority signed it, over this text and no other, whatever else stands in it.

The good ones are of `openssl ts`, and `openssl ts -verify` and `rfc3161-client` are asked the same; the bad ones are signed
by a forger who holds every key that an attacker could have.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any

import pytest
import rfc3161_client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from audit.errors import TimeStampError
from audit.stamps.token import RESPONSE_BYTES_MAX, TimeStamp, read_certificates, verify_stamp
from tests.conftest import CAMPAIGN_ROUNDS
from tests.upstreams.authorities.certificates import (
    STAMPING,
    Identity,
    certificate_authority,
    issued,
    time_stamper,
    usage_of,
)
from tests.upstreams.authorities.forgery import (
    AT,
    SHA1_OID,
    SHA256_OID,
    attribute,
    by_pss,
    der,
    forged,
    named,
    sequence,
    signer_info,
    tst_info,
)
from tests.upstreams.authorities.openssl_ts import OpensslAuthority

TEXT = b"example.org/log\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
MUTATIONS = CAMPAIGN_ROUNDS * 5_000 or 1_000
ASKED_ABOUT = 12  # of the mutations: `openssl` is a process each time


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    return OpensslAuthority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def chain() -> list[Identity]:
    """A root and what it issued, the signer last."""
    root = certificate_authority("Root")
    below = certificate_authority("Intermediate", root, 0)
    return [root, below, time_stamper(below)]


def verified(response: bytes, root: Identity, text: bytes = TEXT) -> TimeStamp:
    return verify_stamp(response, text, [root.certificate])


def is_refused(response: bytes, root: Identity, text: bytes = TEXT) -> bool:
    try:
        verified(response, root, text)
    except TimeStampError:
        return True
    return False


def said(stamp: TimeStamp) -> tuple[object, ...]:
    """All that somebody has signed: not the bits that pad a certificate's own signature."""
    contents = [certificate.tbs_certificate_bytes for certificate in stamp.chain]
    return stamp.imprint, stamp.time, stamp.nonce, stamp.serial, stamp.authority, contents


def second_opinion(authority: OpensslAuthority, response: bytes, root: Identity, text: bytes = TEXT) -> bool:
    """`rfc3161-client`, which reads the certificates only in DER's order; `openssl ts` writes them in another."""
    held = [
        each.certificate.public_bytes(Encoding.DER) for each in (authority.signer, authority.intermediate)
    ]
    try:
        answer = rfc3161_client.decode_timestamp_response(
            response.replace(b"".join(held), b"".join(sorted(held)))
        )
        verifier = rfc3161_client.VerifierBuilder().add_root_certificate(root.certificate).build()
        return verifier.verify_message(answer, text)
    except (ValueError, rfc3161_client.VerificationError):
        return False


@pytest.mark.parametrize("kind", ["ec", "rsa"])
@pytest.mark.parametrize("ess", ["sha1", "sha256", "sha512"])
@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_a_real_authoritys_stamp_is_accepted_by_three_verifiers(
    tmp_path: Path, kind: str, ess: str, digest: str
) -> None:
    authority = OpensslAuthority.make(tmp_path, kind, ess=ess, digest=digest)
    before = datetime.now(UTC)
    response = authority.stamp_text(TEXT)
    stamp = verified(response, authority.root)
    assert before - timedelta(seconds=1) < stamp.time <= datetime.now(UTC)
    assert stamp.imprint == sha256(TEXT).digest() and stamp.nonce and stamp.serial == 2
    assert stamp.chain == tuple(
        each.certificate for each in (authority.signer, authority.intermediate, authority.root)
    )
    assert authority.accepts(response, TEXT)
    assert second_opinion(authority, response, authority.root)


def test_a_stamp_without_certificates_is_accepted_with_those_of_the_vault(
    authority: OpensslAuthority,
) -> None:
    """An authority leaves them out if it is not asked for them."""
    response = authority.stamp_text(TEXT, "-no_nonce")
    assert verified(response, authority.root).nonce is None


def test_it_is_of_this_text_and_of_no_other(authority: OpensslAuthority) -> None:
    # Seen red: the comparison of the imprint left out.
    response = authority.stamp_text(TEXT)
    for other in (TEXT + b"\n", TEXT[:-1], b"", TEXT.replace(b"\n3\n", b"\n2\n")):
        assert is_refused(response, authority.root, other)
        assert not authority.accepts(response, other)


def test_a_stamp_over_another_digest_is_refused(tmp_path: Path) -> None:
    authority = OpensslAuthority.make(tmp_path)
    (tmp_path / "data").write_bytes(TEXT)
    from tests.upstreams.authorities.openssl_ts import openssl

    openssl("-query", "-data", tmp_path / "data", "-sha512", "-cert", "-out", tmp_path / "asked")
    assert is_refused(authority.stamp((tmp_path / "asked").read_bytes()), authority.root)


def test_a_rejection_is_no_stamp(tmp_path: Path) -> None:
    """`openssl ts` is asked for a digest that its policy does not have."""
    # Seen red: the status left unread.
    authority = OpensslAuthority.make(tmp_path, digests="sha512")
    response = authority.stamp_text(TEXT)
    with pytest.raises(TimeStampError, match="refused"):
        verified(response, authority.root)


@pytest.mark.rounds
def test_no_changed_byte_is_accepted_unless_it_is_outside_of_what_counts(authority: OpensslAuthority) -> None:
    """Where we accept a changed token, it says the same of the same text, and openssl accepts it as well."""
    # Seen red: the check of the signature left out; that of the content's digest; the signer's name not compared.
    response = authority.stamp_text(TEXT)
    right, dice, accepted = verified(response, authority.root), random.Random(3161), []
    for _ in range(MUTATIONS):
        changed = bytearray(response)
        if dice.random() < 0.8:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        else:
            at = dice.randrange(len(changed))
            changed[at : at + dice.randrange(1, 9)] = dice.randbytes(dice.randrange(9))
        if bytes(changed) != response and not is_refused(bytes(changed), authority.root):
            accepted.append(bytes(changed))
    assert all(authority.accepts(each, TEXT) for each in accepted[:ASKED_ABOUT])
    assert all(said(verified(each, authority.root)) == said(right) for each in accepted)


def test_what_openssl_refuses_is_refused(authority: OpensslAuthority) -> None:
    response, dice, refused = authority.stamp_text(TEXT), random.Random(1), 0
    while refused < ASKED_ABOUT:
        changed = bytearray(response)
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        if not authority.accepts(bytes(changed), TEXT):
            assert is_refused(bytes(changed), authority.root)
            refused += 1


def test_every_cut_is_refused(authority: OpensslAuthority) -> None:
    response = authority.stamp_text(TEXT)
    assert all(is_refused(response[:length], authority.root) for length in range(len(response)))
    assert is_refused(response + b"\0", authority.root)
    assert is_refused(response + bytes(RESPONSE_BYTES_MAX), authority.root)


def test_one_authoritys_stamp_does_not_pass_as_anothers(tmp_path: Path, authority: OpensslAuthority) -> None:
    """Also not if the pinned one's certificates are put into it, or the other one has the same names."""
    # Seen red: the chain ends at any certificate of an authority, not at a pinned one.
    other = OpensslAuthority.make(tmp_path)  # the same names, other keys
    response = other.stamp_text(TEXT)
    assert other.accepts(response, TEXT)
    assert is_refused(response, authority.root)
    assert not authority.accepts(response, TEXT)
    assert not second_opinion(other, response, authority.root)
    assert second_opinion(other, response, other.root)
    ours = [authority.signer, authority.intermediate, authority.root]
    theirs = [other.intermediate, other.root]
    assert not is_refused(forged(TEXT, other.signer, theirs), other.root)
    assert is_refused(forged(TEXT, other.signer, theirs), authority.root)
    dressed_up = forged(
        TEXT, other.signer, [*theirs, *ours], attested=authority.signer, named=authority.signer
    )
    assert is_refused(dressed_up, authority.root)
    assert is_refused(forged(TEXT, other.signer, [*theirs, *ours], named=authority.signer), authority.root)
    assert is_refused(forged(TEXT, other.signer, [*theirs, *ours], attested=authority.signer), authority.root)


def test_a_right_stamp_of_the_forgers_hand_is_accepted(chain: list[Identity]) -> None:
    """So that each of the wrong ones below is refused for its own reason."""
    root, below, signer = chain
    stamp = verified(forged(TEXT, signer, [below]), root)
    assert (stamp.time, stamp.serial, stamp.nonce) == (AT, 7, None)
    assert verified(forged(TEXT, signer, [below], nonce=5), root).nonce == 5
    bare = forged(TEXT, signer, certificates=b"")
    assert verify_stamp(bare, TEXT, [root.certificate], _plain(below, signer)).time == AT
    assert (
        verified(forged(TEXT, signer, [below], written=b"20260601120000.5Z"), root).time.microsecond
        == 500_000
    )


def _plain(*identities: Identity) -> list[x509.Certificate]:
    return [each.certificate for each in identities]


OTHER_KIND = "1.2.840.113549.1.7.1"
WRONG: dict[str, Callable[[Identity], dict[str, Any]]] = {
    "the imprint is SHA-1": lambda _: {"imprint_algorithm": SHA1_OID},
    "the imprint is called SHA-1": lambda _: {"imprint_algorithm": SHA1_OID, "imprint": sha256(TEXT).digest()},
    "the imprint is longer": lambda _: {"imprint": sha256(TEXT).digest() + b"\0"},
    "the imprint is of SHA-512": lambda _: {"imprint_algorithm": "2.16.840.1.101.3.4.2.3", "imprint": sha512(TEXT).digest()},
    "another version": lambda _: {"version": 2},
    "a time without a zone": lambda _: {"written": b"20260601120000"},
    "a time with an offset": lambda _: {"written": b"20260601120000+0100"},
    "a fraction with a zero": lambda _: {"written": b"20260601120000.50Z"},
    "no such day": lambda _: {"written": b"20260631120000Z"},
    "a critical extension": lambda _: {
        "extensions": der(0xA1, sequence(der(6, b"\x2a\x03"), der(1, b"\xff"), der(4, b"")))
    },
    "it refuses": lambda _: {"status": 2},
    "it waits": lambda _: {"status": 3},
    "unsigned attributes": lambda _: {"unsigned": der(0xA1, attribute("1.2.3", der(4, b"x")))},
    "its certificate only in an unsigned attribute": lambda signer: {
        "attributes": _attributes(TEXT)[:2], "unsigned": der(0xA1, _attested(signer)),
    },
    "no attribute names the certificate": lambda _: {"attributes": _attributes(TEXT)[:2]},
    "no digest of the content": lambda signer: {"attributes": [_attributes(TEXT)[0], _attested(signer)]},
    "no kind of the content": lambda signer: {"attributes": [_attributes(TEXT)[1], _attested(signer)]},
    "the digest twice": lambda signer: {"attributes": [*_attributes(TEXT), _attributes(TEXT)[1], _attested(signer)]},
    "two digests in one": lambda signer: {"attributes": [_attributes(TEXT)[0], _two_digests(), _attested(signer)]},
    "another kind of content": lambda _: {"content_kind": OTHER_KIND, "attribute_kind": OTHER_KIND},
    "the attribute says another kind": lambda _: {"attribute_kind": OTHER_KIND},
    "the content says another kind": lambda _: {"content_kind": OTHER_KIND},
    "nothing is signed but the content": lambda _: {"unsigned_only": True},
    "the content is another one than was signed": lambda _: {"signed_info": tst_info(b"another text")},
    "two signers": lambda signer: {"more_signers": [signer_info(TEXT, signer, time=AT + timedelta(1))]},
    "the same signer twice": lambda signer: {"more_signers": [signer_info(TEXT, signer)]},
    "revocation lists": lambda _: {"revocations": der(0xA1, sequence())},
    "it names another digest": lambda _: {"digests": [named("2.16.840.1.101.3.4.2.3")]},
    "it names two digests": lambda _: {"digests": [named(SHA256_OID), named("2.16.840.1.101.3.4.2.3")]},
    "an algorithm of another kind of key": lambda signer: {"sign": _mislabelled(signer, "1.2.840.113549.1.1.11")},
    "an algorithm with another digest": lambda signer: {"sign": _mislabelled(signer, "1.2.840.10045.4.3.4")},
}  # fmt: skip


def _attributes(text: bytes) -> list[bytes]:
    kind = attribute("1.2.840.113549.1.9.3", der(6, bytes.fromhex("2a864886f70d0109100104")))
    return [kind, attribute("1.2.840.113549.1.9.4", der(4, sha256(tst_info(text)).digest()))]


def _two_digests() -> bytes:
    return attribute(
        "1.2.840.113549.1.9.4", *(der(4, sha256(tst_info(text)).digest()) for text in (TEXT, b"other"))
    )


def _attested(signer: Identity) -> bytes:
    digest = signer.certificate.fingerprint(hashes.SHA256())
    return attribute("1.2.840.113549.1.9.16.2.47", sequence(sequence(sequence(der(4, digest)))))


def _mislabelled(signer: Identity, algorithm: str) -> Callable[[bytes], tuple[bytes, bytes]]:
    from tests.upstreams.authorities.forgery import _sign_by

    return lambda content: (named(algorithm), _sign_by(signer)(content)[1])


@pytest.mark.parametrize("what", WRONG)
def test_a_stamp_is_refused_if(chain: list[Identity], what: str) -> None:
    # Seen red, each on its line: unsigned attributes left unread, a second signer left unread, any digest as imprint, the
    # certificate's attribute left out or not compared, another kind of content or of its attribute, an attribute twice.
    root, below, signer = chain
    assert is_refused(forged(TEXT, signer, [below], **WRONG[what](signer)), root)


def _purposes(*names: x509.ObjectIdentifier, critical: bool = True) -> Any:
    return ((x509.ExtendedKeyUsage(list(names)), critical),)


def _of_a_root(make: Callable[[Identity], Identity]) -> Callable[[], tuple[Identity, list[Identity]]]:
    def made() -> tuple[Identity, list[Identity]]:
        root = certificate_authority("Root")
        return root, [make(root)]

    return made


def _below(**given: Any) -> Callable[[], tuple[Identity, list[Identity]]]:
    """A signer under an intermediate authority that is not allowed to issue it."""

    def made() -> tuple[Identity, list[Identity]]:
        root = certificate_authority("Root", path_length=given.pop("above", None))
        between = given.pop("make", certificate_authority)("Intermediate", root, **given)
        return root, [time_stamper(between), between]

    return made


def _two_between() -> tuple[Identity, list[Identity]]:
    root = certificate_authority("Root")
    first = certificate_authority("First", root, 0)
    second = certificate_authority("Second", first)
    return root, [time_stamper(second), second, first]


def _weakly_signed() -> tuple[Identity, list[Identity]]:
    root = certificate_authority("Root")
    between = issued("Between", root, [(x509.BasicConstraints(ca=True, path_length=None), True)], kind="weak")
    return root, [time_stamper(between), between]


UNFIT: dict[str, Callable[[], tuple[Identity, list[Identity]]]] = {
    "no purpose": _of_a_root(lambda root: time_stamper(root, ())),
    "another purpose": _of_a_root(lambda root: time_stamper(root, _purposes(ExtendedKeyUsageOID.CODE_SIGNING))),
    "another purpose too": _of_a_root(
        lambda root: time_stamper(root, _purposes(ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.SERVER_AUTH))
    ),
    "any purpose": _of_a_root(lambda root: time_stamper(root, _purposes(ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE))),
    "the purpose is not critical": _of_a_root(
        lambda root: time_stamper(root, _purposes(ExtendedKeyUsageOID.TIME_STAMPING, critical=False))
    ),
    "it was over": _of_a_root(lambda root: time_stamper(root, ends=AT - timedelta(days=1))),
    "it had not begun": _of_a_root(lambda root: time_stamper(root, began=AT + timedelta(days=1))),
    "a short key": _of_a_root(lambda root: time_stamper(root, kind="weak")),
    "an unknown critical extension": _of_a_root(
        lambda root: time_stamper(
            root, [*STAMPING, (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), True)]
        )
    ),
    "its issuer is no authority": _below(is_ca=False),
    "its issuer may not issue certificates": _below(
        make=lambda name, root: issued(
            name, root,
            [(x509.BasicConstraints(ca=True, path_length=None), True), (usage_of(digital_signature=True), True)],
        )
    ),
    "its issuer is for servers": _below(
        make=lambda name, root: issued(
            name, root,
            [(x509.BasicConstraints(ca=True, path_length=None), True), *_purposes(ExtendedKeyUsageOID.SERVER_AUTH)],
        )
    ),
    "its issuer was over": _below(
        make=lambda name, root: issued(
            name, root, [(x509.BasicConstraints(ca=True, path_length=None), True)], ends=AT - timedelta(days=1)
        )
    ),
    "a restricted name": _below(
        make=lambda name, root: issued(
            name, root,
            [
                (x509.BasicConstraints(ca=True, path_length=None), True),
                (x509.NameConstraints([x509.DNSName("example.org")], None), True),
            ],
        )
    ),
    "the chain is longer than allowed": _two_between,
    "an issuer with a short key": _weakly_signed,
    "it signed itself": lambda: (certificate_authority("Root"), [issued("Test", None, STAMPING)]),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_a_signer_is_refused_if(what: str) -> None:
    # Seen red, each on its line: no check of the purpose, of its being critical, of the time, of unknown extensions, of short
    # keys; of the issuer no check that it is an authority, of its path's length, of its purpose, of its right to issue.
    root, (signer, *between) = UNFIT[what]()
    assert is_refused(forged(TEXT, signer, between), root)


def test_a_certificate_that_is_over_now_counts_for_its_time() -> None:
    root = certificate_authority("Root")
    signer = time_stamper(root, ends=AT + timedelta(hours=1))
    assert verified(forged(TEXT, signer), root).time == AT
    assert is_refused(forged(TEXT, signer, time=AT + timedelta(hours=2)), root)


def test_pss_is_understood_and_its_parameters_are_checked() -> None:
    root = certificate_authority("Root")
    signer = time_stamper(root, kind="rsa")
    assert isinstance(signer.key, rsa.RSAPrivateKey)
    assert not is_refused(forged(TEXT, signer, sign=by_pss(signer.key)), root)
    assert not is_refused(forged(TEXT, signer, sign=by_pss(signer.key, 20)), root)
    assert is_refused(forged(TEXT, signer, sign=by_pss(signer.key, mask=SHA1_OID)), root)
    other = rsa.generate_private_key(65537, 2048)
    assert is_refused(forged(TEXT, signer, sign=by_pss(other)), root)


def test_many_cross_signed_certificates_do_not_hold_a_verifier_up() -> None:
    """Every authority has issued every other one: a search of all paths would take years."""
    root, stranger = certificate_authority("Root"), certificate_authority("Stranger")
    ring = [certificate_authority(f"Authority {place}", stranger) for place in range(12)]
    signer = time_stamper(ring[0])
    crossed = [
        issued(each.certificate.subject.rfc4514_string().removeprefix("CN="), by, [(x509.BasicConstraints(ca=True, path_length=None), True)])
        for each in ring[:6] for by in ring[:6]
    ]  # fmt: skip
    assert is_refused(forged(TEXT, signer, [*ring, *crossed]), root)


def test_the_signers_own_certificate_can_be_pinned(chain: list[Identity]) -> None:
    _, below, signer = chain
    response = forged(TEXT, signer, [below])
    assert verify_stamp(response, TEXT, [signer.certificate]).chain == (signer.certificate,)
    assert verify_stamp(response, TEXT, [below.certificate]).chain[-1] == below.certificate


def test_certificates_must_be_certificates(authority: OpensslAuthority) -> None:
    assert len(read_certificates(authority.roots_file.read_bytes())) == 1
    for wrong in (b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(TimeStampError):
            read_certificates(wrong)
