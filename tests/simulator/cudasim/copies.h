// SPDX-License-Identifier: Apache-2.0
//
// copies.h: everything that moves or fills bytes. Each device range must be
// mapped and granted to the stream's device, when the copy is asked for and
// (async mode) again when it runs; otherwise the device breaks with
// cudaErrorIllegalAddress and a violation names the range.
//
// Host memory as on CUDA: a copy from pageable memory has taken its bytes when
// the call returns, a copy to pageable memory is complete when the call
// returns, pinned memory is used when the stream gets there.
//
// Phantom memory: everything is checked, noted and charged as always, and
// nothing moves. A copy of up to 4 KiB to the host writes zeros there, so that
// what the host computes from a number it was waiting for is at least defined;
// a larger one leaves the host's bytes as they are.
//
// Thread-safety: take the simulator's lock themselves. In eager mode the bytes
// move outside it.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_COPIES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_COPIES_H_

#include <cstdint>

#include "tests/simulator/cudasim/graph.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

// The values of cudaMemcpyKind.
enum class Direction : int {
  kHostToHost = 0,
  kHostToDevice = 1,
  kDeviceToHost = 2,
  kDeviceToDevice = 3,
  kDefault = 4,
};

struct CopyRequest {
  uint64_t destination = 0;
  uint64_t source = 0;
  uint64_t width = 0;  // bytes of a row
  uint64_t height = 1;
  uint64_t destination_pitch = 0;
  uint64_t source_pitch = 0;
  Direction direction = Direction::kDefault;
  bool peer = false;  // the call names both devices
};

struct FillRequest {
  uint64_t destination = 0;
  uint32_t value = 0;
  unsigned value_bytes = 1;  // 1, 2 or 4
  uint64_t width = 0;        // bytes of a row
  uint64_t height = 1;
  uint64_t pitch = 0;
};

// `name` is the CUDA function, for violation texts; it must be a literal.
// `blocking`: the call returns when the copy is done.
Status Copy(const char* name, const CopyRequest& request, uint64_t stream,
            bool blocking);
Status Fill(const char* name, const FillRequest& request, uint64_t stream);

// The same as a node of a graph. Errors: of the request alone; whether the
// ranges can be used is asked at every launch. Host memory, pageable too, is
// read and written when the graph runs. REQUIRES: the simulator's lock.
Status CopyWork(const char* name, const CopyRequest& request, Work* work);
Status FillWork(const char* name, const FillRequest& request, Work* work);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_COPIES_H_
