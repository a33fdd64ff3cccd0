// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills: what moves, what is refused.

#include <cstring>
#include <vector>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr size_t kBytes = size_t{1} << 16;

struct Memory {
  Memory() {
    (void)api.cudaMalloc(&device, kBytes);
    (void)api.cudaMalloc(&other, kBytes);
    (void)api.cudaMallocHost(&pinned, kBytes);
    std::memset(pinned, 0, kBytes);
    pageable.assign(kBytes, 0);
  }
  ~Memory() {
    (void)api.cudaDeviceSynchronize();
    (void)api.cudaFree(device);
    (void)api.cudaFree(other);
    (void)api.cudaFreeHost(pinned);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  unsigned char At(const void* from, size_t offset) const {
    unsigned char byte = 0;
    (void)api.cudaMemcpy(&byte, static_cast<const char*>(from) + offset, 1,
                         cudaMemcpyDeviceToHost);
    return byte;
  }

  void* device = nullptr;
  void* other = nullptr;
  void* pinned = nullptr;
  std::vector<unsigned char> pageable;
};

using Byte = unsigned char;

}  // namespace

// There and back through every pair of places.
CASE(copies, round_trips) {
  Memory m;
  for (size_t i = 0; i < kBytes; ++i) {
    m.pageable[i] = static_cast<Byte>(i * 7);
  }
  Documented("up", cudaSuccess,
             api.cudaMemcpy(m.device, m.pageable.data(), kBytes,
                            cudaMemcpyHostToDevice));
  Documented(
      "across", cudaSuccess,
      api.cudaMemcpy(m.other, m.device, kBytes, cudaMemcpyDeviceToDevice));
  Documented("down", cudaSuccess,
             api.cudaMemcpy(m.pinned, m.other, kBytes, cudaMemcpyDeviceToHost));
  Holds("same", std::memcmp(m.pinned, m.pageable.data(), kBytes) == 0);
  std::vector<Byte> back(kBytes);
  Documented(
      "host_to_host", cudaSuccess,
      api.cudaMemcpy(back.data(), m.pinned, kBytes, cudaMemcpyHostToHost));
  Holds("same_again", back == m.pageable);
}

// With unified addresses the direction can be left to the pointers.
CASE(copies, default_direction) {
  Memory m;
  std::memset(m.pinned, 9, kBytes);
  Documented("up", cudaSuccess,
             api.cudaMemcpy(m.device, m.pinned, kBytes, cudaMemcpyDefault));
  Documented("across", cudaSuccess,
             api.cudaMemcpy(m.other, m.device, kBytes, cudaMemcpyDefault));
  Documented(
      "down_to_pageable", cudaSuccess,
      api.cudaMemcpy(m.pageable.data(), m.other, kBytes, cudaMemcpyDefault));
  Documented("byte", Byte{9}, m.pageable[kBytes - 1]);
  m.pageable.assign(kBytes, 8);
  Documented(
      "up_from_pageable", cudaSuccess,
      api.cudaMemcpy(m.device, m.pageable.data(), kBytes, cudaMemcpyDefault));
  Documented(
      "host_to_host", cudaSuccess,
      api.cudaMemcpy(m.pinned, m.pageable.data(), kBytes, cudaMemcpyDefault));
  Documented("host_byte", 8, static_cast<int>(static_cast<Byte*>(m.pinned)[5]));
}

