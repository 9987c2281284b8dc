"""docs/align.md: its commands, typed as printed, align three folders that cannot see each other."""

import asyncio
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data import load_alignment, read_id_column
from colonnade.protocol.errors import ColonnadeError, ConfigError

from ..starting import fork_member

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "align.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^(server|clinic|lab|align)\$ (.+)$", BLOCKS, re.MULTILINE)
MEMBERS = {"server": "labels", "clinic": "clinic", "lab": "lab"}


@pytest.fixture
def folders(tmp_path, monkeypatch, capsys):
    """The page's folders, as its script makes them."""
    script = re.search(r"^\$ python (\S+) /tmp/align --apart$", BLOCKS, re.MULTILINE)[1]
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path), "--apart"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # for processes in other folders
    runpy.run_path(str(ROOT / script), run_name="__main__")
    for line in capsys.readouterr().out.replace(str(tmp_path), "/tmp/align").splitlines():
        assert line in BLOCKS
    return tmp_path


def type_in(folder, command, monkeypatch):
    """Return what the command printed; commands other than `colonnade` go to the shell."""
    first, *rest = shlex.split(command)
    monkeypatch.chdir(folder)
    if first != "colonnade":
        return subprocess.run([first, *rest], check=True, capture_output=True, text=True, timeout=60).stdout
    result = CliRunner().invoke(app, rest, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_aligns(folders, monkeypatch):
    place = {"align": folders} | {name: folders / name for name in MEMBERS}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fork_member)
    outcomes = []
    for who, command in COMMANDS:
        if not command.startswith("colonnade align"):
            type_in(place[who], command, monkeypatch)
            continue
        for name in MEMBERS:  # a port that no other process uses
            path = folders / name / f"{name}.toml"
            path.write_text(path.read_text().replace(":7450", f":{port}"))
        try:
            outcomes.append(type_in(place[who], command, monkeypatch))
        except ColonnadeError as error:
            outcomes.append(str(error))
    refused, aligned = outcomes  # as the page says
    words = "clinic: data/clinic.csv: column 'patient': 3 rows repeat an earlier id; correct the file"
    assert words in refused and words in BLOCKS
    for row in (
        "│ clinic   │ 500 │ 372 (74.4%) │",
        "│ lab      │ 450 │ 372 (82.7%) │",
        "│ server   │ 540 │ 372 (68.9%) │",
    ):
        assert row in aligned and row in BLOCKS
    orders = []
    for name, file in MEMBERS.items():
        ids = read_id_column(folders / name / "data" / f"{file}.csv", "patient", "party")
        rows = load_alignment(folders / name / f"{name}-order.safetensors").rows
        orders.append([ids[int(row)].strip().casefold() for row in rows])
        assert [path.name for path in (folders / name).glob("*.key")] == [f"{name}.key"] * (name != "server")
    assert orders[0] == orders[1] == orders[2] and len(set(orders[0])) == 372


def test_all_configs_or_one(folders, monkeypatch):
    for who, command in COMMANDS:
        if command.startswith(("colonnade init", "colonnade certs", "cp")):
            type_in({"align": folders}.get(who, folders / who), command, monkeypatch)
    monkeypatch.chdir(folders)

    def refused(*words):
        with pytest.raises(ConfigError) as error:
            CliRunner().invoke(app, ["align", *words], catch_exceptions=False)
        return str(error.value)

    assert "the config of lab is missing" in refused("server/server.toml", "clinic/clinic.toml")
    assert "name the configs of the server" in refused("lab/lab.toml", "clinic/clinic.toml")
    assert "options such as --party need a single config" in refused(
        "server/server.toml", "lab/lab.toml", "--party", "lab"
    )
    monkeypatch.chdir(folders / "lab")
    assert "--party = 'clinic': network.certificate is lab's" in refused("lab.toml", "--party", "clinic")
    shutil.rmtree(folders / "lab" / "data")
    assert "party.data = 'data/lab.csv': there is no file" in refused("lab.toml")
