"""A federation's config may come from another member: the code that it names runs only if this side trusts it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import from_dict
from colonnade.config.trust import modules_of, refuse_untrusted
from colonnade.deployment.up import FederationUp
from colonnade.protocol.errors import ConfigError

NAMES: list[tuple[dict[str, Any], str]] = [
    ({"model": {"party": "hospital.models:Net"}}, "model.party"),
    ({"model": {"party": ["mlp:8", "hospital.models:Net"]}}, "model.party"),
    ({"model": {"server": "hospital.models:Net"}}, "model.server"),
    ({"protocol": {"name": "hospital.models:METHOD"}}, "protocol.name"),
]


@pytest.mark.parametrize(("tables", "key"), NAMES)
def test_a_name_that_imports_code_is_refused_with_the_option_to_add(tables: dict[str, Any], key: str) -> None:
    config = from_dict(tables)
    for trusted in ([], ["hospital.model"], ["hospital.models.inner"], ["clinic"], [""]):
        with pytest.raises(ConfigError, match=r"'hospital\.models'.*--trust hospital\.models$") as caught:
            refuse_untrusted(config, trusted)
        assert caught.value.key == key
    for trusted in (["hospital.models"], ["hospital"], ["clinic", "hospital"]):
        refuse_untrusted(config, trusted)
    assert modules_of(config) == ["hospital.models"]


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"model": {"party": ["mlp:64,32", "polynomial:2"], "server": "resnet18:64x32x32"}},
        {"model": {"party": "resnet18-stem", "server": "none"}, "protocol": {"name": "fedvs"}},
        {"protocol": {"name": "a method of an installed package"}},
    ],
)
def test_other_names_need_no_trust(tables: dict[str, Any]) -> None:
    refuse_untrusted(from_dict(tables), [])
    assert modules_of(from_dict(tables)) == []


BAIT = 'model = {party = "bait:Net"}\nnetwork = {parties = ["lab"]}\n'


@pytest.mark.parametrize(
    "command", [["serve"], ["join", "--party", "lab"], ["serve", "--predict"], ["privacy", "report"]], ids=" ".join
)
def test_no_command_of_a_member_imports_what_it_does_not_trust(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bait.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "own.toml").write_text(BAIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("model.party=bait:Net", "model.server=bait:Net", "protocol.name=bait:METHOD"):
        result = CliRunner().invoke(app, [*command, "own.toml", "--set", name])
        assert isinstance(result.exception, ConfigError)
        assert "--trust bait" in str(result.exception)


def test_a_federation_on_one_machine_trusts_the_config_that_its_user_wrote(tmp_path: Path) -> None:
    up = FederationUp(from_dict({"model": {"party": "hospital.models:Net"}}), tmp_path, ("lab",), ())
    for child in up.children.values():
        assert child._command[-2:] == ["--trust", "hospital.models"]
