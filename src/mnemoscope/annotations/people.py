"""Who may judge: names, invitations whose secret is stored only as a hash, and who has handed in.

Functions over a connection; the store gives them their transactions.
"""

import hashlib
import secrets
from datetime import UTC, datetime

from sqlalchemy import Connection, func, select, update

from mnemoscope.annotations.records import Annotator, Invitation, name_of_person
from mnemoscope.annotations.tables import ROLES, annotators, finishes
from mnemoscope.errors import AnnotationError

LAST = datetime.max.replace(tzinfo=UTC)
"""The last time that can be stored."""


def now() -> str:
    """The time as it is stored: UTC, always as long, so that later times sort after earlier ones as text."""
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    """A time as it is stored."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def invite(connection: Connection, name: str, *, role: str) -> Invitation:
    """A new annotator with a link's secret; raises AnnotationError for a name that is taken or no name."""
    if role not in ROLES:
        raise AnnotationError(f"the role is {role!r}; choose one of {', '.join(ROLES)}")
    found = name_of_person(name)
    token = secrets.token_urlsafe(24)
    add(connection, found, role=role, token_hash=_hashed(token))
    return Invitation(Annotator(found, role), token)


def add(connection: Connection, name: str, *, role: str = "annotator", token_hash: str | None = None) -> None:
    """Adds a person; raises AnnotationError where the name is taken, whatever its case."""
    folded = name.casefold()
    taken = connection.execute(select(annotators.c.name).where(annotators.c.folded == folded)).scalar()
    if taken is not None:
        raise AnnotationError(f"there is an annotator {taken!r} already; choose another name, or renew that invitation")
    row = {"name": name, "folded": folded, "role": role, "token_hash": token_hash, "made_at": now()}
    connection.execute(annotators.insert().values(row))


def renew(connection: Connection, name: str, *, withdraw: bool) -> Invitation | None:
    """A new secret for somebody who lost theirs, or (`withdraw`) none at all; the old one is void either way."""
    person = named(connection, name)
    token = None if withdraw else secrets.token_urlsafe(24)
    hashed = None if token is None else _hashed(token)
    connection.execute(update(annotators).where(annotators.c.name == person.name).values(token_hash=hashed))
    return None if token is None else Invitation(person, token)


def with_token(connection: Connection, token: str) -> Annotator | None:
    """Whose invitation this is, or None."""
    asked = select(annotators.c.name, annotators.c.role).where(annotators.c.token_hash == _hashed(token))
    row = connection.execute(asked).first()
    return None if row is None else Annotator(row.name, row.role)


def named(connection: Connection, name: str) -> Annotator:
    """The annotator of that name; raises AnnotationError."""
    asked = select(annotators.c.name, annotators.c.role).where(annotators.c.folded == str(name).strip().casefold())
    row = connection.execute(asked).first()
    if row is None:
        raise AnnotationError(f"there is no annotator {name!r}; invite them first")
    return Annotator(row.name, row.role)


def everybody(connection: Connection) -> tuple[Annotator, ...]:
    """All annotators and hosts, in the order of their invitations."""
    rows = connection.execute(select(annotators.c.name, annotators.c.role).order_by(annotators.c.id))
    return tuple(Annotator(row.name, row.role) for row in rows)


def alone(connection: Connection, annotator: Annotator) -> None:
    """Makes other transactions of this annotator wait, so that what was read stays true until this one ends."""
    asked = select(annotators.c.id).where(annotators.c.name == annotator.name).with_for_update()
    if connection.execute(asked).scalar() is None:
        raise AnnotationError(f"there is no annotator {annotator.name!r}; invite them first")


def handed_in(connection: Connection, annotator: Annotator) -> bool:
    """Whether the annotator has handed in all work, and may see that of others."""
    asked = select(func.count()).select_from(finishes).where(finishes.c.author == annotator.name)
    return bool(connection.execute(asked.where(finishes.c.item.is_(None))).scalar())


def _hashed(token: str) -> str:
    # A plain hash is enough: the token is 24 random bytes, which nobody can guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
