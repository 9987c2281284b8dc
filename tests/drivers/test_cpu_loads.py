"""CPU traces from files: CSV and Google's archive, the resulting durations, what is refused, the note at the end."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import from_dict
from colonnade.drivers.simulator import cpu_loads
from colonnade.drivers.simulator.clock import ClockConfig, Compute, Pace, ServerClock
from colonnade.drivers.simulator.cpu_loads import ended_note, read_load
from colonnade.experiments.run import prepare, reopen
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
GOOGLE = SHARED / "google-cluster-2011" / "GCD_VMs.tar.gz"
needs_google = pytest.mark.skipif(not GOOGLE.is_file(), reason="no Google cluster trace at ../shared/data")

MACHINES = {"vms/b": b"50 1\n80 2\n0 3\n", "vms/a": b"0 9\n\n75\t9\r\n", "vms/c": b"25 7\n"}


def pack(path: Path, texts: Mapping[str, bytes], *odd: tarfile.TarInfo) -> str:
    """A .tar.gz with a folder, these files and other members."""
    folder = tarfile.TarInfo("vms")
    folder.type = tarfile.DIRTYPE
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(folder)
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        for member in odd:
            archive.addfile(member)
    return str(path)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return pack(tmp_path / "vms.tar.gz", MACHINES)


def cpu_load(**fields: Any) -> Compute:
    return Compute(**{"kind": "trace", "mean_s": 4.5, "interval_s": 10.0, **fields})


def seconds(compute: Compute, start_s: float, amount: float = 1.0) -> float:
    return Pace(compute, np.random.default_rng(0)).duration(amount, round(start_s * NANOSECONDS)) / NANOSECONDS


def refusal(config: ClockConfig, parties: int = 1) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.check(tuple(f"party-{number + 1}" for number in range(parties)))
    return caught.value


# --- archives


def test_machines_are_numbered_by_their_sorted_names(archive: str) -> None:
    assert [read_load("k", archive, machine).tolist() for machine in range(3)] == [[0, 75], [50, 80, 0], [25]]


def test_durations_through_a_changing_machine_by_hand(archive: str) -> None:
    """Machine 1 (b) runs at 0.5, 0.2, 1: from t = 8, 2 s do 1 s of work, 10 s do 2 s, the last 1.5 s take 1.5 s.

    From t = 25, 5 s do 5 s; then the load repeats: 4 s more take 8 s.
    Machine 0 (a) runs at 1, 0.25: 18 s of work are 10 s (10), 10 s (2.5) and, at full speed again, 5.5 s.
    """
    b, a = cpu_load(file=archive, machine=1), cpu_load(file=archive, machine=0)
    assert seconds(b, 8) == pytest.approx(2 + 10 + 1.5)
    assert seconds(b, 25, amount=2) == pytest.approx(5 + 8)
    assert seconds(a, 0, amount=4) == pytest.approx(10 + 10 + 5.5)


def test_an_archive_for_all_gives_every_party_the_machine_of_its_number(archive: str) -> None:
    clock = ClockConfig(compute=cpu_load(file=archive))
    clock.check(("x", "y", "z"))
    assert [clock.compute_of(party).machine for party in range(3)] == [0, 1, 2]
    assert [seconds(clock.compute_of(party), 0) for party in range(3)] == pytest.approx([4.5, 9, 6])
    one = ClockConfig(compute=cpu_load(file=archive, machine=2))
    assert {one.compute_of(party).machine for party in range(3)} == {2}


def test_an_archive_is_unpacked_once_and_again_when_it_changes(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = gzip.open
    monkeypatch.setattr(cpu_loads.gzip, "open", lambda *args: opened.append(args) or real(*args))
    clock = ClockConfig(compute=[cpu_load(file=archive, machine=party % 3) for party in range(12)])
    clock.check(tuple(f"party-{number}" for number in range(12)))
    assert {seconds(clock.compute_of(party), 0) for party in range(12)} == {4.5, 9.0, 6.0}
    assert len(opened) == 1
    pack(Path(archive), {"new": b"33.5 1\n"})
    assert read_load("k", archive, 0).tolist() == [33.5]


@needs_google
def test_google_machines_as_numpy_reads_them() -> None:
    with tarfile.open(GOOGLE) as google:
        names = sorted(member.name for member in google if member.isfile())
        chosen = {number: io.BytesIO(google.extractfile(names[number]).read()) for number in (0, 777, 1599)}
    assert len(names) == 1600
    for number, text in chosen.items():
        expected = np.loadtxt(text)
        assert expected.shape == (288, 2)
        np.testing.assert_array_equal(read_load("k", str(GOOGLE), number), expected[:, 0])


@needs_google
def test_all_google_machines_have_the_mean_of_their_readme() -> None:
    every = np.stack([read_load("k", str(GOOGLE), machine) for machine in range(1600)])
    assert every.shape == (1600, 288)
    assert [every.mean(), every.std()] == pytest.approx([21.84, 13.62], abs=0.02)


@needs_google
def test_google_has_1600_machines_and_says_so() -> None:
    error = refusal(ClockConfig(compute=cpu_load(file=str(GOOGLE), machine=1600)))
    assert str(error).startswith("clock.compute.machine = 1600: ")
    assert str(error).endswith("GCD_VMs.tar.gz has 1,600 machines: give a number from 0 to 1599")


def test_an_archive_of_csv_files_is_read_as_csv_files_are(tmp_path: Path) -> None:
    """With headings, and what a Mac adds."""
    texts = {"vms/b.csv": b"time,cpu\n0,50\n300,80\n", "vms/a": b"cpu mem\n25 7\n", "vms/._b.csv": b"\x00\x05"}
    file = pack(tmp_path / "vms.tar.gz", texts)
    assert [read_load("k", file, machine).tolist() for machine in range(2)] == [[25], [50, 80]]


# --- the unit


FRACTIONS = {"cpu.csv": b"time,cpu\n0,0.5\n10,0.8\n20,0\n", "vms.tar.gz": b"0.5 0.1\n0.8 0.1\n0 0.1\n"}


@pytest.mark.parametrize("name", [*FRACTIONS, "cpu"])
def test_what_could_be_fractions_or_percent_needs_its_unit(tmp_path: Path, name: str) -> None:
    """0.8 is 80 % or 0.8 %: the numbers do not tell."""
    file = tmp_path / name
    fields: dict[str, Any] = {"file": str(file)}
    if name == "cpu":
        fields = {"cpu": [0.5, 0.8, 0.0]}
    elif name == "cpu.csv":
        file.write_bytes(FRACTIONS[name])
    else:
        pack(file, {"vm": FRACTIONS[name]})
        fields["machine"] = 0
    error = refusal(ClockConfig(compute=cpu_load(**fields)))
    assert (error.key, error.value) == ("clock.compute.unit", None)
    assert error.advice.endswith("is 0.8, which could be 0.8 % or 80 %: set unit = 'percent' or 'fraction'")
    assert cpu_load(**fields, unit="fraction").utilisation().tolist() == [50, 80, 0]
    assert cpu_load(**fields, unit="percent").utilisation().tolist() == [0.5, 0.8, 0]
    assert seconds(cpu_load(**fields, unit="fraction"), 8) == pytest.approx(13.5)  # as with 50, 80, 0


def test_an_idle_machine_is_idle_in_any_unit() -> None:
    assert cpu_load(cpu=[0.0, 0.0]).utilisation().tolist() == [0, 0]


def test_a_fraction_above_one_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text("0,0.5\n10,85\n")
    error = refusal(ClockConfig(compute=cpu_load(file=str(file), unit="fraction")))
    assert "line 2: CPU use must be from 0 to 1 with unit = 'fraction', not 85" in str(error)
    assert "value 2: CPU use" in str(refusal(ClockConfig(compute=cpu_load(cpu=[0.5, 85], unit="fraction"))))


# --- CSV


@pytest.mark.parametrize(
    "text",
    [
        "0,50\n10,80\n20,0\n",
        "# from a machine\ntime, cpu\n0, 50\n10, 80 # busy\n\n20, 0\n",
        "\ufefftime,cpu\r\n0,50\r\n10,80\r\n20,0\r\n",
        '"time","host","cpu"\n"2011-05-01 00:00","a","50"\n"2011-05-01 00:05","a","80"\n"2011-05-01 00:10","a","0"\n',
        "50\n80\n0",
    ],
    ids=["plain", "headings and comments", "from a spreadsheet", "quoted", "one column"],
)
def test_csv_with_and_without_headings(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text(text, encoding="utf-8")
    compute = cpu_load(file=str(file))
    ClockConfig(compute=compute).check(("a", "b"))
    assert read_load("k", str(file), None).tolist() == [50, 80, 0]
    assert seconds(compute, 8) == pytest.approx(13.5)


# --- what is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are no values"),
        ("time,cpu\n", "there are no values"),
        ("0,50\n10,fifty\n", "line 2: 'fifty' is not a number"),
        ("# made by hand\ntime,cpu\n\n0,50\n10,\n20,60\n", "line 5: the cell is empty"),
        ("12:00,\n12:05,60\n", "line 1: the cell is empty"),  # no headings
        ("0,50\n10\n", "line 2: 1 columns, where line 1 has 2"),
        ("0,50\n10,100.5\n", "line 2: CPU use must be percentages from 0 to 100, not 100.5"),
        ("0,-1\n", "line 1: CPU use must be percentages from 0 to 100, not -1"),
        ("0,nan\n", "must be percentages from 0 to 100, not nan"),
        ("\x00\n", "cannot be read as a CSV"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text(text)
    error = refusal(ClockConfig(compute=[Compute(), cpu_load(file=str(file))]), parties=2)
    assert (error.key, error.value) == ("clock.compute[1].file", str(file))
    assert "cannot be read as a CSV of time, utilisation: " in str(error) and words in str(error)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "cpu.csv").write_bytes(b"\xff\xfe0,50\n")
    assert "can't decode" in str(refusal(ClockConfig(compute=cpu_load(file=str(tmp_path / "cpu.csv")))))


def test_a_compressed_file_that_is_no_archive_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "vms.gz"
    file.write_bytes(gzip.compress(b"0,50\n"))
    words = "it is compressed; name an archive of machines *.tar.gz, or unpack a single file"
    assert words in str(refusal(ClockConfig(compute=cpu_load(file=str(file)))))


@pytest.mark.parametrize("name", ["none.csv", "none.tar.gz", "none.tgz"])
def test_a_file_that_is_not_there(name: str) -> None:
    error = refusal(ClockConfig(compute=cpu_load(file=name)))
    assert str(error).startswith(f"clock.compute.file = '{name}': cannot be read as a ")
    assert str(error).endswith(": No such file or directory")


@pytest.mark.parametrize(("machine", "parties"), [(3, 1), (-1, 1), (None, 4)])
def test_a_machine_out_of_range(archive: str, machine: int | None, parties: int) -> None:
    """Without a number, the fourth party has no machine."""
    error = refusal(ClockConfig(compute=cpu_load(file=archive, machine=machine)), parties)
    assert error.key == "clock.compute.machine" and error.value == (3 if machine is None else machine)
    assert error.advice == f"{archive} has 3 machines: give a number from 0 to 2"


def test_only_the_parties_are_numbered_by_themselves(archive: str) -> None:
    listed = refusal(ClockConfig(compute=[cpu_load(file=archive), cpu_load(file=archive)]), parties=2)
    assert str(listed).startswith("clock.compute[0].machine = None: ")
    server = refusal(ClockConfig(server=ServerClock(compute=cpu_load(file=archive))))
    assert str(server).startswith("clock.server.compute.machine = None: ")


@pytest.mark.parametrize("fields", [{"cpu": [50.0]}, {"file": "cpu.csv"}])
def test_a_machine_without_an_archive(fields: dict[str, Any]) -> None:
    error = refusal(ClockConfig(compute=cpu_load(machine=0, **fields)))
    assert str(error) == "clock.compute.machine = 0: only a `file` that is a .tar.gz has machines to choose"


@pytest.mark.parametrize("cpu", [[], [50.0, 101.0], [-0.5], [float("nan")]])
def test_a_list_outside_the_percentages(cpu: list[float]) -> None:
    error = refusal(ClockConfig(compute=cpu_load(cpu=cpu)))
    assert error.key == "clock.compute.cpu" and "percentages from 0 to 100" in error.advice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "there are no values"),
        (b"cpu mem\n50 1\n\nfifty 1\n", "line 4: 'fifty' is not a number"),
        (b"0,50\n5,60\n", "line 1: '0,50' has commas: name the file *.csv if its columns are time and utilisation"),
        (b"\xff\xfe", "can't decode"),
        (b"50 1\n200 1\n", "line 2: CPU use must be percentages from 0 to 100, not 200"),
    ],
)
def test_a_member_that_is_no_cpu_load(tmp_path: Path, text: bytes, words: str) -> None:
    file = pack(tmp_path / "vms.tar.gz", {"good": b"2 1\n", "odd": text})
    ClockConfig(compute=cpu_load(file=file, machine=0)).check(("a",))
    error = refusal(ClockConfig(compute=cpu_load(file=file, machine=1)))
    assert (error.key, error.value) == ("clock.compute.machine", 1)
    assert error.advice.startswith(f"odd in {file} is not lines of CPU and memory: ") and words in error.advice


def huge() -> bytes:
    """A gzip file of 200 kB that holds 200 MB."""
    return gzip.compress(bytes(10**6), 9) * 200


def circular() -> bytes:
    """A member of negative size, behind which tarfile finds the same member again."""
    member = tarfile.TarInfo("vm")
    header = bytearray(member.tobuf())
    header[124:136] = (-512 + 256**12).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) * 3)


def nested() -> bytes:
    """Long names of long names."""
    member = tarfile.TarInfo("long")
    member.type = tarfile.GNUTYPE_LONGNAME
    return gzip.compress(member.tobuf() * 5000)


BROKEN: list[tuple[Callable[[], bytes], str]] = [
    (lambda: b"", "to an archive; make one with: tar czf NAME.tar.gz FOLDER"),
    (lambda: b"time,cpu\n", "Not a gzipped file"),
    (lambda: gzip.compress(b"0,50\n10,60\n"), "to an archive; make one with: tar czf NAME.tar.gz FOLDER"),
    (lambda: gzip.compress(bytes(10_000))[:-4], "ended before"),
    (lambda: gzip.compress(bytes(10_240)), "it holds no files"),
    (huge, "it holds more than 64 MiB"),
    (circular, "'vm' in it is not a plain file"),
    (nested, "recursion"),
]


@pytest.mark.parametrize(("make", "words"), BROKEN)
def test_broken_and_hostile_archives(tmp_path: Path, make: Callable[[], bytes], words: str) -> None:
    file = tmp_path / "vms.tar.gz"
    file.write_bytes(make())
    error = refusal(ClockConfig(compute=cpu_load(file=str(file), machine=0)))
    assert error.key == "clock.compute.file"
    assert "cannot be read as a .tar.gz of one file per machine: " in str(error) and words in str(error)


def test_links_and_devices_are_no_machines_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, device = tarfile.TarInfo("vms/link"), tarfile.TarInfo("vms/null")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    file = pack(tmp_path / "vms.tar.gz", {"../outside": b"10 1\n", "/vms/root": b"20 1\n"}, link, device)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert [read_load("k", file, machine).tolist() for machine in (0, 1)] == [[10], [20]]
    with pytest.raises(ConfigError, match="has 2 machines"):
        read_load("k", file, 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "vms.tar.gz"]


# --- the note


def test_the_note_names_all_parties_in_one_line() -> None:
    lengths = {"party-1": 86_400.0, "party-2": 86_400.0, "party-3": 3 * 0.1, "party-4": inf, "server": 100_000.0}
    start = "CPU traces ended and were repeated from their start: "
    assert ended_note(lengths, 100_000.0) == f"{start}party-1, party-2 after 86,400 s; party-3 after 0.3 s"
    assert ended_note(lengths, 0.2) == ""


def small(**clock: Any) -> dict[str, Any]:
    return {
        "data": {"source": "digits", "parties": 2},
        "model": {"party": "linear", "embedding": 4},
        "train": {"updates": 12, "batch_size": 64, "eval_every": 4, "checkpoint_every": 5},
        "protocol": {"name": "sync"},
        "clock": clock,
    }


def test_a_run_through_an_archive_says_once_that_it_ended(tmp_path: Path, archive: str) -> None:
    """Twelve updates of at least 0.5 s; machines 0 and 1 last 2 and 3 intervals."""
    config = small(compute={"kind": "trace", "mean_s": 0.5, "file": archive, "interval_s": 0.5})
    summary = prepare(from_dict(config), out=tmp_path / "run").execute()
    expected = "CPU traces ended and were repeated from their start: party-1 after 1 s; party-2 after 1.5 s"
    assert summary["status"] == "finished" and summary["note"] == expected
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["note"] == expected


def test_a_cpu_load_that_is_long_enough_is_not_mentioned(archive: str) -> None:
    config = small(compute={"kind": "trace", "mean_s": 0.5, "file": archive, "interval_s": 1000.0})
    assert prepare(from_dict(config)).execute()["note"] == ""


def test_the_note_stands_behind_why_a_run_stalled() -> None:
    faults = [{"party": "party-2", "kind": "crash", "at_s": 2.0}]
    config = small(compute={"kind": "trace", "mean_s": 0.5, "cpu": [50.0], "interval_s": 0.5}, faults=faults)
    note = prepare(from_dict(config)).execute()["note"]
    assert note.startswith("waits for party-2 and cannot continue; CPU traces ended")
    assert note.endswith(": party-1, party-2 after 0.5 s")


def test_a_resumed_run_says_the_same(tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 10)  # how often it checks for a due checkpoint
    config = from_dict(small(compute={"kind": "trace", "mean_s": 0.5, "file": archive, "interval_s": 0.5}))
    whole = prepare(config, out=tmp_path / "run").execute()
    again = reopen(config, tmp_path / "run")  # from the last checkpoint
    assert again.clock_s > 1.5
    summary = again.execute()
    assert [summary[key] for key in ("note", "trace_sha256")] == [whole[key] for key in ("note", "trace_sha256")]


SETTINGS = ["data.parties=2", "model.party=linear", "train.updates=12", "protocol.name=sync"]
LOADED = "clock.compute={kind = 'trace', mean_s = 0.5, cpu = [50, 80], interval_s = 0.5}"


@pytest.mark.parametrize("command", [["run"], ["compare", "--protocols", "sync,vafl"]])
def test_the_command_line_prints_it_once_per_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [
        word for setting in [*SETTINGS[: 4 if command == ["run"] else 3], LOADED] for word in ("--set", setting)
    ]
    result = CliRunner().invoke(app, [*command, "--out", "out", *settings], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.output.count("CPU traces ended") == (1 if command == ["run"] else 2)
    assert result.output.count("party-1, party-2 after 1 s") == (1 if command == ["run"] else 2)
