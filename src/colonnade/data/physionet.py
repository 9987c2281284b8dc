"""PhysioNet/CinC Challenge 2012: 48 hours of vital signs of ICU stays, and which patients died in hospital.

Each stay becomes 48 hours × 41 channels, divided among four parties. The value of a channel in an hour is:

- the mean of the measurements in that hour;
- without any: the value of the last earlier hour that has one;
- before the first: the mean of the training stays' measurements (0 for MechVent, which is only ever recorded as 1).

Age, Height and similar values are recorded at the start and hold for all hours; -1 there means unknown. Values are cut
to the range of 99.8 % of the training stays' values, because some were typed without their decimal point (a WBC of
6251.9 is 950 standard deviations out). Set A is to train, set B to test. Stays without any measurement are left out,
with a note.

Data: https://physionet.org/content/challenge-2012 (set-a.tar.xz and set-b.tar.xz repack the site's archives).
"""

import io
import lzma
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars

from colonnade.data.dataset import Dataset, View
from colonnade.data.report_progress import ReportProgress
from colonnade.data.task import Array, classification
from colonnade.protocol.errors import DataError

HOURS = 48
GROUPS = {
    "cardiovascular": (
        "HR", "SysABP", "DiasABP", "MAP", "NISysABP", "NIDiasABP", "NIMAP", "TroponinI", "TroponinT",
    ),
    "respiratory": ("RespRate", "FiO2", "MechVent", "PaO2", "PaCO2", "pH", "SaO2", "Lactate"),
    "metabolic": (
        "BUN", "Creatinine", "Urine", "Na", "K", "Mg", "HCO3", "Glucose", "ALP", "ALT", "AST", "Bilirubin",
        "Albumin", "Cholesterol",
    ),
    "general": ("Age", "Gender", "Height", "Weight", "ICUType", "GCS", "Temp", "HCT", "Platelets", "WBC"),
}  # fmt: skip
CHANNELS = tuple(channel for group in GROUPS.values() for channel in group)
DESCRIPTORS = ("Age", "Gender", "Height", "Weight", "ICUType")
OUTCOME = "In-hospital_death"
HEADER = b"Time,Parameter,Value"
STAYS = 4000  # per set, only to show progress


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Stays:
    """One set: hourly means, NaN for an hour without a measurement."""

    ids: Array  # (stays,) int64
    hourly: Array  # (stays, HOURS, channels) float32
    died: Array  # (stays,) int64
    empty: int  # number of stays that were left out


def read_physionet(folder: Path, progress: ReportProgress) -> Dataset:
    """Read set-a.tar.xz, set-b.tar.xz and the outcomes of both."""
    train, test = (_read_set(folder, part, progress) for part in "ab")
    low, high = _usual_range(train.hourly)
    for part in (train, test):
        np.clip(part.hourly, low, high, out=part.hourly)
    fill = _training_means(train.hourly)
    hourly = np.concatenate([train.hourly, test.hourly])
    _carry_forward(hourly)
    np.copyto(hourly, fill, where=np.isnan(hourly))
    x, columns, views = _by_groups(hourly)
    left_out = train.empty + test.empty
    return Dataset(
        "physionet2012",
        x,
        np.concatenate([train.died, test.died]),
        classification(("survived", "died")),
        columns,
        test_rows=len(test.died),
        views=views,
        notes=(f"physionet2012: {left_out} stays have no measurement and are left out",) if left_out else (),
    )


def _read_set(folder: Path, part: str, progress: ReportProgress) -> _Stays:
    path = folder / f"set-{part}.tar.xz"
    text = _measurements(path, f"reading set {part}", progress)
    ids, hourly, measured = _hourly(path, text)
    died = _outcomes(folder / f"Outcomes-{part}.txt", ids)
    if not measured.any():
        raise DataError(f"{path}: no stay has a single measurement")
    return _Stays(ids[measured], hourly[measured], died[measured], int((~measured).sum()))


