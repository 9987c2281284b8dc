"""PhysioNet 2012: stays become 48 hours of channels."""

import io
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from colonnade.data import load
from colonnade.data import split as split_rows_and_columns
from colonnade.data.physionet import CHANNELS, GROUPS
from colonnade.protocol.errors import ConfigError, DataError

split = partial(split_rows_and_columns, validation_fraction=0)

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
HEAD = "Time,Parameter,Value\n00:00,RecordID,{}\n00:00,Age,{}\n00:00,Height,-1\n"


def write(folder, part, stays, died):
    """`stays` maps a record to (age, further lines)."""
    with tarfile.open(folder / f"set-{part}.tar.xz", "w:xz") as archive:
        for record, (age, lines) in stays.items():
            content = (HEAD.format(record, age) + lines).encode()
            member = tarfile.TarInfo(f"set-{part}/{record}.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    rows = "".join(f"{record},1,1,5,-1,{dead}\n" for record, dead in zip(stays, died, strict=True))
    header = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n"
    (folder / f"Outcomes-{part}.txt").write_text(header + rows)


@pytest.fixture
def folder(tmp_path):
    first = {
        11: (60, "01:10,HR,80\n01:50,HR,90\n03:00,HR,100\n02:00,MechVent,1\n48:00,K,4\n"),
        12: (70, "00:30,HR,50\n"),
        13: (80, ""),  # never measured
    }
    write(tmp_path, "a", first, [0, 1, 0])
    write(tmp_path, "b", {21: (50, "05:00,Temp,37\n"), 22: (40, "00:00,HR,60")}, [1, 0])
    return tmp_path


def channel(dataset, row, name):
    places = [place for place, column in enumerate(dataset.columns) if column.split("@")[0] == name]
    return dataset.x[row, places].tolist()


def test_stays_by_hand(folder):
    dataset = load("physionet2012", dir=folder)
    assert dataset.x.shape == (4, 48 * len(CHANNELS))
    assert (dataset.test_rows, dataset.y.tolist()) == (2, [0, 1, 1, 0])
    mean = (85 + 100 + 50) / 3  # of the training hours that have a heart rate
    assert channel(dataset, 0, "HR") == pytest.approx([mean, 85, 85, *[100] * 45])
    assert channel(dataset, 1, "HR") == [50] * 48
    assert channel(dataset, 2, "HR") == pytest.approx([mean] * 48)
    assert channel(dataset, 0, "MechVent") == [0, 0, *[1] * 46]
    assert channel(dataset, 1, "MechVent") == [0] * 48
    assert channel(dataset, 0, "K") == [4] * 48  # the mean before the last hour is its only value
    assert channel(dataset, 1, "Age") == [70] * 48
    assert channel(dataset, 2, "Temp") == [0] * 5 + [37] * 43  # no training stay has one
    assert dataset.notes == ("physionet2012: 1 stays have no measurement and are left out",)


@pytest.mark.parametrize("how", ["views", "even"])
def test_groups_and_shapes(folder, how):
    dataset = load("physionet2012", dir=folder)
    partition = split(dataset, how=how, scale="none")
    assert partition.parties == tuple(GROUPS)
    assert partition.shapes == tuple((48, len(group)) for group in GROUPS.values())
    hours = partition.train[0][1].reshape(partition.shapes[0])  # hour by hour
    assert hours[:, 0].tolist() == [50] * 48
    assert partition.notes == dataset.notes
    with pytest.raises(ConfigError, match="data.parties = 3"):
        split(dataset, parties=3, how=how)


def test_hours_share_the_scale_of_their_channel(folder):
    partition = split(load("physionet2012", dir=folder), how="views")
    heart = partition.train[0].reshape(2, *partition.shapes[0])[:, :, 0]
    assert heart.mean() == pytest.approx(0, abs=1e-6)
    assert heart.std() == pytest.approx(1, abs=1e-6)
    low = split(load("physionet2012", dir=folder), how="views", scale="minmax")
    heart = low.train[0].reshape(2, *low.shapes[0])[:, :, 0]
    assert (heart.min(), heart.max()) == (0, 1)


def test_values_beyond_those_of_the_training_stays_are_cut(folder):
    write(folder, "b", {21: (50, "00:00,HR,8000\n02:00,HR,1\n")}, [1])
    assert channel(load("physionet2012", dir=folder), 2, "HR") == [100, 100, *[50] * 46]


def test_progress(folder):
    seen = []
    load("physionet2012", dir=folder, progress=lambda what, part: seen.append((what, part)))
    assert seen == [("reading set a", 1.0), ("reading set b", 1.0)]


def test_refused(folder):
    write(folder, "b", {21: (50, "")}, [1])
    with pytest.raises(DataError, match="set-b.tar.xz: no stay has a single measurement"):
        load("physionet2012", dir=folder)
    write(folder, "b", {21: (50, "00:10,HR,fast\n")}, [1])
    with pytest.raises(DataError, match="set-b.tar.xz: a line is not hh:mm,parameter,value"):
        load("physionet2012", dir=folder)
    write(folder, "b", {21: (50, "00:10,HR,1\n")}, [2])
    with pytest.raises(DataError, match="Outcomes-b.txt: there is no In-hospital_death of 0 or 1 for stay 21"):
        load("physionet2012", dir=folder)
    (folder / "Outcomes-b.txt").unlink()
    with pytest.raises(DataError, match="Outcomes-b.txt: cannot be read"):
        load("physionet2012", dir=folder)
    (folder / "set-a.tar.xz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="set-a.tar.xz: cannot be read as .tar.xz"):
        load("physionet2012", dir=folder)


@pytest.mark.skipif(not (SHARED / "physionet2012").is_dir(), reason="no PhysioNet 2012 at ../shared/data/physionet2012")
def test_real_stays():
    dataset = load("physionet2012", dir=SHARED)
    assert (dataset.x.shape, dataset.test_rows) == ((7990, 1968), 3993)
    assert dataset.y.mean() == pytest.approx(0.14, abs=0.005)
    assert np.isfinite(dataset.x).all()
    assert max(abs(block).max() for block in split(dataset, how="views").test) < 50
    assert channel(dataset, 0, "HR")[0] == pytest.approx(75)  # 00:07 73 and 00:37 77
