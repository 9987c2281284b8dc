"""Privacy mechanisms: clipping and noise, accounting, masks, coded shares, and secret random draws."""
