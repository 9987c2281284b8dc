"""A trained network as ONNX, built layer by layer: the exporter of torch would need far more packages.

A party's network takes its encoded and scaled features (rows, features) and gives its embedding. The server's takes all
parties' embeddings side by side (rows, Σ widths), aggregates them, and gives its output before softmax or sigmoid.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from colonnade.config.continuing import TrainedMember
from colonnade.extras import require_extra
from colonnade.protocol.errors import ModelError
from colonnade.protocol.messages import Array

__all__ = ["onnx_of"]

OPSET, IR = 18, 9
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}


def onnx_of(member: TrainedMember, tensors: Mapping[str, Array], layers: Sequence[dict[str, Any]] | None) -> bytes:
    """Return the content of the ONNX file; raises ModelError for layers that have no such form."""
    require_extra("onnx", "an export as ONNX", "onnx")
    import onnx  # noqa: PLC0415 - an extra
    from onnx import TensorProto, helper  # noqa: PLC0415

    if layers is None:
        raise ModelError(f"{member.name}: {member.model or 'its own module'} has no ONNX form here: leave out --onnx")
    graph = _Graph(helper, tensors)
    server, inputs = member.server, prod(member.shape)
    if server is not None:
        summed = not member.tensors and member.model != "none"
        widths = [1] * len(server.widths) if summed else list(server.widths)
        inputs = sum(widths)
        graph.aggregate("sum" if summed else server.aggregate, len(widths), widths[0])
    for layer in layers:
        graph.add(layer)
    graph.node("Identity", [graph.last], out="output")
    made = helper.make_graph(
        graph.nodes,
        member.name,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["rows", None])],
        graph.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


class _Graph:
    """Nodes in order; `last` is the name of the newest value."""

    def __init__(self, helper: Any, tensors: Mapping[str, Array]) -> None:
        self._helper, self._tensors = helper, tensors
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = "input"

    def node(self, kind: str, inputs: list[str], out: str = "", **settings: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, inputs, [name], **settings))
        self.last = name
        return name

    def constant(self, values: Array) -> str:
        name = f"c{len(self.constants)}"
        array = values.astype(np.float32) if values.dtype.kind == "f" else values.astype(np.int64)
        kind = self._helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants.append(self._helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name

    def weight(self, name: str | None) -> list[str]:
        return [] if name is None else [self.constant(self._tensors[name])]

    def aggregate(self, how: str, parties: int, width: int) -> None:
        """Turn (rows, Σ widths) into the network's input."""
        if how == "concat":
            return
        blocks = self.node("Reshape", [self.last, self.constant(np.array([-1, parties, width]))])
        self.node(_REDUCTIONS[how], [blocks, self.constant(np.array([1]))], keepdims=0)

    def add(self, layer: Mapping[str, Any]) -> None:
        match layer["kind"]:
            case "linear":
                weights = [*self.weight(layer["weight"]), *self.weight(layer["bias"])]
                self.node("Gemm", [self.last, *weights], transB=1)
            case "relu":
                self.node("Relu", [self.last])
            case "polynomial":
                self._polynomial(layer)
            case "reshape":
                self.node("Reshape", [self.last, self.constant(np.array([0, *layer["shape"]]))])
            case "conv2d":
                weights = [*self.weight(layer["weight"]), *self.weight(layer["bias"])]
                self.node("Conv", [self.last, *weights], pads=[*layer["padding"], *layer["padding"]])
            case "maxpool2d":
                self.node("MaxPool", [self.last], kernel_shape=layer["size"], strides=layer["size"])
            case "flatten":
                self.node("Flatten", [self.last])

    def _polynomial(self, layer: Mapping[str, Any]) -> None:
        """Σ_i (x, 1)^i W^i: the 1 of every power adds one row of W."""
        x, weight = self.last, self._tensors[layer["weight"]]
        parts = np.split(weight, layer["degree"])
        total = ""
        for power, part in enumerate(parts, start=1):
            base = x if power == 1 else self.node("Pow", [x, self.constant(np.array(float(power)))])
            term = self.node("Gemm", [base, self.constant(part[:-1]), self.constant(part[-1])])
            total = term if not total else self.node("Add", [total, term])
