// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/host_spill.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tiering/io/chunk.h"

namespace stratalloc {
namespace {

// Large enough that the disk is busy, small enough to lie in memory twice.
constexpr Bytes kPiece = 8 * kMiB;

bool IsPages(const void* data, Bytes bytes) {
  return bytes % kIoBlock == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % kIoBlock == 0;
}

}  // namespace

HostSpill::HostSpill(const Options& options)
    : options_(options),
      owner_(getpid()),
      staging_(operator new(kPiece, std::align_val_t(kIoBlock))) {}

HostSpill::~HostSpill() {
  Close();
  operator delete(staging_, std::align_val_t(kIoBlock));
}

Result<std::unique_ptr<HostSpill>> HostSpill::Open(const Options& options) {
  if (options.quota < 2 * kIoBlock) {
    return Fail(ErrorCode::kInvalidArgument,
                "a quota of " + FormatBytes(options.quota) +
                    " holds nothing: a spill file needs " +
                    FormatBytes(2 * kIoBlock) + " at least. Raise quota");
  }
  try {
    return TryOpen(options);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "a spill file cannot be opened: the host has no memory for "
                "what it works with");
  }
}

Result<std::unique_ptr<HostSpill>> HostSpill::TryOpen(const Options& options) {
  std::unique_ptr<HostSpill> spill(new HostSpill(options));
  DiskTier::Options tier;
  tier.directory = options.directory;
  tier.budget = options.quota;
  tier.max_chunk_bytes = kPiece;
  tier.codec = options.codec;
  tier.wrap_io = options.wrap_io;
  // It reads into memory that its callers free.
  tier.deadline = DiskTier::kNoDeadline;
  tier.names = {"quota", "directory"};
  auto opened = DiskTier::Open(tier);
  if (!opened) return tl::unexpected(std::move(opened).error());
  MutexLock lock(spill->mutex_);
  spill->tier_ = *std::move(opened);
  return spill;
}

bool HostSpill::in_child() const { return getpid() != owner_; }

Status HostSpill::CheckOpen() const {
  if (tier_ != nullptr) return {};
  return Fail(ErrorCode::kShutdown, "the spill file is closed");
}

tl::unexpected<Error> HostSpill::Failed(const char* verb, Bytes bytes,
                                        Error error) const {
  error.message = std::string("cannot ") + verb + " " + FormatBytes(bytes) +
                  " in the spill file of quota " + FormatBytes(options_.quota) +
                  " in " + tier_->directory() + ": " + error.message;
  return tl::unexpected(std::move(error));
}

// Asked before the lock is taken: in the child of a fork a thread that is not
// there may hold it for ever.
Status HostSpill::CheckOwner() const {
  if (!in_child()) return {};
  return Fail(ErrorCode::kShutdown,
              "the spill file belongs to the parent process: after a fork the "
              "child has no access to it");
}

Status HostSpill::WritePieces(const char* data, std::uint64_t ticket,
                              Held* held) {
  for (Bytes at = 0; at < held->bytes; at += kPiece) {
    const Bytes piece = std::min(kPiece, held->bytes - at);
    const Bytes whole = RoundUp(piece, kIoBlock);
    const char* from = data + at;
    if (!IsPages(from, piece)) {
      std::memcpy(staging_, from, piece);
      std::memset(static_cast<char*>(staging_) + piece, 0, whole - piece);
      from = static_cast<char*>(staging_);
    }
    auto chunk = tier_->Write(from, whole, ticket, held->chunks.size());
    if (!chunk) return tl::unexpected(std::move(chunk).error());
    held->chunks.push_back(*chunk);
  }
  return {};
}

