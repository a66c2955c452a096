"""How hypothesis draws: the same examples in every run, or new ones with `--hypothesis-profile explore`."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")
