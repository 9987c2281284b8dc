"""The container image, compose, Kubernetes and systemd files: no engine runs them here, so their contents are checked.

Every command in them is a real command with real options, users and ports agree, and nothing has more rights than it
needs.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import NetworkConfig, PredictConfig, from_dict, read_toml, typed_tables
from colonnade.drivers.health_file import REFRESH_S, STALE_AFTER_S

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
UID = 10001
PORT = int(NetworkConfig().address.rpartition(":")[2])
HTTP_PORT = int(PredictConfig().http.rpartition(":")[2])


# Commands


def check_command(words: list[str]) -> dict[str, Any]:
    """Parse a command line as typer would; returns its parameters."""
    group = typer.main.get_command(app)
    command = group.get_command(None, words[0])
    assert command is not None, f"colonnade has no command {words[0]}"
    context = command.make_context(words[0], list(words[1:]), resilient_parsing=False)
    return context.params


def check_settings(settings: list[str], path: Path) -> None:
    """The overrides belong to keys that exist and values that fit, over the member's config."""
    tables = typed_tables(path, list(settings))
    config = from_dict(tables)
    for setting in settings:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        assert str(getattr(getattr(config, section), name)) == value


# The image


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def last_stage() -> list[tuple[str, str]]:
    every = instructions()
    return every[max(place for place, (word, _) in enumerate(every) if word == "FROM") :]


def test_the_image_runs_as_a_fixed_user_and_writes_only_its_state():
    stage = dict(last_stage())
    assert stage["USER"] == f"{UID}:{UID}" and stage["VOLUME"] == stage["WORKDIR"] == "/state"
    assert (
        f"--uid {UID} --gid {UID}" in stage["RUN"] and f"--owner={UID} --group={UID} --mode=0700 /state" in stage["RUN"]
    )
    assert stage["STOPSIGNAL"] == "SIGTERM" and "PYTHONDONTWRITEBYTECODE=1" in stage["ENV"]
    words = [word for word, _ in last_stage()]
    assert words.index("USER") > words.index("RUN"), "nothing runs as root after the user is set"
    assert stage["EXPOSE"].split() == [str(PORT), str(HTTP_PORT)]
    assert not of("ADD") and all("curl" not in rest for rest in of("RUN"))


def test_the_image_has_two_stages_and_only_the_first_builds():
    assert len(of("FROM")) == 2 and all(rest.startswith("${BASE}") for rest in of("FROM"))
    assert of("ARG")[0].startswith("BASE=python:3.") and not of("ARG")[0].endswith("latest")
    assert [rest for word, rest in last_stage() if word == "COPY"] == ["--from=build /opt/colonnade /opt/colonnade"]
    assert "pip install" not in dict(last_stage())["RUN"]


def test_the_image_installs_what_the_constraints_say():
    assert any("-c constraints.txt" in rest and ".[${EXTRAS}]" in rest for rest in of("RUN"))
    assert any("TORCH_INDEX" in rest and "grep '^torch==' constraints.txt" in rest for rest in of("RUN"))
    (pinned,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", pinned), "one line, so that grep gives one word"
    extras = next(rest for rest in of("ARG") if rest.startswith("EXTRAS=")).partition("=")[2].split(",")
    assert set(extras) <= set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M))


def test_the_images_commands_are_real():
    stage = dict(last_stage())
    assert stage["ENTRYPOINT"] == '["colonnade"]' and stage["CMD"] == '["--help"]'
    checked = yaml.safe_load(stage["HEALTHCHECK"].partition("CMD ")[2])
    assert checked[0] == "colonnade" and str(check_command(checked[1:])["place"]) == "/state"
    interval = int(re.search(r"--interval=(\d+)s", stage["HEALTHCHECK"])[1])
    assert interval >= REFRESH_S and STALE_AFTER_S > 2 * REFRESH_S


def test_everything_that_the_image_copies_is_in_the_build_context():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]}
    assert copied == kept and all((ROOT / name).exists() for name in kept)
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines(), "all else stays outside: runs, keys, tests"
    assert "**/*.key" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_build_of_the_image_needs_no_more_files(tmp_path):
    """Build the wheel from the copied files alone."""
    pytest.importorskip("hatchling")
    for name in {name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]}:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", "out", "."]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0 and list((tmp_path / "out").glob("colonnade-*.whl")), made.stderr


# Compose


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The tutorial's folders, before the alignment."""
    home = tmp_path_factory.mktemp("three")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^(three|bank|shop|insurer)\$ colonnade ((?:init|invite|accept|admit) .*)", tutorial, re.M)
    assert len(commands) == 8
    for name in ("bank", "shop", "insurer"):
        (home / name / "data").mkdir(parents=True)
        for table in (name, "new"):
            (home / name / "data" / f"{table}.csv").write_text("client,LIMIT_BAL,SEX,EDUCATION,MARRIAGE,BILL_AMT6\n")
    with pytest.MonkeyPatch.context() as patch:
        for folder, words in commands:
            patch.chdir(home if folder == "three" else home / folder)
            done = CliRunner().invoke(app, shlex.split(words))
            assert done.exit_code == 0, done.output
    return home


