"""ONNX Runtime's CUDA provider, if it is installed: a small network against numpy."""

import numpy

from check import NOT_INSTALLED, close, needs

runtime, onnx = needs("onnxruntime"), needs("onnx")
if "CUDAExecutionProvider" not in runtime.get_available_providers():
    print("NOT INSTALLED: onnxruntime is there without its CUDA provider")
    raise SystemExit(NOT_INSTALLED)
random = numpy.random.default_rng(1)
x, w, b = (random.standard_normal(shape).astype(numpy.float32) for shape in ((32, 64), (64, 16), (16,)))
helper, floats = onnx.helper, onnx.TensorProto.FLOAT
graph = helper.make_graph(
    [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"])
    ], "layer", [helper.make_tensor_value_info("x", floats, [32, 64])],
    [helper.make_tensor_value_info("y", floats, [32, 16])],
    [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(b, "b")])
session = runtime.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString(),
    providers=["CUDAExecutionProvider"])
assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
for _ in range(3):
    close("layer", session.run(None, {"x": x})[0], numpy.maximum(x @ w + b, 0), 1e-2)
print("PASSED")
