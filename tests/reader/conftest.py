"""Each module lets go of the programs it compiled."""

from compiled_programs import forget_programs

__all__ = ["forget_programs"]
