"""What each extra of pyproject.toml enables, and the error if its packages are missing."""

from importlib.util import find_spec

from colonnade.protocol.errors import MissingExtra

__all__ = ["EXTRAS", "require_extra"]

EXTRAS = {
    "serve": "predictions over HTTP, and numbers for Prometheus (network.metrics_port)",
    "otel": "spans for OpenTelemetry (OTEL_TRACES_EXPORTER)",
    "ray": "--driver ray and --workers ray",
    "onnx": "colonnade export --onnx",
    "track": "runs in MLflow, TensorBoard, Weights & Biases",
    "vertibench": "evaluators of a split: importance of the parties, correlation between them",
    "docs": "the documentation as a site",
    "dev": "tests, linters and builds",
}


def require_extra(name: str, purpose: str, *modules: str) -> None:
    """Raise `MissingExtra` if one of these modules cannot be found; `purpose` is what needs them."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtra(purpose, name, missing)
