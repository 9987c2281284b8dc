"""The compiled arithmetic of curve25519 (`_curve25519.c`), where this installation and this processor have it.

`hash_to_curve` and `x25519` use it if `AVAILABLE` is true, and compute the same bytes without it.
"""

__all__ = ["AVAILABLE", "map_to_curve", "raise_points"]

_EXPONENT = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")  # RFC 7748, section 5.2
_POINT = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
_RAISED = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")

try:
    from colonnade.privacy._curve25519 import map_to_curve, raise_points, supported
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = supported() and raise_points(_EXPONENT, _POINT) == _RAISED  # any compiler may have made it
