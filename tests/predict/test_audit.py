"""A party's audit: one line for each question, a bounded size, and totals that outlive the lines."""

from colonnade.algorithms.prediction.messages import Question
from colonnade.predict.audit import Audit, read_audit

DAY_S = 86_400


def test_the_totals_outlive_the_lines_and_the_size_is_bounded(tmp_path):
    audit = Audit(tmp_path, "server ab", 2_000, lambda: 1e9)
    for _ in range(500):
        audit.note(Question(10, 7, 2, "not aligned"))
    audit.close()
    totals, lines = read_audit(tmp_path)
    assert (totals.questions, totals.ids, totals.answered, totals.refused) == (500, 5_000, 3_500, 1_000)
    assert 10 < len(lines) < 50 and totals.since == "2001-09-09T01:46:40Z"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4_500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.1.jsonl", "audit.jsonl"]


def test_a_restart_counts_the_rows_of_the_last_day_and_mends_a_torn_line(tmp_path):
    now = [1e9]
    audit = Audit(tmp_path, "server ab", 10_000, lambda: now[0])
    audit.note(Question(100, 100, 0))
    now[0] += DAY_S - 10
    audit.note(Question(5, 5, 0))
    audit.note(Question(1_000, 0, 1_000, "quota"))
    audit.close()
    assert Audit(tmp_path, "server ab", 10_000, lambda: now[0]).rows_of_a_day == 105
    now[0] += 20
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"time": "2001')  # a kill in the middle of a write
    again = Audit(tmp_path, "server ab", 10_000, lambda: now[0])
    assert again.rows_of_a_day == 5 and again.totals.questions == 3
    again.note(Question(1, 1, 0))
    again.close()
    assert [line.ids for line in read_audit(tmp_path)[1]] == [100, 5, 1_000, 1]
