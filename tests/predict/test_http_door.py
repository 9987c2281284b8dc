"""The HTTP endpoint: tokens, limits, and answers in words; without a network or a federation."""

import asyncio
import json

import httpx
import numpy as np
import pytest

from colonnade.algorithms.prediction.messages import Computed
from colonnade.algorithms.prediction.standing_in import CACHED, FALLBACK, LACKS, SENT
from colonnade.data.task import Task
from colonnade.predict.asking import door_of, read_ids
from colonnade.predict.http import Closed, answers_of, application
from colonnade.protocol.errors import ConfigError

TOKEN = "a-token-of-some-length"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


class Predictor:
    def __init__(self):
        self.asked = []

    async def ask(self, ids):
        self.asked.append(ids)
        if ids == ["stop"]:
            raise Closed
        return {"classes": [], "answers": [{"id": id} for id in ids]}

    def status(self):
        return {"state": "predicting"}


@pytest.fixture
def predictor():
    return Predictor()


@pytest.fixture
def request_(predictor):
    app = application(predictor, TOKEN, 3, 0.001)

    def call(method, path, headers=RIGHT, **more):
        async def go():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.request(method, path, headers=headers, **more)

        response = asyncio.run(go())
        return response.status_code, response.json() if response.content else None

    return call


def test_ids_are_answered_in_their_order(request_, predictor):
    assert request_("POST", "/predict", json={"ids": ["7", "3"]}) == (
        200,
        {"classes": [], "answers": [{"id": "7"}, {"id": "3"}]},
    )
    assert predictor.asked == [["7", "3"]]
    assert request_("GET", "/status") == (200, {"state": "predicting"})


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "no token"),
        ({"Authorization": "Bearer"}, "no token"),
        ({"Authorization": f"Basic {TOKEN}"}, "no token"),
        ({"Authorization": "Bearer wrong"}, "wrong token"),
        ({"Authorization": f"Bearer {TOKEN}x"}, "wrong token"),
        ({"Authorization": "Bearer é".encode("latin-1").decode("latin-1")}, "wrong token"),
    ],
    ids=["none", "empty", "basic", "wrong", "longer", "odd"],
)
@pytest.mark.parametrize("path", ["/predict", "/status"])
def test_without_the_token_nothing_is_asked(request_, predictor, headers, words, path):
    code, content = request_(
        "POST" if path == "/predict" else "GET", path, headers={k: v.encode("latin-1") for k, v in headers.items()}
    )
    assert code == 401 and words in content["error"] and TOKEN not in json.dumps(content)
    assert predictor.asked == []


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", 422, '"ids"'),
        (b"[1]", 422, '"ids"'),
        (b'{"ids": [1]}', 422, "Expected `str`"),
        (b'{"ids": ["1"], "x": 1}', 422, "unknown field"),
        (b'{"ids": []}', 422, "0 ids; 1 to 3"),
        (b'{"ids": ["1", "2", "3", "4"]}', 422, "4 ids; 1 to 3"),
        (b'{"ids": ["1", "  "]}', 422, "place 1"),
        (b'{"ids": ["' + b"1" * 300 + b'"]}', 422, "place 0"),
        (b" " * 2000, 413, "max_body_mb"),
        (b'{"ids": ["stop"]}', 503, "stopping"),
    ],
)
def test_what_is_no_question_is_refused_with_the_reason(request_, content, code, words):
    found, answer = request_("POST", "/predict", content=content)
    assert found == code and words in answer["error"]


def test_there_are_no_other_pages(request_):
    for path in ("/docs", "/openapi.json", "/redoc", "/"):
        assert request_("GET", path)[0] == 404


def test_an_answer_says_what_it_rests_on():
    blocks = np.array([[SENT, FALLBACK], [SENT, CACHED], [LACKS, LACKS]], np.uint8)
    values = np.array([[0.25, 0.75], [0.5, 0.5], [0, 0]])
    task = Task("binary", ("no", "yes"))
    found = answers_of(["a", "b", "x"], Computed(1, values, blocks, []), ("bank", "shop"), task)
    first, second, third = found["answers"]
    assert found["classes"] == ["no", "yes"] and first["prediction"] == "yes" and first["probabilities"] == [0.25, 0.75]
    assert (first["parties"], first["fallback"], first["refused"]) == (["bank"], ["shop"], None)
    assert (second["parties"], second["cached"]) == (["bank"], ["shop"])
    assert (third["prediction"], third["probabilities"], third["refused"]) == (None, None, "no party has this id")


def test_a_value_has_no_probabilities():
    computed = Computed(1, np.array([[3.5]]), np.array([[SENT, SENT]], np.uint8), [])
    answer = answers_of(["a"], computed, ("bank", "shop"), Task("regression", ()))["answers"][0]
    assert answer["prediction"] == 3.5 and answer["probabilities"] is None


def test_a_token_that_is_not_there_is_said(tmp_path):
    assert door_of(tmp_path) is None  # no server has ever answered here
    (tmp_path / "predict").mkdir()
    (tmp_path / "predict" / "http").write_text("127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"token = .*cannot be read .*which makes the token when it starts"):
        door_of(tmp_path)


def test_ids_from_a_column_that_is_there(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("client,x\n7,1\n8,2\n")
    assert read_ids(path, "client") == ["7", "8"]
    with pytest.raises(ConfigError, match=r"^--column = 'clint': no such column in new.csv \(did you mean 'client'\?"):
        read_ids(path, "clint")
