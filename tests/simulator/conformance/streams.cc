// SPDX-License-Identifier: Apache-2.0
//
// Streams: handles, priorities, order, host functions, and the default
// stream's rules. Work that is certainly unfinished waits behind a gate.

#include <atomic>
#include <climits>
#include <string>
#include <thread>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"
#include "tests/simulator/conformance/gate.h"

namespace conformance {
namespace {

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

// Has the work submitted to the stream so far finished? Asked by an event, so
// that the stream itself is not asked.
cudaError_t Reached(cudaStream_t stream) {
  const cudaEvent_t event = Event();
  (void)api.cudaEventRecord(event, stream);
  const cudaError_t answer = api.cudaEventQuery(event);
  (void)api.cudaEventDestroy(event);
  (void)api.cudaGetLastError();
  return answer;
}

// Polls until it is done: a query may lag behind the truth.
cudaError_t Settled(cudaStream_t stream) {
  cudaError_t answer = cudaErrorNotReady;
  for (int i = 0; i < 100000 && answer == cudaErrorNotReady; ++i) {
    answer = Reached(stream);
  }
  return answer;
}

}  // namespace

CASE(streams, handles) {
  cudaStream_t stream = nullptr;
  Documented("create", cudaSuccess, api.cudaStreamCreate(&stream));
  Holds("not_null", stream != nullptr);
  unsigned flags = 99;
  Documented("flags_call", cudaSuccess, api.cudaStreamGetFlags(stream, &flags));
  Documented("flags", static_cast<unsigned>(cudaStreamDefault), flags);
  Documented("query_of_an_empty_one", cudaSuccess, api.cudaStreamQuery(stream));
  Documented("synchronize_an_empty_one", cudaSuccess,
             api.cudaStreamSynchronize(stream));
  Documented("destroy", cudaSuccess, api.cudaStreamDestroy(stream));
  Documented("create_non_blocking", cudaSuccess,
             api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  (void)api.cudaStreamGetFlags(stream, &flags);
  Documented("non_blocking", static_cast<unsigned>(cudaStreamNonBlocking),
             flags);
  Documented("flags_into_null", cudaErrorInvalidValue,
             api.cudaStreamGetFlags(stream, nullptr));
  Documented("priority_into_null", cudaErrorInvalidValue,
             api.cudaStreamGetPriority(stream, nullptr));
  (void)api.cudaStreamDestroy(stream);
  Documented("bad_flags", cudaErrorInvalidValue,
             api.cudaStreamCreateWithFlags(&stream, 0x100));
  Documented("into_null", cudaErrorInvalidValue, api.cudaStreamCreate(nullptr));
  Believed("destroy_null", cudaErrorInvalidResourceHandle,
           api.cudaStreamDestroy(nullptr));
  CUstream driver = nullptr;
  Documented("driver_create", CUDA_SUCCESS, api.cuStreamCreate(&driver, 0));
  Documented("driver_query", CUDA_SUCCESS, api.cuStreamQuery(driver));
  Documented("runtime_takes_it", cudaSuccess, api.cudaStreamQuery(driver));
  Documented("driver_destroy", CUDA_SUCCESS, api.cuStreamDestroy(driver));
  Documented("driver_bad_flags", CUDA_ERROR_INVALID_VALUE,
             api.cuStreamCreate(&driver, 0x100));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  Documented("is_capturing", cudaSuccess,
             api.cudaStreamIsCapturing(nullptr, &status));
  Documented("is_not", cudaStreamCaptureStatusNone, status);
  (void)api.cudaGetLastError();
}

// Lower numbers are more urgent; what lies outside is brought inside.
CASE(streams, priorities) {
  int least = 99;
  int greatest = 99;
  Documented("range", cudaSuccess,
             api.cudaDeviceGetStreamPriorityRange(&least, &greatest));
  Holds("least_is_zero", least == 0);
  Holds("greatest_is_not_above", greatest <= least);
  Documented("range_may_be_null", cudaSuccess,
             api.cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
  cudaStream_t stream = nullptr;
  int priority = 99;
  Documented("greatest", cudaSuccess,
             api.cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                              greatest));
  (void)api.cudaStreamGetPriority(stream, &priority);
  Documented("is_kept", greatest, priority);
  (void)api.cudaStreamDestroy(stream);
  Documented("too_great", cudaSuccess,
             api.cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                              INT_MIN));
  (void)api.cudaStreamGetPriority(stream, &priority);
  Documented("is_brought_inside", greatest, priority);
  (void)api.cudaStreamDestroy(stream);
  Documented(
      "too_small", cudaSuccess,
      api.cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 1000));
  (void)api.cudaStreamGetPriority(stream, &priority);
  Documented("small_is_brought_inside", least, priority);
  (void)api.cudaStreamDestroy(stream);
  Documented("of_the_default_stream", cudaSuccess,
             api.cudaStreamGetPriority(nullptr, &priority));
  Documented("is_zero", 0, priority);
}

