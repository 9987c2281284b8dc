"""`colonnade init`: its files work with certs, align, serve and join, as people would type them."""

import asyncio
import io
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.algorithms import METHODS
from colonnade.cli.main import app
from colonnade.config.first import Answers, write_first_config
from colonnade.config.schema import apply_overrides, from_dict, read_toml
from colonnade.deployment.alignment import aligning_host
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import ConfigError

PARTIES = ("bank", "shop")
FIVE = (*PARTIES, "clinic", "lab", "insurer")  # some methods need more than two
FLAGS = {
    "server": ["--data", "data/labels.csv", "--id", "customer", "--label", "default"],
    "bank": ["--data", "data/bank.csv", "--id", "customer"],
    "shop": ["--data", "data/shop.csv", "--id", "member"],
}


@pytest.fixture
def type_in(monkeypatch, tmp_path):
    """Type a command in a folder; return its output."""

    def call(folder, line, keys=None):
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.setattr("colonnade.cli.questions.at_a_terminal", lambda: keys is not None)
        result = CliRunner().invoke(app, line.split()[1:], input=keys, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def tables(folder):
    """The shop has fewer customers, calls the id column differently, and formats ids differently."""
    people = range(120)
    labels = [f"{one:04},{'yes' if one % 3 else 'no'}" for one in people if one % 10]
    bank = [f" {one:04},{one % 7},{one % 3}" for one in reversed(people)]
    shop = [f"{one:04},{one % 5}" for one in people if one < 100]
    for name, lines in (
        ("server/data/labels.csv", ["customer,default", *labels]),
        ("bank/data/bank.csv", ["customer,income,region", *bank]),
        ("shop/data/shop.csv", ["member,visits", *shop]),
    ):
        (folder / name).write_text("\n".join(lines) + "\n")


def certificates(type_in, tmp_path):
    type_in("server", "colonnade certs init")
    for party in PARTIES:
        type_in(party, f"colonnade certs request {party}")
        shutil.copy(tmp_path / party / f"{party}.csr", tmp_path / "server")
        type_in("server", f"colonnade certs sign {party}.csr")
    for party in PARTIES:
        for file in (f"{party}.pem", "ca.pem", "members.toml"):
            shutil.copy(tmp_path / "server/federation" / file, tmp_path / party)


def test_from_nothing_to_a_trained_model(type_in, tmp_path, monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)
    for name, flags in FLAGS.items():
        said = type_in(".", f"colonnade init {name} --parties bank,shop {' '.join(flags)}")
        assert (
            f"Wrote {name}/{name}.toml" in said
            and ("colonnade invite bank shop" if name == "server" else "colonnade certs") in said
        )
    tables(tmp_path)
    certificates(type_in, tmp_path)

    def config(name, address):
        """The written config with absolute paths, since one process runs all members."""
        own, home = read_toml(tmp_path / name / f"{name}.toml"), tmp_path / name
        more = {
            f"network.{key}": str(home / own["network"][key]) for key in ("certificate", "key", "authority", "members")
        }
        section = "server" if name == "server" else "party"
        more |= {f"{section}.{key}": str(home / own[section][key]) for key in ("data", "aligned")}
        return from_dict(apply_overrides(own, more | {"network.address": address, "train.epochs": 2}))

    async def together(make, step):
        log = {name: Log(name, stream=io.StringIO()) for name in FLAGS}
        server = make("server", config("server", "127.0.0.1:0"), tmp_path / f"server/{step}", log["server"])
        serving = asyncio.ensure_future(server.run())
        address = tmp_path / f"server/{step}/address"
        while not address.is_file() and not serving.done():
            await asyncio.sleep(0.01)
        there = address.read_text()
        parties = [make(name, config(name, there), tmp_path / f"{name}/{step}", log[name]) for name in PARTIES]
        await asyncio.gather(*(party.run() for party in parties))
        return await serving

    def aligning(name, checked, out, log):
        return aligning_host(checked, None, lambda _: out, lambda _: log)

    def training(name, checked, out, log):
        return training_server(checked, out, log) if name == "server" else training_party(checked, name, out, log)

    aligned = asyncio.run(asyncio.wait_for(together(aligning, "align"), 120))
    assert aligned["common"] == 90 and aligned["ids"] == {"bank": 120, "shop": 100, "server": 108}
    trained = asyncio.run(asyncio.wait_for(together(training, "run"), 120))
    assert trained["status"] == "finished" and trained["accuracy"] is not None


def test_questions_at_a_terminal(type_in, tmp_path):
    said = type_in(".", "colonnade init bank", "bank,shop\n\ncustomer\ntrain.example.org:7450\n")
    assert "All parties, separated by commas" in said and "[data/bank.csv]" in said
    written = read_toml(tmp_path / "bank/bank.toml")
    assert written["network"]["address"] == "train.example.org:7450" and written["party"]["id"] == "customer"
    said = type_in(".", "colonnade init server --dir s --parties bank", "data/y.csv\nnr\ndefault\n\n")
    assert read_toml(tmp_path / "s/server.toml")["server"] == {
        "data": "data/y.csv", "id": "nr", "label": "default", "aligned": "server-order.safetensors",
    }  # fmt: skip


def test_the_shared_part_is_the_same_for_all_members(tmp_path):
    texts = []
    for name in ("server", *PARTIES):
        label = "y" if name == "server" else None
        write_first_config(tmp_path / name, Answers(name, PARTIES, "data/t.csv", "nr", label))
        texts.append((tmp_path / name / f"{name}.toml").read_text())
    assert len({re.search(r"# --- shared.*?(?=# --- )", text, re.DOTALL)[0] for text in texts}) == 1
    assert (tmp_path / "bank/data").stat().st_mode & 0o077 == 0
    assert "*.key" in (tmp_path / "bank/.gitignore").read_text()


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.joint is None])
def test_every_method_can_be_chosen(method, tmp_path):
    label = "y" if METHODS[method].capabilities.party_labels else None
    (path, *_) = write_first_config(tmp_path, Answers("bank", FIVE, "data/t.csv", "nr", label, method=method))
    assert tomllib.loads(path.read_text())["protocol"]["name"] == method


