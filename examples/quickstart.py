"""Four parties, one of them slow, no waiting. Run it: python examples/quickstart.py"""

import colonnade

data = colonnade.split(colonnade.load("digits"), parties=4)
slow = [{"mean_s": 0.02}] * 3 + [{"mean_s": 0.2}]  # seconds per local step
for protocol in ("sync", "vafl"):
    result = colonnade.train(data, protocol, clock={"compute": slow}, epochs=20, learning_rate=0.3, target=0.9)
    print(f"{protocol}: accuracy {result.summary['accuracy']:.3f}, 90 % after {result.summary['time_to_target_s']} s")