CASE(streams, not_ready) {
  const cudaStream_t stream = Stream();
  {
    Gate gate(stream);
    Documented("query", cudaErrorNotReady, api.cudaStreamQuery(stream));
    Documented("query_again", cudaErrorNotReady, api.cudaStreamQuery(stream));
    // "This result is not actually an error", says the reference.
    Documented("is_not_kept_as_an_error", cudaSuccess, api.cudaGetLastError());
    Documented("driver_query", CUDA_ERROR_NOT_READY, api.cuStreamQuery(stream));
    gate.Open();
    Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(stream));
    Documented("query_after", cudaSuccess, api.cudaStreamQuery(stream));
  }
  (void)api.cudaStreamDestroy(stream);
}

// Streams that do not block go their own way.
CASE(streams, independent) {
  const cudaStream_t blocked = Stream();
  const cudaStream_t free = Stream();
  {
    Gate gate(blocked);
    Documented("other_stream_goes_on", cudaSuccess, Settled(free));
    Documented("default_stream_goes_on", cudaSuccess, Settled(nullptr));
    Documented("blocked_does_not", cudaErrorNotReady, Reached(blocked));
  }
  Documented("afterwards", cudaSuccess, Settled(blocked));
  (void)api.cudaStreamDestroy(blocked);
  (void)api.cudaStreamDestroy(free);
}

// The legacy default stream waits for blocking streams and they for it.
CASE(streams, legacy_default_stream) {
  const cudaStream_t blocking = Stream(cudaStreamDefault);
  const cudaStream_t second = Stream(cudaStreamDefault);
  const cudaStream_t apart = Stream(cudaStreamNonBlocking);
  {
    Gate gate(blocking);
    Documented("other_blocking_goes_on", cudaSuccess, Settled(second));
    Documented("default_waits", cudaErrorNotReady, Reached(nullptr));
    Documented("explicit_legacy_waits", cudaErrorNotReady,
               Reached(cudaStreamLegacy));
    Documented("non_blocking_goes_on", cudaSuccess, Settled(apart));
    // The event recorded on the default stream is work there: later work of
    // blocking streams is behind it.
    Documented("blocking_behind_default_waits", cudaErrorNotReady,
               Reached(second));
  }
  Documented("afterwards", cudaSuccess, Settled(second));
  {
    Gate gate(nullptr);
    Documented("blocking_waits_for_default", cudaErrorNotReady,
               Reached(blocking));
    Documented("non_blocking_does_not_wait", cudaSuccess, Settled(apart));
  }
  (void)api.cudaDeviceSynchronize();
  for (const cudaStream_t stream : {blocking, second, apart}) {
    (void)api.cudaStreamDestroy(stream);
  }
}

// Each thread has a default stream of its own, which blocks like any other.
CASE(streams, per_thread_default_stream) {
  Documented("query", cudaSuccess, api.cudaStreamQuery(cudaStreamPerThread));
  Documented("synchronize", cudaSuccess,
             api.cudaStreamSynchronize(cudaStreamPerThread));
  {
    Gate gate(cudaStreamPerThread);
    Documented("not_ready", cudaErrorNotReady,
               api.cudaStreamQuery(cudaStreamPerThread));
    cudaError_t there = cudaErrorUnknown;
    std::thread thread(
        [&] { there = api.cudaStreamQuery(cudaStreamPerThread); });
    thread.join();
    Documented("another_threads_is_another", cudaSuccess, there);
    Documented("legacy_waits_for_it", cudaErrorNotReady,
               Reached(cudaStreamLegacy));
  }
  (void)api.cudaDeviceSynchronize();
  (void)api.cudaGetLastError();
}

// A destroyed stream finishes what it has; the call does not wait.
CASE(streams, destroyed_with_work) {
  void* device = nullptr;
  void* pinned = nullptr;
  (void)api.cudaMalloc(&device, 4096);
  (void)api.cudaMallocHost(&pinned, 4096);
  static_cast<char*>(pinned)[4095] = 42;
  const cudaStream_t stream = Stream();
  const cudaStream_t last = Stream();
  const cudaEvent_t event = Event();
  {
    Gate gate(last);
    (void)api.cudaEventRecord(event, last);
    (void)api.cudaStreamWaitEvent(stream, event, 0);
    (void)api.cudaMemcpyAsync(device, pinned, 4096, cudaMemcpyHostToDevice,
                              stream);
    Documented("destroy", cudaSuccess, api.cudaStreamDestroy(stream));
    Documented("it_did_not_wait", cudaErrorNotReady, api.cudaStreamQuery(last));
  }
  Documented("synchronize", cudaSuccess, api.cudaDeviceSynchronize());
  char byte = 0;
  (void)api.cudaMemcpy(&byte, static_cast<char*>(device) + 4095, 1,
                       cudaMemcpyDeviceToHost);
  Documented("its_work_was_done", 42, static_cast<int>(byte));
  (void)api.cudaGetLastError();
  (void)api.cudaEventDestroy(event);
  (void)api.cudaStreamDestroy(last);
  (void)api.cudaFree(device);
  (void)api.cudaFreeHost(pinned);
}

