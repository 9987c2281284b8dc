"""Drivers own the clock, the links, the threads and the files. Roles do no I/O."""
