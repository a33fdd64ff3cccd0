// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/disk_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/mutex.h"
#include "tiering/io/chunk.h"
#include "tiering/io/chunk_transfer.h"
#include "tiering/io/spill_file.h"

namespace stratalloc {
namespace {

constexpr int kFailuresUntilOffline = 3;
constexpr char kNoMemory[] =
    "a spill file cannot be opened: the host has no memory for what it works "
    "with";

bool IsAligned(const void* data, Bytes bytes) {
  return bytes != 0 && bytes % kIoBlock == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % kIoBlock == 0;
}

ChunkHeader HeaderOf(const DiskChunk& chunk) {
  ChunkHeader header{};
  header.identity = chunk.identity;
  header.generation = chunk.generation;
  header.bytes = chunk.bytes;
  header.stored = chunk.stored.bytes;
  header.codec = static_cast<std::uint32_t>(chunk.stored.codec);
  header.width = static_cast<std::uint32_t>(chunk.stored.width);
  header.checksum = chunk.checksum;
  header.payload_checksum = chunk.payload_checksum;
  return header;
}

}  // namespace

struct DiskTier::State {
  explicit State(const Options& given)
      : options(given),
        coder(given.coder != nullptr
                  ? given.coder
                  : std::make_shared<ChunkCodec>(given.max_chunk_bytes)),
        owner(getpid()) {}

  const Options options;
  // One transfer at a time, and what it works with.
  Mutex transfer{LockRank::kDisk};
  // What of the file is free. A transfer need not end before an extent is
  // freed.
  mutable Mutex extents{LockRank::kExtents};
  std::unique_ptr<SpillFile> file;
  std::unique_ptr<ChunkTransfer> io;
  const std::shared_ptr<ChunkCodec> coder;
  std::atomic<Bytes> written{0}, written_stored{0};

  std::atomic<bool> spent{false};  // as spent() says
  int failures = 0;                // consecutive failed writes
  std::atomic<bool> offline{false};

  const pid_t owner;  // a forked child must not touch ring or file
  bool abandoned = false;

  Status CheckUsable() const;
  // Fails while a transfer has not ended that came too late.
  Status CheckAnswers() const;
  std::string Why(int error) const;
  int TryWrite(const void* data, DiskChunk* chunk);
  bool MayBe(const DiskChunk& chunk) const;
  std::string Verify(const DiskChunk& chunk, void* to);
  tl::unexpected<Error> WriteFailed(Error error);
  Result<FilePlace> Allocate(Bytes bytes) EXCLUDES(extents) {
    MutexLock lock(extents);
    return file->Allocate(bytes);
  }
  void Free(const FilePlace& place) EXCLUDES(extents) {
    MutexLock lock(extents);
    file->Free(place);
  }
  std::string Name(const DiskChunk& chunk) const;
};

Status DiskTier::State::CheckUsable() const {
  if (!abandoned && owner == getpid()) return {};
  return Fail(ErrorCode::kShutdown,
              "the disk tier belongs to the parent process: after a fork the "
              "child has no access to evicted memory");
}

Status DiskTier::State::CheckAnswers() const {
  if (!io->stuck()) return {};
  return Fail(ErrorCode::kIo,
              "the disk of the spill file in " + file->directory() +
                  " has not answered an earlier request yet: nothing is asked "
                  "of it until it does, and the memory stays where it is");
}

std::string DiskTier::State::Why(int error) const {
  if (error != ETIMEDOUT) return std::strerror(error);
  const auto seconds = std::chrono::duration<double>(io->deadline()).count();
  std::string text = std::to_string(seconds);
  text.resize(text.find('.') + 2);
  return "the disk did not answer within " + text + " s";
}

// 0 or an errno. Fills in the checksums, computed while the payload is already
// on its way.
int DiskTier::State::TryWrite(const void* data, DiskChunk* chunk) {
  const bool encoded = chunk->stored.codec != DiskCodec::kOff;
  io->Start(
      /*write=*/true, file->fd(),
      encoded ? coder->buffer() : static_cast<char*>(const_cast<void*>(data)),
      chunk->place, chunk->stored.bytes);
  chunk->checksum = PayloadChecksum(data, chunk->bytes);
  chunk->payload_checksum =
      encoded ? PayloadChecksum(coder->buffer(), chunk->stored.bytes)
              : chunk->checksum;
  WriteHeader(io->header(), HeaderOf(*chunk));
  return io->Finish();
}

tl::unexpected<Error> DiskTier::State::WriteFailed(Error error) {
  if (++failures == kFailuresUntilOffline) {
    offline.store(true, std::memory_order_relaxed);
    Log(LogLevel::kError, "the disk tier is off after " +
                              std::to_string(failures) +
                              " failed writes in a row; what it holds stays "
                              "readable. Last: " +
                              error.message);
  }
  return tl::unexpected(std::move(error));
}

std::string DiskTier::State::Name(const DiskChunk& chunk) const {
  return "chunk " + std::to_string(chunk.identity) + " (generation " +
         std::to_string(chunk.generation) + ", " + FormatBytes(chunk.bytes) +
         ") in the spill file in " + file->directory();
}

DiskTier::DiskTier(std::unique_ptr<State> state) : state_(std::move(state)) {}

DiskTier::~DiskTier() {
  if (!state_->CheckUsable()) AbandonAfterFork();
}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const Options& options) {
  if (options.budget < 2 * kIoBlock) {
    return Fail(ErrorCode::kInvalidArgument,
                "a disk budget of " + FormatBytes(options.budget) +
                    " holds no chunk. Raise " + options.names.quota +
                    ", or set it to 0 for no disk tier");
  }
  try {
    return TryOpen(options);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kHostOutOfMemory, kNoMemory);
  }
}