def test_nothing_is_overwritten(tmp_path):
    answers = Answers("bank", PARTIES, "data/t.csv", "nr")
    (tmp_path / ".gitignore").write_text("mine\n")
    write_first_config(tmp_path, answers)
    before = (tmp_path / "bank.toml").read_bytes()
    with pytest.raises(ConfigError, match="bank.toml exists already, and was not changed"):
        write_first_config(tmp_path, Answers("bank", PARTIES, "data/other.csv", "nr"))
    assert (tmp_path / "bank.toml").read_bytes() == before and (tmp_path / ".gitignore").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            Answers("bonk", PARTIES, "t.csv", "nr"),
            "NAME = 'bonk': is neither 'server' nor one of the parties: bank, shop",
        ),
        (Answers("bank", ("bank", "bank"), "t.csv", "nr"), "network.parties"),
        (Answers("bank", ("bank", "a b"), "t.csv", "nr"), "--parties = 'a b'"),
        (Answers("server", PARTIES, "t.csv", "nr"), "--label = None: name the column of t.csv"),
        (Answers("bank", PARTIES, "t.csv", "nr", "y"), "--label = 'y': with swift only the server holds the labels"),
        (Answers("bank", PARTIES, "t.csv", "nr", method="centralised"), "--method = 'centralised'"),
        (Answers("bank", PARTIES, "t.csv", "nr", method="vafel"), "did you mean 'vafl'"),
    ],
    ids=["nobody", "twice", "no name", "no label", "a label too many", "an oracle", "a slip"],
)
def test_what_cannot_work_is_not_written(answers, said, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(said)):
        write_first_config(tmp_path / "x", answers)
    assert not (tmp_path / "x").exists()


def test_odd_names_of_columns_are_written_as_they_are(tmp_path):
    odd = 'a "quoted" \\ näme\t'
    (path, *_) = write_first_config(tmp_path, Answers("bank", PARTIES, odd, odd))
    assert tomllib.loads(path.read_text())["party"]["id"] == odd


def test_without_a_terminal_it_says_which_flag(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--parties = None: add the flag, or run the command in a terminal"):
        CliRunner().invoke(app, ["init", "bank"], catch_exceptions=False)
    assert not Path("bank").exists()


def test_settings_are_written_where_they_belong(type_in, tmp_path):
    flags = "--stay --away fallback,refuse --set model.embedding=16 --set train.updates=50 --set model.device=cpu"
    type_in(
        ".", f"colonnade init server --parties bank,shop {' '.join(FLAGS['server'])} --set network.give_up_s=5 {flags}"
    )
    text = (tmp_path / "server/server.toml").read_text()
    shared, own = text.split("# --- server's own")
    assert "embedding = 16 # numbers" in shared and "updates = 50" in shared and "epochs" not in shared
    assert 'device = "cpu" # this member\'s own' in shared, "TOML has each section once"
    assert "give_up_s = 5" in own and 'away = ["fallback", "refuse"]' in own and "stay = true" in own
    type_in(".", f"colonnade init bank --parties bank,shop {' '.join(FLAGS['bank'])} --columns a..b,c --categorical c")
    party = read_toml(tmp_path / "bank/bank.toml")["party"]
    assert party["columns"] == ["a..b", "c"] and party["categorical"] == ["c"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("server --columns a", "--columns = 'a': is an option of a party, not of server"),
        ("bank --away refuse", "--away = 'refuse': is an option of the server, not of bank"),
        ("bank --set model.embeding=3", "did you mean 'embedding'"),
        ("bank --set train=3", "train = 3: is a section of the config, not a value"),
        ("bank --set embedding", "--set = 'embedding': must be KEY=VALUE"),
    ],
)
def test_settings_that_cannot_be(line, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    flags = FLAGS[line.partition(" ")[0]]
    with pytest.raises(ConfigError, match=re.escape(said)):
        CliRunner().invoke(app, ["init", *line.split(), "--parties", "bank,shop", *flags], catch_exceptions=False)
    assert not list(tmp_path.iterdir())
