# SPDX-License-Identifier: Apache-2.0
"""Sites of torch's stacks, as its minors and its symbolizers write them."""

import os

import pytest

import stratalloc
from stratalloc.telemetry import model
from stratalloc.telemetry.analysis.frame_kinds import Kind, kind, qualified
from stratalloc.telemetry.analysis.lines import line

_LIST = "std::vector<at::Tensor, std::allocator<at::Tensor> >"
_COLLECTOR = [
    ("??", 0, "torch::unwind::unwind()"),
    ("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
    ("memory_snapshot.cpp", 0,
     "torch::cuda::(anonymous namespace)::gather_with_cpp()")]
_ALLOCATOR = [
    ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::"
     "DeviceCachingAllocator::malloc(unsigned long, CUstream_st*)"),
    ("", 0, "c10::cuda::CUDACachingAllocator::Native::"
     "NativeCachingAllocator::allocate(unsigned long)")]
_DISPATCH = [
    ("RegisterCUDA_0.cpp", 0, "at::(anonymous namespace)::(anonymous namespace)"
     "::wrapper_CUDA__empty_strided(c10::ArrayRef<c10::SymInt>)"),
    ("RegisterCUDA_0.cpp", 0, "c10::impl::wrap_kernel_functor_unboxed_<c10::"
     "impl::detail::WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<"
     "at::Tensor (c10::ArrayRef<long>)> >, at::Tensor (c10::ArrayRef<long>)>::"
     "call(c10::OperatorKernel*, c10::DispatchKeySet)")]
_OPERATOR = [
    ("??", 0, "at::_ops::empty_strided::redispatch(c10::DispatchKeySet)"),
    ("PythonFallbackKernel.cpp", 0, "(anonymous namespace)::pythonFallback("
     "c10::OperatorHandle const&)"),
    ("??", 0, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")]
_MALLOC = _COLLECTOR + _ALLOCATOR + _DISPATCH + _OPERATOR
_ENGINE = [
    ("", 0, f"torch::autograd::Node::operator()({_LIST}&&)"),
    ("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<"
     "torch::autograd::GraphTask>&, torch::autograd::Node*)"),
    ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<"
     "torch::autograd::GraphTask> const&)"),
    ("", 0, "torch::autograd::python::PythonEngine::thread_init(int)")]
_THREAD = [("??", 0, "execute_native_thread_routine"),
           ("./nptl/./nptl/pthread_create.c", 442, "start_thread"),
           ("./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S", 81, "clone3")]
_INTERPRETER = [
    ("/b/Python-3.11.7/Objects/methodobject.c", 443,
     "cfunction_vectorcall_FASTCALL_KEYWORDS"),
    ("??", 0, "PyObject_Call"), ("??", 0, "_PyEval_EvalFrameDefault"),
    ("python_variable.cpp", 0, "THPVariable_clear(THPVariable*)")]
_CHECKPOINT = [
    ("/v/lib/python3.11/site-packages/torch/autograd/graph.py", 869,
     "_engine_run_backward"),
    ("/v/lib/python3.11/site-packages/torch/utils/checkpoint.py", 319,
     "backward")]
_FLASH = [("/v/lib/python3.11/site-packages/flash_attn/flash.py", 210, "bwd")]
_COMPILED = [
    ("/tmp/torchinductor_me/ab/cab" + "2a3b4c5d" * 6 + ".py", 87, "call"),
    ("/v/lib/python3.11/site-packages/torch/_inductor/output_code.py", 584,
     "__call__")]
_FX = [("<eval_with_key>.12", 16, "forward"), *_COMPILED[1:]]
_MINE = [("/p/net.py", 12, "forward"), ("/p/train.py", 40, "<module>"),
         ("/v/bin/torchrun", 8, "<module>")]


def _node(name):
    return ("??", 0, f"torch::autograd::{name}::apply({_LIST}&&)")


# name -> (frames, innermost first; the site)
_STACKS = {
    "C++ and Python": (_MALLOC + _INTERPRETER + _MINE, "/p/net.py:12"),
    "Python alone": (_COMPILED[1:] + _MINE, "/p/net.py:12"),
    "node of backward": (
        _MALLOC + [_node("generated::AddmmBackward0")] + _ENGINE + _THREAD,
        "AddmmBackward0 (backward)"),
    "node written by hand": (
        _MALLOC + [_node("AccumulateGrad")] + _ENGINE + _THREAD,
        "AccumulateGrad (backward)"),
    "node of an extension": (
        _MALLOC + [_node("CppNode<mine::RMSNorm>")] + _ENGINE + _THREAD,
        "mine::RMSNorm (backward)"),
    "between the nodes": (_MALLOC + _ENGINE[1:] + _THREAD,
                          "aten::mm (backward)"),
    "backward that C++ called": (
        _MALLOC + _ENGINE[1:2] + [
            ("??", 0, "at::_ops::_backward::call(at::Tensor const&)"),
            ("??", 0, "mine::train(int)")], "aten::mm (backward)"),
    "backward on the thread that called it": (
        _MALLOC + [_node("generated::MulBackward0")] + _ENGINE[:2]
        + _INTERPRETER + _CHECKPOINT[:1] + _MINE[1:], "/p/train.py:40"),
    "backward of checkpoint": (
        _MALLOC + [_node("generated::MulBackward0")] + _ENGINE[:2]
        + [_node("PyNode")] + _ENGINE + _CHECKPOINT,
        "MulBackward0 (backward)"),
    "backward of checkpoint, between the nodes": (
        _MALLOC + _ENGINE[1:2] + [_node("PyNode")] + _ENGINE + _CHECKPOINT,
        "aten::mm (backward)"),
    "Function of a library": (
        _MALLOC + [_node("PyNode")] + _ENGINE + _THREAD + _FLASH,
        "/v/lib/python3.11/site-packages/flash_attn/flash.py:210"),
    "recomputed layer of a library": (
        _MALLOC + _INTERPRETER + [
            ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125,
             "forward"),
            ("/v/lib/python3.11/site-packages/transformers/gpt.py", 61, "forward")]
        + _CHECKPOINT + [_node("PyNode")] + _ENGINE + _THREAD,
        "/v/lib/python3.11/site-packages/transformers/gpt.py:61"),
    "thread of a loader": (
        _MALLOC + [("/v/lib/python3.11/site-packages/torch/utils/data/pin.py",
                    40, "pin"), ("/usr/lib/python3.11/threading.py", 2, "run")],
        "/v/lib/python3.11/site-packages/torch/utils/data/pin.py:40"),
    "Function of the user": (
        _MALLOC + [_node("PyNode")] + _ENGINE + _THREAD + _MINE[:1],
        "/p/net.py:12"),
    "compiled forward": (_MALLOC + _COMPILED + _MINE, "/p/net.py:12"),
    "compiled backward": (
        _MALLOC + [_node("PyNode")] + _ENGINE + _THREAD + _COMPILED,
        _COMPILED[0][0] + ":87 (backward)"),
    "backward of a graph module": (
        _MALLOC + [_node("PyNode")] + _ENGINE + _THREAD + _FX,
        "<eval_with_key>.12:16 (backward)"),
    "program without an ending": (
        _MALLOC + _INTERPRETER + _COMPILED[1:] + [("/p/train", 4, "main")],
        "/p/train:4"),
    "program of a package": (
        _MALLOC + _FLASH + [("/v/bin/torchrun", 8, "<module>")],
        _FLASH[0][0] + ":210"),
    "prompt": (_MALLOC + [("<stdin>", 1, "<module>")], "<stdin>:1"),
    "text that runs a file": (
        [("<string>", 3, "__init__")] + _MINE, "/p/net.py:12"),
    "thread of torch": (
        _MALLOC + [("??", 0, "c10d::ProcessGroupNCCL::run()")] + _THREAD,
        "aten::mm"),
    "thread of an extension": (
        _MALLOC + [("??", 0, "mine::Cache::grow(std::function<void (int)>)"),
                   ("??", 0, "mine::main(int)")] + _THREAD,
        "mine::Cache::grow"),
    "extension with debug information": (
        _ALLOCATOR + [("/p/cache.cpp", 31, "void grow<int>(int)")] + _THREAD,
        "/p/cache.cpp:31"),
    "collector alone": (_COLLECTOR, "(not known)"),
    "no operator": (_COLLECTOR + _ALLOCATOR + _ENGINE[2:] + _THREAD,
                    "(not known)"),
    "no symbols": ([("??", 0, "??"), ("", 0, ""), ("??", 0, "")],
                   "(not known)"),
    "C functions alone": ([("??", 0, "cublasCreate_v2"), *_THREAD],
                          "(not known)"),
}


