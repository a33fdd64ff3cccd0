// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/disk_tier.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "tiering/io/block_io.h"
#include "tiering/io/chunk.h"
#include "tiering/io/io_ring.h"
#include "tiering/io/spill_file.h"
#include "tiering/io/sync_io.h"

namespace stratalloc {
namespace {

// Requests of 1 MiB keep a 2 MiB chunk's two halves in flight together; large
// chunks use up to 4 MiB, eight or so in flight: beyond that NVMe gains
// nothing and the block layer splits again.
constexpr Bytes kSmallestRequest = kMiB;
constexpr Bytes kLargestRequest = 4 * kMiB;
constexpr Bytes kRequestsPerChunk = 8;
constexpr unsigned kRingEntries = 64;
constexpr int kFailuresUntilOffline = 3;
constexpr char kNoMemory[] =
    "a spill file cannot be opened: the host has no memory for what it works "
    "with";

Bytes RequestBytes(Bytes chunk) {
  return std::clamp(RoundUp(chunk / kRequestsPerChunk, kMiB), kSmallestRequest,
                    kLargestRequest);
}

// Of a chunk's payload, in as many pieces as there may be, and its header.
Bytes MostRequests(Bytes chunk) {
  return chunk / RequestBytes(chunk) + FilePlace::kMostPieces + 2;
}

// One page, for chunk headers.
class Block {
 public:
  Block() : data_(operator new(kIoBlock, std::align_val_t(kIoBlock))) {}
  ~Block() { operator delete(data_, std::align_val_t(kIoBlock)); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* const data_;
};

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

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return FormatBytes(limit.rlim_cur);
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
  std::unique_ptr<SpillFile> file;
  std::unique_ptr<BlockIo> io;
  bool uses_ring = false;
  bool registered = false;

  Block header;
  const std::shared_ptr<ChunkCodec> coder;
  std::atomic<Bytes> written{0}, written_stored{0};
  std::vector<IoRequest> requests;  // reserved for the largest chunk

  bool spent = false;  // as spent() says
  int failures = 0;    // consecutive failed writes
  std::atomic<bool> offline{false};

  const pid_t owner;  // a forked child must not touch ring or file
  bool abandoned = false;