CASE(copies, wrong_arguments) {
  Memory m;
  Documented(
      "no_such_kind", cudaErrorInvalidMemcpyDirection,
      api.cudaMemcpy(m.device, m.pinned, 4, static_cast<cudaMemcpyKind>(5)));
  Documented(
      "negative_kind", cudaErrorInvalidMemcpyDirection,
      api.cudaMemcpy(m.device, m.pinned, 4, static_cast<cudaMemcpyKind>(-1)));
  Documented("no_such_kind_async", cudaErrorInvalidMemcpyDirection,
             api.cudaMemcpyAsync(m.device, m.pinned, 4,
                                 static_cast<cudaMemcpyKind>(99), nullptr));
  Documented("to_null", cudaErrorInvalidValue,
             api.cudaMemcpy(nullptr, m.pinned, 4, cudaMemcpyHostToDevice));
  Documented("from_null", cudaErrorInvalidValue,
             api.cudaMemcpy(m.device, nullptr, 4, cudaMemcpyHostToDevice));
  // A direction that the pointers contradict is undefined in the reference.
  // Driver 580.159 on an H200 takes the two downwards, and refuses the ones
  // upwards; the simulated device refuses all, as mistakes of the caller.
  Stricter("down_into_device_memory", cudaErrorInvalidValue, cudaSuccess,
           api.cudaMemcpy(m.device, m.other, 4, cudaMemcpyDeviceToHost));
  Stricter(
      "down_from_the_host", cudaErrorInvalidValue, cudaSuccess,
      api.cudaMemcpy(m.pageable.data(), m.pinned, 4, cudaMemcpyDeviceToHost));
  Believed(
      "up_into_the_host", cudaErrorInvalidValue,
      api.cudaMemcpy(m.pageable.data(), m.pinned, 4, cudaMemcpyHostToDevice));
  Believed(
      "across_from_pageable", cudaErrorInvalidValue,
      api.cudaMemcpy(m.device, m.pageable.data(), 4, cudaMemcpyDeviceToDevice));
  (void)api.cudaGetLastError();
  Documented("nothing_is_broken", cudaSuccess, api.cudaDeviceSynchronize());
}

CASE(copies, zero_bytes) {
  Memory m;
  Documented("copy", cudaSuccess,
             api.cudaMemcpy(m.device, m.pinned, 0, cudaMemcpyHostToDevice));
  Believed("copy_of_nothing", cudaSuccess,
           api.cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
  Documented("async", cudaSuccess,
             api.cudaMemcpyAsync(m.device, m.pinned, 0, cudaMemcpyHostToDevice,
                                 nullptr));
  Documented("fill", cudaSuccess, api.cudaMemset(m.device, 1, 0));
  Believed("fill_of_nothing", cudaSuccess, api.cudaMemset(nullptr, 1, 0));
  // Driver 580.159 on an H200 looks at the size first.
  Believed(
      "no_such_kind", cudaSuccess,
      api.cudaMemcpy(m.device, m.pinned, 0, static_cast<cudaMemcpyKind>(7)));
  (void)api.cudaGetLastError();
  Documented("no_rows", cudaSuccess,
             api.cudaMemcpy2D(m.device, 64, m.pinned, 64, 16, 0,
                              cudaMemcpyHostToDevice));
  Documented("no_columns", cudaSuccess,
             api.cudaMemcpy2D(m.device, 64, m.pinned, 64, 0, 16,
                              cudaMemcpyHostToDevice));
}

// What an asynchronous copy may assume: pageable sources of up to 64 KiB are
// staged before the call returns, pageable destinations are complete when it
// returns.
CASE(copies, asynchronous) {
  Memory m;
  cudaStream_t stream = nullptr;
  (void)api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  m.pageable.assign(kBytes, 3);
  Documented("up_from_pageable", cudaSuccess,
             api.cudaMemcpyAsync(m.device, m.pageable.data(), 4096,
                                 cudaMemcpyHostToDevice, stream));
  m.pageable.assign(kBytes, 4);  // already staged
  Documented("down_to_pageable", cudaSuccess,
             api.cudaMemcpyAsync(m.pageable.data(), m.device, 4096,
                                 cudaMemcpyDeviceToHost, stream));
  Documented("has_arrived", Byte{3}, m.pageable[4095]);
  std::memset(m.pinned, 5, kBytes);
  Documented("up_from_pinned", cudaSuccess,
             api.cudaMemcpyAsync(m.device, m.pinned, kBytes,
                                 cudaMemcpyHostToDevice, stream));
  Documented("across", cudaSuccess,
             api.cudaMemcpyAsync(m.other, m.device, kBytes,
                                 cudaMemcpyDeviceToDevice, stream));
  Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(stream));
  Documented("in_order", Byte{5}, m.At(m.other, kBytes - 1));
  (void)api.cudaStreamDestroy(stream);
}

