"""`python -m mooncask.tools`: the same as `mooncask`."""

from mooncask.tools.main import app

app()
