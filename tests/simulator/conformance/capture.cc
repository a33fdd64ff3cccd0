// SPDX-License-Identifier: Apache-2.0
//
// Stream capture: what a capturing stream records, what it forbids, how
// captures fork and join, and what spoils them. The programming guide's
// chapter on stream capture and the reference of each call say most of it; a
// call that is forbidden during a capture fails and invalidates the capture.

#include <thread>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;
constexpr size_t kBytes = 4096;

cudaStream_t Stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  (void)api.cudaStreamCreateWithFlags(&stream, flags);
  return stream;
}

cudaEvent_t Event() {
  cudaEvent_t event = nullptr;
  (void)api.cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  return event;
}

cudaStreamCaptureStatus StatusOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  (void)api.cudaStreamIsCapturing(stream, &status);
  return status;
}

// Ends a capture, whatever became of it.
cudaError_t End(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t answer = api.cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) (void)api.cudaGraphDestroy(graph);
  (void)api.cudaGetLastError();
  return answer;
}

struct Setting {
  explicit Setting(unsigned flags = cudaStreamNonBlocking)
      : stream(Stream(flags)), other(Stream(flags)), event(Event()) {
    (void)api.cudaMalloc(&device, kBytes);
    (void)api.cudaMemset(device, 0, kBytes);
    (void)api.cudaDeviceSynchronize();
  }
  ~Setting() {
    if (StatusOf(stream) != cudaStreamCaptureStatusNone) (void)End(stream);
    (void)api.cudaStreamDestroy(stream);
    (void)api.cudaStreamDestroy(other);
    (void)api.cudaEventDestroy(event);
    (void)api.cudaFree(device);
    (void)api.cudaGetLastError();
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

  void Begin(cudaStreamCaptureMode mode) {
    (void)api.cudaStreamBeginCapture(stream, mode);
  }
  void Work(cudaStream_t where, int value = 7) {
    (void)api.cudaMemsetAsync(device, value, kBytes, where);
  }
  int Byte() const {
    unsigned char byte = 0;
    (void)api.cudaMemcpy(&byte, device, 1, cudaMemcpyDeviceToHost);
    return byte;
  }

  const cudaStream_t stream;
  const cudaStream_t other;
  const cudaEvent_t event;
  void* device = nullptr;
};

}  // namespace

// Captured work does not run; a launch of the graph does, each time anew.
CASE(capture, work_is_recorded) {
  Setting s;
  cudaGraph_t graph = nullptr;
  Documented("begin", cudaSuccess,
             api.cudaStreamBeginCapture(s.stream, kGlobal));
  Documented("active", cudaStreamCaptureStatusActive, StatusOf(s.stream));
  Documented("other_stream_is_not", cudaStreamCaptureStatusNone,
             StatusOf(s.other));
  Documented("work", cudaSuccess,
             api.cudaMemsetAsync(s.device, 7, kBytes, s.stream));
  static int calls;
  calls = 0;
  Documented("host_function", cudaSuccess,
             api.cudaLaunchHostFunc(
                 s.stream, [](void*) { ++calls; }, nullptr));
  Documented("end", cudaSuccess, api.cudaStreamEndCapture(s.stream, &graph));
  Holds("graph", graph != nullptr);
  Documented("ended", cudaStreamCaptureStatusNone, StatusOf(s.stream));
  Documented("did_not_run", 0, s.Byte());
  Documented("did_not_call", 0, calls);
  size_t nodes = 0;
  Documented("nodes_call", cudaSuccess,
             api.cudaGraphGetNodes(graph, nullptr, &nodes));
  Documented("nodes", size_t{2}, nodes);
  cudaGraphNode_t node[2] = {};
  (void)api.cudaGraphGetNodes(graph, node, &nodes);
  int fills = 0;
  int hosts = 0;
  for (const cudaGraphNode_t each : node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    (void)api.cudaGraphNodeGetType(each, &type);
    fills += type == cudaGraphNodeTypeMemset;
    hosts += type == cudaGraphNodeTypeHost;
  }
  Documented("one_fill", 1, fills);
  Documented("one_host_function", 1, hosts);
  cudaGraphExec_t exec = nullptr;
  Documented("instantiate", cudaSuccess,
             api.cudaGraphInstantiate(&exec, graph, 0));
  Documented("destroy_graph", cudaSuccess, api.cudaGraphDestroy(graph));
  Documented("launch", cudaSuccess, api.cudaGraphLaunch(exec, s.stream));
  Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(s.stream));
  Documented("ran", 7, s.Byte());
  Documented("called", 1, calls);
  s.Work(s.stream, 1);
  Documented("launch_again", cudaSuccess, api.cudaGraphLaunch(exec, s.stream));
  (void)api.cudaStreamSynchronize(s.stream);
  Documented("ran_again", 7, s.Byte());
  Documented("called_again", 2, calls);
  Documented("destroy_exec", cudaSuccess, api.cudaGraphExecDestroy(exec));
}

