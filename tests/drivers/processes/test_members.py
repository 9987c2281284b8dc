"""The list of members: two certificates of a renewed member, none of a revoked one."""

import pytest

from colonnade.drivers.processes.members import Change, Members, members_toml, read_members
from colonnade.protocol.errors import ConfigError

A, B, C, D = ("ab" * 32, "bc" * 32, "cd" * 32, "de" * 32)


def written(path, members):
    path.write_bytes(members_toml(members))
    return read_members(path)


def test_a_list_is_read_as_it_was_written(tmp_path):
    members = Members({"server": A, "bank": (B, C), "shop": D}).without("shop")
    found = written(tmp_path / "members.toml", members)
    assert dict(found) == {"server": A, "bank": B} and found.all_of("bank") == (B, C)
    assert found.revoked == {"shop": (D,)} and found.all_of("shop") == ()
    assert written(tmp_path / "plain.toml", {"server": A}) == {"server": A}


def test_which_certificates_are_accepted():
    members = Members({"server": A, "bank": (B, C), "shop": D}).without("shop")
    assert members.why_not("bank", B) is None and members.why_not("bank", C) is None
    assert members.why_not("bank", A) == "the certificate of 'bank' is not the one in the list of members"
    assert members.why_not("shop", D) == "the certificate of 'shop' was revoked"
    assert members.why_not("shop", A) == "the certificate of 'shop' was revoked"
    assert members.why_not("lab", A) == "'lab' is not on the list of members"
    again = members.renewed("shop", "ef" * 32)
    assert again.why_not("shop", "ef" * 32) is None and "revoked" in again.why_not("shop", D)
    assert again.may_change("shop", A) and not again.may_change("shop", D) and not again.may_change("lab", A)
    assert Members({}).why_not("bank", A) is None, "no list: the authority's word counts"


def test_changes_have_names():
    before = Members({"server": A, "bank": B, "shop": D})
    after = before.without("shop").renewed("bank", C, [B]).renewed("lab", "ef" * 32)
    assert before.change_to(after) == Change(["lab"], ["shop"], ["bank"])
    assert not before.change_to(Members.of(before))
    assert after.only({"server", "shop"}).tables() == {"members": {"server": A}, "revoked": {"shop": [D]}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            f"[members]\nserver = '{A}'\nshop = '{D}'\n[revoked]\nshop = ['{D}']",
            "revoked certificate of shop.*certs sign",
        ),
        (f"[members]\nserver = '{A}'\nbank = ['{D}']\n[revoked]\nshop = ['{D}']", "revoked certificate of shop"),
        (f"[members]\nserver = ['{A}', '{B}', '{C}']", "server: has 3 fingerprints, at most 2"),
        (f"[members]\nserver = ['{A}', '{A}']", "same fingerprint"),
        ("[members]\nserver = []", "64 lower-case hex"),
        (f"[members]\nserver = '{A}'\n[revoked]\nshop = [3]", "64 lower-case hex"),
        (f"[members]\nserver = '{A}'\n[revoked]\n'no name' = '{B}'", "not a member's name"),
        (f"revoked = 3\n[members]\nserver = '{A}'", r"a table \[members\]"),
    ],
)
def test_lists_that_cannot_be(tmp_path, text, complaint):
    (tmp_path / "members.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_members(tmp_path / "members.toml")
