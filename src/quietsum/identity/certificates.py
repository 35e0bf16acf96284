"""Who is who in a federation across machines: a certificate for the server, one key for each site.

Two questions, two answers. *Is this the server I mean?* The site checks the server's TLS certificate against one
authority that it was given beforehand (``ca.crt``), for the host name or address that it dials. *Is this the site it
says it is?* The site signs with its node key, and the coordinator holds the public halves in a roster
(:mod:`quietsum.identity.nodekeys`). TLS asks for a client certificate of that same key, so that a caller without one is
turned away before anything is read from it. All keys that are made are elliptic-curve keys on P-384.

Everything here is a value made from values; :mod:`quietsum.identity.keyring` puts them into files.
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import InvalidParameter, QuietsumError, Unreadable
from quietsum.identity.nodekeys import generate_key, read_small_file
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

__all__ = [
    "LONGEST_DAYS", "OWN_NAMES", "Credentials", "check_client", "check_server", "common_name", "host_names",
    "make_authority", "make_client", "make_server", "parse_host", "read_certificates", "read_server_key",
]  # fmt: skip

OWN_NAMES = ("localhost", "127.0.0.1", "::1")
"""The names by which a site on the coordinator's own machine calls it: in a trial, and in tests."""
LONGEST_DAYS = 3650
CLOCK_SLACK = datetime.timedelta(hours=1)
_DNS_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Credentials:
    """A certificate and the private key that belongs to it, both as PEM texts. The key is never printed."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)


# ---------------------------------------------------------------------------------------------------- making


def make_authority(*, days: int = 365, now: datetime.datetime | None = None) -> Credentials:
    """A self-signed authority for a trial. It may sign servers and sites, and nothing below them (path length 0)."""
    from cryptography import x509

    key = generate_key()
    name = _name(f"quietsum trial authority {os.urandom(4).hex()}")
    builder = _builder(name, name, key.public_key(), _now_or(now), _days(days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return Credentials(certificate=_sign(builder, key), key=_pem(key))


def make_server(
    authority: Credentials, names: Sequence[str] = (), *, days: int = 365, now: datetime.datetime | None = None
) -> Credentials:
    """A server certificate for host ``names`` and addresses, always for :data:`OWN_NAMES` too, signed by ``authority``.

    Guarantees: it ends no later than its authority, and it can sign nothing.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    hosts = list(dict.fromkeys(parse_host(name) for name in (*names, *OWN_NAMES)))
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer: Any = load_pem_private_key(authority.key, password=None)
    start, span = _now_or(now), _days(days)
    if start >= issuer.not_valid_after_utc:
        raise QuietsumError(f"the authority has expired on {issuer.not_valid_after_utc:%Y-%m-%d}; make a new one")
    key = generate_key()
    builder = _builder(
        _name(str(hosts[0])[:64]),
        issuer.subject,
        key.public_key(),
        start,
        min(span, issuer.not_valid_after_utc - start),
    )
    names_found: list[x509.GeneralName] = [
        x509.DNSName(found) if isinstance(found, str) else x509.IPAddress(found) for found in hosts
    ]
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names_found), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    return Credentials(certificate=_sign(builder, signer), key=_pem(key))


