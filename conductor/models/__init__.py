"""How long things take: prefills, decode steps, transfers, pipelines. One interface (`cost.py`), three kinds of model."""
