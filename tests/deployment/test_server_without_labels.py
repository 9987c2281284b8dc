"""If every party holds the labels, the server has none and needs no file: it hears the number of rows."""

import io

import msgspec
import pytest

from colonnade.config.schema import from_dict, read_toml
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.terms import Terms
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.wire import PROTOCOL, Hello
from colonnade.protocol.errors import ConfigError

NAMES = ("bank", "clinic", "shop")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates") / "certificates"
    throw_away(NAMES, folder)
    return folder


def server_of(certificates, folder, server, protocol="asysqn-saga", **options):
    files = {"certificate": "server.pem", "key": "server.key", "authority": "ca.pem", "members": "members.toml"}
    network = {key: str(certificates / name) for key, name in files.items()} | {"parties": list(NAMES)}
    tables = {"protocol": {"name": protocol, **options}, "network": network, "server": server}
    return ServerSide(from_dict(tables), folder / "run", Log("server", stream=io.StringIO()))


@pytest.mark.parametrize(("server", "rows"), [({"rows": 100}, 72), ({"rows": 100, "test_rows": 30}, 63)])
def test_a_number_of_rows_will_do(server, rows, certificates, tmp_path):
    made = server_of(certificates, tmp_path, server)
    assert made.plan.training.rows == rows and made.share.rows == 100
    assert made.plan.training.metric == "accuracy"


def test_of_numbers_to_predict_too(certificates, tmp_path):
    assert server_of(certificates, tmp_path, {"rows": 100}, loss="ridge").share.task.kind == "regression"


@pytest.mark.parametrize(
    ("server", "protocol", "complaint"),
    [
        ({}, "asysqn-sgd", "server.rows = None: asysqn-sgd: the parties have the labels; give the number of rows"),
        ({"rows": 1}, "asysqn-sgd", "server.rows = 1: must be 2 or more"),
        ({"rows": 100}, "vafl", "server.data = None: name the file with the labels"),
    ],
)
def test_what_is_missing_is_said(server, protocol, complaint, certificates, tmp_path):
    with pytest.raises(ConfigError, match=complaint):
        server_of(certificates, tmp_path, server, protocol)


def test_the_labels_of_a_federation_on_one_machine_are_not_put_into_the_servers_folder(tmp_path):
    tables = {"data": {"source": "breast-cancer", "parties": 3}, "protocol": {"name": "afsgd"}}
    up = prepare_up(from_dict(tables), tmp_path / "run")
    assert [path.name for path in (up.nodes / "server").iterdir()] == ["config.toml"]
    told = read_toml(up.nodes / "server" / "config.toml")["server"]
    assert (told["rows"], told["test_rows"]) == (569, 114) and "data" not in told
    assert (up.nodes / "party-1" / "share.safetensors").is_file()


def test_ids_are_compared_with_those_of_the_first_party():
    hello = Hello(PROTOCOL, "", {}, 100, "a" * 64, 1, "float32", 1, None)
    terms = Terms({}, 100, "", dict.fromkeys(NAMES, 1))
    assert terms("bank", hello) is None
    assert terms("shop", hello) is None
    assert "clinic has other ids than bank" in terms("clinic", msgspec.structs.replace(hello, ids_sha256="b" * 64))
