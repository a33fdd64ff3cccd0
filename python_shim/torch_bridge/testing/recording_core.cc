// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/testing/recording_core.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "python_shim/bridge_api/blocks.h"
#include "python_shim/bridge_api/devices.h"
#include "python_shim/bridge_api/history.h"
#include "python_shim/bridge_api/ipc.h"
#include "python_shim/bridge_api/lists.h"
#include "python_shim/bridge_api/nodes.h"
#include "python_shim/bridge_api/operators.h"
#include "python_shim/bridge_api/pins.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/bridge_api/sites.h"
#include "python_shim/bridge_api/statistics.h"

uint64_t stratalloc_evictable_lo = 0;
uint64_t stratalloc_evictable_hi = 0;

namespace stratalloc {
namespace {

constexpr int kCopyDeviceToDevice = 3;  // cudaMemcpyDeviceToDevice

// The CUDA functions come from the runtime that torch loaded.
template <typename Function>
Function Runtime(const char* name) {
  static void* const library =
      dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(library ? dlsym(library, name) : nullptr);
}

struct Recorded {
  Mutex mutex{LockRank::kRegistry};
  std::unordered_map<Address, Bytes> blocks;
  std::map<std::string, std::vector<Access>> operators;
  std::map<std::string, int> told;  // by operator
  std::string line;                 // said of each
  std::vector<MallocHint> hints;
  std::string failing;
  Error failure{};
  int failing_mallocs = 0;
  int ousted_mallocs = 0;
  int devices = 0;
  double fraction = 1.0;
  Bytes allocated = 0;
  std::int64_t ooms = 0;
  long enters = 0;
  int device = -1;
  long stream_records = 0;
  Bytes room = 0, most = 0;        // 0: no bound
  std::uint64_t pins = 0;          // so far: the last one's serial
  std::set<std::uint64_t> pinned;  // serials
  long unpinned[2] = {0, 0};       // by whether the use was unobserved
  void (*poll)() = nullptr;
  int (*free_memory)() = nullptr;
};

Recorded& Get() {
  static auto* const recorded = new Recorded;
  return *recorded;
}

thread_local int open_operators = 0;
thread_local int open_calls = 0;
thread_local int open_nodes = 0;

Bytes Sum(std::span<const Access> accesses) {
  Bytes bytes = 0;
  for (const Access& access : accesses) bytes += access.bytes;
  return bytes;
}

// Elements [first, last).
Bytes Sum(const ListElements& elements, std::size_t first, std::size_t last) {
  const auto begin = first == 0 ? 0 : elements.ends[first - 1];
  const auto end = last == 0 ? 0 : elements.ends[last - 1];
  return Sum(elements.accesses.subspan(static_cast<std::size_t>(begin),
                                       static_cast<std::size_t>(end - begin))) +
         std::accumulate(
             elements.results.begin() + static_cast<std::ptrdiff_t>(first),
             elements.results.begin() + static_cast<std::ptrdiff_t>(last),
             Bytes{0});
}

}  // namespace

namespace core {

Status Init(int device_count) {
  Get().devices = device_count;
  return {};
}
bool IsInitialized() { return Get().devices > 0; }
int DeviceCount() { return 1; }
void UseSettings(const TorchSettings& settings) {
  Get().free_memory = settings.free_memory;
}
void UseWorkspaces(int (*)(void (*)(void*, void*), void*)) {}

Result<std::vector<BlockPin>> PinBlocks(const char*, PinReason reason,
                                        std::span<const AddressRange> ranges) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  std::vector<BlockPin> pins;
  for (const AddressRange& range : ranges) {
    pins.push_back({range.address, ++core.pins, reason});
    core.pinned.insert(core.pins);
  }
  return pins;
}
void UnpinBlocks(std::span<const BlockPin> pins, bool unobserved) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  for (const BlockPin& pin : pins) {
    core.unpinned[unobserved ? 1 : 0] +=
        static_cast<long>(core.pinned.erase(pin.serial));
  }
}
void UsePinPoll(void (*poll)(), int (*)()) { Get().poll = poll; }

Result<AllocatedBlock> Malloc(int, Bytes size, StreamId, MallocHint hint) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  void* ptr = nullptr;
  const auto malloc_on_device = Runtime<int (*)(void**, size_t)>("cudaMalloc");
  const Bytes bytes = (size + 511) / 512 * 512;
  if (core.ousted_mallocs > 0) {
    --core.ousted_mallocs;
    return Fail(ErrorCode::kOusted,
                "CUDA out of memory. Others took the room.");
  }
  if (core.failing_mallocs > 0 || malloc_on_device(&ptr, bytes) != 0) {
    if (core.failing_mallocs > 0) --core.failing_mallocs;
    ++core.ooms;
    return Fail(ErrorCode::kOutOfMemory,
                "CUDA out of memory. Tried to allocate what there is not.");
  }
  const auto address = reinterpret_cast<Address>(ptr);
  core.blocks[address] = bytes;
  core.allocated += bytes;
  core.hints.push_back(hint);
  return AllocatedBlock{address, bytes, core.allocated, core.allocated, {}};
}

