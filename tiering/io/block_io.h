// SPDX-License-Identifier: Apache-2.0
// Moving bytes between memory and one file: the interface that the io_uring
// ring and its synchronous fallback share.
//
// Use: Start() any number of requests, Flush(), do something else, Finish().
// Requests and their memory belong to the caller and must live until Finish
// returned; no request is in flight after it, whatever happened. Thread-safety:
// none; the disk tier's caller is alone. Allocates: nothing after construction.
#ifndef STRATALLOC_TIERING_IO_BLOCK_IO_H_
#define STRATALLOC_TIERING_IO_BLOCK_IO_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/base/bytes.h"

namespace stratalloc {

// One contiguous transfer. With O_DIRECT, data, bytes and offset are multiples
// of 4096.
struct IoRequest {
  bool write = false;
  int fd = -1;
  char* data = nullptr;
  Bytes bytes = 0;
  std::uint64_t offset = 0;
  // Index of the registered buffer that `data` lies in, or -1.
  int registered_buffer = -1;

  // Filled in by the transfer.
  Bytes done = 0;
  int error = 0;              // errno of the failure, 0 = none
  IoRequest* next = nullptr;  // queue link, owned by the BlockIo
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;
  virtual void Start(IoRequest* request) = 0;  // queues
  virtual void Flush() {}  // sets what is queued going, if it can
  // Waits for everything started. 0, or the errno of the first failure;
  // ENODATA stands for a file that ended too early. After `broken()` the
  // implementation is of no further use, the file is.
  virtual int Finish() = 0;
  virtual bool broken() const { return false; }
  // In a forked child: lets go of the descriptors, submits nothing.
  virtual void AbandonAfterFork() {}
};

// Puts something between the disk tier and what moves its bytes.
using WrapIo =
    std::function<std::unique_ptr<BlockIo>(std::unique_ptr<BlockIo>)>;

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_BLOCK_IO_H_
