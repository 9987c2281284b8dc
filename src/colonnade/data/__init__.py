"""Read tables, and split them into what each party and the server hold.

    dataset = load("digits")                    # or a file, a folder, from_arrays(x, y), from_views({"bank": x}, y)
    partition = split(dataset, parties=4)       # columns to parties, rows to train, validate and test, scaled
    share = read_party_share("clinic.csv", name="clinic", id="patient", by=RowSplit(0.2, 0.1, 0))  # its own file

The modules, lowest layer first:

- `task`: what a label is. `table`: columns. `dataset`: a table with its label. `ids`: ids of rows.
- `mapped`: arrays that stay in files.
- `idx`, `images`, `png`, `pickled`, `cifar`, `delimited`, `tables`, `libsvm`, `mfeat`, `physionet`: file formats.
- `sources`: from a name or a path to a table.
- `alignment`: which rows the members have in common.
- `columns`, `dealing`: which party holds which columns. `texts`, `encoding`, `block`, `scaling`, `prepare`: one
  party's numbers. `fitted`: what it fitted, for a later run.
- `partition`: a whole dataset, split. `blocks`: the same from one table per party. `frames`: DataFrames.
- `share`, `share_file`: what one role holds. `lookup`: a party's rows by their ids.
"""

from colonnade.data.alignment import Alignment, IdRules, Ids, clean_ids, read_id_column
from colonnade.data.blocks import Blocks, from_blocks, named_blocks, partition_of
from colonnade.data.dataset import Dataset, View, from_arrays, from_views
from colonnade.data.dialect import Dialect
from colonnade.data.encoding import Encoder
from colonnade.data.fitted import NOTHING_FITTED, Fitted
from colonnade.data.lookup import Lookup, party_lookup
from colonnade.data.partition import Partition, split
from colonnade.data.prepare import RowSplit
from colonnade.data.scaling import Scaler
from colonnade.data.share import (
    PartyShare,
    ServerShare,
    party_share,
    read_party_share,
    read_server_share,
    server_share,
    share_without_labels,
)
from colonnade.data.share_file import (
    load_alignment,
    load_party_share,
    load_server_share,
    save_alignment,
    save_share,
)
from colonnade.data.sources import load
from colonnade.data.task import Task

__all__ = [
    "NOTHING_FITTED",
    "Alignment",
    "Blocks",
    "Dataset",
    "Dialect",
    "Encoder",
    "Fitted",
    "IdRules",
    "Ids",
    "Lookup",
    "Partition",
    "PartyShare",
    "RowSplit",
    "Scaler",
    "ServerShare",
    "Task",
    "View",
    "clean_ids",
    "from_arrays",
    "from_blocks",
    "from_views",
    "load",
    "load_alignment",
    "load_party_share",
    "load_server_share",
    "named_blocks",
    "partition_of",
    "party_lookup",
    "party_share",
    "read_id_column",
    "read_party_share",
    "read_server_share",
    "save_alignment",
    "save_share",
    "server_share",
    "share_without_labels",
    "split",
]
