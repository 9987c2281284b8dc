"""Ray underneath: for one trust domain, a lab's cluster. Needs the extra `ray`."""
