"""Drivers on Ray, for one trust domain such as a lab's cluster. They need the extra `ray`."""
