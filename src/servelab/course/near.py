"""Says what a name that is not known may have meant."""

from collections.abc import Sequence
from difflib import get_close_matches

from servelab.translation import _


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a sentence that names what was expected (the nearest of `known`, else all) and what came."""
    near = get_close_matches(name, known, n=3, cutoff=0.5) or list(known)
    if not near:
        return _("There is no {kind} {name!r} here, and no other either.").format(kind=kind, name=name)
    return _("There is no {kind} {name!r}; there is {near}.").format(kind=kind, name=name, near=", ".join(near))
