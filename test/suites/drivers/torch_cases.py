#!/usr/bin/env python3
"""PyTorch's own operators, modules and optimizers, from the tables that its wheel brings for its tests:
torch_cases.py op_db|module_db|optim_db. A unit is an entry with one type of numbers, a case one of its samples."""

import argparse
import random
import sys
import types
import unittest

from driver import Recorder, Unavailable, serve, steady

SEED = 20
STEPS = 5  # of an optimizer
# The number of elements up to which the bytes of a value are kept; larger values are only compared bit by bit.
FORMATS = {"torch.float64": "d", "torch.float32": "f", "torch.float16": "e", "torch.bfloat16": "b"}
# Relative and absolute, where the entry does not name its own: what torch.testing.assert_close takes.
TOLERANCES = {
    "torch.float64": (1e-7, 1e-7), "torch.complex128": (1e-7, 1e-7), "torch.float32": (1.3e-6, 1e-5),
    "torch.complex64": (1.3e-6, 1e-5), "torch.float16": (1e-3, 1e-3), "torch.bfloat16": (1.6e-2, 1e-2)
}
# Their results are uninitialised memory, of which only the shape can be compared.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
                 "resize_", "resize_as_"}


def import_tables():
    """Imports PyTorch's tables of tests, whose module needs a test package that wheels do not contain."""
    try:
        import torch
    except ImportError as missing:
        raise Unavailable(f"PyTorch is not installed: {missing}") from missing
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase, stand_in.ACCEPT = unittest.TestCase, False
        sys.modules["expecttest"] = stand_in
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the tables' module reads them
    try:
        from torch.testing._internal import common_device_type, common_methods_invocations  # noqa: F401
    except ImportError as missing:
        raise Unavailable(f"the tables of this PyTorch want: {missing}") from missing
    finally:
        sys.argv = arguments
    return torch


class Tables:
    """Common code of the three suites, which finds entries and number types by their names."""

    def __init__(self, device):
        self.torch, self.device = import_tables(), device
        if device == "cuda" and not self.torch.cuda.is_available():
            raise Unavailable("PyTorch finds no GPU")
        self.versions = {"torch": self.torch.__version__}
        self.entries = {}

    def units(self):
        return [f"{name}/{str(dtype)[6:]}" for name, entry in self.entries.items()
                for dtype in sorted(self.dtypes(entry), key=str)]

    def run(self, unit, recorder: Recorder):
        name, _, dtype = unit.rpartition("/")
        entry, dtype = self.entries[name], getattr(self.torch, dtype)
        self.reset()
        samples = iter(self.samples(entry, dtype))
        number = 0
        while not recorder.spent:
            case = str(number)
            self.seed(number)
            recorder.begin(case)
            try:
                sample = next(samples)
            except StopIteration:
                return
            except Exception as error:  # the entry's own generator
                self.failed(recorder, case + " samples", error)
                return
            self.cases(recorder, case, entry, dtype, sample)
            number += 1

    def case(self, recorder, case, tolerance, work):
        """Records the result of work(), tensors in any nesting; returns whether it succeeded."""
        recorder.begin(case)
        try:
            values = [self.value(tensor) for tensor in self.tensors(work())]
        except Exception as error:
            self.failed(recorder, case, error)
            return False
        recorder.end(case, "pass", values=values, tolerance=tolerance)
        return True

    def failed(self, recorder, case, error):
        recorder.end(case, f"error {type(error).__name__}: {steady(error)}", reason=str(error))
        try:
            if self.device == "cuda":
                self.torch.cuda.synchronize()
        except RuntimeError:
            recorder.spent = True

    def tensors(self, nested):
        from torch.utils._pytree import tree_flatten
        return [leaf for leaf in tree_flatten(nested)[0] if leaf is not None]

    def value(self, leaf):
        torch = self.torch
        if not isinstance(leaf, torch.Tensor):
            return "bytes", (), repr(leaf).encode()
        tensor = leaf.detach()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        shape = tuple(tensor.shape)
        tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return FORMATS.get(str(tensor.dtype), "bytes"), (*shape, str(tensor.dtype)), data

    def seed(self, number):
        self.torch.manual_seed(SEED + number)
        random.seed(SEED + number)
        try:
            import numpy
            numpy.random.seed(SEED + number)
        except ImportError:
            pass

    def reset(self):
        self.seed(0)

    def tolerance(self, entry, dtype):
        """Returns the largest tolerance of the entry's own tests for the type."""
        found = TOLERANCES.get(str(dtype))
        if not found:
            return None
        for decorate in getattr(entry, "decorators", ()) or ():
            for decorator in getattr(decorate, "decorators", ()) or ():
                for kind, own in (getattr(decorator, "d", None) or {}).items():
                    if kind == dtype and hasattr(own, "rtol"):
                        found = max(found[0], own.rtol), max(found[1], own.atol)
        return found


