"""Invitation, request, answer: the way of one party into a federation, and what is refused on it."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade.config.first import Answers, write_first_config
from colonnade.config.schema import from_dict, read_toml
from colonnade.deployment.acceptance import OwnAnswers, Request, accept_answer, accept_invitation
from colonnade.deployment.admission import admit
from colonnade.deployment.invitation import invite
from colonnade.deployment.letter import INVITATION, LARGEST, REQUEST, make_letter, parse_letter, read_letter
from colonnade.drivers.processes import certificates, renewal
from colonnade.drivers.processes.identity import Identity
from colonnade.drivers.processes.members import list_code, read_members
from colonnade.drivers.processes.signing import new_key, short_code, subject
from colonnade.protocol.errors import ConfigError

PARTIES = ("bank", "shop")
NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """The server's folder, as the present one, and a table for each party."""
    home = tmp_path / "server"
    write_first_config(home, Answers("server", PARTIES, "data/y.csv", "nr", "y", more={"model.embedding": 8}))
    for name in PARTIES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text("nr,a,b\n1,2,3\n4,5,6\n")
    monkeypatch.chdir(home)
    return home


def invited(name="shop", **more):
    (made,) = invite(Path("server.toml"), [name], **more)
    return made


def accepted(name="shop", file=None, folder=None, **more):
    letter = read_letter(file or Path(f"{name}.invitation"))
    more = {"data": f"../{name}/t.csv", "id": "nr"} | more
    return accept_invitation(letter, OwnAnswers(**more), folder or Path(f"../{name}"))


def refused(call, *words, **more):
    with pytest.raises(ConfigError) as error:
        call(*words, **more)
    return str(error.value)


def request_of(name, key, **changed):
    """The bytes of a request, as a hostile party might write it."""
    csr = x509.CertificateSigningRequestBuilder(subject(changed.pop("subject", name))).sign(key, hashes.SHA256())
    fields = {"party": name, "release": "0", "csr": csr.public_bytes(Encoding.PEM).decode(), "invitation": ""}
    return make_letter("x", REQUEST, "", Request(**fields | changed), key).data


def test_one_file_each_way(federation):
    for name in PARTIES:
        made = invited(name)
        done = accepted(name)
        assert made.code == done.invitation_code == short_code(made.path.read_bytes())
        assert stat.S_IMODE(Path(f"../{name}/{name}.key").stat().st_mode) == 0o600
    first = admit([Path("../bank/bank.request")], Path("server.toml"))
    assert first.missing == ("shop",) and not list(Path().glob("*.answer"))
    second = admit([Path("../shop/shop.request")], Path("server.toml"))
    assert set(second.answers) == set(PARTIES) and second.admitted[0].code == done.request_code
    codes = {second.members_code}
    for name in PARTIES:
        installed = accept_answer(read_letter(second.answers[name]), Path(f"../{name}"))
        codes.add(installed.members_code)
        home = Path(f"../{name}")
        assert Identity.load(home / f"{name}.pem", home / f"{name}.key", home / "ca.pem").name == name
        assert (home / "members.toml").read_bytes() == Path("federation/members.toml").read_bytes()
    assert len(codes) == 1, "all members see the same code"
    server, shop = (from_dict(read_toml(path)) for path in ("server.toml", "../shop/shop.toml"))
    assert shop.model == server.model and shop.model.embedding == 8
    assert shop.party.data == "t.csv", "the path starts in the party's folder"
    assert "# the column with the ids" in Path("../shop/shop.toml").read_text()


def test_a_party_in_the_servers_folder_needs_no_answer(federation):
    for name in PARTIES:
        invited(name)
    accepted("bank", folder=Path())
    accepted("shop")
    done = admit([Path("bank.request"), Path("../shop/shop.request")], Path("server.toml"))
    assert done.installed == ("bank",) and list(done.answers) == ["shop"]
    assert Path("bank.pem").exists() and Path("members.toml").exists() and not Path("bank.answer").exists()


def test_the_answers_are_written_again_when_the_list_changes(federation):
    for name in PARTIES:
        invited(name)
        accepted(name)
    files = [Path(f"../{name}/{name}.request") for name in PARTIES]
    admit(files, Path("server.toml"))
    accept_answer(read_letter(Path("shop.answer")), Path("../shop"))
    before = Path("federation/bank.pem").read_bytes()
    assert admit(files, Path("server.toml")).admitted and Path("federation/bank.pem").read_bytes() == before
    certificates.sign(Path("federation/bank.csr"), Path("federation"), renew=True)
    assert not admit([], Path("server.toml")).admitted
    assert accept_answer(read_letter(Path("shop.answer")), Path("../shop")).changes == {"bank": "another certificate"}


