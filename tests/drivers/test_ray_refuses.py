"""What a Ray cluster lacks is reported before anything starts: missing CPUs, different nodes, how to start one."""

from types import SimpleNamespace

import pytest

from colonnade.config.schema import ResourcesConfig, RoleResources, from_dict
from colonnade.protocol.errors import ColonnadeError, ConfigError

pytest.importorskip("ray")

from colonnade.drivers.ray import cluster, nodes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NODES = {"10.0.0.1 (aa)": {"CPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0}, "10.0.0.2 (bb)": {"CPU": 4.0, "GPU": 1.0}}
VERSIONS = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "colonnade": "0.1.0"}


def test_a_table_of_resources_is_read():
    tables = {"server": {"cpus": 1}, "party": {"gpus": 0.25}, "parties": {"bank": {"custom": {"lab_a": 1}}}}
    resources = from_dict({"resources": tables}).resources
    assert resources.of("server").amounts == {"CPU": 1, "GPU": 0}
    assert resources.of("shop").amounts == {"CPU": 0.1, "GPU": 0.25}
    assert resources.of("bank").amounts == {"CPU": 0.1, "GPU": 0, "lab_a": 1}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"party": {"cpus": -1}}, "must be 0 or more"),
        ({"server": {"gpus": 1.5}}, "whole number"),
        ({"server": {"custom": {"GPU": 1}}}, "use the keys cpus and gpus"),
        ({"server": {"cpu": 1}}, "did you mean 'cpus'"),
    ],
    ids=str,
)
def test_what_is_no_resource_is_refused(tables, words):
    with pytest.raises(ConfigError, match=words):
        from_dict({"resources": tables})


def test_eight_parties_and_a_server_fit_on_two_cpus():
    resources = ResourcesConfig()
    nodes.compare_resources(
        {name: resources.of(name).amounts for name in ("server", *"12345678")}, {"it": {"CPU": 2.0}}
    )


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            {"server": {"CPU": 5}},
            r"resources.server = '5 CPU': server could never start.* 10.0.0.1 \(aa\) has 2 CPU; 10.0.0.2",
        ),
        ({"bank": {"CPU": 3, "GPU": 2}}, r"resources.parties.bank.* = '3 CPU, 2 GPU'.* has 4 CPU, 1 GPU"),
        ({"bank": {"lab_a": 1}}, "bank could never start"),
        (
            {"bank": {"GPU": 0.6}, "shop": {"GPU": 0.6}},
            "2 roles run at the same time and need 1.2 together.* has 1 ",
        ),
    ],
    ids=str,
)
def test_roles_that_could_never_run_are_named_with_what_the_nodes_have(wanted, words):
    with pytest.raises(ConfigError, match=words):
        nodes.compare_resources(wanted, NODES)


def test_nodes_that_differ_are_named():
    nodes.compare_versions(VERSIONS, {"a": VERSIONS, "b": VERSIONS})
    there = {"a": VERSIONS, "b": VERSIONS | {"torch": "2.6.0", "colonnade": "missing"}}
    with pytest.raises(
        ColonnadeError, match=r"b has torch 2.6.0; b has colonnade missing. This command has python 3.11"
    ):
        nodes.compare_versions(VERSIONS, there)


def test_a_folder_that_a_node_does_not_see_is_refused(monkeypatch, tmp_path):
    file = tmp_path / "comparison.json"
    file.write_text("[]")
    asked = {}

    def ask(question, *values):
        asked["a"] = question(*values)
        return {"a": asked["a"], "b": "", "c": "another"}

    monkeypatch.setattr(nodes, "_ask_all", ask)
    with pytest.raises(ConfigError, match="does not exist on b, c: choose a folder on storage that all nodes"):
        nodes.refuse_unshared(file)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n"),
            "same Ray and Python.*Ray: 2.9",
        ),
        (ConnectionError("nobody\nhome"), r"no Ray answers there \(nobody\); start one with: .*ray start --head"),
    ],
    ids=["versions", "silence"],
)
def test_what_ray_says_is_said_in_our_words(error, words):
    with pytest.raises(ConfigError, match=words):
        raise cluster._in_our_words("127.0.0.1:1", error)


def test_a_cluster_that_wants_its_token():
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError("ray.exceptions.AuthenticationError: InvalidAuthToken")
    assert "RAY_AUTH_MODE=token" in str(cluster._in_our_words("10.0.0.1:6379", error))


def test_a_head_that_did_not_come_up_is_started_once_more():
    """Ray forks to start it; a child that hangs shows as a file that never appears."""
    said, done = ["Timed out waiting for file gcs_server_port", "Timed out waiting for file gcs_server_port"], []

    def begin():
        done.append("begin")
        if said:
            raise RuntimeError(said.pop())

    with pytest.raises(RuntimeError, match="Timed out"):
        cluster._start(begin, lambda: done.append("shut down"))
    assert done == ["begin", "shut down", "begin"]
    said.append("Timed out waiting for file gcs_server_port")
    cluster._start(begin, lambda: None)
    said.append("another cause")
    with pytest.raises(RuntimeError, match="another cause"):
        cluster._start(begin, pytest.fail)


def test_a_ray_that_would_listen_to_all_is_refused():
    cluster._refuse_other_interfaces(None, ["127.0.0.1"])
    with pytest.raises(ColonnadeError, match="would listen on all interfaces"):
        cluster._refuse_other_interfaces(None, ["10.0.0.1"])
    with pytest.raises(ConfigError, match=r"its nodes are at 10.0.0.1: give the address"):
        cluster._refuse_other_interfaces("127.0.0.1:6379", ["10.0.0.1"])


def test_a_role_that_is_not_up_says_what_it_waits_for(monkeypatch):
    on_ray = pytest.importorskip("colonnade.deployment.on_ray")
    monkeypatch.setattr(on_ray, "free", lambda: {"CPU": 0.5})
    child = SimpleNamespace(name="bank", silent_s=12.0, amounts=RoleResources(cpus=0.1, gpus=1).amounts)
    assert on_ray._waits(child) == (
        "bank has not been running for 12 s: it asks for 0.1 CPU, 1 GPU; the cluster has free: 0.5 CPU"
    )
    child.amounts = RoleResources().amounts
    assert on_ray._waits(child).endswith("or Ray has not yet noticed that its node is lost")
