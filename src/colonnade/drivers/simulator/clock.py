"""The `[clock]` section: how long computing takes, how links behave, what goes wrong and when.

fixed        mean_s
exponential  mean_s · Exp(1)
poisson      unit_s · Poisson(mean_s / unit_s); VAFL's Poisson(2m)/2M is mean_s = m/M, unit_s = 1/2M
lognormal    mean_s · exp(sigma·Z − sigma²/2)
trace        mean_s of work at the speed 1 − cpu(t), cpu from `cpu` or `file` in percent, or as `unit` says, a value per
             `interval_s`; a file is a CSV, or an archive of machines (see cpu_loads.py), with the number `machine`
"""

from math import inf, isfinite
from typing import Literal

import msgspec
import numpy as np

from colonnade.data.suggest import listing
from colonnade.drivers.simulator.cpu_loads import Unit, is_archive, percentages, read_load
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS

__all__ = ["ClockConfig", "Compute", "Fault", "Link", "Pace", "ServerClock"]

_DRAWS = 64  # that a Pace makes at a time


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds for one local step on one batch."""

    kind: Literal["fixed", "exponential", "poisson", "lognormal", "trace"] = "fixed"  # the distribution
    mean_s: float = 0.01  # mean seconds of a step; of a trace: on an idle machine
    sigma: float = 0.5  # spread of "lognormal"
    unit_s: float | None = None  # seconds of one count of "poisson"
    cpu: list[float] | None = None  # of a trace: CPU use by others, one value per interval
    file: str | None = None  # of a trace: a CSV, or a .tar.gz with a file for each machine
    machine: int | None = None  # which file of the archive, counted from 0
    unit: Unit | None = None  # of `cpu` or `file`; needed if no value is above 1
    interval_s: float = 300.0  # seconds that one value of a trace holds

    def check(self, key: str) -> None:
        """Raise ConfigError for parameters that the distribution cannot use."""
        if not 0 <= self.mean_s < inf:
            raise ConfigError(f"{key}.mean_s", self.mean_s, "must be 0 or more seconds")
        if not 0 <= self.sigma < inf:
            raise ConfigError(f"{key}.sigma", self.sigma, "must be 0 or more")
        if self.kind == "poisson" and not (self.unit_s is not None and 0 < self.unit_s < inf):
            raise ConfigError(f"{key}.unit_s", self.unit_s, "kind 'poisson' needs the seconds of one count, e.g. 0.1")
        if self.kind == "trace":
            self._check_load(key)

    @property
    def many_machines(self) -> bool:
        """Whether the trace comes from an archive, so that `machine` chooses one file of it."""
        return self.kind == "trace" and self.file is not None and is_archive(self.file)

    def _check_load(self, key: str) -> None:
        if (self.cpu is None) == (self.file is None):
            advice = "kind 'trace' needs either `cpu` (a list) or `file` (CSV or .tar.gz)"
            raise ConfigError(f"{key}.cpu", self.cpu, advice)
        if not 0 < self.interval_s < inf:
            raise ConfigError(f"{key}.interval_s", self.interval_s, "must be above 0 seconds")
        if self.machine is not None and not self.many_machines:
            raise ConfigError(f"{key}.machine", self.machine, "only a `file` that is a .tar.gz has machines to choose")
        self.utilisation(key)

    def utilisation(self, key: str = "clock.compute") -> np.ndarray:
        """The trace's CPU use in percent, from the file or the list; raises ConfigError."""
        if self.file is not None:
            return read_load(key, self.file, self.machine, self.unit)
        try:
            return percentages(f"{key}.unit", self.cpu or [], self.unit)
        except ValueError as error:
            raise ConfigError(f"{key}.cpu", self.cpu, str(error)) from None


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One role's connection to the others, the same in both directions."""

    latency_s: float = 0.005  # one way
    bandwidth_mbps: float = 100.0  # inf: unlimited

    def check(self, key: str) -> None:
        if not 0 <= self.latency_s < inf:
            raise ConfigError(f"{key}.latency_s", self.latency_s, "must be 0 or more seconds (one way)")
        if not self.bandwidth_mbps > 0:
            raise ConfigError(f"{key}.bandwidth_mbps", self.bandwidth_mbps, "must be above 0 (inf: unlimited)")


class ServerClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's compute model and link."""

    compute: Compute = Compute(mean_s=0.001)  # of the server
    network: Link = Link(latency_s=0.0, bandwidth_mbps=1000.0)  # the server's link


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that goes wrong with a role between `at_s` and `until_s`."""

    party: str  # the name of a party, or "server"
    kind: Literal["crash", "offline", "loss", "duplicate", "late"]  # what goes wrong
    at_s: float = 0.0  # when it starts, on the clock; of "late": when the party joins
    until_s: float = inf  # when it ends
    rate: float = 0.0  # of "loss" and "duplicate": the share of transmissions

    def check(self, key: str, names: list[str]) -> None:
        """Raise ConfigError for an unknown role, an empty time span or a rate outside (0, 1)."""
        if self.party not in names:
            raise ConfigError(f"{key}.party", self.party, f"no such role; there are: {listing(names)}")
        if not (0 <= self.at_s < inf and self.until_s > self.at_s):
            raise ConfigError(f"{key}.at_s", self.at_s, "must be 0 or more and before until_s")
        if self.kind in ("loss", "duplicate") and not 0 < self.rate < 1:
            raise ConfigError(f"{key}.rate", self.rate, f"a {self.kind} needs a rate between 0 and 1")


class ClockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[clock]`. `compute` and `network` hold for every party, or are lists with one entry per party."""

    compute: Compute | list[Compute] = Compute()  # of every party, or a list with one for each party
    network: Link | list[Link] = Link()  # the link of every party, or a list with one for each party
    server: ServerClock = ServerClock()  # the server's compute model and link
    faults: list[Fault] = []  # what goes wrong, and when
    lost_after_s: float = 2.0  # seconds of silence after which a role counts as lost

    def check(self, parties: tuple[str, ...]) -> None:
        """Raise ConfigError before the run starts."""
        for key, entries, entry_of in (
            ("compute", self.compute, self.compute_of),
            ("network", self.network, self.link_of),
        ):
            if isinstance(entries, list) and len(entries) != len(parties):
                raise ConfigError(
                    f"clock.{key}", f"{len(entries)} entries", f"give one, or one for each of {len(parties)}"
                )
            for index in range(len(parties)):
                entry_of(index).check(f"clock.{key}[{index}]" if isinstance(entries, list) else f"clock.{key}")
        self.server.compute.check("clock.server.compute")
        self.server.network.check("clock.server.network")
        for index, fault in enumerate(self.faults):
            fault.check(f"clock.faults[{index}]", [*parties, "server"])
        if not 0 <= self.lost_after_s < inf:
            raise ConfigError("clock.lost_after_s", self.lost_after_s, "must be 0 or more seconds")

    def compute_of(self, party: int) -> Compute:
        """One party's compute model. If one archive serves all parties, party i gets machine i."""
        if isinstance(self.compute, list):
            return self.compute[party]
        if self.compute.many_machines and self.compute.machine is None:
            return msgspec.structs.replace(self.compute, machine=party)
        return self.compute

    def link_of(self, party: int) -> Link:
        return self.network[party] if isinstance(self.network, list) else self.network


class Pace:
    """Converts an amount of work into nanoseconds, with one random draw per job.

    Draws are made in advance, many in one call: a call costs more than a draw. `generator` hides that.
    """

    def __init__(self, compute: Compute, generator: np.random.Generator) -> None:
        self._compute, self._generator = compute, generator
        self._ahead: list[float] = []  # seconds of the next steps, the very next one last
        self._before = generator.bit_generator.state  # in which these were drawn
        self._speeds, self.load_s = np.ones(1), inf  # load_s: seconds until the CPU load repeats
        if compute.kind == "trace":
            self._speeds = np.maximum(1 - compute.utilisation() / 100, 0.01)  # a fully loaded machine still progresses
            self.load_s = len(self._speeds) * compute.interval_s

    @property
    def generator(self) -> np.random.Generator:
        """The generator, in the state after the draws that were used, for a checkpoint."""
        if self._ahead:
            self._generator.bit_generator.state = self._before
            self._draw(_DRAWS - len(self._ahead))
            self._ahead.clear()
        return self._generator

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._ahead.clear()

    def duration(self, amount: float, now: int) -> int:
        """Nanoseconds that `amount` local steps take from `now` on."""
        if amount == 0.0:
            return 0
        if not self._ahead:
            if self._compute.kind == "trace":
                return self._through_load(amount * self._compute.mean_s, now)
            self._before = self._generator.bit_generator.state
            self._ahead = self._draw(_DRAWS)[::-1]
        return round(self._ahead.pop() * amount * NANOSECONDS)

    def _draw(self, count: int) -> list[float]:
        """Seconds of so many steps: the same numbers as if they were drawn one by one."""
        compute, mean, generator = self._compute, self._compute.mean_s, self._generator
        seconds: list[float]
        match compute.kind:
            case "exponential":
                seconds = generator.exponential(mean, count).tolist()
            case "poisson":
                unit = compute.unit_s or 1.0
                seconds = [counted * unit for counted in generator.poisson(mean / unit, count).tolist()]
            case "lognormal":  # numpy's exp of an array may round differently
                sigma, normal = compute.sigma, generator.standard_normal(count).tolist()
                seconds = [mean * float(np.exp(sigma * z - sigma**2 / 2)) for z in normal]
            case _:
                seconds = [mean] * count
        return seconds

    def _through_load(self, work_s: float, now: int) -> int:
        """Spend `work_s` seconds of an idle machine at the load's changing speed. The load repeats at its end."""
        interval, at = self._compute.interval_s, now / NANOSECONDS
        start, index = at, int(at // interval)
        while True:
            speed = float(self._speeds[index % len(self._speeds)])
            left = (index + 1) * interval - at
            if work_s <= left * speed or not isfinite(left):
                return round((at + work_s / speed - start) * NANOSECONDS)
            work_s -= left * speed
            index += 1  # counted: at // interval may round down to the interval just left
            at = index * interval
