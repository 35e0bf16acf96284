"""A site accepts the server it means and nobody else; a roster says who a site is, or nothing at all."""

from __future__ import annotations

import datetime
import os
import re
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.identity.certificates import (
    Credentials,
    check_client,
    check_server,
    common_name,
    host_names,
    make_authority,
    make_client,
    make_server,
    parse_host,
    read_certificates,
    read_server_key,
)
from quietsum.identity.nodekeys import (
    fingerprint,
    generate_key,
    make_node_key,
    public_line,
    read_node_key,
    read_parties,
    read_public_key,
)

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def certificate(identity: Credentials) -> x509.Certificate:
    return x509.load_pem_x509_certificate(identity.certificate)


def greet(folder: Path, server: Credentials, authority: Credentials, name: str) -> str:
    """One TLS handshake over a socket pair, the client as strict as OpenSSL can be; what was said, or the refusal."""
    (folder / "server.crt").write_bytes(server.certificate)
    (folder / "server.key").write_bytes(server.key)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(folder / "server.crt", folder / "server.key")
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    here.load_verify_locations(cadata=authority.certificate.decode())
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()
    near.settimeout(20)
    far.settimeout(20)

    def answer() -> None:
        try:
            with there.wrap_socket(far, server_side=True) as channel:
                channel.sendall(b"welcome")
        except OSError:
            far.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with here.wrap_socket(near, server_hostname=name) as channel:
            return channel.recv(100).decode()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        near.close()
        thread.join()


@pytest.fixture(scope="module")
def authority() -> Credentials:
    return make_authority()


@pytest.fixture(scope="module")
def server(authority: Credentials) -> Credentials:
    return make_server(authority, ["fl.example.org", "10.1.2.3"])


# ----------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize("name", ["fl.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"])
def test_a_tls_client_accepts_every_name_of_the_server(
    tmp_path: Path, authority: Credentials, server: Credentials, name: str
) -> None:
    assert greet(tmp_path, server, authority, name) == "welcome"
    check_server([certificate(authority)], [certificate(server)], name=name)


@pytest.mark.parametrize("name", ["other.example.org", "example.org", "10.1.2.4"])
def test_a_tls_client_refuses_another_host(
    tmp_path: Path, authority: Credentials, server: Credentials, name: str
) -> None:
    assert "mismatch" in greet(tmp_path, server, authority, name)
    with pytest.raises(QuietsumError, match=f"not for {name}"):
        check_server([certificate(authority)], [certificate(server)], name=name)


def test_a_tls_client_refuses_a_server_of_another_authority(tmp_path: Path, server: Credentials) -> None:
    stranger = make_authority()
    assert "unable to get" in greet(tmp_path, server, stranger, "fl.example.org")
    with pytest.raises(QuietsumError, match="not signed by any authority"):
        check_server([certificate(stranger)], [certificate(server)], name="fl.example.org")


def test_a_tls_client_refuses_an_expired_certificate(tmp_path: Path) -> None:
    old = make_authority(now=LONG_AGO, days=3650)  # the authority itself still holds
    expired = make_server(old, ["fl.example.org"], now=LONG_AGO, days=1)
    assert "expired" in greet(tmp_path, expired, old, "fl.example.org")
    with pytest.raises(QuietsumError, match="server certificate has expired on 2020-01-02"):
        check_server([certificate(old)], [certificate(expired)], name="fl.example.org")
    check_server([certificate(old)], [certificate(expired)], now=LONG_AGO)  # on its day it was good


def test_a_certificate_of_tomorrow_is_refused_with_a_word_about_the_clock(authority: Credentials) -> None:
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    early = make_server(authority, now=tomorrow)
    with pytest.raises(QuietsumError, match="check this clock"):
        check_server([certificate(authority)], [certificate(early)])


def test_a_server_certificate_can_sign_nothing(tmp_path: Path, authority: Credentials, server: Credentials) -> None:
    """The negative control of the key usages: a server that plays authority convinces nobody."""
    below = make_server(server, ["fl.example.org"])
    chained = Credentials(certificate=below.certificate + server.certificate, key=below.key)
    assert greet(tmp_path, chained, authority, "fl.example.org") != "welcome"
    with pytest.raises(QuietsumError):
        check_server([certificate(authority)], [certificate(below), certificate(server)], name="fl.example.org")


