// SPDX-License-Identifier: Apache-2.0
// C API: host memory in a spill file.
#include "python_shim/c_api/spill.h"

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "python_shim/c_api/to_c.h"
#include "tiering/io/host_spill.h"

struct stratalloc_spill {
  std::unique_ptr<stratalloc::HostSpill> file;
};

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_spill_open(const char* directory, uint64_t quota,
                          const char* codec, stratalloc_spill** spill,
                          stratalloc_error* error) {
  HostSpill::Options options;
  options.directory = directory;
  options.quota = quota;
  const std::optional<DiskCodec> named = DiskCodecOf(codec);
  if (!named) {
    return ToC(Error{ErrorCode::kInvalidArgument,
                     std::string("stratalloc: there is no codec \"") + codec +
                         "\"; use off, lz4 or zstd"},
               error);
  }
  options.codec = *named;
  Result<std::unique_ptr<HostSpill>> opened = HostSpill::Open(options);
  if (!opened) return ToC(opened.error(), error);
  *spill = new (std::nothrow) stratalloc_spill{*std::move(opened)};
  if (*spill != nullptr) return 0;
  return ToC(Error{ErrorCode::kHostOutOfMemory,
                   "stratalloc: the host has no memory for a spill file"},
             error);
}

int stratalloc_spill_write(stratalloc_spill* spill, const void* data,
                           uint64_t bytes, uint64_t* ticket,
                           stratalloc_error* error) {
  const Result<std::uint64_t> written = spill->file->Write(data, bytes);
  if (!written) return ToC(written.error(), error);
  *ticket = *written;
  return 0;
}

int stratalloc_spill_read(stratalloc_spill* spill, uint64_t ticket, void* to,
                          uint64_t bytes, stratalloc_error* error) {
  return ToC(spill->file->Read(ticket, to, bytes), error);
}

int stratalloc_spill_free(stratalloc_spill* spill, uint64_t ticket,
                          stratalloc_error* error) {
  return ToC(spill->file->Free(ticket), error);
}

void stratalloc_spill_count(stratalloc_spill* spill, uint64_t* used,
                            uint64_t* stored, uint64_t* written) {
  const HostSpill::Numbers count = spill->file->Count();
  *used = count.used;
  *stored = count.stored;
  *written = count.written;
}

void stratalloc_spill_close(stratalloc_spill* spill) { spill->file->Close(); }

void stratalloc_spill_delete(stratalloc_spill* spill) {
  spill->file->Close();
  // What others were at when a child was forked is half done there.
  if (!spill->file->in_child()) delete spill;
}

}  // extern "C"
