"""Who may judge: names, invitations whose secret is stored only as a hash, and who has handed in.

Functions over a connection; the store gives them their transactions.
"""

import hashlib
import secrets

from sqlalchemy import Connection, func, select, update

from mnemoscope.campaigns.records import Annotator, Invitation
from mnemoscope.errors import AnnotationError
from mnemoscope.judgements import rules
from mnemoscope.judgements.tables import ROLES, annotators, finishes


def invite(connection: Connection, name: str, *, role: str) -> Invitation:
    """A new annotator with a link's secret; raises AnnotationError for a name that is taken or no name."""
    if role not in ROLES:
        raise AnnotationError(f"the role is {role!r}; choose one of {', '.join(ROLES)}")
    found = rules.check_name(name)
    token = secrets.token_urlsafe(24)
    add(connection, found, role=role, token_hash=_hash_token(token))
    return Invitation(Annotator(found, role), token)


def add(connection: Connection, name: str, *, role: str = "annotator", token_hash: str | None = None) -> None:
    """Adds a person; raises AnnotationError where the name is taken, whatever its case."""
    folded = name.casefold()
    taken = connection.execute(select(annotators.c.name).where(annotators.c.folded == folded)).scalar()
    if taken is not None:
        raise AnnotationError(f"there is an annotator {taken!r} already; choose another name, or renew that invitation")
    row = {"name": name, "folded": folded, "role": role, "token_hash": token_hash, "made_at": rules.current_time()}
    connection.execute(annotators.insert().values(row))


def renew(connection: Connection, name: str, *, withdraw: bool) -> Invitation | None:
    """A new secret for somebody who lost theirs, or (`withdraw`) none at all; the old one is void either way."""
    person = find_annotator(connection, name)
    token = None if withdraw else secrets.token_urlsafe(24)
    hashed = None if token is None else _hash_token(token)
    connection.execute(update(annotators).where(annotators.c.name == person.name).values(token_hash=hashed))
    return None if token is None else Invitation(person, token)


def find_by_token(connection: Connection, token: str) -> Annotator | None:
    """Whose invitation this is, or None."""
    asked = select(annotators.c.name, annotators.c.role).where(annotators.c.token_hash == _hash_token(token))
    row = connection.execute(asked).first()
    return None if row is None else Annotator(row.name, row.role)


def find_annotator(connection: Connection, name: str) -> Annotator:
    """The annotator of that name; raises AnnotationError."""
    asked = select(annotators.c.name, annotators.c.role).where(annotators.c.folded == str(name).strip().casefold())
    row = connection.execute(asked).first()
    if row is None:
        raise AnnotationError(f"there is no annotator {name!r}; invite them first")
    return Annotator(row.name, row.role)


def all_annotators(connection: Connection) -> tuple[Annotator, ...]:
    """All annotators and hosts, in the order of their invitations."""
    rows = connection.execute(select(annotators.c.name, annotators.c.role).order_by(annotators.c.id))
    return tuple(Annotator(row.name, row.role) for row in rows)


def lock_annotator(connection: Connection, annotator: Annotator) -> None:
    """Makes other transactions of this annotator wait, so that what was read stays true until this one ends."""
    asked = select(annotators.c.id).where(annotators.c.name == annotator.name).with_for_update()
    if connection.execute(asked).scalar() is None:
        raise AnnotationError(f"there is no annotator {annotator.name!r}; invite them first")


def has_submitted(connection: Connection, annotator: Annotator) -> bool:
    """Whether the annotator has handed in all work, and may see that of others."""
    asked = select(func.count()).select_from(finishes).where(finishes.c.author == annotator.name)
    return bool(connection.execute(asked.where(finishes.c.item.is_(None))).scalar())


def _hash_token(token: str) -> str:
    # A plain hash is enough: the token is 24 random bytes, which nobody can guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