std::optional<DeviceIndex> Free(Address address, AllocatedBlock* freed) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  const auto found = core.blocks.find(address);
  if (found == core.blocks.end()) return std::nullopt;
  core.allocated -= found->second;
  *freed = {address, found->second, core.allocated, core.allocated, {}};
  core.blocks.erase(found);
  Runtime<int (*)(void*)>("cudaFree")(reinterpret_cast<void*>(address));
  return DeviceIndex{0};
}

bool Owns(Address address) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  return core.blocks.count(address) != 0;
}

void NoteExternalStream(StreamId) {}
void NoteLastingStream(StreamId) {}
Status RecordStream(Address, int, StreamId) {
  ++Get().stream_records;
  return {};
}

Result<SegmentView> BaseAllocation(Address address) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  for (const auto& [begin, size] : core.blocks) {
    if (address < begin || address >= begin + size) continue;
    SegmentView segment;
    segment.address = begin;
    segment.bytes = size;
    return segment;
  }
  return Fail(ErrorCode::kNotFound, "no block holds this pointer");
}

Status EmptyCache(bool) { return {}; }
Result<Bytes> LargestCached(int) { return Bytes{12345}; }

Result<MemoryInfo> GetMemoryInfo(int) { return MemoryInfo{1000, 2000}; }
double MemoryFraction(int) { return Get().fraction; }
Bytes AllowedMemory(int, Bytes total) {
  return static_cast<Bytes>(Get().fraction * static_cast<double>(total));
}
Status SetMemoryFraction(int, double fraction) {
  Get().fraction = fraction;
  return {};
}
Status EnablePeerAccess(int, int) { return {}; }
int CopyPeer(Address to, int, Address from, int, Bytes bytes, StreamId stream,
             bool) {
  return Runtime<int (*)(Address, Address, size_t, int, StreamId)>(
      "cudaMemcpyAsync")(to, from, bytes, kCopyDeviceToDevice, stream);
}
int CopyData(Address to, Address from, Bytes bytes) {
  return Runtime<int (*)(Address, Address, size_t, int)>("cudaMemcpy")(
      to, from, bytes, kCopyDeviceToDevice);
}
int UncachedMalloc(Bytes size, void** out) {
  return Runtime<int (*)(void**, size_t)>("cudaMalloc")(out, size);
}
int UncachedFree(void* ptr) { return Runtime<int (*)(void*)>("cudaFree")(ptr); }

// Every field its own number, so that a swapped one shows.
Result<DeviceStats> Stats(int) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  DeviceStats stats;
  std::int64_t number = 1000;
  const auto count = [&](Stat& stat) {
    stat = {number, number + 1, number + 2, number + 3};
    number += 4;
  };
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
        &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
        &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : array->stats) count(stat);
  }
  stats.num_alloc_retries = number++;
  stats.num_ooms = number++;
  count(stats.oversize_allocations);
  count(stats.oversize_segments);
  stats.num_sync_all_streams = number++;
  stats.num_device_alloc = number++;
  stats.num_device_free = number++;
  stats.allocated_bytes.stats[0].current =
      static_cast<std::int64_t>(core.allocated);
  stats.num_ooms = core.ooms;
  return stats;
}
Status ResetPeakStats(int) { return {}; }
Status ResetAccumulatedStats(int) { return {}; }

std::vector<SegmentView> Snapshot(int) {
  SegmentView segment;
  segment.address = 4096;
  segment.bytes = 2048;
  segment.stream = StreamId{7};
  segment.kind = PoolKind::kSmall;
  segment.blocks = {{4096, 512, 100, BlockState::kAllocated, {}},
                    {4608, 512, 50, BlockState::kPending, {}},
                    {5120, 1024, 0, BlockState::kFree, {}}};
  return {segment};
}

Status EnterOperator(int device, StreamId, const char* name,
                     std::span<const Access> accesses) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  core.operators[name].assign(accesses.begin(), accesses.end());
  if (!core.failing.empty() &&
      std::strstr(name, core.failing.c_str()) != nullptr) {
    return tl::unexpected(core.failure);
  }
  if (core.most > 0 && Sum(accesses) > core.most) {
    return Fail(ErrorCode::kOutOfMemory,
                "CUDA out of memory. More than a test allows.");
  }
  ++core.enters;
  core.device = device;
  ++open_operators;
  return {};
}
Error Refusal(Error error, int, StreamId, std::span<const Access>) {
  return error;
}
std::string TellRefusedOperator(int, StreamId, const char* name,
                                std::span<const Access>, const std::string&) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  ++core.told[name];
  return core.line;
}
void LeaveOperator() { --open_operators; }
void LeaveIntoCall() {
  --open_operators;
  ++open_calls;
}
void LeaveCall() { --open_calls; }
bool InsideOperator() { return open_operators > 0 || open_calls > 0; }

