"""Exceptions that cross a module's border, sorted by what the caller should do."""


class TandemError(Exception):
    """Any failure that Tandem raises on purpose."""


class UnreachableError(TandemError):
    """A server can't be reached: try later. Exit code 3."""


class ConfigurationError(TandemError):
    """Settings contradict each other or a file is missing: a person must act. Exit code 2."""


class LedgerDownError(TandemError):
    """Postgres does not answer: nothing was decided that the caller may rely on; try again."""
