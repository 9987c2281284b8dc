"""Make the files of one release that later releases must be able to read.

    git worktree add --detach /tmp/release 07c646f      # the commit of the release
    PYTHONPATH=/tmp/release/src python tests/data/make_release.py

It writes tests/data/release-VERSION.tar.xz, where VERSION is that of the `colonnade` that it imports. It types the
commands that an operator types, and kills the processes of three trainings in the middle. The keys are worthless, and
the certificates are valid for 100 years.

    simulator/stopped, finished   run folders
    federation/                   tables, certificates, alignments, shares and configs of a server and two parties
    federation/runs/NAME-ROLE     their folders: vafl (with ledgers), sync and table were killed; done has ended
"""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w

import colonnade
from colonnade.config.schema import from_dict, read_toml
from colonnade.data import save_share
from colonnade.deployment import party_side, server_side
from colonnade.drivers.processes import certificates
from colonnade.release import commit

HERE = Path(__file__).parent
DAYS = 36_500
PARTIES = ("a", "b")
ROLES = ("server", *PARTIES)
MODEL = {"party": "linear", "embedding": 2, "server": "linear"}
TRAIN = {"updates": 300, "batch_size": 8, "learning_rate": 0.1, "eval_every": 10, "checkpoint_every": 20}
KILL_AFTER = 9  # evaluations
PATIENCE_S = 120.0
RUNS: dict[str, dict[str, Any]] = {
    "vafl": {"protocol": {"name": "vafl"}, "privacy": {"mechanism": "output", "clip": 1.0, "noise": 5.0}},
    "sync": {"protocol": {"name": "sync"}},
    "table": {"protocol": {"name": "vafl"}, "server": {"table": "file"}},
    "done": {"protocol": {"name": "vafl"}, "train": {"updates": 40}},
}


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "colonnade", *words], check=True, stdout=subprocess.DEVNULL)


def start(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "colonnade", *words], stdout=subprocess.DEVNULL)


def until(condition: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.005)


# --- the simulator -------------------------------------------------------------------------------------------------


def make_simulator(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    tables = {"data": {"source": "wine", "parties": 2}, "model": MODEL, "protocol": {"name": "vafl"}, "train": TRAIN}
    config = Path("config.toml")
    config.write_text(tomli_w.dumps(tables), encoding="utf-8")
    run("run", str(config), "--out", "finished", "--set", "train.updates=60")
    process = start("run", str(config), "--out", "stopped")
    until(Path("stopped/checkpoint.safetensors").exists, "a checkpoint")
    process.send_signal(signal.SIGINT)
    if process.wait() != 130:
        raise SystemExit("the simulator ended before it was stopped: try again")
    config.unlink()


# --- a federation --------------------------------------------------------------------------------------------------


def write_tables() -> None:
    draw = random.Random(0)
    rows = [[f"client-{n}", *(round(draw.gauss(0, 1), 3) for _ in range(4))] for n in range(60)]
    for name, columns, kept in (("server", (), rows[2:]), ("a", (1, 2), rows[:58]), ("b", (3, 4), rows[1:59])):
        kept = list(kept)
        draw.shuffle(kept)
        with Path(f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["client", *(f"x{c}" for c in columns), *(() if columns else ("label",))])
            for row in kept:
                lines.writerow([row[0], *(row[c] for c in columns), *(() if columns else (int(sum(row[1:]) > 0),))])


def write_certificates() -> None:
    certificates.throw_away(PARTIES, Path(), DAYS)


def config_of(role: str, name: str, aligned: bool) -> Path:
    more = RUNS.get(name, {})
    side, table = ("server", role) if role == "server" else ("party", role)
    own: dict[str, Any] = {"data": f"{table}.csv", "id": "client", "aligned": f"{role}-order.safetensors"}
    if role == "server":
        own |= {"label": "label"}
    if not aligned:
        own = {"data": f"{role}-share.safetensors"}
    tables = {
        "model": MODEL,
        "protocol": more.get("protocol", {}),
        "train": TRAIN | more.get("train", {}),
        "network": {
            "parties": list(PARTIES),
            "address": "127.0.0.1:0",
            "checkpoint_s": 0.2,
            "certificate": f"{role}.pem",
            "key": f"{role}.key",
            "authority": "ca.pem",
            "members": "members.toml",
        },
        side: own | (more.get("server", {}) if role == "server" else {}),
    }
    tables |= {"privacy": more["privacy"]} if "privacy" in more else {}
    path = Path(f"{name}-{role}.toml")
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def launch(command: str, name: str, aligned: bool) -> "dict[str, subprocess.Popen[bytes]]":
    """Start the server, then the parties with its address."""
    verbs = {"align": ("align", "align"), "train": ("serve", "join")}[command]
    started = {}
    for role in ROLES:
        config, out = config_of(role, name, aligned), f"runs/{name}-{role}"
        words = [verbs[role != "server"], str(config), "--out", out, "--log-level", "warning"]
        if role == "server":
            started[role] = start(*words)
            address = Path(out, "address")
            until(address.exists, f"the server of {name}")
        else:
            started[role] = start(*words, "--party", role, "--set", f"network.address={address.read_text()}")
    return started


def align() -> None:
    started = launch("align", "align", True)
    if any(process.wait() for process in started.values()):
        raise SystemExit("the alignment failed")
    for role in ROLES:
        shutil.rmtree(f"runs/align-{role}")
        Path(f"align-{role}.toml").unlink()


def write_shares() -> None:
    for role in ROLES:
        config = from_dict(read_toml(config_of(role, "shares", aligned=True)))
        share = server_side.load_share(config) if role == "server" else party_side.load_share(config, role)
        save_share(share, f"{role}-share.safetensors")
        Path(f"shares-{role}.toml").unlink()


def train(name: str, kill: bool) -> None:
    started = launch("train", name, aligned=name in ("vafl", "done"))
    if kill:
        rows = Path(f"runs/{name}-server/metrics.jsonl")
        until(lambda: rows.read_text().count("\n") > KILL_AFTER, f"the evaluations of {name}")
        for process in started.values():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended before it was killed: try again")
            process.kill()
    codes = {role: process.wait() for role, process in started.items()}
    if set(codes.values()) != {-signal.SIGKILL if kill else 0}:
        raise SystemExit(f"{name} ended with {codes}")


def make_federation(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    write_tables()
    write_certificates()
    align()
    write_shares()
    for name in RUNS:
        train(name, kill=name != "done")
    run("token", "new", "done-server.toml", "caller", "--run", "runs/done-server", "--days", "3650")
    for lock in Path("runs").rglob("*lock"):
        lock.unlink()


def main() -> None:
    out = HERE / f"release-{colonnade.__version__}.tar.xz"
    if out.exists():
        raise SystemExit(f"{out} exists: the files of a release are made once")
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        make_simulator(root / "simulator")
        make_federation(root / "federation")
        about = {"release": colonnade.__version__, "commit": commit(), "python": sys.version.split()[0]}
        (root / "made.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        os.chdir(HERE)
        with tarfile.open(out, "w:xz") as archive:
            archive.add(root, ".", filter=_without_owner)
    print(f"Written: {out}")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
