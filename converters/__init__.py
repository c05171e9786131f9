"""Other projects' checkpoints -> ours, by tables: one row a tensor pattern, both sides covered.

Nothing imports this package but the loader's front door (``sysone_jax/loading.py``) and the command line, each lazily.
"""