CASE(copies, rows) {
  Memory m;
  for (size_t i = 0; i < kBytes; ++i) {
    m.pageable[i] = static_cast<Byte>(i / 64);  // 64 bytes per row
  }
  (void)api.cudaMemset(m.device, 0xEE, kBytes);
  Documented("up", cudaSuccess,
             api.cudaMemcpy2D(m.device, 128, m.pageable.data(), 64, 48, 32,
                              cudaMemcpyHostToDevice));
  Documented("row_3_column_47", Byte{3}, m.At(m.device, 3 * 128 + 47));
  Documented("between_rows", Byte{0xEE}, m.At(m.device, 3 * 128 + 48));
  Documented("after_the_last", Byte{0xEE}, m.At(m.device, 32 * 128));
  std::vector<Byte> back(32 * 48);
  Documented("down", cudaSuccess,
             api.cudaMemcpy2D(back.data(), 48, m.device, 128, 48, 32,
                              cudaMemcpyDeviceToHost));
  Documented("last_row", Byte{31}, back[32 * 48 - 1]);
  Documented("narrow_target_pitch", cudaErrorInvalidPitchValue,
             api.cudaMemcpy2D(m.device, 32, m.pinned, 64, 48, 4,
                              cudaMemcpyHostToDevice));
  Documented("narrow_source_pitch", cudaErrorInvalidPitchValue,
             api.cudaMemcpy2D(m.device, 64, m.pinned, 32, 48, 4,
                              cudaMemcpyHostToDevice));
  Documented("async", cudaSuccess,
             api.cudaMemcpy2DAsync(m.device, 128, m.pinned, 64, 48, 32,
                                   cudaMemcpyHostToDevice, nullptr));
  Documented("no_such_kind", cudaErrorInvalidMemcpyDirection,
             api.cudaMemcpy2D(m.device, 64, m.pinned, 64, 48, 4,
                              static_cast<cudaMemcpyKind>(9)));
  Documented("fill_rows", cudaSuccess,
             api.cudaMemset2DAsync(m.device, 128, 0x21, 16, 4, nullptr));
  (void)api.cudaDeviceSynchronize();
  Documented("filled", Byte{0x21}, m.At(m.device, 3 * 128 + 15));
  Holds("not_beside", m.At(m.device, 3 * 128 + 16) != 0x21);
}

CASE(copies, fills) {
  Memory m;
  Documented("bytes", cudaSuccess, api.cudaMemset(m.device, 0x1AB, kBytes));
  Documented("low_byte_counts", Byte{0xAB}, m.At(m.device, 77));
  Documented("async", cudaSuccess,
             api.cudaMemsetAsync(m.device, 0x33, 16, nullptr));
  Documented("first_16", Byte{0x33}, m.At(m.device, 15));
  Documented("no_further", Byte{0xAB}, m.At(m.device, 16));
  Documented("null", cudaErrorInvalidValue, api.cudaMemset(nullptr, 0, 16));
  const auto address = reinterpret_cast<CUdeviceptr>(m.device);
  Documented("16_bit", CUDA_SUCCESS, api.cuMemsetD16(address, 0x1234, 8));
  Documented("16_bit_low", Byte{0x34}, m.At(m.device, 14));
  Documented("16_bit_high", Byte{0x12}, m.At(m.device, 15));
  Documented("16_bit_count", Byte{0xAB}, m.At(m.device, 16));
  Documented("32_bit", CUDA_SUCCESS, api.cuMemsetD32(address, 0x01020304, 4));
  Documented("32_bit_high", Byte{1}, m.At(m.device, 15));
  // The reference wants the address aligned to the width.
  Documented("16_bit_odd", CUDA_ERROR_INVALID_VALUE,
             api.cuMemsetD16(address + 1, 0, 4));
  Documented("32_bit_odd", CUDA_ERROR_INVALID_VALUE,
             api.cuMemsetD32(address + 2, 0, 4));
  Documented("pinned_memory", cudaSuccess, api.cudaMemset(m.pinned, 6, 100));
  (void)api.cudaDeviceSynchronize();
  Documented("pinned_byte", 6,
             static_cast<int>(static_cast<Byte*>(m.pinned)[99]));
  Believed("pageable_memory", cudaErrorInvalidValue,
           api.cudaMemset(m.pageable.data(), 6, 100));
  (void)api.cudaGetLastError();
}