void NumberNodes(std::uint64_t (*)(), std::uint64_t (*)()) {}
void EnterNode(std::uint64_t, std::uint64_t) { ++open_nodes; }
void EnterNodeOfLeaf(Address) { ++open_nodes; }
void LeaveNode() { --open_nodes; }
void LeaveNodeOfLeaf(Address, Bytes) { --open_nodes; }
void PartOfGradient(Address, Bytes) {}
bool InsideScope() { return open_nodes > 0; }

bool MayLeave(Address address) {
  return address >= stratalloc_evictable_lo &&
         address < stratalloc_evictable_hi;
}

bool ListFits(int, StreamId, std::span<const Access> accesses, Bytes results) {
  const Bytes room = Get().room;
  return room == 0 || Sum(accesses) + results <= room;
}
std::size_t NextSlice(int, StreamId, const ListElements& elements,
                      std::size_t first) {
  for (std::size_t i = first + 1; i < elements.ends.size(); ++i) {
    if (Sum(elements, first, i + 1) > Get().room) return i - first;
  }
  return elements.ends.size() - first;
}
std::optional<std::size_t> DoubtfulElement(int, StreamId,
                                           const ListElements& elements) {
  std::optional<std::size_t> widest;
  Bytes most = Get().room;
  for (std::size_t i = 0; i < elements.ends.size(); ++i) {
    if (const Bytes bytes = Sum(elements, i, i + 1); bytes > most) {
      most = bytes;
      widest = i;
    }
  }
  return widest;
}

bool RecordsSites() { return false; }
bool SampleMalloc(Bytes) { return false; }
SiteId FindSite() { return kNoSite; }
SiteId ExchangeSite(SiteId) { return kNoSite; }

void SetHistoryClock(std::int64_t (*)()) {}
void ConfigureHistory(const HistoryOptions&) {}
void TrackHistory(void (*)(const TraceEvent&)) {}
void SetHistoryContext(HistoryContext) {}
std::vector<TraceEvent> HistoryEvents(int) { return {}; }
HistoryContext ContextOf(Address) { return nullptr; }
bool Annotate(Address, const std::string&) { return false; }
Result<AllocatedBlock> MallocAt(int, Bytes, StreamId, MallocHint, Address) {
  return Fail(ErrorCode::kNotFound, "the recording core has nothing cached");
}
Bytes RecordOutOfMemory(int, Bytes size, StreamId, MallocHint, Bytes) {
  return size;
}
std::string TellRefusedMalloc(int, Bytes, StreamId, MallocHint,
                              const std::string&) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  ++core.told["malloc"];
  return core.line;
}
void RecordSnapshot(int, PoolId, Bytes) {}
void PushCompileContext(std::string) {}
void PopCompileContext() {}
std::string& UserMetadata() {
  static thread_local std::string metadata;
  return metadata;
}

}  // namespace core
}  // namespace stratalloc

using stratalloc::Get;
using stratalloc::MutexLock;
using stratalloc::Recorded;

void recording_set_evictable(uint64_t lo, uint64_t hi) {
  stratalloc_evictable_lo = lo;
  stratalloc_evictable_hi = hi;
}

void recording_fail_operator(const char* part, int code, const char* message) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  core.failing = part;
  core.failure = {static_cast<stratalloc::ErrorCode>(code), message};
}

void recording_say(const char* line) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  core.line = line;
}

int recording_told(const char* name) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  return core.told[name];
}

void recording_set_room(uint64_t room, uint64_t most) {
  Get().room = room;
  Get().most = most;
}

void recording_fail_mallocs(int count) { Get().failing_mallocs = count; }
void recording_oust_mallocs(int count) { Get().ousted_mallocs = count; }

long recording_enters(void) { return Get().enters; }
int recording_device(void) { return Get().device; }
int recording_open(void) { return stratalloc::open_operators; }

int recording_access(const char* part, int i, uint64_t out[4]) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  for (const auto& [name, accesses] : core.operators) {
    if (name.find(part) == std::string::npos) continue;
    if (static_cast<size_t>(i) >= accesses.size()) return 0;
    const stratalloc::Access& access = accesses[static_cast<size_t>(i)];
    out[0] = access.address;
    out[1] = access.bytes;
    out[2] = static_cast<uint64_t>(access.written);
    out[3] = accesses.size();
    return 1;
  }
  return 0;
}

int recording_hint(int i) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  return static_cast<size_t>(i) < core.hints.size()
             ? static_cast<int>(core.hints[static_cast<size_t>(i)])
             : -1;
}

void recording_clear(void) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  core.operators.clear();
  core.hints.clear();
  core.told.clear();
}

long recording_pinned(void) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  return static_cast<long>(core.pinned.size());
}

long recording_unpinned(int unobserved) {
  Recorded& core = Get();
  MutexLock lock(core.mutex);
  return core.unpinned[unobserved];
}

void recording_poll(void) {
  if (Get().poll != nullptr) Get().poll();
}

int recording_free_memory(void) { return Get().free_memory(); }

long recording_stream_records(void) { return Get().stream_records; }