Result<std::unique_ptr<DiskTier>> DiskTier::TryOpen(const Options& options) {
  auto state = std::make_unique<State>(options);
  if (!state->coder->has_memory()) {
    return Fail(
        ErrorCode::kHostOutOfMemory,
        std::string(kNoMemory) + ", " +
            FormatBytes(ChunkCodec::WorkspaceBytes(options.max_chunk_bytes)) +
            " for the codecs among it");
  }
  SpillFile::Options file;
  file.directory = options.directory;
  file.quota = options.budget;
  file.names = options.names;
  file.without_tmpfile = options.without.tmpfile;
  file.without_direct = options.without.direct;
  STRATALLOC_ASSIGN_OR_RETURN(state->file, SpillFile::Open(file));
  ChunkTransfer::Options transfer;
  std::copy(std::begin(options.staging), std::end(options.staging),
            transfer.staging);
  transfer.max_chunk_bytes = options.max_chunk_bytes;
  transfer.wrap_io = options.wrap_io;
  transfer.deadline = options.deadline;
  transfer.without_io_uring = options.without.io_uring;
  transfer.without_registration = options.without.registration;
  state->io = std::make_unique<ChunkTransfer>(transfer);
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(state)));
}

Result<DiskChunk> DiskTier::Write(const void* data, Bytes bytes,
                                  std::uint64_t identity,
                                  std::uint64_t generation,
                                  std::optional<DiskCodec> codec) {
  State& state = *state_;
  STRATALLOC_RETURN_IF_ERROR(state.CheckUsable());
  const Bytes most = state.options.max_chunk_bytes;
  if (!IsAligned(data, bytes) || (most != 0 && bytes > most)) {
    return Fail(ErrorCode::kInvalidArgument,
                "a chunk of " + std::to_string(bytes) +
                    " bytes is not made of whole pages or is larger than " +
                    FormatBytes(most));
  }
  if (offline()) {
    return Fail(ErrorCode::kIo,
                "the disk tier is off after repeated failures in " +
                    state.file->directory() + "; the memory stays where it is");
  }
  MutexLock lock(state.transfer);
  STRATALLOC_RETURN_IF_ERROR(state.CheckAnswers());
  state.spent = false;
  DiskChunk chunk;
  chunk.bytes = bytes;
  chunk.identity = identity;
  chunk.generation = generation;
  chunk.stored =
      state.coder->Encode(codec.value_or(state.options.codec), data, bytes);
  const Bytes extent = FileBytes(chunk);
  // A spent quota is no failure of the disk.
  const bool has_room = HasRoom(chunk.stored.bytes);
  Result<FilePlace> place = state.Allocate(extent);
  if (!place) {
    state.spent = !has_room;
    if (!has_room) return tl::unexpected(std::move(place).error());
    return state.WriteFailed(std::move(place).error());
  }
  chunk.place = *place;
  int error = state.TryWrite(data, &chunk);
  if (error != 0 && state.io->LeaveBrokenRing()) {
    error = state.TryWrite(data, &chunk);
  }
  if (error != 0) {
    // Of a late transfer too: nothing is written there before it has ended.
    state.Free(chunk.place);
    return state.WriteFailed(Error{
        ErrorCode::kIo,
        "writing " + FormatBytes(bytes) + " to the spill file in " +
            state.file->directory() + " failed: " + state.Why(error) +
            ". Free space there, or set " + state.options.names.directory +
            " to another file system; the memory stays where it is"});
  }
  state.failures = 0;
  state.written.fetch_add(bytes, std::memory_order_relaxed);
  state.written_stored.fetch_add(chunk.stored.bytes, std::memory_order_relaxed);
  return chunk;
}

// What is wrong with a chunk whose header and payload were read; "" if it is
// what was written, and plain in `to`. Empty strings do not allocate.
std::string DiskTier::State::Verify(const DiskChunk& chunk, void* to) {
  std::string problem = CompareHeader(io->header(), HeaderOf(chunk));
  if (!problem.empty()) return problem;
  if (chunk.stored.codec != DiskCodec::kOff) {
    // Before the decoder reads it: what it then gets is what was made.
    if (PayloadChecksum(coder->buffer(), chunk.stored.bytes) !=
        chunk.payload_checksum) {
      return "the checksum of its compressed bytes does not match";
    }
    if (!coder->Decode(chunk.stored, to, chunk.bytes)) {
      return "it cannot be decompressed";
    }
  }
  if (PayloadChecksum(to, chunk.bytes) != chunk.checksum) {
    return "its checksum does not match";
  }
  return "";
}

