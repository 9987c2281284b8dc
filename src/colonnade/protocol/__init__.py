"""The contract between roles and drivers: roles, events, effects, messages, codec, trace, errors."""
