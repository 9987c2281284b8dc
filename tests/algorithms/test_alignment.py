"""Alignment in the simulator: the plain intersection in one secret order, the messages, and broken rules."""

import hashlib

import msgspec
import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.algorithms.alignment import PAYLOADS, AligningParty, AligningServer
from colonnade.algorithms.alignment.matching import match
from colonnade.algorithms.alignment.messages import (
    BeginAlignment,
    Declare,
    Done,
    Places,
    Points,
    Raised,
    Secret,
    Trouble,
)
from colonnade.data import IdRules, clean_ids
from colonnade.data.alignment import normalise
from colonnade.drivers.simulator import ClockConfig
from colonnade.drivers.simulator.engine import Simulator
from colonnade.privacy.blinding import DOMAIN, Blinder
from colonnade.privacy.hash_to_curve import hash_to_curve
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import DataError, LocalProtocolError
from colonnade.protocol.events import PeerJoined, Received, Resumed, Send, Started

DROP = IdRules(duplicates="drop", empty="drop")


def ids_of(texts, rules=DROP, whose="bank"):
    return clean_ids(polars.Series("id", texts, polars.String), rules, whose)


class Aligned:
    """Run the simulator and record every message."""

    def __init__(self, tables, rules=DROP, seed=0, chunk=3, party=AligningParty, liar=None, clock=None, least=0):
        self.tables = tables
        ids = {name: ids_of(texts, rules, name) for name, texts in tables.items()}
        own = ids.pop("server", None)
        self.server = AligningServer(tuple(ids), own, chunk, least)
        parties = [(liar if name == "shop" and liar else party)(name, one, chunk) for name, one in ids.items()]
        self.roles = {role.name: role for role in (self.server, *parties)}
        self.records, self.heard = [], []  # (receiver, sender, message)
        self.simulator = Simulator(
            self.roles.values(), Codec(PAYLOADS), clock or ClockConfig(), seed, peers=True, check=True,
            on_emit=lambda record, _: self.records.append(record), on_event=self._hear,
        )  # fmt: skip
        self.status = self.simulator.run()

    def _hear(self, time, receiver, event):
        if isinstance(event, Received):
            self.heard.append((receiver, event.sender, event.message))

    def orders(self):
        """Every member's own ids, in the common order."""
        members = {name: getattr(role, "member", None) for name, role in self.roles.items()}
        rows = {name: one.aligned.rows for name, one in members.items() if one is not None}
        return {name: [self.tables[name][row] for row in found] for name, found in rows.items()}


def tables(*sizes, server=None, of=40, seed=0):
    generator = np.random.default_rng(seed)
    names = ["bank", "shop", "insurer", "clinic"][: len(sizes)] + (["server"] if server else [])
    return {
        name: [f"P{one:02}" for one in generator.permutation(of)[:size]]
        for name, size in zip(names, (*sizes, *([server] if server else [])), strict=True)
    }


POOL = [
    "7",
    "07",
    "007",
    " 7",
    "",
    "  ",
    "caf\u00e9",
    "cafe\u0301",
    "CAFÉ",
    "\ufb01",
    "fi",
    "ß",
    "SS",
    "名",
    "a b",
    "0",
]
TEXTS = st.one_of(st.sampled_from(POOL), st.text(max_size=3), st.none())
RULES = st.builds(
    IdRules,
    unicode=st.sampled_from(["NFC", "NFKC", "keep"]),
    trim=st.booleans(),
    case=st.sampled_from(["keep", "fold"]),
    leading_zeros=st.sampled_from(["keep", "drop"]),
    duplicates=st.just("drop"),
    empty=st.just("drop"),
)
NAMES = ["bank", "shop", "insurer", "server"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True).filter(lambda names: names != ["server"]),
    st.data(),
    RULES,
    st.integers(0, 2**20),
)
def test_it_is_the_plain_intersection(names, data, rules, seed):
    found = {name: data.draw(st.lists(TEXTS, max_size=12), label=name) for name in sorted(names, key=NAMES.index)}
    plain = {
        name: {text for text in (normalise(text or "", rules) for text in texts) if text.strip()}
        for name, texts in found.items()
    }
    if not all(plain.values()):
        with pytest.raises(DataError, match="rows has an id in column 'id'"):
            Aligned(found, rules)
        return
    run = Aligned(found, rules, seed)
    common = set.intersection(*plain.values())
    assert run.status == "finished" and run.server.state.matched.size == len(common)
    if not common:
        sizes = ", ".join(f"{name} {len(ids)}" for name, ids in plain.items())
        assert run.server.refusal.startswith(f"no id is in all tables; ids: {sizes}. ") and not run.records
        return
    orders = {name: [normalise(text, rules) for text in order] for name, order in run.orders().items()}
    assert set(orders) == set(names) and run.server.refusal == ""
    assert all(order == orders[names[0]] for order in orders.values())
    assert sorted(orders[names[0]]) == sorted(common)
    assert len(run.records) == len(names) and len({record.sha256 for record in run.records}) == 1


