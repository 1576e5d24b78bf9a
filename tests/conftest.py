"""What holds for all tests."""

from hypothesis import settings

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("feedrack", deadline=None)
settings.load_profile("feedrack")
