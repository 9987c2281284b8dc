"""Every file has a version. An old one is read or refused with the release that can read it."""

import pytest

from colonnade import __version__
from colonnade.protocol import formats
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.formats import Format, stamp

GROWN = Format(
    "a thing",
    {1: "0.0.1", 2: "0.1", 3: "0.2", 4: "0.3"},
    {2: lambda old: {"rows": old["row"]}, 3: lambda old: {"rows": [old["rows"]]}},
)


def test_an_old_content_becomes_the_newest_step_by_step():
    assert GROWN.readable == [2, 3, 4]
    assert GROWN.read({"format": 2, "row": 7}, "f") == {"format": 4, "rows": [7]}
    assert GROWN.read({"format": 4, "rows": [7]}, "f") == {"format": 4, "rows": [7]}
    assert GROWN.read({"row": 7}, "f", default=2) == {"format": 4, "rows": [7]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format": 1}, ["f: a thing of format 1", "2 or 3 or 4", "continue with release 0.0.1,", "--out"]),
        ({"format": 9}, ["format 9", "install the release that wrote it"]),
        ({"format": 9, "release": "0.7.0"}, ["install release 0.7.0, which wrote it"]),
        ({"format": "x"}, ["not a file of Colonnade"]),
        ({"format": True}, ["not a file of Colonnade"]),
        ({}, ["format None"]),
        ([], ["f: not a thing"]),
    ],
)
def test_any_other_file_is_refused_with_the_release_that_reads_it(content, words):
    with pytest.raises(CheckpointError) as caught:
        GROWN.read(content, "f")
    for word in words:
        assert word in str(caught.value)


def test_every_format_reads_what_it_writes_and_what_the_release_before_wrote():
    for format in vars(formats).values():
        if isinstance(format, Format):
            assert stamp(format) == {"format": format.newest, "release": __version__}
            written = [version for version, release in format.since.items() if release == "0.1"]
            assert written and set(written) <= set(format.readable), format.what