MEMBERS = {"server": "bank", "bank": "bank", "shop": "shop", "insurer": "insurer"}  # and the folder of each


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_in_compose(name, three):
    found = compose()
    member = found["services"][name]
    assert member["user"] == f"{UID}:{UID}" and member["read_only"] is True and member["cap_drop"] == ["ALL"]
    assert member["security_opt"] == ["no-new-privileges:true"] and member["restart"].startswith("on-failure:")
    assert [mount.partition(":")[0] for mount in member["tmpfs"]] == ["/tmp"] and member["init"] is True
    parameters = check_command(member["command"])
    assert str(parameters["config"]) == f"{name}.toml" and parameters.get("party", name) == name
    assert str(parameters["out"]).startswith("/state/")
    check_settings(parameters["settings"], three / MEMBERS[name] / f"{name}.toml")
    assert check_command(member["healthcheck"]["test"][2:])["place"] == Path("/state")
    assert member["secrets"] == [f"{name}_key"] and found["secrets"][f"{name}_key"]["file"].endswith(f"{name}.key")
    assert f"network.key=/run/secrets/{name}_key" in parameters["settings"]
    assert "ports" not in member and "privileged" not in member


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_in_compose_gets_its_own_files_only_and_all_of_them(name, three):
    mounts, folder = compose()["services"][name]["volumes"], MEMBERS[name]
    state = [mount for mount in mounts if not mount.endswith(":ro")]
    assert state == [f"{name}-state:/state"]
    inside = set()
    for mount in mounts:
        if mount.endswith(":ro"):
            source, _, target = mount.removesuffix(":ro").rpartition(":")
            assert source == "${FOLDERS:-/tmp/three}/" + folder + target.removeprefix("/member")
            assert ".key" not in source and target != "/member/federation"
            inside.add(target.removeprefix("/member/"))
    config = from_dict(read_toml(three / folder / f"{name}.toml"))
    network, own = config.network, config.server if name == "server" else config.party
    assert Path(own.data).parent == Path("data") and (three / folder / own.data).exists()
    assert inside == {f"{name}.toml", own.aligned, "data", network.certificate, network.authority, network.members}
    made = inside - {own.aligned} | {compose()["secrets"][f"{name}_key"]["file"].partition(f"/{folder}/")[2]}
    assert all((three / folder / file).exists() for file in made)


def test_the_members_of_compose_meet():
    found = compose()
    assert set(found["services"]) == set(MEMBERS) and found["networks"]["federation"]["internal"]
    assert set(found["volumes"]) == {f"{name}-state" for name in found["services"]}
    server = check_command(found["services"]["server"]["command"])["settings"]
    assert f"network.address=0.0.0.0:{PORT}" in server
    for name in set(MEMBERS) - {"server"}:
        assert f"network.address=server:{PORT}" in check_command(found["services"][name]["command"])["settings"]


# Kubernetes


