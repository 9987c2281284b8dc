"""Checks of the cluster's nodes: the same software, the same storage, and room for the roles.

Each node is asked by its own task. Ray sends the task's code, so the node needs no installed Colonnade for it.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from colonnade.protocol.errors import ColonnadeError, ConfigError

__all__ = ["addresses", "free", "in_words", "refuse_differing", "refuse_lacking", "refuse_unshared"]

ANSWER_S = 60.0  # a node may have to start a worker first
Amounts = Mapping[str, float]  # of Ray's resources: CPU, GPU and custom names


def _alive() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in found if node["Alive"]]


def addresses() -> list[str]:
    return [str(node["NodeManagerAddress"]) for node in _alive()]


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _ask_all(question: Callable[..., Any], *values: Any) -> dict[str, Any]:
    """Every node's answer by the node's name, without nodes that were lost meanwhile; raises ColonnadeError."""
    task: Any = ray.remote(question)
    asked = {}
    for node in _alive():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[_name(node)] = task.options(num_cpus=0, scheduling_strategy=there).remote(*values)
    answers = {}
    for name, reference in asked.items():
        try:
            answers[name] = ray.get(reference, timeout=ANSWER_S)
        except ray.exceptions.RayTaskError as error:
            raise ColonnadeError(f"node {name} of the Ray cluster: {error.cause}") from None
        except ray.exceptions.RayError as error:
            if name not in map(_name, _alive()):
                continue
            raise ColonnadeError(f"node {name} of the Ray cluster does not answer ({type(error).__name__})") from None
    return answers


def _versions_here() -> Callable[[], dict[str, str]]:
    def versions() -> dict[str, str]:  # nested: so Ray sends the code and does not import it there
        import importlib  # noqa: PLC0415
        import platform  # noqa: PLC0415
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        found = {"python": platform.python_version()}
        for name in ("ray", "torch"):
            try:
                found[name] = version(name)  # importing torch would take seconds
            except PackageNotFoundError:
                found[name] = "missing"
        try:
            found["colonnade"] = importlib.import_module("colonnade").__version__
        except ImportError:
            found["colonnade"] = "missing"
        return found

    return versions


def refuse_differing() -> None:
    """Raise ColonnadeError unless Python, Ray, torch and Colonnade are the same on all nodes."""
    versions = _versions_here()
    compare_versions(versions(), _ask_all(versions))


def compare_versions(here: Mapping[str, str], there: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ColonnadeError if a node has another version than this process."""
    differences = [
        f"{name} has {what} {found[what]}"
        for name, found in there.items()
        for what in here
        if found[what] != here[what]
    ]
    if differences:
        wanted = ", ".join(f"{what} {version}" for what, version in here.items())
        raise ColonnadeError(
            f"the nodes of the Ray cluster differ: {'; '.join(differences)}. This command has {wanted}: "
            "install the same on every node (pip install -c constraints.txt), and restart Ray there"
        )


def refuse_unshared(file: Path) -> None:
    """Raise ConfigError unless all nodes see the same file, so that they share its folder."""

    def digest(path: str) -> str:
        from hashlib import sha256  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        return sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""

    here = sha256(file.read_bytes()).hexdigest()
    without = [name for name, found in _ask_all(digest, str(file)).items() if found != here]
    if without:
        advice = "does not exist on {}: choose a folder on storage that all nodes of the cluster share"
        raise ConfigError("--out", str(file.parent), advice.format(", ".join(without)))


def in_words(amounts: Amounts) -> str:
    """For example `0.5 CPU, 1 GPU`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing"


def free() -> dict[str, float]:
    """The free resources that a role can ask for."""
    found: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return _askable(found)


def _askable(amounts: Amounts) -> dict[str, float]:
    """Without the resources that Ray manages itself."""
    hidden = ("memory", "object_store_memory")
    return {name: round(have, 4) for name, have in amounts.items() if name not in hidden and ":" not in name}


def refuse_lacking(wanted: Mapping[str, Amounts]) -> None:
    """Raise ConfigError if these roles can never run on these nodes at the same time, even when all is free."""
    compare_resources(wanted, {_name(node): node["Resources"] for node in _alive()})


def compare_resources(wanted: Mapping[str, Amounts], nodes: Mapping[str, Amounts]) -> None:
    """Raise ConfigError unless each role fits on one node, and all together fit into the cluster."""
    has = "; ".join(f"{name} has {in_words(_askable(amounts))}" for name, amounts in nodes.items())
    for role, amounts in wanted.items():
        if not any(_fits(amounts, node) for node in nodes.values()):
            key = "resources.server" if role == "server" else f"resources.party (or resources.parties.{role})"
            raise ConfigError(key, in_words(amounts), f"{role} could never start, because no node has this much: {has}")
    for name in sorted({name for amounts in wanted.values() for name in amounts}):
        asked = sum(amounts.get(name, 0.0) for amounts in wanted.values())
        there = sum(node.get(name, 0.0) for node in nodes.values())
        if asked > there + 1e-9:
            advice = (
                f"{len(wanted)} roles run at the same time and need {asked:g} together, but the cluster has {there:g}"
            )
            raise ConfigError("resources", name, f"{advice} ({has}): ask for less per role, or add nodes")


def _fits(amounts: Amounts, node: Amounts) -> bool:
    return all(amount <= node.get(name, 0.0) + 1e-9 for name, amount in amounts.items())
