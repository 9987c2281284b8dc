"""How good were the predictions, now that outcomes are known?

    python examples/auc.py OUTCOMES.csv ID LABEL SCORES.csv...

OUTCOMES.csv has the ids and the true labels; SCORES.csv is the output of `colonnade predict` for two classes.
"""

import sys
from pathlib import Path

import polars
from sklearn.metrics import roc_auc_score


def main(outcomes: str, id: str, label: str, *files: str) -> None:
    """Print the AUC of each file of scores, over the clients that are also in `outcomes`."""
    happened = polars.read_csv(outcomes, infer_schema=False)
    for file in files:
        predicted = polars.read_csv(file, infer_schema=False).filter(polars.col("refused").fill_null("") == "")
        both = predicted.join(happened, left_on="id", right_on=id)
        column = next(name for name in reversed(predicted.columns) if name.startswith("probability of "))
        true = both[label] == column.removeprefix("probability of ")
        auc = roc_auc_score(true, both[column].cast(polars.Float64))
        print(f"{Path(file).name}: {len(both)} clients, AUC {auc:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