def test_the_order_is_secret_and_another_one_each_time():
    held = tables(30, 30)
    first, again, other = (Aligned(held, seed=seed).orders()["bank"] for seed in (0, 0, 1))
    assert first == again != other and sorted(first) == sorted(other)
    assert first != sorted(first) and first != [text for text in held["bank"] if text in first]


def test_the_server_is_told_which_member_has_which_row():
    run = Aligned(tables(30, 25, server=20))
    mine = next(record for record in run.records if record.presence is not None)
    assert mine.presence.shape == (len(mine.rows), 3) and mine.presence.all()
    assert run.server.summary()["ids"] == {"server": 20, "bank": 30, "shop": 25}


def test_rows_that_only_some_have_for_members_that_allow_it():
    """The server can say which party has which row. How training uses that is tested elsewhere."""
    points = {text: Blinder(bytes(32)).hashed([text]) for text in "abcde"}
    sets = ["abc", "bcd", "ce"]
    matched = match(["x", "y", "z"], [np.concatenate([points[text] for text in one]) for one in sets], 2)
    places = [dict(zip(one, places.tolist(), strict=True)) for one, places in zip(sets, matched.places, strict=True)]
    assert matched.size == 2 and places[0]["a"] == places[1]["d"] == places[2]["e"] == -1
    assert places[0]["b"] == places[1]["b"] and places[0]["c"] == places[1]["c"] == places[2]["c"]
    assert matched.presence[places[0]["b"]].tolist() == [True, True, False]
    assert matched.presence[places[0]["c"]].tolist() == [True, True, True]


def test_points_that_begin_alike_are_compared_as_a_whole():
    """A member that lies can send points with equal first bytes."""
    points = np.zeros((6, 32), np.uint8)
    points[:, 31] = [0, 1, 2, 1, 3, 0]
    matched = match(["x", "y"], [points[:3], points[3:]], 2)
    places = [one.tolist() for one in matched.places]
    assert matched.size == 2 and not matched.repeats
    assert places[0][0] == places[1][2] >= 0 and places[0][1] == places[1][0] >= 0
    assert places[0][2] == places[1][1] == -1
    assert match(["x", "y"], [points[:3], points[[3, 4, 3]]], 2).repeats == "y sends 1 ids more than once"


@pytest.mark.parametrize("least", [1, 2, 3])
def test_rows_that_the_server_and_some_parties_have(least):
    held = tables(20, 15, 25, server=30)
    run = Aligned(held, least=least)
    mine = next(record for record in run.records if record.presence is not None)
    rows = {name: role.member.aligned.rows for name, role in run.roles.items()}
    ids = [held["server"][row] for row in rows["server"]]
    have = {id: [id in held[name] for name in ("bank", "shop", "insurer")] for id in held["server"]}
    assert (mine.rows >= 0).all() and sorted(ids) == sorted(id for id in ids if sum(have[id]) >= least)
    assert len(ids) == sum(sum(who) >= least for who in have.values())
    assert [present[:3].tolist() for present in mine.presence] == [have[id] for id in ids]
    for place, name in enumerate(("bank", "shop", "insurer")):
        found = [held[name][row] if row >= 0 else None for row in rows[name]]
        assert found == [id if have[id][place] else None for id in ids]