def test_an_authority_is_marked_as_one_and_allows_none_below(authority: Credentials, server: Credentials) -> None:
    extensions = certificate(authority).extensions
    basic = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature
    for identity in (authority, server):
        key = certificate(identity).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)


def test_a_server_certificate_ends_no_later_than_its_authority() -> None:
    short = make_authority(days=10)
    assert certificate(make_server(short, days=365)).not_valid_after_utc == certificate(short).not_valid_after_utc


def test_an_expired_authority_signs_nothing() -> None:
    with pytest.raises(QuietsumError, match="authority has expired"):
        make_server(make_authority(now=LONG_AGO, days=1))


def test_two_authorities_never_share_a_name_or_a_key() -> None:
    one, other = certificate(make_authority()), certificate(make_authority())
    assert one.subject != other.subject and one.public_key() != other.public_key()


@pytest.mark.parametrize("days", [0, -1, 3651, 1.5, float("nan"), float("inf"), True, 10**30])
def test_days_outside_their_range_are_refused(days: int) -> None:
    with pytest.raises(InvalidParameter, match="days"):
        make_authority(days=days)


@pytest.mark.parametrize(
    "name",
    ["", " ", "fl.example.org:9092", "https://fl.example.org", "a b", "-a.org", "a_b", "1.2.3", "256.1.1.1", "a..b",
     "*.example.org", "x" * 64, ".".join(["abcdefg"] * 40), "a/b", "a\x00b", "[::1]:80"],
)  # fmt: skip
def test_what_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="without port"):
        parse_host(name)


def test_names_are_written_once_and_in_ascii(authority: Credentials) -> None:
    made = make_server(authority, ["Bücher.example", "LOCALHOST", "localhost", "[fe80::1]"])
    assert host_names(certificate(made)) == ["xn--bcher-kva.example", "localhost", "fe80::1", "127.0.0.1", "::1"]


def test_a_certificate_without_names_is_refused(authority: Credentials) -> None:
    with pytest.raises(QuietsumError, match="names no host"):
        check_server([certificate(authority)], [certificate(authority)])


# ------------------------------------------------------------------------------------------------ node keys


def private_file(folder: Path, content: bytes) -> Path:
    path = folder / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_node_key_loads_as_flower_loads_it(tmp_path: Path) -> None:
    made = make_node_key()
    private = serialization.load_ssh_private_key(made.private, None)
    public = serialization.load_ssh_public_key(made.public.encode())
    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert made.public.startswith("ecdsa-sha2-nistp384 AAAA") and len(made.public.split()) == 2
    assert read_node_key(private_file(tmp_path, made.private)).public_key() == public


def test_private_keys_are_never_shown(authority: Credentials) -> None:
    assert "PRIVATE" not in repr(authority) and "PRIVATE" not in repr(make_node_key())


@pytest.mark.parametrize("cut", [0, 1, 40, 200, -30])
def test_a_cut_private_key_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(CorruptState, match="no whole private key"):
        read_node_key(private_file(tmp_path, make_node_key().private[:cut]))


def openssh(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> tuple[bytes, str]:
    form = serialization
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return private, key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())])
def test_keys_of_another_kind_are_refused(
    tmp_path: Path, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
) -> None:
    private, public = openssh(key)
    with pytest.raises(InvalidParameter, match="another kind"):
        read_node_key(private_file(tmp_path, private))
    with pytest.raises(InvalidParameter, match="another kind"):
        read_public_key(public, where="x.pub")


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = private_file(tmp_path, make_node_key().private)
    path.chmod(0o640)
    with pytest.raises(QuietsumError, match="can be read by others"):
        read_node_key(path)


def test_a_private_key_is_not_taken_for_a_public_one() -> None:
    with pytest.raises(InvalidParameter, match="never leaves"):
        read_public_key(make_node_key().private, where="node.key")


@pytest.mark.parametrize("damage", ["", "ecdsa-sha2-nistp384", "\x00\xff", "two\nlines", "ssh-rsa AAAA"])
def test_a_damaged_public_key_is_refused(damage: str) -> None:
    with pytest.raises(CorruptState, match=r"x\.pub"):
        read_public_key(damage, where="x.pub")


def test_a_comment_after_a_public_key_does_no_harm() -> None:
    line = make_node_key().public
    assert public_line(read_public_key(f"{line} root@basel\n", where="x.pub")) == line


