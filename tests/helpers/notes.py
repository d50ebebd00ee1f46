"""What the library adds to an error of somebody else's code."""


def note_of(error: BaseException) -> str:
    """Return the note, which stands in the error's text before Python 3.11."""
    return "\n".join(getattr(error, "__notes__", [str(error)]))
