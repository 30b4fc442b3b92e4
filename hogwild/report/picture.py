"""A picture that is drawn. Needs no matplotlib, so that a page can be made of any."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG: `name` is its file's, without .png; `title` its heading, `alt` what it shows, in words; `note`, where not
    empty, a line below it. Sizes in pixels."""

    name: str
    title: str
    alt: str
    png: bytes
    width: int
    height: int
    note: str = ""
