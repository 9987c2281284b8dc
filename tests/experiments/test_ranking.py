"""Which method wins a column, and how the table says so."""

from typing import Any

from colonnade.experiments.ranking import in_words, rank


def summary(value: float | None, time: float | None, size: int = 10**6, **fields: Any) -> dict[str, Any]:
    ordinary = {
        "protocol": "vafl", "status": "finished", "metric": "accuracy", "target": 0.9, "value": value,
        "time_to_target_s": time, "bytes_up": size, "bytes_down": 0, "updates": 5, "staleness": {"mean": 0.0},
        "clock_s": 9.0,
    }  # fmt: skip
    return ordinary | fields


def test_means_over_seeds_decide() -> None:
    ranking = rank({"a": [summary(0.9, 2.0), summary(0.8, 4.0)], "b": [summary(0.86, 3.5), summary(0.86, 3.5)]})
    assert [column.title for column in ranking.columns[:3]] == ["s to 0.9", "accuracy", "MB"]
    assert ranking.winners[:3] == [["a"], ["b"], ["a", "b"]]
    assert in_words(ranking) == (
        "Fastest to accuracy 0.9: a (3.00 s); best accuracy: b (0.8600); fewest bytes: a and b (1.0 MB)."
    )


def test_one_that_missed_the_target_once_is_not_the_fastest() -> None:
    ranking = rank({"a": [summary(0.9, 1.0), summary(0.8, None)], "b": [summary(0.8, 9.0)] * 2})
    assert ranking.winners[0] == ["b"]


def test_the_cell_says_how_many_runs_reached_the_target() -> None:
    times = {"often": (9.0, 11.0, None), "once": (1.0, None, None), "always": (20.0, 20.0, 20.0), "never": (None,) * 3}
    ranking = rank({label: [summary(0.9, time) for time in own] for label, own in times.items()})
    column = ranking.columns[0]
    assert {label: column.write(values[0], True) for label, values in ranking.values.items()} == {
        "often": "10.00 ± 1.41 (2 of 3)", "once": "1.00 (1 of 3)", "always": "20.00 ± 0.00", "never": "–",
    }  # fmt: skip
    assert ranking.winners[0] == ["always"]


def test_if_none_always_arrives_the_one_that_does_most_often_is_the_fastest() -> None:
    often, once = [summary(0.9, 9.0), summary(0.9, 11.0), summary(0.9, None)], [summary(0.9, 1.0)]
    ranking = rank({"often": often, "once": once + [summary(0.9, None)] * 2})
    assert ranking.winners[0] == ["often"]
    assert in_words(ranking).startswith("Fastest to accuracy 0.9: often (10.00 s in 2 of 3 runs);")


def test_a_metric_that_a_run_lacks_has_no_mean() -> None:
    ranking = rank({"a": [summary(0.9, 1.0), summary(None, 1.0)], "b": [summary(0.1, 2.0)] * 2})
    assert ranking.values["a"][1] is None and ranking.winners[1] == ["b"]


def test_the_clock_is_a_column_without_a_winner() -> None:
    ranking = rank({"a": [summary(0.9, 1.0)], "b": [summary(0.8, 2.0, clock_s=3.0)]})
    index = [column.title for column in ranking.columns].index("clock s")
    assert ranking.columns[index].write(ranking.values["b"][index], True) == "3.00"
    assert ranking.winners[index] == []


def test_what_a_method_has_instead_is_named() -> None:
    adapted = {"model.party": "polynomial:1", "model.aggregate": "mean"}
    ranking = rank({"a": [summary(0.9, 1.0)], "fedvs": [None, summary(0.8, 2.0, adapted=adapted)]})
    assert ranking.settings == {"fedvs": "polynomial:1, mean"}


def test_no_method_reached_it() -> None:
    words = in_words(rank({"a": [summary(0.9, None)], "b": [summary(0.8, None)]}))
    assert words.startswith("Fastest to accuracy 0.9: no method reached it; best accuracy: a")


def test_one_that_races_against_the_oracle_alone_has_won_nothing() -> None:
    ranking = rank({"oracle": [summary(1.0, 0.1, protocol="centralised")], "a": [summary(0.9, 1.0)]})
    assert not any(ranking.winners) and in_words(ranking) == ""


def test_oracles_failures_and_missing_runs_take_no_part() -> None:
    ranking = rank(
        {
            "oracle": [summary(1.0, 0.1, 0, protocol="centralised")],
            "stalled": [summary(0.99, 0.2, status="stalled")],
            "gone": [summary(0.98, 0.3), None],
            "warned": [summary(0.97, 0.4), summary(0.97, 0.4, warnings=["it ended worse than it began"])],
            "b": [summary(0.4, 9.0)],
            "a": [summary(0.5, 8.0)],
        }
    )
    assert ranking.winners[:2] == [["a"], ["a"]]
    assert all(set(winners) <= {"a", "b"} for winners in ranking.winners)
    assert ranking.values["gone"][1:] == [None] * (len(ranking.columns) - 1), "only the target may lack a run"
    assert ranking.flaws == {
        "stalled": "stalled", "gone": "1 of 2 without a result", "warned": "1 of 2 with warnings",
    }  # fmt: skip


def test_without_a_race_there_are_no_words() -> None:
    assert in_words(rank({"a": [None]})) == ""
    assert in_words(rank({"centralised": [summary(1.0, 1.0, protocol="centralised")]})) == ""


def test_a_smaller_error_is_better() -> None:
    ranking = rank(
        {name: [summary(value, None, metric="mae", target=None)] for name, value in (("a", 3.0), ("b", 2.0))}
    )
    assert ranking.winners[0] == ["b"]