# What crosses


def test_only_raised_points_cross_and_never_an_id_or_a_hash_of_one():
    held = tables(30, 28, 26, server=25)
    run = Aligned(held)
    assert {type(message) for _, _, message in run.heard} == {
        Declare,
        BeginAlignment,
        Secret,
        Points,
        Raised,
        Places,
        Done,
    }
    texts = sorted(set().union(*held.values()))
    codec = Codec(PAYLOADS)
    said = b"".join(bytes(codec.encode(message)) for _, _, message in run.heard)
    bare = hash_to_curve([text.encode() for text in texts], DOMAIN)
    for text, point in zip(texts, bare, strict=True):
        hashes = [hashlib.new(name, text.encode()).digest() for name in ("sha256", "sha1", "md5", "sha512", "blake2b")]
        for secret in (text.encode(), point.tobytes(), *hashes, *(one.hex().encode() for one in hashes)):
            assert secret not in said
    bank = run.roles["bank"].member
    raised = bank._blinder.hashed(held["bank"])
    assert all(point.tobytes() in said for point in raised)  # the search would have found them


def test_only_the_server_sees_a_set_that_all_have_raised():
    run = Aligned(tables(30, 28, 26, server=25))
    whole = [(receiver, m.owner) for receiver, _, m in run.heard if isinstance(m, Points) and m.hops == 4]
    assert {receiver for receiver, _ in whole} == {"server"}  # a party that had two of them could compare them
    assert {owner for _, owner in whole} == {"shop", "insurer", "server"}  # the server raises the bank's set last
    places = {(receiver, m.owner) for receiver, _, m in run.heard if isinstance(m, Places)}
    assert {pair for pair in places if pair[1] != "server"} == {("bank",) * 2, ("shop",) * 2, ("insurer",) * 2}


def test_no_party_ever_holds_two_sets_that_could_be_compared():
    run = Aligned(tables(30, 28, 26, 24, server=25))
    ring = run.server.ring
    for name in ring.members[:-1]:
        held = {name: {frozenset([name])}}  # by owner: the members that have raised what this party received
        for receiver, _, message in run.heard:
            if receiver == name and isinstance(message, Points):
                exponents = frozenset(ring.path(message.owner)[: message.hops])
                held.setdefault(message.owner, set()).update([exponents, exponents | {name}])
        every = [exponents for sets in held.values() for exponents in sets]
        assert len(held) == 5 and len(every) == len(set(every)) == 9


def test_the_secret_of_the_order_is_not_told_to_a_server_without_ids():
    run = Aligned(tables(30, 28, 26))
    assert {receiver for receiver, _, m in run.heard if isinstance(m, Secret)} == {"shop", "insurer"}


def test_the_servers_own_ids_come_back_in_an_order_that_it_does_not_know():
    run = Aligned(tables(30, 28, server=25), chunk=100)
    server, parties = run.server.member, [run.roles[name].member for name in ("bank", "shop")]
    own = server._blinder.hashed([run.tables["server"][place] for place in server._own_order()])
    for party in parties:
        own = party._blinder.raised(own)
    (seen,) = (m.points for _, _, m in run.heard if isinstance(m, Points) and (m.owner, m.hops) == ("server", 3))
    in_order = {point.tobytes(): place for place, point in enumerate(own)}
    order = [in_order[point.tobytes()] for point in seen]
    assert sorted(order) == list(range(25)) and order != list(range(25))
    once = parties[0]._mixing_order()[parties[1]._mixing_order()]
    assert order == once.tolist()  # every party has shuffled it: one honest party is enough


# Parties that break the rules