CASE(capture, empty) {
  Setting s;
  cudaGraph_t graph = nullptr;
  s.Begin(kGlobal);
  Documented("end", cudaSuccess, api.cudaStreamEndCapture(s.stream, &graph));
  size_t nodes = 99;
  (void)api.cudaGraphGetNodes(graph, nullptr, &nodes);
  Documented("no_nodes", size_t{0}, nodes);
  cudaGraphExec_t exec = nullptr;
  Documented("instantiate", cudaSuccess,
             api.cudaGraphInstantiate(&exec, graph, 0));
  Documented("launch", cudaSuccess, api.cudaGraphLaunch(exec, s.stream));
  (void)api.cudaStreamSynchronize(s.stream);
  (void)api.cudaGraphExecDestroy(exec);
  (void)api.cudaGraphDestroy(graph);
}

CASE(capture, wrong_begins_and_ends) {
  Setting s;
  Believed("legacy_stream", cudaErrorStreamCaptureUnsupported,
           api.cudaStreamBeginCapture(nullptr, kGlobal));
  Documented("no_such_mode", cudaErrorInvalidValue,
             api.cudaStreamBeginCapture(
                 s.stream, static_cast<cudaStreamCaptureMode>(17)));
  cudaGraph_t graph = nullptr;
  Believed("end_without_begin", cudaErrorIllegalState,
           api.cudaStreamEndCapture(s.stream, &graph));
  s.Begin(kRelaxed);
  Believed("begin_twice", cudaErrorIllegalState,
           api.cudaStreamBeginCapture(s.stream, kRelaxed));
  Believed("capture_goes_on", cudaStreamCaptureStatusActive,
           StatusOf(s.stream));
  Documented("end", cudaSuccess, End(s.stream));
  Documented("launch_null", cudaErrorInvalidValue,
             api.cudaGraphLaunch(nullptr, s.stream));
  Documented("instantiate_null", cudaErrorInvalidValue, [&] {
    cudaGraphExec_t exec = nullptr;
    return api.cudaGraphInstantiate(&exec, nullptr, 0);
  }());
  Documented("destroy_null", cudaErrorInvalidValue,
             api.cudaGraphDestroy(nullptr));
}

CASE(capture, info) {
  Setting s;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  unsigned long long first = 0;
  Documented("of_no_capture", cudaSuccess,
             api.cudaStreamGetCaptureInfo(s.stream, &status, &first, nullptr,
                                          nullptr, nullptr, nullptr));
  Documented("none", cudaStreamCaptureStatusNone, status);
  s.Begin(kGlobal);
  s.Work(s.stream);
  cudaGraph_t graph = nullptr;
  size_t count = 0;
  const cudaGraphNode_t* nodes = nullptr;
  Documented("of_a_capture", cudaSuccess,
             api.cudaStreamGetCaptureInfo(s.stream, &status, &first, &graph,
                                          &nodes, nullptr, &count));
  Documented("active", cudaStreamCaptureStatusActive, status);
  Holds("graph", graph != nullptr);
  Documented("next_comes_after_one", size_t{1}, count);
  (void)End(s.stream);
  s.Begin(kGlobal);
  unsigned long long second = first;
  (void)api.cudaStreamGetCaptureInfo(s.stream, &status, &second, nullptr,
                                     nullptr, nullptr, nullptr);
  Holds("each_has_its_own_id", second != first);
  (void)End(s.stream);
}

