"""Errors that the command line prints as a single line, without a traceback."""


class UserError(RuntimeError):
    """Something the caller can put right: data that are not there, a record that cannot be read, an unknown preset."""


class Interrupted(BaseException):
    """The caller pressed Ctrl-C; the text says what is kept and how to go on. Never an error to be passed over."""