def test_fingerprints_are_those_of_ssh_keygen() -> None:
    """The value was printed by ``ssh-keygen -lf`` for this line."""
    line = (
        "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBHqElGeBxqsnsPe4FeQ0Xa5roT4ZeRjo3abrh"
        "LAFJaKKcKJAxRIm5VfhTzZvESZQ6OdGbXPR1yGUjL2q13LT6Wa9Eaiw7s10TyHanwPgXuDfW6f6+zrOCkkbifySMA2Ztw=="
    )
    assert fingerprint(read_public_key(line, where="x")) == "SHA256:SUFzwi9c0e0SOp/1GJIJFevh4NYZUtq5wI5UJqN2C10"


# --------------------------------------------------------------------------------------------------- roster


def roster(folder: Path, text: str) -> Path:
    path = folder / "parties.toml"
    path.write_text(text, encoding="utf-8")
    return path


def table(name: str, line: str) -> str:
    return f'[parties."{name}"]\nnode_key = "{line}"\n'


def test_a_roster_gives_every_party_its_key(tmp_path: Path) -> None:
    basel, zurich = make_node_key().public, make_node_key().public
    found = read_parties(roster(tmp_path, table("Zürich Nord", zurich) + table("Basel", basel)))
    assert list(found) == ["Zürich Nord", "Basel"]
    assert [public_line(key) for key in found.values()] == [zurich, basel]
    assert read_parties(roster(tmp_path, "")) == {}


KEY, OTHER = make_node_key().public, make_node_key().public


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        (table("Basel", KEY)[:-30], "not whole"),
        (table("Basel", KEY[:-30]), "no whole public key"),
        (table("Basel", KEY) + table("Cleveland", KEY), "Basel and Cleveland have one key"),
        (table("Basel", KEY) + table("BASEL", OTHER), "Basel and BASEL have one name"),
        (table("Basel ", KEY), "one way only"),
        (table("Basel", KEY) + "admin = true\n", "nothing else"),
        ("[parties]\nBasel = 3\n", "nothing else"),
        ("parties = 3\n", "no roster"),
        ("[task]\nname = 'heart'\n", "no roster: it holds task"),
        ("\x00", "not whole"),
    ],
)
def test_a_roster_that_could_be_misread_is_refused(tmp_path: Path, text: str, lesson: str) -> None:
    with pytest.raises(CorruptState, match=lesson):
        read_parties(roster(tmp_path, text))


def test_files_that_are_missing_foreign_or_huge_are_refused_by_name(tmp_path: Path, authority: Credentials) -> None:
    with pytest.raises(InvalidParameter, match=r"none\.toml"):
        read_parties(tmp_path / "none.toml")
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_parties(tmp_path)
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (1 << 21))
    with pytest.raises(CorruptState, match="far too large"):
        read_parties(huge)
    cut = tmp_path / "ca.crt"
    cut.write_bytes(authority.certificate[:200])
    with pytest.raises(CorruptState, match="no whole PEM certificate"):
        read_certificates(cut)
    with pytest.raises(CorruptState, match="no whole PEM private key"):
        read_server_key(cut)


def test_a_certificate_for_every_name_of_a_domain_is_checked_by_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = make_authority()
    with monkeypatch.context() as patch:  # ours are never made out like this, those of a PKI may be
        patch.setattr("quietsum.identity.certificates._DNS_LABEL", re.compile("[a-z*]+"))
        server = make_server(authority, ["*.example.org"])
    assert host_names(certificate(server))[0] == "*.example.org"
    check_server([certificate(authority)], [certificate(server)])
    with pytest.raises(QuietsumError, match="signed by any authority"):
        check_server([certificate(make_authority())], [certificate(server)])


def test_a_sites_certificate_is_for_its_key_and_for_calling() -> None:
    authority, key = make_authority(), generate_key().public_key()
    own = x509.load_pem_x509_certificate(make_client(authority, "Basel", key))
    check_client([own], key)
    assert common_name(own) == "Basel"
    with pytest.raises(QuietsumError, match="another key"):
        check_client([own], generate_key().public_key())
    with pytest.raises(QuietsumError, match="has expired"):
        check_client([own], key, now=own.not_valid_after_utc + datetime.timedelta(days=1))
    with pytest.raises(QuietsumError, match="does not hold before"):
        check_client([own], key, now=own.not_valid_before_utc - datetime.timedelta(days=1))
    server = x509.load_pem_x509_certificate(make_server(authority).certificate)
    with pytest.raises(QuietsumError, match="not made for callers"):
        check_client([server], server.public_key())  # type: ignore[arg-type]
