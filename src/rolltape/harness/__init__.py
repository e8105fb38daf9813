"""Harnesses: what is known of each, as data (`profile`), and how one is started and ended (`launcher`, `process`)."""

from rolltape.harness.launcher import Attempt, Ended, Ending, launch
from rolltape.harness.profile import Profile, builtin_profiles, find_profile, read_profile

__all__ = [
    "Attempt",
    "Ended",
    "Ending",
    "Profile",
    "builtin_profiles",
    "find_profile",
    "launch",
    "read_profile",
]