def lying(change):
    """A shop that departs from its role."""

    class Liar(AligningParty):
        def handle(self, event, now):
            effects = []
            for effect in super().handle(event, now):
                if isinstance(effect, Send):
                    messages = change(effect.message) or [effect.message]
                    effects += [Send(effect.to, message) for message in messages]
                else:
                    effects.append(effect)
            return effects

    return Liar


def own_points(kind):
    """Tampers with the last piece of the shop's own set."""

    def change(message):
        if not (isinstance(message, Points) and message.owner == "shop" and message.last):
            return None
        points = message.points
        if kind == "more":
            return [msgspec.structs.replace(message, points=np.concatenate([points, points]))]
        if kind == "more, later":
            more = msgspec.structs.replace(message, start=message.start + len(points))
            return [msgspec.structs.replace(message, last=False), more]
        if kind == "fewer":
            return [msgspec.structs.replace(message, points=points[:-1])]
        if kind == "twice":
            return [msgspec.structs.replace(message, points=np.repeat(points[:1], len(points), axis=0))]
        if kind == "no points":
            return [msgspec.structs.replace(message, points=np.full_like(points, 255))]
        if kind == "another shape":
            return [msgspec.structs.replace(message, points=points[:, :31])]
        if kind == "a gap":
            return [msgspec.structs.replace(message, start=message.start + 1)]
        return [msgspec.structs.replace(message, owner="bank")]

    return change


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("more", "shop sends more ids of shop than the 20 that it declared"),
        ("more, later", "shop sends more ids of shop than the 20 that it declared"),
        ("fewer", "shop sends 19 ids of shop, fewer than the 20 that it declared"),
        ("twice", "shop sends 1 ids more than once"),
        ("no points", "shop sends ids that are not points of the curve"),
        ("another shape", "shop sends ids of a wrong type or shape"),
        ("a gap", "shop sends ids of shop out of order"),
        ("another owner", "shop sends ids out of turn"),
    ],
)
@pytest.mark.parametrize("others", [(30,), (30, 25)], ids=["two", "three"])
def test_a_party_that_breaks_the_rules_is_named(kind, cause, others):
    held = dict(zip(["bank", "shop", "insurer"], tables(30, 20, 25).values(), strict=True))
    if len(others) == 1:
        del held["insurer"]
    run = Aligned(held, liar=lying(own_points(kind)))
    assert run.status == "finished" and cause in run.server.refusal and not run.records


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda m: [Declare(0)] if isinstance(m, Declare) else None, "shop declares 0 ids"),
        (
            lambda m: [m, m] if isinstance(m, Declare) else None,
            "shop declares 20 ids; each party declares 1 or more ids, once",
        ),
        (
            lambda m: [Raised(1), m] if isinstance(m, Declare) else None,
            "shop sends Raised before all members are connected",
        ),
        (lambda m: [Done("00" * 32)] if isinstance(m, Done) else None, "the members computed different row orders"),
        (lambda m: [Secret(bytes(32))] if isinstance(m, Points) else None, "shop sends a secret out of turn"),
        (lambda m: [Trouble("bank", "sings")] if isinstance(m, Raised) else None, "shop reports: bank sings"),
    ],
    ids=["declares none", "declares twice", "begins early", "another digest", "own secret", "accuses"],
)
def test_other_lies(change, cause):
    run = Aligned(tables(30, 20), liar=lying(change))
    assert cause in run.server.refusal


def test_a_server_that_gives_wrong_places_is_found_out():
    party = AligningParty("bank", ids_of(["a", "b"]), 3)
    others = {"sender": "server"}
    begun = BeginAlignment(("bank", "shop"), (2, 2))

    def told(*messages):
        role = AligningParty("bank", ids_of(["a", "b"]), 3)
        Simulator([AligningServer(("bank",), None, 3), role], Codec(PAYLOADS), ClockConfig(), 0).run()
        effects = []
        for message in (begun, *messages):
            effects += role.handle(Received(others["sender"], message), 0)
        return [effect.message for effect in effects if isinstance(effect, Send)][-1]

    def places(*values, size=1, start=0, last=True):
        return Places("bank", size, start, last, np.array(values, np.int32))

    for wrong in (
        places(0, 1),
        places(-2, 0),
        places(0, size=2),
        places(0, 0, 0),
        places(0, 0),
        Places("shop", 1, 0, True, places(0, 0).places),
    ):
        assert isinstance(told(wrong), Trouble) and told(wrong).member == "server"
    assert told(msgspec.structs.replace(begun, counts=(3, 2))) == Trouble(
        "server", "starts an alignment that does not fit this party"
    )
    assert party.summary() == {"weights": "", "ids": 2}


