"""A bank, a shop and an insurer as three folders: python examples/three_folders.py DIR [--data UCI]

30,000 clients with made-up numbers, the same at every call, or with --data those of the UCI credit card data. The bank
has the credit limit, the person and the bills, and knows which client defaulted. The shop and the insurer have
repayment records of different months, so that each knows a part of what the other knows. No column is in two tables.

    DIR/bank/       bank.csv (columns and label), server.toml (the bank runs the server) and bank.toml
    DIR/shop/       shop.csv, shop.toml
    DIR/insurer/    insurer.csv, insurer.toml
    DIR/*/new.csv   clients that came later, not used in training; the shop and the insurer do not have all of them
    DIR/bank/outcomes.csv    the true labels of those clients: for judging predictions

Each has some of the clients, in an order of its own, so the tables must be aligned (`colonnade align`) before the
training; with --aligned all three have the same clients in the same order. With --tables there are no configs, and the
tables are in DIR/*/data/, where `colonnade init` looks for them.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import polars

LABEL = "default"
PARTIES = {
    "bank": ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *(f"BILL_AMT{month}" for month in range(1, 7))],
    "shop": ["PAY_0", "PAY_3", "PAY_5", "PAY_AMT1", "PAY_AMT2", "PAY_AMT3"],
    "insurer": ["PAY_2", "PAY_4", "PAY_6", "PAY_AMT4", "PAY_AMT5", "PAY_AMT6"],
}
HAVE = {"bank": 1.0, "shop": 0.9, "insurer": 0.9}  # of all clients, unless they are aligned
HAVE_NEW = {"bank": 1.0, "shop": 0.8, "insurer": 0.8}
SEED = 7
CATEGORIES = 'categorical = ["SEX", "EDUCATION", "MARRIAGE"]\n'

SHARED = """# --- shared: the same in all files; the handshake compares it ---

[model]
party = "mlp:32"
embedding = 16
server = "mlp:32"

[protocol]
name = "vafl"

[train]
batch_size = 256
optimiser = "adam"
learning_rate = 0.001
epochs = 10
eval_every = "1 epoch"
metric = "auc"
party_dropout = 0.3 # so that the model can do without one of them
seed = 0

[network]
parties = ["bank", "shop", "insurer"] # in this order

# --- one's own; paths start at the folder where the command is typed ---

"""
CERTIFICATES = """certificate = "{folder}{name}.pem"
key = "{folder}{name}.key"
authority = "{folder}ca.pem"
members = "{folder}members.toml"
"""


def server_config(aligned: bool) -> str:
    """The bank's server: it has the labels."""
    own = 'address = "127.0.0.1:7450"\n' + CERTIFICATES.format(folder="federation/", name="server")
    data = f'[server]\ndata = "bank.csv"\nlabel = "{LABEL}"\nid = "client"\n{order_of("server", aligned)}'
    return f"# The server, at the bank.  colonnade serve server.toml\n\n{SHARED}{own}\n{data}"


def order_of(name: str, aligned: bool) -> str:
    """Where `colonnade align` writes this member's order of the common rows."""
    return "" if aligned else f'aligned = "{name}-order.safetensors"\n'


def party_config(name: str, aligned: bool) -> str:
    """A party's config, with its own columns."""
    own = 'address = "127.0.0.1:7450" # where the bank\'s server listens\n' + CERTIFICATES.format(folder="", name=name)
    columns = ", ".join(f'"{column}"' for column in PARTIES[name])
    data = f'[party]\ndata = "{name}.csv"\nid = "client"\ncolumns = [{columns}]\npredict_data = "new.csv"\n'
    data += order_of(name, aligned) + (CATEGORIES if name == "bank" else "")
    return f"# The {name}.  colonnade join {name}.toml --party {name}\n\n{SHARED}{own}\n{data}"


