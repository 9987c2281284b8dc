"""Methods of installed packages: found by entry point, refused when two share a name, reported when broken."""

import importlib
import sys

import pytest

from colonnade.algorithms import METHODS, find_method, registry
from colonnade.protocol.errors import ConfigError

CODE = """
import dataclasses
from colonnade.algorithms.vafl import METHODS

MANY = tuple(dataclasses.replace(METHODS[0], name=name) for name in {names!r})
ONE = MANY[0]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on the path, as pip leaves it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.installed.cache_clear()

    def put(name, point, value, code):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{point} = {name}:{value}\n", encoding="utf-8")
        importlib.invalidate_caches()

    yield put
    registry.installed.cache_clear()


def test_one_method_and_a_tuple_of_methods_are_found_by_their_names(install):
    install("registry_one", "mine", "ONE", CODE.format(names=["mine"]))
    install("registry_two", "anything", "MANY", CODE.format(names=["yours", "theirs"]))
    assert [find_method(name).name for name in ("mine", "yours", "theirs")] == ["mine", "yours", "theirs"]
    with pytest.raises(ConfigError, match=r"unknown method; did you mean 'yours'\? there are: .*vafl.*, mine, yours"):
        find_method("yourz")


def test_no_package_is_imported_for_a_method_of_colonnade(install):
    install("registry_side_effect", "mine", "ONE", "raise AssertionError('imported')")
    assert find_method("vafl") is METHODS["vafl"]
    assert (
        "registry_side_effect 1.0 brings it, but it cannot be loaded: imported" in registry.installed().faults["mine"]
    )


def test_a_name_that_two_packages_bring_is_refused_with_both(install):
    install("registry_left", "twice", "ONE", CODE.format(names=["twice"]))
    install("registry_right", "other", "MANY", CODE.format(names=["twice", "once"]))
    with pytest.raises(ConfigError, match=r"'twice': registry_left 1.0 and registry_right 1.0 both have a method"):
        find_method("twice")
    assert find_method("once").name == "once"


def test_a_package_cannot_replace_a_method_of_colonnade(install):
    install("registry_usurper", "vafl", "ONE", CODE.format(names=["vafl"]))
    found = registry.installed()
    assert find_method("vafl") is METHODS["vafl"] and not found.methods
    assert found.faults["vafl"].startswith("colonnade and registry_usurper 1.0 both have a method of this name")


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("ONE", "import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("NOTHING", "", "has no attribute 'NOTHING'"),
        ("ONE", "ONE = 3", "it is a int, not a colonnade Method"),
    ],
    ids=["import", "attribute", "type"],
)
def test_a_broken_entry_point_is_reported_where_its_name_is_asked_for_and_hinders_no_other(install, value, code, why):
    install("registry_broken", "broken", value, code)
    install("registry_sound", "mine", "ONE", CODE.format(names=["mine"]))
    assert find_method("mine").name == "mine"
    for name in ("broken", "unknown"):
        with pytest.raises(ConfigError, match=f"registry_broken 1.0 brings it, but it cannot be loaded: .*{why}"):
            find_method(name)