class Operators(Tables):
    def __init__(self, device):
        super().__init__(device)
        from torch.testing._internal.common_methods_invocations import op_db
        for op in op_db:
            self.entries[op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")] = op

    def dtypes(self, op):
        return op.supported_dtypes(self.device)

    def samples(self, op, dtype):
        self.differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(self.device)
        return op.sample_inputs(self.device, dtype, requires_grad=self.differentiable)

    def cases(self, recorder, case, op, dtype, sample):
        torch, kept = self.torch, {}
        tolerance = self.tolerance(op, dtype)
        inputs = [t for t in self.tensors((sample.input, sample.args, sample.kwargs))
                  if isinstance(t, torch.Tensor) and t.requires_grad]

        def forward():
            kept["out"] = op(sample.input, *sample.args, **sample.kwargs)
            if op.name in UNINITIALISED:
                return [str(tuple(t.shape)) for t in self.tensors(kept["out"]) if isinstance(t, torch.Tensor)]
            return kept["out"]

        def backward():
            outputs = [t for t in self.tensors(kept["out"]) if isinstance(t, torch.Tensor) and t.requires_grad]
            kept["grads"] = self.gradients(outputs, inputs, create_graph=op.supports_gradgrad) if outputs else ()
            return kept["grads"]

        def twice():
            first = [t for t in kept["grads"] if t is not None and t.requires_grad]
            return self.gradients(first, inputs, create_graph=False) if first else ()

        done = self.case(recorder, case, tolerance, forward)
        if not (done and self.differentiable and inputs) or op.name in UNINITIALISED:
            return
        if self.case(recorder, case + " backward", tolerance, backward) and op.supports_gradgrad:
            self.case(recorder, case + " twice backward", tolerance, twice)

    def gradients(self, outputs, inputs, create_graph):
        """Computes gradients of the outputs, weighted with one, with respect to the inputs."""
        ones = [self.torch.ones_like(output) for output in outputs]
        return self.torch.autograd.grad(outputs, inputs, ones, create_graph=create_graph, allow_unused=True,
                                        retain_graph=True)


class Modules(Tables):
    def __init__(self, device):
        super().__init__(device)
        from torch.testing._internal.common_modules import module_db
        for info in module_db:
            for mode in ("training", "evaluation"):
                self.entries[f"{info.name}.{mode}"] = types.SimpleNamespace(
                    info=info, training=mode == "training", decorators=info.decorators)

    def dtypes(self, entry):
        info = entry.info
        return info.supported_dtypes(self.device) if hasattr(info, "supported_dtypes") else info.dtypes

    def samples(self, entry, dtype):
        info = entry.info
        return info.module_inputs_func(info, device=self.device, dtype=dtype, requires_grad=True,
                                       training=entry.training)

    def cases(self, recorder, case, entry, dtype, sample):
        torch, kept = self.torch, {}
        tolerance = self.tolerance(entry, dtype)
        made, given = sample.constructor_input, sample.forward_input

        def forward():
            kept["module"] = entry.info.module_cls(*made.args, **made.kwargs).to(self.device).to(dtype)
            kept["module"].train(entry.training)
            kept["out"] = kept["module"](*given.args, **given.kwargs) if given else ()
            return kept["out"], list(kept["module"].buffers())

        def backward():
            outputs = [t for t in self.tensors(kept["out"]) if isinstance(t, torch.Tensor) and t.requires_grad]
            inputs = [t for t in self.tensors((given.args, given.kwargs))
                      if isinstance(t, torch.Tensor) and t.requires_grad] + list(kept["module"].parameters())
            if not outputs or not inputs:
                return ()
            return torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True)

        if self.case(recorder, case, tolerance, forward) and given:
            self.case(recorder, case + " backward", tolerance, backward)


class Optimizers(Tables):
    def __init__(self, device):
        super().__init__(device)
        try:
            from torch.testing._internal.common_optimizers import optim_db
        except ImportError as missing:
            raise Unavailable(f"this PyTorch has no optim_db: {missing}") from missing
        self.entries = {info.optim_cls.__name__: info for info in optim_db}

    def dtypes(self, info):
        torch = self.torch
        types_of_all = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
        return types_of_all + ([torch.complex64, torch.complex128] if getattr(info, "supports_complex", False) else [])

    def samples(self, info, dtype):
        """Options of the constructor, each with every implementation."""
        ways = [way for way in ("foreach", "fused") if way in info.supported_impls]
        for options in info.optim_inputs_func(device=self.device):
            for way in (None, *ways):
                yield {**options.kwargs, **({way: True} if way else {})}

    def cases(self, recorder, case, info, dtype, options):
        self.case(recorder, case, self.tolerance(info, dtype), lambda: self.trained(info, dtype, options))

    def trained(self, info, dtype, options):
        """Parameters and state after some steps from gradients that are the same each time."""
        torch = self.torch
        parameters = [torch.nn.Parameter(torch.randn(*shape, device=self.device, dtype=dtype))
                      for shape in ((3, 5), (7, 2))]
        options = {name: value.to(self.device) if isinstance(value, torch.Tensor) and options.get("capturable") else
                   value for name, value in options.items()}
        optimizer = info.optim_cls(parameters, **options)

        def loss():
            optimizer.zero_grad()
            total = sum(((p - 0.5) * (p - 0.5).conj()).abs().sum() for p in parameters)
            total.backward()
            if info.only_supports_sparse_grads:
                for parameter in parameters:
                    parameter.grad = parameter.grad.to_sparse()
            return total

        for _ in range(STEPS):
            loss()
            optimizer.step(loss) if info.step_requires_closure else optimizer.step()
        state = [[entry[name] for name in sorted(entry)] for entry in optimizer.state_dict()["state"].values()]
        return parameters, [value for entry in state for value in entry if isinstance(value, torch.Tensor)]


SUITES = {"op_db": Operators, "module_db": Modules, "optim_db": Optimizers}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    serve(lambda: SUITES[chosen.suite](chosen.device))
