"""Seals alone: no frame of the relay in the middle opens, repeats, or passes for another party's."""

import shutil

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from colonnade.drivers.processes.certificates import Identity, read_members, throw_away
from colonnade.drivers.processes.renewal import renew, revoke
from colonnade.drivers.processes.sealing import (
    MAX_ANNOUNCEMENT_BYTES,
    SEAL_BYTES,
    Announcement,
    Session,
    Signet,
    public_bytes,
)
from colonnade.protocol.errors import ConfigError, RemoteProtocolError

NAMES = ("bank", "clinic", "lab")
KEY = public_bytes(X25519PrivateKey.generate())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(NAMES, made)
    return made


def identity(folder, name):
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@pytest.fixture(scope="module")
def signets(folder):
    members = read_members(folder / "members.toml")
    made = {name: Signet(identity(folder, name), members) for name in (*NAMES, "server")}
    for signet in made.values():
        signet.run = "run 1"
    return made


def sessions(run=("run", "run"), names=("bank", "clinic")):
    """Both ends of one agreement."""
    ours, theirs = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    one = Session(*names, run[0], ours, public_bytes(theirs), initiator=True)
    other = Session(*names[::-1], run[1], theirs, public_bytes(ours), initiator=False)
    return one, other


# Announcements


@pytest.mark.parametrize("answers", [None, KEY], ids=["opening", "answer"])
def test_an_announcement_is_read_by_the_one_it_is_for(answers, signets):
    body = signets["bank"].announce("clinic", KEY, answers)
    found = signets["clinic"].read("bank", body)
    assert (found.key, found.answers) == (KEY, answers)


def refusal(signets, reader, sender, body):
    with pytest.raises(RemoteProtocolError) as caught:
        signets[reader].read(sender, body)
    assert caught.value.peer == sender
    return caught.value.cause


def changed(body, **changes):
    return msgspec.msgpack.encode(msgspec.structs.replace(msgspec.msgpack.decode(body, type=Announcement), **changes))


def test_an_announcement_to_another_party_or_under_another_name_is_refused(signets):
    body = signets["bank"].announce("clinic", KEY)
    assert "did not sign for us" in refusal(signets, "lab", "bank", body), "redirected"
    assert "not the one in the list of members" in refusal(signets, "clinic", "lab", body), "under another name"
    assert "not the one in the list of members" in refusal(signets, "bank", "clinic", body), "reflected"


def test_a_key_or_an_answer_of_the_relays_own_is_refused(signets):
    body = signets["bank"].announce("clinic", KEY, KEY)
    other = public_bytes(X25519PrivateKey.generate())
    for changes in ({"key": other}, {"answers": other}, {"answers": None}, {"signature": b""}):
        assert "did not sign for us" in refusal(signets, "clinic", "bank", changed(body, **changes))


def test_the_servers_own_certificate_does_not_pass_for_a_partys(signets):
    body = signets["server"].announce("clinic", KEY)
    assert "not the one in the list" in refusal(signets, "clinic", "bank", body)


def test_a_certificate_of_the_same_name_by_the_same_authority_or_another_is_refused(signets, tmp_path):
    throw_away(NAMES, tmp_path / "others")
    forger = Signet(identity(tmp_path / "others", "bank"), read_members(tmp_path / "others" / "members.toml"))
    forger.run = "run 1"
    assert "not the one in the list" in refusal(signets, "clinic", "bank", forger.announce("clinic", KEY))
    swapped = changed(signets["bank"].announce("clinic", KEY), certificate=forger._certificate)
    assert "not the one in the list" in refusal(signets, "clinic", "bank", swapped)


def test_an_announcement_of_another_run_is_refused(signets, folder):
    before = Signet(identity(folder, "bank"), {})
    before.run = "run 0"
    assert "and this run" in refusal(signets, "clinic", "bank", before.announce("clinic", KEY))


def test_a_new_list_counts_at_once(folder, tmp_path):
    home = tmp_path / "renewed"
    shutil.copytree(folder, home)
    signets = {name: Signet(identity(home, name), read_members(home / "members.toml")) for name in NAMES}
    before = signets["bank"].announce("clinic", KEY)
    renew("bank", home)
    signets["bank"].changed(identity(home, "bank"), read_members(home / "members.toml"))
    after = signets["bank"].announce("clinic", KEY)
    assert "not the one in the list" in refusal(signets, "clinic", "bank", after), "the old list"
    signets["clinic"].changed(identity(home, "clinic"), read_members(home / "members.toml"))
    for body in (before, after):
        signets["clinic"].read("bank", body)
    revoke("bank", home)
    signets["clinic"].changed(identity(home, "clinic"), read_members(home / "members.toml"))
    for body in (before, after):
        assert "not the one in the list" in refusal(signets, "clinic", "bank", body)