CASE(streams, host_functions) {
  const cudaStream_t stream = Stream();
  static std::string order;
  order.clear();
  const cudaHostFn_t first = [](void*) { order += 'a'; };
  const cudaHostFn_t second = [](void*) { order += 'b'; };
  Documented("launch", cudaSuccess,
             api.cudaLaunchHostFunc(stream, first, nullptr));
  Documented("launch_second", cudaSuccess,
             api.cudaLaunchHostFunc(stream, second, nullptr));
  Documented("add_callback", cudaSuccess,
             api.cudaStreamAddCallback(
                 stream,
                 [](cudaStream_t, cudaError_t status, void*) {
                   order += status == cudaSuccess ? 'c' : 'x';
                 },
                 nullptr, 0));
  Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(stream));
  Holds("ran_in_order", order == "abc");
  Documented("null_function", cudaErrorInvalidValue,
             api.cudaLaunchHostFunc(stream, nullptr, nullptr));
  Documented("null_callback", cudaErrorInvalidValue,
             api.cudaStreamAddCallback(stream, nullptr, nullptr, 0));
  Documented("callback_flags", cudaErrorInvalidValue,
             api.cudaStreamAddCallback(
                 stream, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 1));
  (void)api.cudaGetLastError();
  static std::atomic<bool> argument_seen;
  argument_seen = false;
  (void)api.cudaLaunchHostFunc(
      stream,
      [](void* argument) { argument_seen = argument == &argument_seen; },
      &argument_seen);
  (void)api.cudaStreamSynchronize(stream);
  Holds("argument", argument_seen.load());
  (void)api.cudaStreamDestroy(stream);
}

// Inside a host function no CUDA call may be made; the reference says that it
// "may" be refused as not permitted, and the driver does.
CASE(streams, cuda_inside_a_host_function) {
  struct Answers {
    cudaError_t malloc = cudaSuccess;
    cudaError_t query = cudaSuccess;
    cudaError_t synchronize = cudaSuccess;
    cudaError_t event = cudaSuccess;
    CUresult driver = CUDA_SUCCESS;
  };
  static Answers answers;
  answers = Answers();
  const cudaStream_t stream = Stream();
  (void)api.cudaLaunchHostFunc(
      stream,
      [](void*) {
        void* pointer = nullptr;
        answers.malloc = api.cudaMalloc(&pointer, 64);
        answers.query = api.cudaStreamQuery(nullptr);
        answers.synchronize = api.cudaDeviceSynchronize();
        cudaEvent_t event = nullptr;
        answers.event = api.cudaEventCreate(&event);
        CUdeviceptr address = 0;
        answers.driver = api.cuMemAlloc(&address, 64);
      },
      nullptr);
  Documented("the_stream_goes_on", cudaSuccess,
             api.cudaStreamSynchronize(stream));
  Believed("malloc", cudaErrorNotPermitted, answers.malloc);
  Believed("query", cudaErrorNotPermitted, answers.query);
  Believed("synchronize", cudaErrorNotPermitted, answers.synchronize);
  Believed("event", cudaErrorNotPermitted, answers.event);
  Believed("driver", CUDA_ERROR_NOT_PERMITTED, answers.driver);
  Documented("we_may_again", cudaSuccess, api.cudaDeviceSynchronize());
  (void)api.cudaStreamDestroy(stream);
}

CASE(streams, device_synchronize_waits_for_all) {
  const cudaStream_t one = Stream();
  const cudaStream_t two = Stream();
  static std::atomic<int> done;
  done = 0;
  for (const cudaStream_t stream : {one, two}) {
    (void)api.cudaLaunchHostFunc(
        stream, [](void*) { done.fetch_add(1); }, nullptr);
  }
  Documented("synchronize", cudaSuccess, api.cudaDeviceSynchronize());
  Documented("all_ran", 2, done.load());
  Documented("one_is_ready", cudaSuccess, api.cudaStreamQuery(one));
  Documented("two_is_ready", cudaSuccess, api.cudaStreamQuery(two));
  (void)api.cudaStreamDestroy(one);
  (void)api.cudaStreamDestroy(two);
}

}  // namespace conformance
