"""What a learner reads goes through here, so that another language is a catalogue and not a fork.

Mark a sentence with ``_("...")``; fill in values afterwards with ``.format(...)``, so that the catalogue
holds whole sentences. One sentence or paragraph holds one idea. Catalogues live in ``servelab/locale/``.
"""

import gettext
from pathlib import Path

LOCALE_DIR = Path(__file__).parent / "locale"


def _(message: str) -> str:
    """Return `message` in the learner's language (``LANGUAGE``, ``LC_ALL``, ``LANG``), or unchanged."""
    return gettext.dgettext("servelab", message)


gettext.bindtextdomain("servelab", str(LOCALE_DIR))