  void OpenIo();
  void Use(std::unique_ptr<BlockIo> moves);
  void RegisterStaging(IoRing& ring);
  Status CheckUsable() const;
  int RegisteredBuffer(const char* data, Bytes bytes) const;
  void StartPayload(bool write, char* data, const DiskChunk& chunk);
  void StartHeader(bool write, const DiskChunk& chunk);
  bool LeaveBrokenRing();
  int TryWrite(const void* data, DiskChunk* chunk);
  bool MayBe(const DiskChunk& chunk) const;
  std::string Verify(const DiskChunk& chunk, void* to);
  tl::unexpected<Error> WriteFailed(Error error);
  std::string Name(const DiskChunk& chunk) const;
};

void DiskTier::State::OpenIo() {
  Result<std::unique_ptr<IoRing>> ring =
      options.without.io_uring ? Fail(ErrorCode::kUnsupported, "switched off")
                               : IoRing::Create(kRingEntries);
  if (!ring) {
    Log(LogLevel::kInfo,
        "the disk tier works without io_uring, one transfer after the other (" +
            ring.error().message + ")");
    Use(std::make_unique<SyncIo>());
    return;
  }
  uses_ring = true;
  RegisterStaging(**ring);
  Use(std::move(*ring));
}

void DiskTier::State::Use(std::unique_ptr<BlockIo> moves) {
  io = options.wrap_io ? options.wrap_io(std::move(moves)) : std::move(moves);
}

void DiskTier::State::RegisterStaging(IoRing& ring) {
  if (options.staging[0] == nullptr || options.staging[1] == nullptr ||
      options.max_chunk_bytes == 0) {
    return;
  }
  const iovec buffers[2] = {{options.staging[0], options.max_chunk_bytes},
                            {options.staging[1], options.max_chunk_bytes}};
  const Status status = options.without.registration
                            ? Fail(ErrorCode::kUnsupported, "switched off")
                            : ring.Register(buffers, 2);
  registered = status.has_value();
  if (registered) return;
  Log(LogLevel::kInfo,
      "the disk tier's buffers are not registered with io_uring: " +
          status.error().message + "; " +
          FormatBytes(2 * options.max_chunk_bytes) +
          " needed, the limit on locked memory (ulimit -l) is " +
          LockedMemoryLimit() + ". Transfers cost a little more");
}

Status DiskTier::State::CheckUsable() const {
  if (!abandoned && owner == getpid()) return {};
  return Fail(ErrorCode::kShutdown,
              "the disk tier belongs to the parent process: after a fork the "
              "child has no access to evicted memory");
}

int DiskTier::State::RegisteredBuffer(const char* data, Bytes bytes) const {
  if (!registered) return -1;
  for (int i = 0; i < 2; ++i) {
    const char* const start = static_cast<const char*>(options.staging[i]);
    if (data >= start && data + bytes <= start + options.max_chunk_bytes) {
      return i;
    }
  }
  return -1;
}

void DiskTier::State::StartPayload(bool write, char* data,
                                   const DiskChunk& chunk) {
  const Bytes step = RequestBytes(chunk.stored.bytes);
  // One more for the header: the vector must not move while requests fly.
  requests.clear();
  requests.reserve(MostRequests(chunk.stored.bytes));
  Bytes header_bytes = kIoBlock;
  for (int i = 0; i < chunk.place.count; ++i) {
    const FilePlace::Piece& piece = chunk.place.pieces[i];
    for (Bytes at = std::exchange(header_bytes, 0); at < piece.bytes;) {
      IoRequest& request = requests.emplace_back();
      request.write = write;
      request.fd = file->fd();
      request.data = data;
      request.bytes = std::min(step, piece.bytes - at);
      request.offset = piece.offset + at;
      request.registered_buffer = RegisteredBuffer(request.data, request.bytes);
      io->Start(&request);
      at += request.bytes;
      data += request.bytes;
    }
  }
  io->Flush();
}

void DiskTier::State::StartHeader(bool write, const DiskChunk& chunk) {
  IoRequest& request = requests.emplace_back();
  request.write = write;
  request.fd = file->fd();
  request.data = header.data();
  request.bytes = kIoBlock;
  request.offset = chunk.place.offset();
  io->Start(&request);
  io->Flush();
}

// True if the ring broke and the transfer is worth another try without it.
bool DiskTier::State::LeaveBrokenRing() {
  if (!io->broken()) return false;
  Log(LogLevel::kWarning,
      "io_uring stopped taking requests; the disk tier goes on without it, "
      "one transfer after the other");
  Use(std::make_unique<SyncIo>());
  uses_ring = false;
  registered = false;
  return true;
}

// 0 or an errno. Fills in the checksums, computed while the payload is already
// on its way.
int DiskTier::State::TryWrite(const void* data, DiskChunk* chunk) {
  const bool encoded = chunk->stored.codec != DiskCodec::kOff;
  StartPayload(
      /*write=*/true,
      encoded ? coder->buffer() : static_cast<char*>(const_cast<void*>(data)),
      *chunk);
  chunk->checksum = PayloadChecksum(data, chunk->bytes);
  chunk->payload_checksum =
      encoded ? PayloadChecksum(coder->buffer(), chunk->stored.bytes)
              : chunk->checksum;
  WriteHeader(header.data(), HeaderOf(*chunk));
  StartHeader(/*write=*/true, *chunk);
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
  state->OpenIo();
  state->requests.reserve(MostRequests(options.max_chunk_bytes));
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
  Result<FilePlace> place = state.file->Allocate(extent);
  if (!place) {
    state.spent = !has_room;
    if (!has_room) return tl::unexpected(std::move(place).error());
    return state.WriteFailed(std::move(place).error());
  }
  chunk.place = *place;
  int error = state.TryWrite(data, &chunk);
  if (error != 0 && state.LeaveBrokenRing()) {
    error = state.TryWrite(data, &chunk);
  }
  if (error != 0) {
    state.file->Free(chunk.place);
    return state.WriteFailed(Error{
        ErrorCode::kIo,
        "writing " + FormatBytes(bytes) + " to the spill file in " +
            state.file->directory() + " failed: " + std::strerror(error) +
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
  std::string problem = CompareHeader(header.data(), HeaderOf(chunk));
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
  const auto transfer = [&] {
    state.StartPayload(/*write=*/false,
                       encoded ? state.coder->buffer() : static_cast<char*>(to),
                       chunk);
    state.StartHeader(/*write=*/false, chunk);
    return state.io->Finish();
  };
  int error = transfer();
  if (error != 0 && state.LeaveBrokenRing()) error = transfer();
  if (error != 0 && error != ENODATA) {
    return Fail(ErrorCode::kIo,
                "reading " + state.Name(chunk) + " failed: " +
                    std::strerror(error) + ". Check the disk (dmesg), or set " +
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
  state_->file->Free(chunk.place);
}

Bytes DiskTier::FileBytes(Bytes bytes) { return bytes + kIoBlock; }
Bytes DiskTier::FileBytes(const DiskChunk& chunk) {
  return FileBytes(chunk.stored.bytes);
}
bool DiskTier::HasRoom(Bytes bytes) const {
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
bool DiskTier::offline() const {
  return state_->offline.load(std::memory_order_relaxed);
}

std::string DiskTier::Mode() const {
  std::string mode = state_->uses_ring ? "io_uring" : "preadv2/pwritev2";
  mode += state_->file->direct() ? ", O_DIRECT" : ", buffered";
  if (state_->registered) mode += ", registered buffers";
  return mode;
}

void DiskTier::AbandonAfterFork() {
  if (state_->abandoned) return;
  state_->abandoned = true;
  state_->io->AbandonAfterFork();
  state_->file->AbandonAfterFork();
}

}  // namespace stratalloc
