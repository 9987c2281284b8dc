"""How good were the predictions, now that outcomes are known? python examples/auc.py SCORES.csv OUTCOMES.csv ID LABEL

SCORES.csv is the output of `colonnade predict` for two classes; OUTCOMES.csv has the ids and the true labels.
"""

import sys

import polars
from sklearn.metrics import roc_auc_score


def main(scores: str, outcomes: str, id: str, label: str) -> None:
    """Print the AUC over the clients in both files."""
    predicted = polars.read_csv(scores, infer_schema=False).filter(polars.col("refused").fill_null("") == "")
    both = predicted.join(polars.read_csv(outcomes, infer_schema=False), left_on="id", right_on=id)
    column = next(name for name in reversed(predicted.columns) if name.startswith("probability of "))
    happened = both[label] == column.removeprefix("probability of ")
    print(f"{len(both)} clients: AUC {roc_auc_score(happened, both[column].cast(polars.Float64)):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
