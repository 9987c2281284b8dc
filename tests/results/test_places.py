"""Where commands put and find runs without a given folder."""

from pathlib import Path

import pytest

from colonnade.results.places import align_folder, fresh_folder, own_folder, usual_folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(*names: str) -> None:
    for name in names:
        Path(name).mkdir(parents=True)


def test_a_new_run_takes_the_first_free_number():
    assert fresh_folder("race") == Path("runs/race-1")
    made("runs/race-1", "runs/race-3")
    assert fresh_folder("race") == Path("runs/race-2")


def test_a_role_has_the_same_folder_at_every_start():
    assert own_folder(Path("a/clinic.toml"), "clinic") == Path("runs/clinic")
    assert own_folder(Path("a/credit.toml"), "clinic") == Path("runs/credit-clinic")
    assert align_folder(Path("a/credit.toml"), "clinic") == Path("runs/credit-clinic-align")


def test_questions_go_to_the_newest_run_of_up_unless_a_server_of_its_own_was_run():
    config = Path("credit.toml")
    assert usual_folder(config) == Path("runs/credit-server"), "without a folder, this is the one to ask for"
    made("runs/credit-2/nodes", "runs/credit-10/nodes", "runs/credit-11", "runs/credit-x/nodes")
    assert usual_folder(config) == Path("runs/credit-10")
    made("runs/credit-server")
    assert usual_folder(config) == Path("runs/credit-server")
    assert usual_folder(Path("runs/credit-2/config.toml")) == Path("runs/credit-2")
