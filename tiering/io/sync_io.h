// SPDX-License-Identifier: Apache-2.0
// The disk tier without io_uring: one preadv2 or pwritev2 after the other.
// Slower (nothing overlaps), works on every Linux and under every seccomp
// filter.
#ifndef STRATALLOC_TIERING_IO_SYNC_IO_H_
#define STRATALLOC_TIERING_IO_SYNC_IO_H_

#include "tiering/io/block_io.h"

namespace stratalloc {

class SyncIo : public BlockIo {
 public:
  void Start(IoRequest* request) override;
  int Finish() override;

 private:
  IoRequest* first_ = nullptr;
  IoRequest** last_ = &first_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_SYNC_IO_H_