def test_answers_carry_renewals_and_revocations(federation):
    home = Path("federation")
    for name in PARTIES:
        invited(name)
        accepted(name)
    files = [Path(f"../{name}/{name}.request") for name in PARTIES]
    admit(files, Path("server.toml"))
    renewal.renew("shop", home)
    renewal.renew_authority(home)
    admit([], Path("server.toml"))
    done = accept_answer(read_letter(Path("shop.answer")), Path("../shop"))
    listed = read_members(home / "members.toml")
    assert read_members(Path("../shop/members.toml")).tables() == listed.tables() and len(listed.all_of("shop")) == 2
    assert Path("../shop/ca.pem").read_bytes() == (home / "ca.pem").read_bytes(), "the renewed authority"
    assert done.members_code == list_code(listed)

    renewal.revoke("bank", home)
    Path("bank.answer").unlink()
    again = admit([], Path("server.toml"))
    assert again.missing == () and "bank" not in again.answers
    accept_answer(read_letter(Path("shop.answer")), Path("../shop"))
    assert read_members(Path("../shop/members.toml")).revoked == read_members(home / "members.toml").revoked != {}
    before = (home / "members.toml").read_bytes()
    said = refused(admit, files, Path("server.toml"))
    assert "has the key of a certificate that was revoked" in said and (home / "members.toml").read_bytes() == before


