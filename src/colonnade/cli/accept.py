"""`colonnade accept`: a party takes an invitation, and later the federation's answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.options import Categorical, Columns, PredictData, Setting, Stay, Trust, private_settings
from colonnade.cli.printing import say
from colonnade.cli.questions import ask
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.deployment.acceptance import OwnAnswers
    from colonnade.deployment.letter import Letter

__all__ = ["accept"]


def accept(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.invitation, or later NAME.answer.")],
    data: Annotated[str | None, typer.Option(help="The file with this party's columns, CSV or Parquet.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Its column with the ids.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Its column to predict, if the parties of this method hold the labels.")
    ] = None,
    columns: Columns = None,
    categorical: Categorical = None,
    predict_data: PredictData = None,
    stay: Stay = False,
    dir: Annotated[Path, typer.Option("--dir", help="The party's folder; made if it is not there.")] = Path(),
    settings: Setting = None,
    trust: Trust = None,
) -> None:
    """Accept an invitation: check it, and make this party's config, its key and its request.

    Later, accept the answer in the same folder: it brings the certificate and the list of members. Paths start where
    you type the command.

    Examples:
      colonnade accept shop.invitation --data shop.csv --id client
      colonnade accept shop.invitation --data shop.csv --id client --columns AGE..BILL --predict-data new.csv --stay
      colonnade accept shop.answer
    """
    from colonnade.deployment.letter import ANSWER, REQUEST, read_letter

    letter = read_letter(file)
    if letter.kind == REQUEST:
        raise ConfigError("FILE", str(file), f"is a request; the federation takes it: colonnade admit {file.name}")
    typed: dict[str, object] = {
        "--data": data,
        "--id": id,
        "--label": label,
        "--columns": columns,
        "--categorical": categorical,
    }
    typed |= {"--predict-data": predict_data, "--set": settings, "--stay": stay or None}
    if letter.kind == ANSWER:
        for flag, value in typed.items():
            if value is not None:
                raise ConfigError(flag, value, "is for an invitation; an answer needs only --dir")
        return _answer(letter, dir)
    from colonnade.config.schema import parse_override
    from colonnade.deployment.acceptance import OwnAnswers

    data = ask(data, "--data", "File with this party's columns, CSV or Parquet")
    id = ask(id, "--id", "Its column with the ids")
    more = dict(map(parse_override, settings or [])) | private_settings(columns, categorical, stay)
    _invitation(letter, OwnAnswers(data, id, label, predict_data, more), dir, trust or [])


def _invitation(letter: "Letter", own: "OwnAnswers", dir: Path, trust: list[str]) -> None:
    from colonnade import __version__
    from colonnade.deployment.acceptance import accept_invitation

    made = accept_invitation(letter, own, dir, trust)
    say(f"Invitation for {made.party}, to the server at {made.address}")
    say(f"  code: {made.invitation_code}")
    for path in made.files:
        say(f"Wrote {path}")
    say(f"  code of {made.party}.request: {made.request_code}")
    if made.release != __version__:
        say(f"The federation has release {made.release}, this is {__version__}: install the same release.")
    say("Next:")
    say("  compare both codes with the federation by telephone")
    say(f"  to the federation: {dir / f'{made.party}.request'}; {made.party}.key stays on this machine")
    say(f"  {_here(dir)}, with the answer: colonnade accept {made.party}.answer")


def _answer(letter: "Letter", dir: Path) -> None:
    from colonnade.deployment.acceptance import accept_answer
    from colonnade.drivers.processes.identity import date_in_words

    done = accept_answer(letter, dir)
    for path in done.files:
        say(f"Wrote {path}")
    say(f"The certificate of {done.party} is valid until {date_in_words(done.until)}")
    for name, change in done.changes.items():
        say(f"  {name}: {change}")
    say(f"  code of the members: {done.members_code}")
    say("Next:")
    say("  compare the code of the members with the other members by telephone")
    say(f"  {_here(dir)}: colonnade check {done.party}.toml, then colonnade align {done.party}.toml")


def _here(dir: Path) -> str:
    return "here" if dir == Path() else f"in {dir}"