Status HostSpill::ReadPieces(const Held& held, char* to) {
  Bytes at = 0;
  for (const DiskChunk& chunk : held.chunks) {
    const Bytes piece = std::min(kPiece, held.bytes - at);
    const bool direct = IsPages(to + at, piece);
    void* const into = direct ? to + at : staging_;
    STRATALLOC_RETURN_IF_ERROR(tier_->Read(chunk, into));
    if (!direct) std::memcpy(to + at, staging_, piece);
    at += piece;
  }
  return {};
}

void HostSpill::FreePieces(const Held& held) {
  for (const DiskChunk& chunk : held.chunks) tier_->Free(chunk);
}

Result<std::uint64_t> HostSpill::Write(const void* data, Bytes bytes) {
  STRATALLOC_RETURN_IF_ERROR(CheckOwner());
  MutexLock lock(mutex_);
  STRATALLOC_RETURN_IF_ERROR(CheckOpen());
  try {
    return TryWrite(static_cast<const char*>(data), bytes);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "the host has no memory to note what is written to the spill "
                "file: nothing was");
  }
}

// What needs memory comes first: what is thrown then leaves nothing.
Result<std::uint64_t> HostSpill::TryWrite(const char* data, Bytes bytes) {
  const std::uint64_t ticket = last_ticket_ + 1;
  std::map<std::uint64_t, Held> made;
  Held& held = made[ticket];
  held.bytes = bytes;
  held.chunks.reserve((bytes + kPiece - 1) / kPiece);
  Status status = WritePieces(data, ticket, &held);
  if (!status) {
    FreePieces(held);
    if (tier_->spent()) {
      status =
          Fail(ErrorCode::kIo,
               "its quota has no room for it, " + FormatBytes(tier_->used()) +
                   " are in use. Raise quota, or free what is not needed");
    }
    return Failed("write", bytes, std::move(status).error());
  }
  last_ticket_ = ticket;
  used_ += bytes;
  written_ += bytes;
  held_.merge(made);
  return ticket;
}

Result<HostSpill::Held*> HostSpill::Find(std::uint64_t ticket) {
  STRATALLOC_RETURN_IF_ERROR(CheckOpen());
  const auto found = held_.find(ticket);
  if (found != held_.end()) return &found->second;
  return Fail(ErrorCode::kInvalidArgument,
              "the spill file holds nothing under ticket " +
                  std::to_string(ticket) +
                  ": it has been freed, or is another file's");
}

Status HostSpill::Read(std::uint64_t ticket, void* to, Bytes bytes) {
  STRATALLOC_RETURN_IF_ERROR(CheckOwner());
  MutexLock lock(mutex_);
  STRATALLOC_ASSIGN_OR_RETURN(const Held* const held, Find(ticket));
  if (held->bytes != bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                "ticket " + std::to_string(ticket) + " has " +
                    std::to_string(held->bytes) + " bytes, and " +
                    std::to_string(bytes) + " are to be read");
  }
  Status status = ReadPieces(*held, static_cast<char*>(to));
  if (!status) return Failed("read", bytes, std::move(status).error());
  return {};
}

Status HostSpill::Free(std::uint64_t ticket) {
  STRATALLOC_RETURN_IF_ERROR(CheckOwner());
  MutexLock lock(mutex_);
  STRATALLOC_ASSIGN_OR_RETURN(const Held* const held, Find(ticket));
  FreePieces(*held);
  used_ -= held->bytes;
  held_.erase(ticket);
  return {};
}

HostSpill::Numbers HostSpill::Count() {
  if (in_child()) return {};
  MutexLock lock(mutex_);
  return {used_, tier_ != nullptr ? tier_->used() : 0, written_};
}

void HostSpill::Close() {
  if (in_child()) return Abandon();
  MutexLock lock(mutex_);
  held_.clear();
  used_ = 0;
  tier_ = nullptr;
}

// The child is alone, and what others were at when it was forked is as they
// left it: nothing but the descriptors is touched.
void HostSpill::Abandon() {
  if (tier_ != nullptr) tier_->AbandonAfterFork();
}

}  // namespace stratalloc