// Nothing that is only recorded can be waited for.
CASE(capture, waiting_is_forbidden) {
  Setting s;
  s.Begin(kRelaxed);
  s.Work(s.stream);
  Documented("synchronize_stream", cudaErrorStreamCaptureUnsupported,
             api.cudaStreamSynchronize(s.stream));
  Documented("invalidated", cudaStreamCaptureStatusInvalidated,
             StatusOf(s.stream));
  Documented("work_afterwards", cudaErrorStreamCaptureInvalidated,
             api.cudaMemsetAsync(s.device, 1, kBytes, s.stream));
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(8);
  Documented("end", cudaErrorStreamCaptureInvalidated,
             api.cudaStreamEndCapture(s.stream, &graph));
  Documented("end_is_the_last_error", cudaErrorStreamCaptureInvalidated,
             api.cudaPeekAtLastError());
  Holds("no_graph", graph == nullptr);
  Documented("over", cudaStreamCaptureStatusNone, StatusOf(s.stream));
  Documented("stream_is_usable", cudaSuccess,
             api.cudaStreamSynchronize(s.stream));
  (void)api.cudaGetLastError();

  s.Begin(kRelaxed);
  Documented("query_stream", cudaErrorStreamCaptureUnsupported,
             api.cudaStreamQuery(s.stream));
  Documented("end_after_query", cudaErrorStreamCaptureInvalidated,
             End(s.stream));
  s.Begin(kRelaxed);
  Documented("synchronize_device", cudaErrorStreamCaptureUnsupported,
             api.cudaDeviceSynchronize());
  Documented("end_after_device", cudaErrorStreamCaptureInvalidated,
             End(s.stream));
  s.Begin(kRelaxed);
  (void)api.cudaEventRecord(s.event, s.stream);
  Documented("query_event", cudaErrorCapturedEvent,
             api.cudaEventQuery(s.event));
  Believed("end_after_event_query", cudaErrorStreamCaptureInvalidated,
           End(s.stream));
  s.Begin(kRelaxed);
  (void)api.cudaEventRecord(s.event, s.stream);
  Documented("synchronize_event", cudaErrorCapturedEvent,
             api.cudaEventSynchronize(s.event));
  Believed("end_after_event_synchronize", cudaErrorStreamCaptureInvalidated,
           End(s.stream));
}

