"""`colonnade train` does what `run`, `serve` or `join` does, by its config; `--continue` is an option of all."""

import pytest
from typer.testing import CliRunner

from colonnade.cli import train as train_module
from colonnade.cli.main import app
from colonnade.drivers.processes.certificates import throw_away
from colonnade.protocol.errors import ConfigError


@pytest.fixture
def called(monkeypatch):
    """Which of the three commands was called, and with what."""
    calls = []
    for name in ("run", "serve", "join"):
        monkeypatch.setattr(train_module, name, lambda *given, name=name, **more: calls.append((name, given, more)))
    return calls


@pytest.fixture
def certificates(tmp_path):
    throw_away(("bank",), tmp_path / "keys")
    return tmp_path / "keys"


def config(tmp_path, text, certificates=None, name="bank"):
    path = tmp_path / "own.toml"
    files = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "ca.pem", "members": "members.toml"}
    lines = [] if certificates is None else [f"{key} = '{certificates / file}'" for key, file in files.items()]
    path.write_text("\n".join(["[network]", "parties = ['bank']", *lines, text]))
    return path


def type_in(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)], catch_exceptions=True)


def test_a_members_certificate_says_which_member_it_is(called, certificates, tmp_path):
    type_in(config(tmp_path, "[party]\ndata = 'x.csv'", certificates), "--continue", tmp_path, "--drop-columns", "fax")
    type_in(config(tmp_path, "[server]\ndata = 'x.csv'", certificates, "server"), "--out", "runs/x")
    (first, given, named), (second, also, _) = called
    assert (first, given[1], named["continues"], named["drop_columns"]) == ("join", "bank", tmp_path, ["fax"])
    assert second == "serve" and str(also[2]) == "runs/x"


def test_a_config_of_all_roles_runs_in_the_simulator(called, tmp_path):
    path = tmp_path / "race.toml"
    path.write_text("[train]\nepochs = 1\n")
    type_in(path, "--continue", tmp_path)
    type_in()
    assert [name for name, _, _ in called] == ["run", "run"] and called[0][2]["continues"] == tmp_path


def test_sections_and_party_say_it_without_a_certificate(called, tmp_path):
    type_in(config(tmp_path, "[server]\nrows = 9"))
    type_in(config(tmp_path, "[party]\ndata = 'x.csv'"), "--party", "bank")
    assert [name for name, _, _ in called] == ["serve", "join"]
    refused = type_in(config(tmp_path, "[party]\ndata = 'x.csv'"))
    assert isinstance(refused.exception, ConfigError) and "add --party NAME" in str(refused.exception)
    refused = type_in(config(tmp_path, "[server]\nrows = 9"), "--drop-columns", "fax")
    assert "is for the party that had the column" in str(refused.exception)


def test_continue_and_resume_do_not_go_together(tmp_path):
    refused = CliRunner().invoke(app, ["run", "--resume", str(tmp_path), "--continue", str(tmp_path)])
    assert isinstance(refused.exception, ConfigError) and "--continue" in str(refused.exception)
    assert CliRunner().invoke(app, ["run", "--continue", str(tmp_path)]).exception.args


@pytest.mark.parametrize("command", ["run", "up", "serve", "join", "train"])
def test_every_command_that_trains_has_the_option(command):
    assert "--continue" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
