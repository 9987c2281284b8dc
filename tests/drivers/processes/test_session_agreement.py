"""Two parties agree on a session while the relay loses, repeats and delays messages."""

import itertools

import pytest

from colonnade.drivers.processes import session_agreement
from colonnade.drivers.processes.certificates import Identity, read_members, throw_away
from colonnade.drivers.processes.sealing import Session, Signet
from colonnade.drivers.processes.session_agreement import SessionAgreement
from colonnade.protocol.errors import RemoteProtocolError

NAMES = ("bank", "lab")


@pytest.fixture(scope="module")
def signets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(NAMES, folder)
    members = read_members(folder / "members.toml")
    return [
        Signet(Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem"), members)
        for name in NAMES
    ]


@pytest.fixture
def pair(signets):
    """The bank opens, the lab answers."""
    opener, answerer = SessionAgreement(signets[0], "lab"), SessionAgreement(signets[1], "bank")
    assert opener.opens and not answerer.opens
    return opener, answerer


def agree(opener, answerer):
    """Both directions, and the first sealed message."""
    opening = opener.open()
    answer = answerer.answer(memoryview(opening))
    assert opener.take_answer(memoryview(answer))
    assert answerer.read(memoryview(opener.session.seal(b"hello"))) == b"hello"
    return opening, answer


def says(one, other, content=b"word"):
    return other.read(memoryview(one.session.seal(content))) == content


def test_they_agree_and_talk_both_ways(pair):
    agree(*pair)
    assert says(*pair) and says(*pair[::-1])


def test_the_same_opening_has_the_same_answer_until_it_is_used(pair):
    opener, answerer = pair
    opening = opener.open()
    answers = {answerer.answer(memoryview(opening)) for _ in range(3)}
    assert len(answers) == 1 and answerer.session is None, "nothing was heard in it yet"


def test_a_kept_opening_ends_nothing_and_its_session_is_another(pair):
    opener, answerer = pair
    old, _ = agree(opener, answerer)
    used = answerer.session
    agree(opener, answerer)
    in_use = answerer.session
    answer = answerer.answer(memoryview(old))
    assert answerer.session is in_use and says(opener, answerer)
    assert not opener.take_answer(memoryview(answer)), "no party has that key any more"
    assert answerer._offer.session.id not in (used.id, in_use.id), "no key serves two sessions"


def test_an_answer_is_taken_once(pair):
    opener, answerer = pair
    _, answer = agree(opener, answerer)
    session = opener.session
    assert not opener.take_answer(memoryview(answer)) and opener.session is session
    late = answerer.answer(memoryview(opener.open()))
    newer = opener.open()
    assert not opener.take_answer(memoryview(late)), "it answers the opening before"
    assert opener.take_answer(memoryview(answerer.answer(memoryview(newer))))


def test_frames_of_a_session_that_is_over_are_told_from_bad_ones(pair):
    opener, answerer = pair
    agree(opener, answerer)
    old = opener.session.seal(b"late")
    agree(opener, answerer)
    assert answerer.read(memoryview(old)) is None
    bad = bytearray(opener.session.seal(b"word"))
    bad[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="cannot be decrypted"):
        answerer.read(memoryview(bad))
    assert answerer.read(memoryview(b"")) is None and answerer.read(memoryview(b"x")) is None
    with pytest.raises(RemoteProtocolError, match="a sealed frame of 8 bytes"):
        answerer.read(memoryview(answerer.session.id))


def test_a_bad_frame_does_not_use_up_an_offer(pair):
    opener, answerer = pair
    opening = opener.open()
    opener.take_answer(memoryview(answerer.answer(memoryview(opening))))
    with pytest.raises(RemoteProtocolError):
        answerer.read(memoryview(opener.session.id + bytes(40)))
    assert answerer.session is None and says(opener, answerer) and answerer.session is not None


def test_no_key_and_counter_come_twice_whatever_is_replayed(pair, monkeypatch):
    """All sealing of the answerer, over every order in which old and new openings may come."""
    monkeypatch.setattr(session_agreement, "BURST_S", 0.0)
    opener, answerer = pair
    used = []
    seal = Session.seal

    def watched(self, content):
        frame = seal(self, content)
        used.append((self._to, frame[:16]))
        return frame

    monkeypatch.setattr(Session, "seal", watched)
    openings = [agree(opener, answerer)[0] for _ in range(3)]
    for order in itertools.permutations(openings):
        for old in order:
            answerer.answer(memoryview(old))
            answerer.session.seal(b"x")
        openings.append(agree(opener, answerer)[0])
        answerer.session.seal(b"x")
    assert len(used) == len(set(used)) > 20, "direction, session and counter"


def test_openings_are_not_answered_too_often(pair):
    opener, answerer = pair
    for _ in range(session_agreement.BURST):
        answerer.answer(memoryview(opener.open()))
    with pytest.raises(RemoteProtocolError, match="bank: too many openings"):
        answerer.answer(memoryview(opener.open()))