def manifests(name: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / "deploy" / "kubernetes" / name).read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod(name: str) -> dict[str, Any]:
    return manifests(name)["StatefulSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(("name", "kinds"), [
    ("server.yaml", {"Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"}),
    ("party.yaml", {"StatefulSet", "NetworkPolicy"}),
])  # fmt: skip
def test_a_pod_is_restricted_as_the_pod_security_standard_says(name, kinds):
    found, spec = manifests(name), pod(name)
    assert set(found) == kinds and found["StatefulSet"]["spec"]["replicas"] == 1
    security = spec["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == UID
    assert security["seccompProfile"] == {"type": "RuntimeDefault"} and spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]} and {"requests", "limits"} <= container["resources"].keys()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    labels = found["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert found["StatefulSet"]["spec"]["template"]["metadata"]["labels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize(("name", "member"), [("server.yaml", "server"), ("party.yaml", "clinic")])
def test_a_pods_commands_are_real_and_its_files_are_mounted(name, member):
    (container,), (init,) = pod(name)["containers"], pod(name)["initContainers"]
    parameters = check_command(container["args"])
    assert str(parameters["config"]) == f"{member}.toml" and container["workingDir"] == "/member"
    check_settings(parameters["settings"], ROOT / "examples" / "deploy" / f"{member}.toml")
    mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    writable = {path for path, mount in mounted.items() if not mount.get("readOnly")}
    assert writable == {"/state", "/tmp"} and str(parameters["out"]) == f"/state/{member}"
    volumes = {one["name"] for one in pod(name)["volumes"]} | {"state"}
    assert {mount["name"] for one in (container, init) for mount in one["volumeMounts"]} <= volumes
    for probe, ready in (("startupProbe", False), ("livenessProbe", False), ("readinessProbe", True)):
        words = container[probe]["exec"]["command"]
        checked = check_command(words[1:])
        assert words[0] == "colonnade" and (checked["place"], checked["ready"]) == (Path("/state"), ready)
        assert container[probe]["timeoutSeconds"] >= 10, "a probe starts Python"
    key = [setting for setting in parameters["settings"] if setting.startswith("network.key=")]
    assert key == [f"network.key={init['command'][-1]}"] and init["command"][1] == "--mode=0600"


def test_the_ports_of_service_pod_and_policies_agree():
    server, party = manifests("server.yaml"), manifests("party.yaml")
    ports = {port["name"]: port["port"] for port in server["Service"]["spec"]["ports"]}
    inside = {port["name"]: port["containerPort"] for port in pod("server.yaml")["containers"][0]["ports"]}
    assert ports == inside == {"federation": PORT, "predict": HTTP_PORT}
    assert server["Service"]["spec"]["clusterIP"] == "None"
    admitted = [rule["ports"][0]["port"] for rule in server["NetworkPolicy"]["spec"]["ingress"]]
    assert admitted == [PORT, HTTP_PORT] and server["NetworkPolicy"]["spec"]["egress"] == []
    assert party["NetworkPolicy"]["spec"]["ingress"] == []
    assert party["NetworkPolicy"]["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": PORT}]
    settings = check_command(pod("party.yaml")["containers"][0]["args"])["settings"]
    assert f"network.address={server['Service']['metadata']['name']}:{PORT}" in settings
    budget, labels = server["PodDisruptionBudget"]["spec"], server["Service"]["spec"]["selector"]
    assert budget["selector"]["matchLabels"] == labels == server["StatefulSet"]["spec"]["selector"]["matchLabels"]


def test_the_manifests_fit_the_schemas():
    validate = pytest.importorskip("kubernetes_validate")
    for name in ("server.yaml", "party.yaml"):
        for one in manifests(name).values():
            validate.validate(one, "1.31", strict=True)


# systemd

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def unit(path: Path) -> dict[str, list[str]]:
    pairs = (line.partition("=") for line in path.read_text().splitlines() if "=" in line and not line.startswith("#"))
    found: dict[str, list[str]] = {}
    for key, _, value in pairs:
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardened_and_its_command_is_real(path):
    found = {key: values[-1] for key, values in unit(path).items()}
    party = "@" in path.name
    words = shlex.split(found["ExecStart"].replace("%i", "clinic").replace("${STATE_DIRECTORY}", "/var/lib/x"))
    parameters = check_command(words[1:])
    assert words[0] == "/opt/colonnade/bin/colonnade" and str(parameters["out"]) == "/var/lib/x/run"
    assert parameters.get("party") == ("clinic" if party else None)
    assert found["Type"] == "exec", "the process does not tell systemd that it is ready"
    assert found["RestartPreventExitStatus"] == "2" and found["Restart"] == "on-failure"
    assert found["ProtectSystem"] == "strict" and found["NoNewPrivileges"] == "true" and found["User"] == "colonnade"
    assert (
        found["StateDirectory"] == f"colonnade/{'%i' if party else 'server'}" and found["CapabilityBoundingSet"] == ""
    )
    assert unit(path)["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert found["KillSignal"] == "SIGTERM" and int(found["TimeoutStopSec"]) >= 30 and found["MemoryMax"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit_and_finds_it_little_exposed(path, tmp_path):
    name = path.name.replace("@.", "@clinic.")
    text = path.read_text().replace("/opt/colonnade/bin/colonnade", sys.executable)  # verify looks for the program
    (tmp_path / path.name).write_text(text)
    (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / name)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    mine = [line for line in checked.stderr.splitlines() if path.stem.rstrip("@") in line]
    assert checked.returncode == 0 and mine == [], checked.stderr
    command = ["systemd-analyze", "security", "--offline=true", str(tmp_path / name)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    exposure = re.search(r"Overall exposure level for \S+ ([\d.]+)", said)
    assert exposure is None or float(exposure[1]) <= 2.0, said  # an older systemd-analyze has no --offline


def test_both_units_agree_except_for_the_member():
    server, party = (path.read_text() for path in reversed(UNITS))
    same = party.replace("The party %i of", "The server of").replace("/%i\n", "/server\n")
    same = same.replace("join %i.toml --party %i", "serve server.toml")
    assert same == server


def test_the_systems_user_is_made():
    assert re.search(r"^u colonnade ", (ROOT / "deploy/systemd/colonnade.sysusers.conf").read_text(), re.MULTILINE)


# What an install gets


def test_the_sdist_has_these_files_and_the_wheel_has_not():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^only-include = \[(.*)\]$", text, re.MULTILINE)
    assert {'"deploy"', '"Dockerfile"', '".dockerignore"', '"compose.yaml"'} <= set(listed.split(", "))
