"""Keys, from the bytes that a terminal sends for them."""

from __future__ import annotations

import codecs
import re

__all__ = ["Keys"]

SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
# The beginning of one, of which more has to come.
BEGINNING = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
NAMES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "7~": "home",
    "4~": "end",
    "8~": "end",
    "5~": "page up",
    "6~": "page down",
}
CHARACTERS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x03": "interrupt",
    "\x04": "end of input",
    "\x15": "erase line",
}


class Keys:
    """Cuts what is typed into keys: a character, or the name of what has none.

    A lone Escape is not told from the beginning of a sequence but by the silence after it: flush() then.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def is_waiting(self) -> bool:
        """Whether something has begun that may go on."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys = []
        while text:
            if BEGINNING.match(text):
                self._rest = text
                break
            key, text = _first(text)
            if key:
                keys.append(key)
        return keys

    def flush(self) -> list[str]:
        """Nothing came after it: so it was Escape."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest else []


def _first(text: str) -> tuple[str, str]:
    """The first key of it, nothing where that is of no use, and what follows."""
    if found := SEQUENCE.match(text):
        # With Shift or Control held down, "1;5A" is an arrow all the same.
        name = re.sub(r"^\x1b[\[O](?:1;\d+(?=[A-Z]))?", "", found.group())
        return NAMES.get(name, ""), text[found.end() :]
    character = text[0]
    if character == "\x1b":
        return "escape", text[1:]
    if character in CHARACTERS:
        return CHARACTERS[character], text[1:]
    return (character if character.isprintable() else ""), text[1:]