def make_client(
    authority: Credentials, party: str, key: EllipticCurvePublicKey, *, now: datetime.datetime | None = None
) -> bytes:
    """A certificate (PEM) for a site's node ``key``, signed by ``authority``; it ends with its authority.

    Guarantees: it is good for a client only. No site takes its holder for a server, and it can sign nothing.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer: Any = load_pem_private_key(authority.key, password=None)
    if signer.public_key() != issuer.public_key():
        raise QuietsumError("the authority's key does not belong to its certificate; put the right one back")
    start = _now_or(now)
    if start >= issuer.not_valid_after_utc:
        raise QuietsumError(f"the authority has expired on {issuer.not_valid_after_utc:%Y-%m-%d}; make a new one")
    subject = _name(party.encode()[:64].decode(errors="ignore"))
    builder = _builder(subject, issuer.subject, key, start, issuer.not_valid_after_utc - start)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    return _sign(builder, signer)


def parse_host(name: str) -> str | Address:
    """A host name in its ASCII form, or an address. Raises InvalidParameter if a certificate cannot carry it.

    >>> parse_host("Bücher.example"), parse_host("[::1]")
    ('xn--bcher-kva.example', IPv6Address('::1'))
    """
    text = name.strip()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    remedy = "write a name or an address without port or scheme, coordinator.example.org for instance"
    try:
        ascii_name = text.rstrip(".").encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise InvalidParameter("server", name, "is no host name", remedy) from None
    labels = ascii_name.split(".")
    if len(ascii_name) > 253 or not all(map(_DNS_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise InvalidParameter("server", name, "is no host name", remedy)
    return ascii_name


def _days(days: int) -> datetime.timedelta:
    number = whole_number("days", days, 1, f"pass 1 to {LONGEST_DAYS} days")
    if number > LONGEST_DAYS:
        raise InvalidParameter("days", days, f"is more than {LONGEST_DAYS}", "certificates for a trial need not last")
    return datetime.timedelta(days=number)


def _now_or(now: datetime.datetime | None) -> datetime.datetime:
    return now or datetime.datetime.now(datetime.UTC)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePublicKey,
    start: datetime.datetime,
    span: datetime.timedelta,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_SLACK)  # a site whose clock is a little late must not wait
        .not_valid_after(start + span)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(**wanted: bool) -> x509.KeyUsage:
    from cryptography import x509

    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{use: wanted.get(use, False) for use in every})


def _sign(builder: x509.CertificateBuilder, signer: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


# --------------------------------------------------------------------------------------------------- reading


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file, at least one."""
    from cryptography import x509

    content = read_small_file(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise Unreadable(f"{path} holds no whole PEM certificate; put it back from a copy") from None


def read_server_key(path: Path) -> Any:
    """The server's private key, of any kind, without a passphrase."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = read_small_file(path)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unreadable(
            f"{path} holds no whole PEM private key without a passphrase; put it back from a copy"
        ) from None


def host_names(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a server certificate is good for."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def check_server(
    roots: Sequence[x509.Certificate],
    chain: Sequence[x509.Certificate],
    *,
    name: str | None = None,
    now: datetime.datetime | None = None,
) -> None:
    """Raise QuietsumError if a site would refuse the certificate: expired, of another authority, for another ``name``.

    ``chain`` begins with the server's own certificate. If ``name`` is omitted, the first of its own names is taken (for
    ``*.example.org``, one that it stands for).
    """
    from cryptography import x509
    from cryptography.x509 import verification

    server, moment = chain[0], _now_or(now)
    for what, found in (("server certificate", server), *(("authority", root) for root in roots)):
        if moment > found.not_valid_after_utc:
            raise QuietsumError(f"the {what} has expired on {found.not_valid_after_utc:%Y-%m-%d}; make a new one")
        if moment < found.not_valid_before_utc:
            raise QuietsumError(
                f"the {what} does not hold before {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check this clock"
            )
    known = host_names(server)
    wanted = parse_host(name) if name else parse_host(known[0].replace("*", "any")) if known else None
    if wanted is None:
        raise QuietsumError("the server certificate names no host; ask for a subject alternative name (SAN)")
    subject = x509.DNSName(wanted) if isinstance(wanted, str) else x509.IPAddress(wanted)
    try:
        policy = verification.PolicyBuilder().store(verification.Store(list(roots))).time(moment)
        policy.build_server_verifier(subject).verify(server, list(chain[1:]))
    except (verification.VerificationError, ValueError) as error:
        if str(wanted) not in known and not any("*" in found for found in known):
            problem = f"is for {', '.join(known)}, not for {wanted}"
        elif "candidates exhausted" in str(error):
            problem = "was not signed by any authority in ca.crt"
        else:
            problem = f"would be refused by a site ({str(error).splitlines()[0]})"
        raise QuietsumError(
            f"the server certificate {problem}; a site needs one that ca.crt has signed, for the name it dials"
        ) from None


def check_client(
    chain: Sequence[x509.Certificate], key: EllipticCurvePublicKey, *, now: datetime.datetime | None = None
) -> None:
    """Raise QuietsumError if no SuperLink would take a site's certificate: of another key, expired, not for clients.

    ``chain`` begins with the site's certificate. Only the SuperLink knows whether it asks for this authority.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    own, moment = chain[0], _now_or(now)
    if own.public_key() != key:
        raise QuietsumError("it is for another key than the node key beside it")
    for what, found in (("it", own), *(("an authority in it", other) for other in chain[1:])):
        if moment > found.not_valid_after_utc:
            raise QuietsumError(f"{what} has expired on {found.not_valid_after_utc:%Y-%m-%d}")
        if moment < found.not_valid_before_utc:
            raise QuietsumError(
                f"{what} does not hold before {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check this clock"
            )
    try:
        uses = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(uses):
        raise QuietsumError("it is not made for callers (extended key usage clientAuth)")


def common_name(certificate: x509.Certificate) -> str:
    """The common name of a certificate's holder; empty if it has none."""
    from cryptography.x509.oid import NameOID

    return " ".join(str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