def test_an_expired_certificate_is_refused(signets, monkeypatch):
    body = signets["bank"].announce("clinic", KEY)
    when = x509.load_der_x509_certificate(signets["bank"]._certificate).not_valid_after_utc

    class Late:
        @staticmethod
        def now(zone):
            return when.replace(year=when.year + 1)

    monkeypatch.setattr("colonnade.drivers.processes.sealing.datetime", Late)
    assert "has expired" in refusal(signets, "clinic", "bank", body)


@given(body=st.binary(max_size=300))
def test_random_bytes_are_refused(body, signets):
    refusal(signets, "clinic", "bank", body)


def test_a_long_or_a_short_announcement_is_refused(signets):
    assert f"{MAX_ANNOUNCEMENT_BYTES + 1} bytes" in refusal(
        signets, "clinic", "bank", bytes(MAX_ANNOUNCEMENT_BYTES + 1)
    )
    for key in (b"", bytes(31), bytes(33)):
        body = changed(signets["bank"].announce("clinic", KEY), key=key)
        assert "cannot be read" in refusal(signets, "clinic", "bank", body)


def test_a_key_of_another_kind_is_refused_at_the_start(folder):
    own = identity(folder, "bank")
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(ConfigError, match="must be a P-256 key"):
        Signet(Identity("bank", pem, own.certificate, own.authority), {})


# Sessions


def test_both_directions_and_no_plaintext():
    one, other = sessions()
    for content in (b"", b"gradient" * 100, bytes(100_000)):
        for sender, receiver in ((one, other), (other, one)):
            frame = sender.seal(content)
            assert len(frame) == len(content) + SEAL_BYTES and (not content or content[:64] not in frame)
            assert receiver.open(frame) == content


def test_the_same_content_never_looks_the_same():
    one, _ = sessions()
    frames = {one.seal(b"same")[8:] for _ in range(50)}
    assert len(frames) == 50 and len({frame[:8] for frame in frames}) == 50, (
        "counters, and so nonces, are never repeated"
    )


def assert_refused(session, frame, cause):
    before = session.opened
    with pytest.raises(RemoteProtocolError, match=cause):
        session.open(frame)
    assert session.opened == before


def test_repeated_and_late_frames_are_refused_and_lost_ones_are_not():
    one, other = sessions()
    first, second, third = (one.seal(bytes([i])) for i in range(3))
    assert other.open(second) == b"\1"
    assert_refused(other, second, "clinic|bank: a sealed frame that is a repetition")
    assert_refused(other, first, "comes too late")
    assert other.open(third) == b"\2"


def test_reflected_and_redirected_frames_are_refused():
    one, other = sessions()
    frame = one.seal(b"mine")
    assert_refused(one, frame, "cannot be decrypted")
    for stranger in sessions():
        assert_refused(stranger, frame, "of another session")
        assert_refused(stranger, stranger.id + frame[8:], "cannot be decrypted")
    assert other.open(frame) == b"mine"


@pytest.mark.parametrize("names", [("bank", "lab"), ("lab", "clinic")])
def test_other_names_over_the_same_keys_do_not_open(names):
    ours, theirs = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    one = Session("bank", "clinic", "run", ours, public_bytes(theirs), initiator=True)
    other = Session(*names[::-1], "run", theirs, public_bytes(ours), initiator=False)
    assert one.id != other.id
    assert_refused(other, other.id + one.seal(b"")[8:], "cannot be decrypted")


def test_another_run_does_not_open():
    one, other = sessions(run=("run", "ruin"))
    assert_refused(other, other.id + one.seal(b"")[8:], "cannot be decrypted")


@given(data=st.data())
def test_a_changed_bit_or_length_is_refused(data):
    one, other = sessions()
    frame = bytearray(one.seal(b"twelve bytes"))
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        frame = frame[: data.draw(st.integers(0, len(frame) - 1))]
    assert_refused(other, bytes(frame), "sealed frame|another session")


def test_a_relay_that_cannot_seal_cannot_advance_a_counter():
    one, other = sessions()
    frame = one.seal(b"one")
    assert_refused(other, frame[:8] + (2**40).to_bytes(8, "little") + frame[16:], "cannot be decrypted")
    assert other.open(frame) == b"one"


def test_a_key_of_low_order_is_refused():
    with pytest.raises(RemoteProtocolError, match="clinic: an invalid key"):
        Session("bank", "clinic", "run", X25519PrivateKey.generate(), bytes(32), initiator=True)
