"""Failures that nobody foresaw, in the log: what kind and where. Their words may hold a prompt: at DEBUG only."""

import logging
import traceback

log = logging.getLogger("rolltape.gateway")


def log_unforeseen(what: str, error: BaseException) -> None:
    """One record with the places, innermost last; the exception's own words only where DEBUG is asked for."""
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    log.error("%s: %s at\n%s", what, type(error).__name__, where)
    log.debug("%s: %s", what, error)