def test_every_changed_byte_is_noticed(federation):
    data = invited().path.read_bytes()
    for place in range(0, len(data), 7):
        for changed in (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place] + data[place + 1 :]):
            with pytest.raises(ConfigError):
                accept_invitation(parse_letter(changed, "x"), OwnAnswers("../shop/t.csv", "nr"), Path("../shop"))
    edited = data.replace(b"embedding = 8", b"embedding = 9")
    assert edited != data
    Path("e").write_bytes(edited)
    assert "was changed after it was signed" in refused(accepted, file=Path("e"))
    Path("e").write_bytes(data + b"\n")
    assert "was changed after it was signed" in refused(accepted, file=Path("e"))
    Path("e").write_bytes(data[: len(data) // 2])
    assert "was changed after it was signed" in refused(accepted, file=Path("e"))
    assert sorted(path.name for path in Path("../shop").iterdir()) == ["t.csv"], "nothing was written"


def test_files_that_are_no_letters(federation):
    data = invited().path.read_bytes()
    Path("newer").write_bytes(data.replace(b"invitation 1\n", b"invitation 2\n"))
    assert "has format 2; release" in refused(accepted, file=Path("newer"))
    Path("huge").write_bytes(data + b"#" * LARGEST)
    assert "is larger than 1 MB" in refused(accepted, file=Path("huge"))
    assert "is not an invitation, a request or an answer" in refused(accepted, file=Path("../shop/t.csv"))
    assert "there is no such file" in refused(accepted, file=Path("none"))
    assert "there is no such file" in refused(accepted, file=Path("federation")), "a folder"
    deep = b"# colonnade invitation 1\nparty = " + b"[" * 100_000 + b"\n# signature 3045022067890a7f\n"
    Path("deep").write_bytes(deep)
    assert "was changed" in refused(accepted, file=Path("deep"))
    key = new_key()
    Path("empty").write_bytes(make_letter("empty", INVITATION, "", Request("shop", "0", "", ""), key).data)
    assert "is not valid: Object" in refused(accepted, file=Path("empty"))


def test_expired_or_from_the_future(federation):
    old = invited(now=NOW - timedelta(days=15), days=14)
    assert "expired on" in refused(accepted, file=old.path)
    renewal.renew_server(Path("federation"))
    ahead = invited(now=NOW + timedelta(days=1))
    assert "set the clock" in refused(accepted, file=ahead.path)


def test_an_invitation_for_another_party_or_federation(federation, tmp_path, monkeypatch):
    for name in PARTIES:
        invited(name)
    accepted("shop")
    said = refused(accepted, "bank", folder=Path("../shop"))
    assert "is the folder of the party shop, but the invitation is for bank" in said
    assert "already has an accepted invitation" in refused(accepted, "shop")
    assert "is not in network.parties" in refused(invited, "lab")
    assert "is reserved" in refused(invited, "ca")
    other = tmp_path / "other"
    write_first_config(other, Answers("server", PARTIES, "data/y.csv", "nr", "y"))
    monkeypatch.chdir(other)
    invited()
    for path in ("shop.toml", "shop.key", "shop.request"):
        (tmp_path / "shop" / path).unlink()
    assert "belongs to another federation" in refused(accepted, "shop")


def test_code_in_the_config_needs_trust(federation):
    text = Path("server.toml").read_text().replace('server = "linear"', 'server = "evil.models:Top"')
    Path("server.toml").write_text(text)
    assert "add --trust evil.models" in refused(invited)
    made = invited(trusted=["evil.models"])
    assert "add --trust evil.models" in refused(accepted, file=made.path)
    assert not Path("../shop/shop.toml").exists()


def test_the_table_must_fit(federation):
    invited()
    assert "there is no file" in refused(accepted, data="nowhere.csv")
    assert "party.id = 'client': no such column" in refused(accepted, id="client")
    assert "no column 'z'" in refused(accepted, more={"party.columns": ["a..z"]})
    assert "party.categorical = 'c'" in refused(accepted, more={"party.categorical": ["c"]})
    Path("new.csv").write_text("nr,a\n9,9\n")
    assert "new.csv has no column b" in refused(accepted, predict_data="new.csv")
    assert "only the server holds the labels" in refused(accepted, label="a")
    assert "only the federation sets it" in refused(accepted, more={"model.embedding": 3})
    assert [path.name for path in Path("../shop").iterdir()] == ["t.csv"]


def test_requests_that_are_refused(federation, tmp_path):
    for name in PARTIES:
        invited(name)
        accepted(name)
    config, key = Path("server.toml"), new_key()
    invitation = Path("shop.invitation").read_text()
    hostile = {
        "names 'bank', and its key is for 'bank', but the invitation is for 'shop'": request_of(
            "bank", key, invitation=invitation
        ),
        "names 'bank', and its key is for 'shop'": request_of("bank", key, subject="shop", invitation=invitation),
        "has no valid signing request": request_of("shop", key, csr="x", invitation=invitation),
        "is not an invitation, a request": request_of("shop", key, invitation="x"),
        "is a request, not an invitation": request_of(
            "shop", key, invitation=request_of("shop", key, invitation=invitation).decode()
        ),
    }
    for words, data in hostile.items():
        Path("x.request").write_bytes(data)
        assert words in refused(admit, [Path("x.request")], config)
    good = Path("../shop/shop.request")
    Path("x.request").write_bytes(good.read_bytes().replace(b'party = "shop"', b'party = "shap"'))
    assert "was changed" in refused(admit, [Path("x.request")], config)
    assert "two requests have this name" in refused(admit, [good, good], config)
    assert "is an invitation, not a request" in refused(admit, [Path("shop.invitation")], config)
    assert sorted(path.name for path in Path("federation").glob("*.pem")) == ["ca.pem", "server.pem"], "none was signed"

    admit([good], config)
    Path("x.request").write_bytes(request_of("shop", key, invitation=invitation))
    together = [Path("../bank/bank.request"), Path("x.request")]
    assert "was admitted with another key" in refused(admit, together, config)
    assert not Path("federation/bank.pem").exists(), "all requests are checked before one is signed"
    assert admit([Path("x.request")], config, renew=True).admitted[0].party == "shop"
    admit([good], config, renew=True)
    text = config.read_text()
    config.write_text(text.replace("embedding = 8", "embedding = 4"))
    assert "has changed since the invitation (model.embedding: 8 there, 4 here)" in refused(admit, [good], config)
    config.write_text(text.replace('["bank", "shop"]', '["bank"]'))
    assert "'shop' is not in network.parties" in refused(admit, [good], config)
    config.write_text(text)
    assert "expired on" in refused(admit, [good], config, now=NOW + timedelta(days=15))


def test_answers_that_are_refused(federation, tmp_path, monkeypatch):
    for name in PARTIES:
        invited(name)
        accepted(name)
    admit([Path(f"../{name}/{name}.request") for name in PARTIES], Path("server.toml"))
    shop = Path("../shop")
    data = Path("shop.answer").read_bytes()
    assert "is not the folder of the party bank" in refused(accept_answer, read_letter(Path("bank.answer")), shop)
    changed = data.replace(b'release = "', b'release = "9', 1)
    assert "was changed" in refused(accept_answer, parse_letter(changed, "x"), shop)
    assert "is an invitation, not an answer" in refused(accept_answer, read_letter(Path("shop.invitation")), shop)
    (shop / "shop.key").chmod(0o644)
    assert "other users can read this private key" in refused(accept_answer, read_letter(Path("shop.answer")), shop)
    (shop / "shop.key").chmod(0o600)
    own = (shop / "shop.key").read_bytes()
    (shop / "shop.key").write_bytes((tmp_path / "bank/bank.key").read_bytes())
    assert "a certificate for another key" in refused(accept_answer, read_letter(Path("shop.answer")), shop)
    (shop / "shop.key").write_bytes(own)

    other = tmp_path / "other"
    write_first_config(other, Answers("server", PARTIES, "data/y.csv", "nr", "y"))
    monkeypatch.chdir(other)
    for name in PARTIES:
        invited(name)
        accepted(name, folder=Path(name))
    admit([Path(f"{name}/{name}.request") for name in PARTIES], Path("server.toml"))
    foreign = read_letter(Path("shop.answer"))
    assert "is an answer of another federation" in refused(accept_answer, foreign, Path("../shop"))
    assert not (tmp_path / "shop/members.toml").exists()


def test_an_address_that_no_party_can_dial(federation):
    text = Path("server.toml").read_text()
    Path("server.toml").write_text(text.replace("127.0.0.1:7450", "0.0.0.0:7450"))
    assert "add --address HOST:PORT" in refused(invited)
    invited(address="train.example.org:7450")
    accepted()
    assert read_toml("../shop/shop.toml")["network"]["address"] == "train.example.org:7450"


def test_the_authority_is_the_configs(federation):
    assert "the config names another authority" in refused(invited, dir=Path("elsewhere"))
    invited()
    Path("federation/ca.key").unlink()
    assert "ca.key" in refused(invited)
