"""For authors of methods: a member that lies, and what honest members must do about it."""
