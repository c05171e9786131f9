"""Measuring decision models. Import from its modules: ``from eval.labelled import evaluate``."""
