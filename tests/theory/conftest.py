from helpers.fits import kept_fits  # noqa: F401 - a fixture that every test of this folder has