// Do its lengths agree with each other, and with what there is room for? What
// is read is as long as its pieces, whatever else is said of it.
bool DiskTier::State::MayBe(const DiskChunk& chunk) const {
  const Bytes most = options.max_chunk_bytes, stored = chunk.stored.bytes;
  if (chunk.place.count < 1 || chunk.place.count > FilePlace::kMostPieces ||
      stored % kIoBlock != 0) {
    return false;
  }
  if (chunk.stored.codec == DiskCodec::kOff
          ? stored != chunk.bytes
          : stored > most || chunk.bytes > most) {
    return false;
  }
  Bytes left = DiskTier::FileBytes(stored);
  for (int i = 0; i < chunk.place.count; ++i) {
    const Bytes piece = chunk.place.pieces[i].bytes;
    if (piece == 0 || piece % kIoBlock != 0 || piece > left) return false;
    left -= piece;
  }
  return left == 0;
}

Status DiskTier::Read(const DiskChunk& chunk, void* to) {
  State& state = *state_;
  STRATALLOC_RETURN_IF_ERROR(state.CheckUsable());
  const bool encoded = chunk.stored.codec != DiskCodec::kOff;
  if (!IsAligned(to, chunk.bytes)) {
    return Fail(ErrorCode::kInvalidArgument,
                "a chunk is read into whole pages only");
  }
  if (!state.MayBe(chunk)) {
    return Fail(ErrorCode::kInvalidArgument,
                "no chunk of " + std::to_string(chunk.bytes) +
                    " bytes is stored in " +
                    std::to_string(chunk.stored.bytes) + " and lies in " +
                    std::to_string(chunk.place.count) +
                    " pieces as this one says: nothing was read");
  }
  MutexLock lock(state.transfer);
  STRATALLOC_RETURN_IF_ERROR(state.CheckAnswers());
  const auto transfer = [&] {
    state.io->Start(/*write=*/false, state.file->fd(),
                    encoded ? state.coder->buffer() : static_cast<char*>(to),
                    chunk.place, chunk.stored.bytes);
    return state.io->Finish();
  };
  int error = transfer();
  if (error != 0 && state.io->LeaveBrokenRing()) error = transfer();
  if (error != 0 && error != ENODATA) {
    return Fail(ErrorCode::kIo,
                "reading " + state.Name(chunk) + " failed: " +
                    state.Why(error) + ". Check the disk (dmesg), or set " +
                    state.options.names.directory + " to another one");
  }
  const std::string problem =
      error == ENODATA ? "the file ends before it" : state.Verify(chunk, to);
  if (problem.empty()) return {};
  return Fail(ErrorCode::kCorrupt,
              state.Name(chunk) + " is not what was written: " + problem +
                  ". The bytes are lost: reload them from a checkpoint, and "
                  "check the disk");
}

void DiskTier::Free(const DiskChunk& chunk) {
  if (!chunk || !state_->CheckUsable()) return;
  state_->Free(chunk.place);
}

Bytes DiskTier::FileBytes(Bytes bytes) { return bytes + kIoBlock; }
Bytes DiskTier::FileBytes(const DiskChunk& chunk) {
  return FileBytes(chunk.stored.bytes);
}
bool DiskTier::HasRoom(Bytes bytes) const {
  MutexLock lock(state_->extents);
  return state_->file->HasRoom(FileBytes(bytes));
}
Bytes DiskTier::written() const {
  return state_->written.load(std::memory_order_relaxed);
}
Bytes DiskTier::written_stored() const {
  return state_->written_stored.load(std::memory_order_relaxed);
}
Bytes DiskTier::used() const { return state_->file->used(); }
Bytes DiskTier::peak() const { return state_->file->peak(); }
Bytes DiskTier::budget() const { return state_->options.budget; }
const std::string& DiskTier::directory() const {
  return state_->file->directory();
}
bool DiskTier::spent() const { return state_->spent; }
Status DiskTier::CheckAnswers() const { return state_->CheckAnswers(); }
bool DiskTier::stuck() const { return state_->io->stuck(); }
bool DiskTier::offline() const {
  return state_->offline.load(std::memory_order_relaxed);
}

std::string DiskTier::Mode() const {
  const ChunkTransfer& io = *state_->io;
  std::string mode = io.uses_ring() ? "io_uring" : "preadv2/pwritev2";
  mode += state_->file->direct() ? ", O_DIRECT" : ", buffered";
  if (io.registered()) mode += ", registered buffers";
  return mode;
}

void DiskTier::AbandonAfterFork() {
  if (state_->abandoned) return;
  state_->abandoned = true;
  state_->io->AbandonAfterFork();
  state_->file->AbandonAfterFork();
}

}  // namespace stratalloc
