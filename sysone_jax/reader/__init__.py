"""How prompts become device work: static shapes, prefix states, one thread that owns the device."""