def read(data: Path) -> polars.DataFrame:
    """The UCI credit card data."""
    file = data / "UCI_Credit_Card.csv.gz"
    if not file.is_file():
        sys.exit(f"There is no {file}: --data must name its folder; without --data the numbers are made up")
    return polars.read_csv(file, infer_schema=False).rename({"default.payment.next.month": LABEL}).drop("ID")


def made_up(rows: int) -> polars.DataFrame:
    """Similar made-up numbers: clients that will default pay late, and the shop and the insurer see it."""
    generator = np.random.default_rng(SEED)
    risk = generator.normal(size=rows)

    def seen(weight: float) -> np.ndarray:
        return weight * risk + generator.normal(size=rows)

    columns = {name: np.round(20_000 * np.exp(seen(-0.2))) for held in PARTIES.values() for name in held}
    columns |= {name: np.clip(np.round(seen(1.0)), -2, 8) for name in columns if re.fullmatch(r"PAY_\d", name)}
    columns |= {name: generator.integers(1, most, rows) for name, most in (("SEX", 3), ("EDUCATION", 5))}
    columns |= {"MARRIAGE": generator.integers(1, 4, rows), "AGE": generator.integers(21, 70, rows)}
    frame = polars.DataFrame(columns | {LABEL: seen(2.0) > 1.5})
    return frame.cast(polars.Int64).cast(polars.String)


def numbered(frame: polars.DataFrame) -> polars.DataFrame:
    """Add made-up client numbers in random order."""
    numbers = np.random.default_rng(SEED).permutation(9 * len(frame))[: len(frame)] + 10**6
    clients = polars.Series("client", [f"C{number}" for number in numbers])
    return frame.insert_column(0, clients)


def write(folder: Path, file: str, frame: polars.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_csv(folder / file)
    shown = ", ".join(frame.columns[:4]) + (", ..." if len(frame.columns) > 4 else "")
    print(f"{folder / file}: {len(frame)} clients; {shown}")


def main(target: Path, frame: polars.DataFrame, *, aligned: bool, new: int, tables: bool = False) -> None:
    """Write all three folders; the last clients are the new ones."""
    frame = numbered(frame)
    known, later = frame[: len(frame) - new], frame[len(frame) - new :]
    generator = np.random.default_rng(SEED + 1)
    for name, columns in PARTIES.items():
        folder = target / name / "data" if tables else target / name
        label = [LABEL] if name == "bank" else []
        chosen = np.arange(len(known)) if aligned else generator.permutation(len(known))[: int(HAVE[name] * len(known))]
        write(folder, f"{name}.csv", known[chosen].select("client", *columns, *label))
        met = generator.permutation(len(later))[: int(HAVE_NEW[name] * len(later))]
        write(folder, "new.csv", later[np.sort(met)].select("client", *columns))
        if name == "bank":
            write(folder, "outcomes.csv", later.select("client", LABEL))
        if not tables:
            (folder / f"{name}.toml").write_text(party_config(name, aligned), encoding="utf-8")
    if not tables:
        (target / "bank" / "server.toml").write_text(server_config(aligned), encoding="utf-8")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Three folders of clients, made up or from UCI.")
    arguments.add_argument("target", type=Path, metavar="DIR")
    arguments.add_argument("--data", type=Path, metavar="UCI", help="the folder of UCI_Credit_Card.csv.gz")
    arguments.add_argument("--aligned", action="store_true", help="the same clients in the same order everywhere")
    arguments.add_argument("--tables", action="store_true", help="no configs: colonnade init writes them")
    arguments.add_argument("--rows", type=int, default=28_000, help="clients to train and test on")
    arguments.add_argument("--new", type=int, default=2_000, help="clients that came later")
    given = arguments.parse_args()
    whole = given.rows + given.new
    clients = made_up(whole) if given.data is None else read(given.data)[:whole]
    main(given.target, clients, aligned=given.aligned, new=given.new, tables=given.tables)