def _site(frames, source="torch"):
    run = model.Run(source=source)
    run.sites += [model.Site(*one, i + 2 if i + 1 < len(frames) else 0)
                  for i, one in enumerate(frames)]
    return line(run, 1)


@pytest.mark.parametrize("name", sorted(_STACKS))
def test_site_is_where_memory_was_asked_for(name):
    frames, wanted = _STACKS[name]
    assert _site(frames) == wanted


@pytest.mark.parametrize("frame", [
    *_COLLECTOR, *_ALLOCATOR, *_DISPATCH, *_ENGINE, *_THREAD, *_INTERPRETER,
    ("??", 0, "??"), ("", 0, ""),
    ("??", 0, "std::error_code::message() const")])
def test_frame_of_the_machinery_is_never_a_site(frame):
    assert kind(frame[0], frame[2]) == Kind.INNER
    assert _site([frame]) == "(not known)"


def test_line_of_a_recording_is_its_own():
    assert _site([("/p/net.py", 12, "f")], "stratalloc") == "/p/net.py:12"
    assert _site([("", 0, "site #4")], "stratalloc") == "site #4"
    assert _site([("", 0, "(backward of net.0)")], "stratalloc") == (
        "(backward of net.0)")


def test_line_is_not_this_packages():
    """Its hooks are in the stack of what a program allocates through them."""
    package = os.path.dirname(stratalloc.__file__)
    hook = (os.path.join(package, "_ownership/modules.py"), 7, "f")
    assert _site([hook, *_MINE]) == "/p/net.py:12"
    assert _site([(package + "_mine/net.py", 3, "h")]) == (
        package + "_mine/net.py:3")
    # Nothing else is known.
    assert _site([hook]).endswith("_ownership/modules.py:7")


@pytest.mark.parametrize("function, name", [
    ("void at::native::fill<float (int)>(at::Tensor&)", "at::native::fill"),
    ("a::(anonymous namespace)::f(int) [clone .isra.0]", "a::f"),
    ("a::b::operator()(int) const", "a::b::operator"),
    ("a::run(int)::{lambda(int)#1}::operator()(int) const", "a::run"),
    ("std::vector<int, std::allocator<int> > mine::list(int)", "mine::list"),
    ("plain", "plain"), ("", ""), ("(((", "")])
def test_name_of_a_function_is_without_what_it_takes(function, name):
    assert qualified(function) == name