CASE(copies, driver) {
  Memory m;
  const auto address = reinterpret_cast<CUdeviceptr>(m.device);
  m.pageable.assign(kBytes, 0x44);
  Documented("up", CUDA_SUCCESS,
             api.cuMemcpyHtoD(address, m.pageable.data(), kBytes));
  m.pageable.assign(kBytes, 0);
  Documented("down", CUDA_SUCCESS,
             api.cuMemcpyDtoH(m.pageable.data(), address, kBytes));
  Documented("byte", Byte{0x44}, m.pageable[kBytes - 1]);
  Documented("to_null", CUDA_ERROR_INVALID_VALUE,
             api.cuMemcpyHtoD(0, m.pageable.data(), 4));
  Documented("from_null", CUDA_ERROR_INVALID_VALUE,
             api.cuMemcpyDtoH(m.pageable.data(), 0, 4));
  Documented("no_error_for_the_runtime", cudaSuccess, api.cudaGetLastError());
}

// Source and destination may be the same device.
CASE(copies, between_devices) {
  Memory m;
  (void)api.cudaMemset(m.device, 0x66, kBytes);
  Documented("same_device", cudaSuccess,
             api.cudaMemcpyPeerAsync(m.other, 0, m.device, 0, kBytes, nullptr));
  (void)api.cudaDeviceSynchronize();
  Documented("byte", Byte{0x66}, m.At(m.other, kBytes - 1));
  Documented("no_such_target", cudaErrorInvalidDevice,
             api.cudaMemcpyPeerAsync(m.other, 1000, m.device, 0, 4, nullptr));
  Documented("no_such_source", cudaErrorInvalidDevice,
             api.cudaMemcpyPeerAsync(m.other, 0, m.device, -1, 4, nullptr));
  (void)api.cudaGetLastError();
  int count = 0;
  (void)api.cudaGetDeviceCount(&count);
  if (count < 2) {
    Skip("two_devices", "one device only");
    return;
  }
  void* far = nullptr;
  (void)api.cudaSetDevice(1);
  (void)api.cudaMalloc(&far, kBytes);
  Documented("there", cudaSuccess,
             api.cudaMemcpyPeerAsync(far, 1, m.device, 0, kBytes, nullptr));
  (void)api.cudaDeviceSynchronize();
  Documented("there_byte", Byte{0x66}, m.At(far, 100));
  cudaPointerAttributes found;
  (void)api.cudaPointerGetAttributes(&found, far);
  Documented("is_on_device_1", 1, found.device);
  Documented("default_direction", cudaSuccess,
             api.cudaMemcpy(m.other, far, kBytes, cudaMemcpyDefault));
  (void)api.cudaFree(far);
  (void)api.cudaSetDevice(0);
}

// Bytes outside of any allocation. The driver may refuse at the call; it may
// as well break the device, so in a process of its own.
CASE_IN_OWN_PROCESS(copies, outside_of_memory) {
  void* device = nullptr;
  (void)api.cudaMalloc(&device, 64);
  char bytes[16] = {};
  const cudaError_t freed = [&] {
    void* gone = nullptr;
    (void)api.cudaMalloc(&gone, size_t{64} << 20);
    (void)api.cudaFree(gone);
    return api.cudaMemcpy(gone, bytes, 16, cudaMemcpyHostToDevice);
  }();
  BelievedTo("freed_memory_is_refused", freed == cudaErrorInvalidValue ||
                                            freed == cudaErrorIllegalAddress);
}

}  // namespace conformance
