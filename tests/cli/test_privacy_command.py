"""`colonnade privacy fedvs`: the possible codes and their cost."""

import pytest
from typer.testing import CliRunner

from colonnade.algorithms.fedvs.advice import Shape, choices, recommend
from colonnade.cli.main import app
from colonnade.protocol.errors import ConfigError


def run(*arguments, columns="200"):
    return CliRunner().invoke(app, ["privacy", "fedvs", *arguments], env={"COLUMNS": columns}, catch_exceptions=False)


def test_it_recommends_a_code_and_says_what_it_costs():
    result = run("--parties", "14", "--stragglers", "7", "--colluders", "1")
    assert result.exit_code == 0
    assert "protocol.K = 3, protocol.T = 1" in result.output
    assert "sums of 78 terms with l_x = 8, l_w = 11, |x| ≤ 1, |w| ≤ 1 need 26.3 of 31.0 bits" in result.output


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="4 parties are too few"):
        run("--parties", "4", "--stragglers", "3", "--colluders", "1")
    with pytest.raises(ConfigError, match="--colluders = -1"):
        run("--colluders", "-1")
    with pytest.raises(ConfigError, match="the largest that fit: l_w = 15 or l_x = 3"):
        run("--parties", "4", "--set", "protocol.l_w=20")


def test_a_code_without_protection_is_not_recommended_unless_asked_for():
    with pytest.raises(ConfigError, match="--colluders = 0: protects nothing: .* protocol.allow_unprotected=true"):
        run("--parties", "4", "--colluders", "0")
    result = run("--parties", "4", "--colluders", "0", "--set", "protocol.allow_unprotected=true")
    assert "protocol.T = 0" in result.output and "NOTHING IS PROTECTED" in result.output


def test_the_config_counts(tmp_path):
    config = tmp_path / "own.toml"
    config.write_text('[data]\nparties = 6\n[model]\nparty = "polynomial:2"\n[protocol]\nname = "fedvs"\nl_w = 10\n')
    result = run(str(config), "--stragglers", "1", "--colluders", "1")
    assert "sums of 140 terms with l_x = 8, l_w = 10" in result.output, "2·(64 + 6)"


def test_costs_by_hand():
    shape = Shape(rows=100, test_rows=20, terms=(11, 21, 11, 11, 11), width=4, batch=10)
    found = choices(5, 0, 1, shape)
    best = recommend(found, 1)
    assert [(choice.code.segments, choice.code.colluders) for choice in found] == [(2, 1), (1, 1), (1, 2)]
    assert best is found[0] and best.work == 2 * 5 / 2
    assert best.start_bytes == 4 * 4 * 60 * 21 and best.memory_bytes == 4 * 60 * 65
    assert best.round_bytes == 4 * 4 * (4 * (21 + 5) + 5)
    assert recommend(found, 3) is None
