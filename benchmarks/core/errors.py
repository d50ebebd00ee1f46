"""The one exception that the command line prints as a single line."""


class UserError(RuntimeError):
    """Something the caller can put right: data that are not there, a record that cannot be read, an unknown preset."""
