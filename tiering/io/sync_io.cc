// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/sync_io.h"

#include <sys/uio.h>

#include <cerrno>

namespace stratalloc {
namespace {

// Moves all of one request; a short transfer continues where it stopped.
void Transfer(IoRequest* request) {
  while (request->done < request->bytes) {
    iovec part{request->data + request->done, request->bytes - request->done};
    const auto at = static_cast<off_t>(request->offset + request->done);
    const ssize_t moved = request->write
                              ? pwritev2(request->fd, &part, 1, at, 0)
                              : preadv2(request->fd, &part, 1, at, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      request->error = moved < 0 ? errno : ENODATA;
      return;
    }
    request->done += static_cast<Bytes>(moved);
  }
}

}  // namespace

void SyncIo::Start(IoRequest* request) {
  request->done = 0;
  request->error = 0;
  request->next = nullptr;
  *last_ = request;
  last_ = &request->next;
}

int SyncIo::Finish() {
  int error = 0;
  for (IoRequest* request = first_; request != nullptr && error == 0;
       request = request->next) {
    Transfer(request);
    error = request->error;
  }
  first_ = nullptr;
  last_ = &first_;
  return error;
}

}  // namespace stratalloc