def _measurements(path: Path, what: str, progress: ReportProgress) -> bytes:
    """Return the lines of all stays in one text; each stay begins with its RecordID."""
    parts: list[bytes] = []
    try:
        with tarfile.open(path, "r|xz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".txt") else None
                if file is None:
                    continue
                header, _, lines = file.read().replace(b"\r\n", b"\n").partition(b"\n")
                if header.strip() != HEADER or b",RecordID," not in lines[:40]:
                    raise DataError(f"{path}: {member.name} does not begin with {HEADER.decode()} and a RecordID")
                parts.append(lines if lines.endswith(b"\n") else lines + b"\n")
                if len(parts) % 100 == 0:
                    progress(what, min(len(parts) / STAYS, 1.0))
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read as .tar.xz: {error}") from error
    if not parts:
        raise DataError(f"{path}: there is no stay in it")
    progress(what, 1.0)
    return b"".join(parts)


def _hourly(path: Path, text: bytes) -> tuple[Array, Array, Array]:
    """Return the ids of the stays, their hourly means, and whether anything but a descriptor was measured."""
    schema = {"time": polars.String, "parameter": polars.String, "value": polars.Float64}
    try:
        frame = polars.read_csv(io.BytesIO(text), has_header=False, schema=schema)
        frame = frame.with_columns(
            hour=polars.col("time").str.head(2).cast(polars.Int64).clip(0, HOURS - 1),  # 48:00 is the last hour
            stay=(polars.col("parameter") == "RecordID").cum_sum().cast(polars.Int64) - 1,
        )
    except polars.exceptions.PolarsError as error:
        raise DataError(f"{path}: a line is not hh:mm,parameter,value: {str(error).splitlines()[0]}") from error
    ids = frame.filter(polars.col("parameter") == "RecordID")["value"].cast(polars.Int64).to_numpy()
    known = polars.col("parameter").is_in(CHANNELS)
    unknown = polars.col("parameter").is_in(DESCRIPTORS) & (polars.col("value") < 0)
    frame = frame.filter(known & ~unknown & polars.col("value").is_finite())
    places = {channel: place for place, channel in enumerate(CHANNELS)}
    channel = frame["parameter"].replace_strict(places, return_dtype=polars.Int64).to_numpy()
    stay, value = frame["stay"].to_numpy(), frame["value"].to_numpy()
    cell = (stay * HOURS + frame["hour"].to_numpy()) * len(CHANNELS) + channel
    size = len(ids) * HOURS * len(CHANNELS)
    total, count = np.bincount(cell, value, size), np.bincount(cell, minlength=size)
    with np.errstate(invalid="ignore"):
        means = (total / count).astype(np.float32)  # 0 / 0 is NaN: no measurement
    signs = ~np.isin(channel, [places[name] for name in DESCRIPTORS])
    measured = np.bincount(stay[signs], minlength=len(ids)) > 0
    return ids, means.reshape(len(ids), HOURS, len(CHANNELS)), measured


def _outcomes(path: Path, ids: Array) -> Array:
    try:
        frame = polars.read_csv(path, columns=["RecordID", OUTCOME])
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as outcomes (RecordID, {OUTCOME}): {error}") from error
    died = dict(frame.iter_rows())
    absent = [int(stay) for stay in ids if died.get(int(stay)) not in (0, 1)]
    if absent:
        raise DataError(f"{path}: there is no {OUTCOME} of 0 or 1 for stay {absent[0]}")
    return np.array([died[int(stay)] for stay in ids], dtype=np.int64)


def _usual_range(hourly: Array) -> tuple[Array, Array]:
    """Return bounds per channel that leave out 0.1 % at either end.

    They are infinite for a channel that no training stay has.
    """
    low, high = np.full(len(CHANNELS), -np.inf, np.float32), np.full(len(CHANNELS), np.inf, np.float32)
    for place in range(len(CHANNELS)):
        values = hourly[:, :, place]
        if (values := values[~np.isnan(values)]).size:
            low[place] = np.quantile(values, 0.001, method="lower")
            high[place] = np.quantile(values, 0.999, method="higher")
    return low, high


def _training_means(hourly: Array) -> Array:
    """Return the mean per channel over the hours with a measurement; 0 for a channel that no training stay has."""
    count = np.count_nonzero(~np.isnan(hourly), axis=(0, 1))
    means: Array = np.nansum(hourly, axis=(0, 1), dtype=np.float64) / np.maximum(count, 1)
    means[CHANNELS.index("MechVent")] = 0.0
    return means.astype(np.float32)


def _carry_forward(hourly: Array) -> None:
    for hour in range(1, HOURS):
        np.copyto(hourly[:, hour], hourly[:, hour - 1], where=np.isnan(hourly[:, hour]))


def _by_groups(hourly: Array) -> tuple[Array, tuple[str, ...], tuple[View, ...]]:
    """Put each group's columns together, hour by hour."""
    x = np.empty((len(hourly), HOURS * len(CHANNELS)), np.float32)
    columns: list[str] = []
    views = []
    first = 0
    for name, group in GROUPS.items():
        run = range(len(columns), len(columns) + HOURS * len(group))
        x[:, run.start : run.stop] = hourly[:, :, first : first + len(group)].reshape(len(hourly), -1)
        columns.extend(f"{channel}@{hour}" for hour in range(HOURS) for channel in group)
        views.append(View(name, run, (HOURS, len(group))))
        first += len(group)
    return x, tuple(columns), tuple(views)
