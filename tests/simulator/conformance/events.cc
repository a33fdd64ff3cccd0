// SPDX-License-Identifier: Apache-2.0
//
// Events: what recording, waiting, asking and timing mean.

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"
#include "tests/simulator/conformance/gate.h"

namespace conformance {
namespace {

cudaStream_t Stream() {
  cudaStream_t stream = nullptr;
  (void)api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

cudaEvent_t Event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  (void)api.cudaEventCreateWithFlags(&event, flags);
  return event;
}

}  // namespace

CASE(events, handles) {
  cudaEvent_t event = nullptr;
  Documented("create", cudaSuccess, api.cudaEventCreate(&event));
  Holds("not_null", event != nullptr);
  Documented("destroy", cudaSuccess, api.cudaEventDestroy(event));
  Documented("into_null", cudaErrorInvalidValue, api.cudaEventCreate(nullptr));
  Documented("blocking", cudaSuccess,
             api.cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
  (void)api.cudaEventDestroy(event);
  Documented("bad_flags", cudaErrorInvalidValue,
             api.cudaEventCreateWithFlags(&event, 0x100));
  // An event for other processes must not keep times.
  Documented("interprocess_with_timing", cudaErrorInvalidValue,
             api.cudaEventCreateWithFlags(&event, cudaEventInterprocess));
  Documented("interprocess", cudaSuccess,
             api.cudaEventCreateWithFlags(
                 &event, cudaEventInterprocess | cudaEventDisableTiming));
  (void)api.cudaEventDestroy(event);
  CUevent driver = nullptr;
  Documented("driver_create", CUDA_SUCCESS, api.cuEventCreate(&driver, 0));
  Documented("driver_query", CUDA_SUCCESS, api.cuEventQuery(driver));
  Documented("driver_destroy", CUDA_SUCCESS, api.cuEventDestroy(driver));
  Documented("driver_bad_flags", CUDA_ERROR_INVALID_VALUE,
             api.cuEventCreate(&driver, 0x100));
  Believed("destroy_null", cudaErrorInvalidResourceHandle,
           api.cudaEventDestroy(nullptr));
  (void)api.cudaGetLastError();
}

// Nothing recorded means nothing to wait for.
CASE(events, never_recorded) {
  const cudaEvent_t event = Event();
  const cudaEvent_t other = Event();
  const cudaStream_t stream = Stream();
  Documented("query", cudaSuccess, api.cudaEventQuery(event));
  Documented("synchronize", cudaSuccess, api.cudaEventSynchronize(event));
  Documented("wait", cudaSuccess, api.cudaStreamWaitEvent(stream, event, 0));
  Documented("stream_is_free", cudaSuccess, api.cudaStreamSynchronize(stream));
  float ms = 0;
  Documented("elapsed", cudaErrorInvalidResourceHandle,
             api.cudaEventElapsedTime(&ms, event, other));
  (void)api.cudaEventRecord(event, stream);
  (void)api.cudaEventSynchronize(event);
  Documented("elapsed_of_one", cudaErrorInvalidResourceHandle,
             api.cudaEventElapsedTime(&ms, event, other));
  Documented("elapsed_of_the_other", cudaErrorInvalidResourceHandle,
             api.cudaEventElapsedTime(&ms, other, event));
  (void)api.cudaGetLastError();
  (void)api.cudaEventDestroy(event);
  (void)api.cudaEventDestroy(other);
  (void)api.cudaStreamDestroy(stream);
}

CASE(events, not_ready) {
  const cudaStream_t stream = Stream();
  const cudaEvent_t before = Event();
  const cudaEvent_t after = Event();
  (void)api.cudaEventRecord(before, stream);
  (void)api.cudaEventSynchronize(before);
  float ms = 0;
  {
    Gate gate(stream);
    Documented("record", cudaSuccess, api.cudaEventRecord(after, stream));
    Documented("query", cudaErrorNotReady, api.cudaEventQuery(after));
    Documented("driver_query", CUDA_ERROR_NOT_READY, api.cuEventQuery(after));
    Documented("earlier_one_is_ready", cudaSuccess, api.cudaEventQuery(before));
    Documented("elapsed", cudaErrorNotReady,
               api.cudaEventElapsedTime(&ms, before, after));
    // "This result is not actually an error", says the reference.
    Documented("is_not_kept_as_an_error", cudaSuccess, api.cudaGetLastError());
    gate.Open();
    Documented("synchronize", cudaSuccess, api.cudaEventSynchronize(after));
    Documented("query_after", cudaSuccess, api.cudaEventQuery(after));
  }
  Documented("elapsed_after", cudaSuccess,
             api.cudaEventElapsedTime(&ms, before, after));
  Holds("time_goes_forward", ms >= 0);
  (void)api.cudaEventDestroy(before);
  (void)api.cudaEventDestroy(after);
  (void)api.cudaStreamDestroy(stream);
}

CASE(events, times) {
  const cudaStream_t stream = Stream();
  const cudaEvent_t one = Event();
  const cudaEvent_t two = Event();
  const cudaEvent_t untimed = Event(cudaEventDisableTiming);
  (void)api.cudaEventRecord(one, stream);
  (void)api.cudaEventRecord(untimed, stream);
  (void)api.cudaEventRecord(two, stream);
  (void)api.cudaStreamSynchronize(stream);
  float ms = -1;
  Documented("elapsed", cudaSuccess, api.cudaEventElapsedTime(&ms, one, two));
  Holds("not_negative", ms >= 0);
  float back = 1;
  Documented("backwards", cudaSuccess,
             api.cudaEventElapsedTime(&back, two, one));
  Holds("backwards_is_not_positive", back <= 0);
  Documented("of_itself", cudaSuccess, api.cudaEventElapsedTime(&ms, one, one));
  Holds("of_itself_is_zero", ms == 0);
  Documented("without_timing", cudaErrorInvalidResourceHandle,
             api.cudaEventElapsedTime(&ms, one, untimed));
  Documented("from_without_timing", cudaErrorInvalidResourceHandle,
             api.cudaEventElapsedTime(&ms, untimed, two));
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaEventElapsedTime(nullptr, one, two));
  (void)api.cudaGetLastError();
  for (const cudaEvent_t event : {one, two, untimed}) {
    (void)api.cudaEventDestroy(event);
  }
  (void)api.cudaStreamDestroy(stream);
}

// A wait is for what the event held at the call; recording it again later
// changes nothing for those who wait already.
CASE(events, waits) {
  const cudaStream_t producer = Stream();
  const cudaStream_t consumer = Stream();
  const cudaStream_t other = Stream();
  const cudaEvent_t event = Event(cudaEventDisableTiming);
  const cudaEvent_t mark = Event(cudaEventDisableTiming);
  {
    Gate gate(producer);
    (void)api.cudaEventRecord(event, producer);
    Documented("wait", cudaSuccess,
               api.cudaStreamWaitEvent(consumer, event, 0));
    (void)api.cudaEventRecord(mark, consumer);
    Documented("consumer_waits", cudaErrorNotReady, api.cudaEventQuery(mark));
    // Recorded again on a stream that is free.
    Documented("record_again", cudaSuccess, api.cudaEventRecord(event, other));
    cudaError_t state = cudaErrorNotReady;
    for (int i = 0; i < 100000 && state == cudaErrorNotReady; ++i) {
      state = api.cudaEventQuery(event);
    }
    Documented("newest_record_counts", cudaSuccess, state);
    Documented("consumer_still_waits", cudaErrorNotReady,
               api.cudaStreamQuery(consumer));
    Documented("destroy_while_waited_for", cudaSuccess,
               api.cudaEventDestroy(event));
    Documented("consumer_waits_still", cudaErrorNotReady,
               api.cudaEventQuery(mark));
  }
  Documented("consumer_goes_on", cudaSuccess, api.cudaEventSynchronize(mark));
  (void)api.cudaGetLastError();
  (void)api.cudaEventDestroy(mark);
  for (const cudaStream_t stream : {producer, consumer, other}) {
    (void)api.cudaStreamDestroy(stream);
  }
}

CASE(events, wrong_arguments) {
  const cudaStream_t stream = Stream();
  const cudaEvent_t event = Event();
  Believed("record_null", cudaErrorInvalidResourceHandle,
           api.cudaEventRecord(nullptr, stream));
  Believed("query_null", cudaErrorInvalidResourceHandle,
           api.cudaEventQuery(nullptr));
  Believed("synchronize_null", cudaErrorInvalidResourceHandle,
           api.cudaEventSynchronize(nullptr));
  Believed("wait_for_null", cudaErrorInvalidResourceHandle,
           api.cudaStreamWaitEvent(stream, nullptr, 0));
  Documented("wait_flags", cudaErrorInvalidValue,
             api.cudaStreamWaitEvent(stream, event, 0x80));
  Documented("record_flags", cudaErrorInvalidValue,
             api.cudaEventRecordWithFlags(event, stream, 0x80));
  Documented(
      "record_default_flags", cudaSuccess,
      api.cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
  (void)api.cudaGetLastError();
  (void)api.cudaStreamSynchronize(stream);
  (void)api.cudaEventDestroy(event);
  (void)api.cudaStreamDestroy(stream);
}

// Events order work; they do not belong to a stream. On another device they
// can be waited for, not recorded.
CASE(events, across_devices) {
  int count = 0;
  (void)api.cudaGetDeviceCount(&count);
  if (count < 2) {
    Skip("record", "one device only");
    return;
  }
  const cudaEvent_t event = Event(cudaEventDisableTiming);
  const cudaStream_t here = Stream();
  (void)api.cudaSetDevice(1);
  const cudaStream_t there = Stream();
  Documented("record_there", cudaErrorInvalidResourceHandle,
             api.cudaEventRecord(event, there));
  (void)api.cudaGetLastError();
  {
    Gate gate(here);
    (void)api.cudaEventRecord(event, here);
    Documented("wait_there", cudaSuccess,
               api.cudaStreamWaitEvent(there, event, 0));
    Documented("there_waits", cudaErrorNotReady, api.cudaStreamQuery(there));
    Documented("query_there", cudaErrorNotReady, api.cudaEventQuery(event));
  }
  Documented("there_goes_on", cudaSuccess, api.cudaStreamSynchronize(there));
  (void)api.cudaGetLastError();
  (void)api.cudaStreamDestroy(there);
  (void)api.cudaSetDevice(0);
  (void)api.cudaStreamDestroy(here);
  (void)api.cudaEventDestroy(event);
}

}  // namespace conformance