// Calls that may synchronise are forbidden to everybody while a global
// capture goes on, to the own thread with a thread-local one, to nobody with a
// relaxed one.
CASE(capture, unsafe_calls) {
  Setting s;
  void* pointer = nullptr;
  s.Begin(kGlobal);
  Documented("malloc_in_global", cudaErrorStreamCaptureUnsupported,
             api.cudaMalloc(&pointer, kBytes));
  Documented("end_after_malloc", cudaErrorStreamCaptureInvalidated,
             End(s.stream));
  s.Begin(kThreadLocal);
  Documented("malloc_in_thread_local", cudaErrorStreamCaptureUnsupported,
             api.cudaMalloc(&pointer, kBytes));
  (void)End(s.stream);
  s.Begin(kRelaxed);
  Documented("malloc_in_relaxed", cudaSuccess,
             api.cudaMalloc(&pointer, kBytes));
  Documented("end_relaxed", cudaSuccess, End(s.stream));
  (void)api.cudaFree(pointer);

  cudaError_t there = cudaErrorUnknown;
  const auto elsewhere = [&](bool relax) {
    std::thread thread([&] {
      void* own = nullptr;
      cudaStreamCaptureMode mode = kRelaxed;
      if (relax) (void)api.cudaThreadExchangeStreamCaptureMode(&mode);
      there = api.cudaMalloc(&own, kBytes);
      if (there == cudaSuccess) pointer = own;
    });
    thread.join();
  };
  s.Begin(kThreadLocal);
  elsewhere(false);
  Documented("other_thread_of_thread_local", cudaSuccess, there);
  Documented("end_thread_local", cudaSuccess, End(s.stream));
  (void)api.cudaFree(pointer);
  s.Begin(kGlobal);
  elsewhere(false);
  Documented("other_thread_of_global", cudaErrorStreamCaptureUnsupported,
             there);
  (void)End(s.stream);
  s.Begin(kGlobal);
  elsewhere(true);
  Documented("other_thread_that_relaxed", cudaSuccess, there);
  Documented("end_global", cudaSuccess, End(s.stream));
  (void)api.cudaFree(pointer);

  // Asking is no wait, and making events is safe.
  s.Begin(kGlobal);
  int device = 0;
  Documented("ask_device", cudaSuccess, api.cudaGetDevice(&device));
  cudaEvent_t event = nullptr;
  Documented("make_event", cudaSuccess,
             api.cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  Documented("other_streams_go_on", cudaSuccess,
             api.cudaMemsetAsync(s.device, 3, kBytes, s.other));
  Documented("end_after_safe_calls", cudaSuccess, End(s.stream));
  (void)api.cudaEventDestroy(event);
  (void)api.cudaStreamSynchronize(s.other);
}

CASE(capture, exchanging_the_mode) {
  cudaStreamCaptureMode mode = kRelaxed;
  Documented("exchange", cudaSuccess,
             api.cudaThreadExchangeStreamCaptureMode(&mode));
  Documented("was_global", kGlobal, mode);
  mode = kGlobal;
  (void)api.cudaThreadExchangeStreamCaptureMode(&mode);
  Documented("was_relaxed", kRelaxed, mode);
  // The known answer is driver 580.159's on an H200. A null pointer ends the
  // process there: no check asks for that.
  mode = static_cast<cudaStreamCaptureMode>(17);
  Stricter("no_such_mode", cudaErrorInvalidValue, cudaSuccess,
           api.cudaThreadExchangeStreamCaptureMode(&mode));
  mode = kGlobal;
  (void)api.cudaThreadExchangeStreamCaptureMode(&mode);
  (void)api.cudaGetLastError();
}

// Waiting for an event of the capture takes the other stream in; it must come
// back before the end.
CASE(capture, fork_and_join) {
  Setting s;
  const cudaEvent_t back = Event();
  s.Begin(kGlobal);
  s.Work(s.stream);
  Documented("record", cudaSuccess, api.cudaEventRecord(s.event, s.stream));
  Documented("fork", cudaSuccess, api.cudaStreamWaitEvent(s.other, s.event, 0));
  Documented("other_captures", cudaStreamCaptureStatusActive,
             StatusOf(s.other));
  s.Work(s.other, 9);
  (void)api.cudaEventRecord(back, s.other);
  Documented("join", cudaSuccess, api.cudaStreamWaitEvent(s.stream, back, 0));
  cudaGraph_t graph = nullptr;
  Documented("end", cudaSuccess, api.cudaStreamEndCapture(s.stream, &graph));
  Documented("other_is_free", cudaStreamCaptureStatusNone, StatusOf(s.other));
  size_t nodes = 0;
  (void)api.cudaGraphGetNodes(graph, nullptr, &nodes);
  Documented("events_are_edges_not_nodes", size_t{2}, nodes);
  cudaGraphExec_t exec = nullptr;
  (void)api.cudaGraphInstantiate(&exec, graph, 0);
  (void)api.cudaGraphLaunch(exec, s.stream);
  (void)api.cudaStreamSynchronize(s.stream);
  Documented("in_order", 9, s.Byte());
  (void)api.cudaGraphExecDestroy(exec);
  (void)api.cudaGraphDestroy(graph);

  s.Begin(kGlobal);
  (void)api.cudaEventRecord(s.event, s.stream);
  (void)api.cudaStreamWaitEvent(s.other, s.event, 0);
  s.Work(s.other);
  cudaGraph_t unjoined = nullptr;
  Documented("unjoined", cudaErrorStreamCaptureUnjoined,
             api.cudaStreamEndCapture(s.stream, &unjoined));
  Documented("unjoined_is_the_last_error", cudaErrorStreamCaptureUnjoined,
             api.cudaPeekAtLastError());
  (void)api.cudaGetLastError();
  Documented("other_is_free_again", cudaStreamCaptureStatusNone,
             StatusOf(s.other));

  s.Begin(kGlobal);
  (void)api.cudaEventRecord(s.event, s.stream);
  (void)api.cudaStreamWaitEvent(s.other, s.event, 0);
  Documented("end_on_the_other", cudaErrorStreamCaptureUnmatched, End(s.other));
  (void)End(s.stream);
  (void)api.cudaEventDestroy(back);
}

// A capture knows only what was captured.
CASE(capture, isolation) {
  Setting s;
  s.Work(s.other);
  (void)api.cudaEventRecord(s.event, s.other);
  s.Begin(kGlobal);
  Documented("wait_for_uncaptured_work", cudaErrorStreamCaptureIsolation,
             api.cudaStreamWaitEvent(s.stream, s.event, 0));
  Documented("end", cudaErrorStreamCaptureInvalidated, End(s.stream));
  (void)api.cudaStreamSynchronize(s.other);

  const cudaEvent_t second = Event();
  s.Begin(kGlobal);
  (void)api.cudaStreamBeginCapture(s.other, kGlobal);
  s.Work(s.stream);
  (void)api.cudaEventRecord(second, s.stream);
  Documented("merge_two_captures", cudaErrorStreamCaptureMerge,
             api.cudaStreamWaitEvent(s.other, second, 0));
  (void)api.cudaGetLastError();
  Believed("merge_spoils_the_one", cudaErrorStreamCaptureInvalidated,
           End(s.stream));
  Believed("merge_spoils_the_other", cudaErrorStreamCaptureInvalidated,
           End(s.other));
  (void)api.cudaEventDestroy(second);
}

// The legacy stream may not come to depend on a capturing blocking stream.
CASE(capture, legacy_stream) {
  Setting blocking(cudaStreamDefault);
  blocking.Begin(kRelaxed);
  Documented("work_there", cudaErrorStreamCaptureImplicit,
             api.cudaMemsetAsync(blocking.device, 1, kBytes, nullptr));
  Documented("end", cudaErrorStreamCaptureInvalidated, End(blocking.stream));
  blocking.Begin(kRelaxed);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Documented("ask_whether_it_captures", cudaErrorStreamCaptureImplicit,
             api.cudaStreamIsCapturing(nullptr, &status));
  (void)api.cudaGetLastError();
  Documented("asking_spoils_nothing", cudaStreamCaptureStatusActive,
             StatusOf(blocking.stream));
  (void)End(blocking.stream);

  Setting apart;
  apart.Begin(kRelaxed);
  Documented("beside_a_non_blocking_one", cudaSuccess,
             api.cudaMemsetAsync(apart.device, 1, kBytes, nullptr));
  Documented("end_beside", cudaSuccess, End(apart.stream));
}

CASE(capture, threads) {
  Setting s;
  cudaError_t there = cudaErrorUnknown;
  s.Begin(kThreadLocal);
  {
    std::thread thread([&] {
      cudaGraph_t graph = nullptr;
      there = api.cudaStreamEndCapture(s.stream, &graph);
    });
    thread.join();
  }
  Documented("end_on_another_thread", cudaErrorStreamCaptureWrongThread, there);
  (void)End(s.stream);
  s.Begin(kRelaxed);
  {
    std::thread thread([&] {
      cudaGraph_t graph = nullptr;
      there = api.cudaStreamEndCapture(s.stream, &graph);
      if (graph != nullptr) (void)api.cudaGraphDestroy(graph);
    });
    thread.join();
  }
  Documented("end_a_relaxed_one", cudaSuccess, there);
}

// An event that was recorded in a capture stands for nothing outside of it
// until it is recorded again. Driver 580.159 on an H200 says that it is
// captured only while the capture goes on.
CASE(capture, events_afterwards) {
  Setting s;
  s.Begin(kGlobal);
  (void)api.cudaEventRecord(s.event, s.stream);
  (void)End(s.stream);
  Believed("query", cudaErrorInvalidValue, api.cudaEventQuery(s.event));
  (void)api.cudaGetLastError();
  (void)api.cudaEventRecord(s.event, s.stream);
  Documented("recorded_again", cudaSuccess, api.cudaEventSynchronize(s.event));
}

}  // namespace conformance