# Joining and leaving


def test_a_party_that_starts_again_before_all_are_here_declares_again():
    server = AligningServer(("bank", "shop"), None, 3)
    assert server.handle(Received("bank", Declare(5)), 0) == [] and server.waits_for() == ["shop"]
    server.handle(PeerJoined("bank", reset=True), 0)
    assert server.waits_for() == ["bank", "shop"]
    server.handle(Received("bank", Declare(6)), 0)
    begun = server.handle(Received("shop", Declare(2)), 0)
    assert [(effect.to, effect.message.counts) for effect in begun] == [("bank", (6, 2)), ("shop", (6, 2))]
    server.handle(PeerJoined("shop", reset=True), 0)
    assert server.refusal == "shop restarted in the middle of the alignment; run colonnade align again on every member"


def test_the_whole_state_is_saved():
    """Every role is saved, discarded and rebuilt after every event; the run stays the same."""

    class Forgetful(AligningParty):
        def handle(self, event, now):
            effects = super().handle(event, now)
            saved = state.unpack(state.pack(self.save()))
            key, blinder, made_from = self.member._key, self.member._blinder, (self.name, self._ids, self._chunk)
            vars(self).clear()
            self.__init__(*made_from)
            self.load(saved)
            self.member._key, self.member._blinder = key, blinder  # no state contains these
            assert state.pack(self.save()) == state.pack(saved)
            return effects

        def __init__(self, name, ids, chunk):
            super().__init__(name, ids, chunk)
            self._ids, self._chunk = ids, chunk

    held = tables(30, 28, server=25)
    plain, forgetful = Aligned(held), Aligned(held, party=Forgetful)
    assert plain.simulator.trace.hexdigest == forgetful.simulator.trace.hexdigest
    saved = state.unpack(state.pack(plain.server.save()))
    again = AligningServer(("bank", "shop"), ids_of(held["server"]), 3)
    again.load(saved)
    assert state.pack(again.save()) == state.pack(plain.server.save())
    assert again.done == plain.server.done == (3 * (30 + 28 + 25),) * 2


def test_what_comes_before_the_beginning_waits_for_it_in_the_state():
    points, secret = Points("bank", 1, 0, True, Blinder(bytes(32)).hashed(["a", "c"])), Secret(b"s" * 32)
    early, again = (AligningParty("shop", ids_of(["a", "b"]), 3) for _ in range(2))
    early.handle(Started(bytes(32)), 0)
    assert [early.handle(Received("bank", message), 0) for message in (points, secret)] == [[], []]
    again.load(state.unpack(state.pack(early.save())))
    again.handle(Resumed(bytes(32)), 0)
    again.handle(Received("server", BeginAlignment(("bank", "shop"), (2, 2))), 0)
    assert again.state.early == [] and again.member.seed == secret.seed and again.member.taken == {"bank": 2}
    refused = [Send("server", Trouble("bank", "sends Raised to a member"))]
    assert early.handle(Received("bank", Raised(1)), 0) == refused


def test_links_that_lose_and_delay_change_nothing_but_the_time():
    clock = msgspec.convert({"network": {"latency_s": 0.3, "bandwidth_mbps": 0.01}}, ClockConfig)
    held = tables(30, 28, 26, server=25)
    assert Aligned(held, clock=clock).orders() == Aligned(held).orders()


def test_an_unknown_event():
    with pytest.raises(LocalProtocolError, match="no rule"):
        AligningParty("bank", ids_of(["a"]), 3).handle(object(), 0)
