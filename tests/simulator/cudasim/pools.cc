// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/pools.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/simulator/cudasim/memory.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

constexpr uint64_t kChunk = uint64_t{32} << 20;
constexpr uint64_t kUnit = 512;

uint64_t RoundUp(uint64_t number, uint64_t unit) {
  return (number + unit - 1) / unit * unit;
}

uint64_t& Value(Pool* pool, PoolAttribute attribute) {
  return pool->attributes[static_cast<int>(attribute)];
}

uint64_t Value(const Pool& pool, PoolAttribute attribute) {
  return pool.attributes[static_cast<int>(attribute)];
}

void Raise(Pool* pool, PoolAttribute current, uint64_t by) {
  const auto high = static_cast<PoolAttribute>(static_cast<int>(current) + 1);
  Value(pool, current) += by;
  Value(pool, high) = std::max(Value(pool, high), Value(pool, current));
}

}  // namespace

Pools::Pools(int devices) {
  for (int device = 0; device < devices; ++device) {
    first_.push_back(Create(device));
    pools_[first_.back()]->is_default = true;
  }
  current_ = first_;
}

Pool* Pools::Find(uint64_t handle) {
  auto found = pools_.find(handle);
  return found == pools_.end() || found->second->destroyed
             ? nullptr
             : found->second.get();
}

Status Pools::SetCurrent(int device, uint64_t handle) {
  Pool* pool = Find(handle);
  if (pool == nullptr || pool->device != device) return kInvalidValue;
  current_[device] = handle;
  return kOk;
}

uint64_t Pools::Create(int device) {
  auto pool = std::make_unique<Pool>();
  pool->handle = next_handle_;
  pool->device = device;
  next_handle_ += 16;
  const uint64_t handle = pool->handle;
  pools_[handle] = std::move(pool);
  return handle;
}

Status Pools::Destroy(uint64_t handle) {
  Pool* pool = Find(handle);
  if (pool == nullptr || pool->is_default) return kInvalidValue;
  if (current_[pool->device] == handle) {
    current_[pool->device] = first_[pool->device];
  }
  pool->destroyed = true;
  Trim(pool, 0);
  if (pool->chunks.empty()) pools_.erase(handle);
  return kOk;
}

Pools::BlockIterator Pools::Choose(Pool* pool, uint64_t bytes,
                                   const Stream& stream,
                                   const VectorClock& past) {
  const auto allows = [&](const Pool::Block& block) {
    if (block.freed_by == stream.index && past.Covers(block.freed)) return true;
    if (past.Covers(block.freed)) {
      return Value(*pool, PoolAttribute::kReuseFollowEventDependencies) != 0;
    }
    if (Simulator::Get().streams.IsExecuted(block.freed) &&
        Value(*pool, PoolAttribute::kReuseAllowOpportunistic) != 0) {
      return true;
    }
    return Value(*pool, PoolAttribute::kReuseAllowInternalDependencies) != 0;
  };
  // What is in order already before what makes the stream wait, then the
  // tightest fit.
  BlockIterator best = pool->blocks.end();
  bool best_waits = true;
  for (auto each = pool->blocks.begin(); each != pool->blocks.end(); ++each) {
    const Pool::Block& block = each->second;
    if (block.asked != 0 || block.bytes < bytes || !allows(block)) continue;
    const bool waits = !past.Covers(block.freed);
    if (best == pool->blocks.end() || waits < best_waits ||
        (waits == best_waits && block.bytes < best->second.bytes)) {
      best = each;
      best_waits = waits;
    }
  }
  return best;
}

Status Pools::Grow(Pool* pool, uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Extent* extent = nullptr;
  uint64_t size = RoundUp(bytes, kGranularity);
  Status status = sim.extents.Create(Location::kDevice, pool->device,
                                     std::max(size, kChunk), &extent);
  if (status == kOk) {
    size = std::max(size, kChunk);
  } else {
    status = sim.extents.Create(Location::kDevice, pool->device, size, &extent);
  }
  if (status == kOutOfMemory && GiveBack(pool->device)) {
    status = sim.extents.Create(Location::kDevice, pool->device, size, &extent);
  }
  if (status != kOk) return status;
  extent->pooled = true;
  const uint64_t id = extent->id;
  uint64_t start = 0;
  status = sim.addresses.Reserve(size, kGranularity, 0, &start);
  if (status == kOk) {
    status = sim.addresses.Map(start, size, 0, id);
    if (status == kOk) {
      status = sim.addresses.SetAccess(start, size, Location::kDevice,
                                       pool->device, Access::kReadWrite);
      for (const auto& [device, access] : pool->access) {
        if (status != kOk) break;
        status = sim.addresses.SetAccess(start, size, Location::kDevice, device,
                                         access);
      }
      if (status != kOk) (void)sim.addresses.Unmap(start, size);
    }
    if (status != kOk) (void)sim.addresses.Free(start, size);
  }
  sim.extents.Release(id);  // the mapping holds it
  if (status != kOk) return status;
  pool->chunks[start] = size;
  Pool::Block block;
  block.bytes = size;
  block.chunk = start;
  pool->blocks[start] = block;
  Raise(pool, PoolAttribute::kReservedCurrent, size);
  return kOk;
}

Status Pools::Allocate(Pool* pool, uint64_t bytes, Stream* stream,
                       uint64_t* address) {
  Simulator& sim = Simulator::Get();
  used_ = true;
  const uint64_t size = RoundUp(bytes, kUnit);
  const VectorClock past = sim.streams.Past(stream);
  BlockIterator chosen = Choose(pool, size, *stream, past);
  if (chosen == pool->blocks.end()) {
    const Status status = Grow(pool, size);
    if (status != kOk) return status;
    chosen = Choose(pool, size, *stream, past);
    if (chosen == pool->blocks.end()) return kOutOfMemory;
  }
  Pool::Block& block = chosen->second;
  if (block.bytes > size) {
    Pool::Block rest = block;
    rest.bytes -= size;
    pool->blocks[chosen->first + size] = rest;
    block.bytes = size;
  }
  // A wait, where the stream was not ordered after the free already.
  if (!past.Covers(block.freed)) sim.streams.WaitFor(stream, block.freed);
  block.asked = bytes;
  block.freed = VectorClock();
  Raise(pool, PoolAttribute::kUsedCurrent, size);
  *address = chosen->first;
  return kOk;
}

Status Pools::Free(uint64_t address, const VectorClock& after, size_t stream) {
  BlockIterator block;
  Pool* pool = PoolAround(address, &block);
  if (pool == nullptr || block->first != address || block->second.asked == 0) {
    return kInvalidValue;
  }
  block->second.asked = 0;
  block->second.freed = after;
  block->second.freed_by = stream;
  Value(pool, PoolAttribute::kUsedCurrent) -= block->second.bytes;
  Join(pool, block);
  if (pool->destroyed) {
    Trim(pool, 0);
    if (pool->chunks.empty()) pools_.erase(pool->handle);
  }
  return kOk;
}

void Pools::Join(Pool* pool, BlockIterator block) {
  const auto join = [&](BlockIterator low, BlockIterator high) {
    if (low->second.asked != 0 || high->second.asked != 0 ||
        low->second.chunk != high->second.chunk) {
      return low;
    }
    low->second.bytes += high->second.bytes;
    low->second.freed.Join(high->second.freed);
    low->second.freed_by = block->second.freed_by;
    pool->blocks.erase(high);
    return low;
  };
  if (auto next = std::next(block); next != pool->blocks.end()) {
    block = join(block, next);
  }
  if (block != pool->blocks.begin()) join(std::prev(block), block);
}

bool Pools::GiveBackChunk(Pool* pool, uint64_t chunk) {
  Simulator& sim = Simulator::Get();
  const uint64_t bytes = pool->chunks.at(chunk);
  auto block = pool->blocks.find(chunk);
  if (block->second.asked != 0 || block->second.bytes != bytes ||
      !sim.streams.IsExecuted(block->second.freed)) {
    return false;
  }
  const std::vector<Segment> segments = sim.Segments(chunk, bytes);
  (void)sim.addresses.Unmap(chunk, bytes, "the memory pool");
  (void)sim.addresses.Free(chunk, bytes);
  // The blocks were freed in order, so nobody's access is cut off.
  for (const Segment& each : segments) {
    sim.log.Forget(
        each.line, each.bytes, each.mapping, [](const Stamp&) { return true; },
        [](const Conflict&) {});
  }
  pool->blocks.erase(block);
  pool->chunks.erase(chunk);
  Value(pool, PoolAttribute::kReservedCurrent) -= bytes;
  return true;
}

void Pools::Trim(Pool* pool, uint64_t keep) {
  std::vector<uint64_t> chunks;
  for (const auto& [chunk, bytes] : pool->chunks) chunks.push_back(chunk);
  for (const uint64_t chunk : chunks) {
    if (Value(*pool, PoolAttribute::kReservedCurrent) <= keep) return;
    GiveBackChunk(pool, chunk);
  }
}

void Pools::AfterSynchronize() {
  if (!used_) return;
  for (auto& [handle, pool] : pools_) {
    Trim(pool.get(), Value(*pool, PoolAttribute::kReleaseThreshold));
  }
}

bool Pools::GiveBack(int device) {
  uint64_t before = 0;
  uint64_t after = 0;
  for (auto& [handle, pool] : pools_) {
    if (pool->device != device) continue;
    before += Value(*pool, PoolAttribute::kReservedCurrent);
    Trim(pool.get(), 0);
    after += Value(*pool, PoolAttribute::kReservedCurrent);
  }
  return after < before;
}

Status Pools::SetAttributeFrom(Pool* pool, int attribute, const void* from) {
  if (attribute < 1 || attribute > 8) return kInvalidValue;
  const auto which = static_cast<PoolAttribute>(attribute);
  uint64_t value = 0;
  if (attribute <= 3) {
    value = *static_cast<const int*>(from) != 0 ? 1 : 0;
  } else {
    value = *static_cast<const uint64_t*>(from);
  }
  if (which == PoolAttribute::kReservedCurrent ||
      which == PoolAttribute::kUsedCurrent) {
    return kInvalidValue;
  }
  if (which == PoolAttribute::kReservedHigh ||
      which == PoolAttribute::kUsedHigh) {
    // A high-water mark can be set back, not set.
    if (value != 0) return kInvalidValue;
    value = pool->attributes[attribute - 1];
  }
  pool->attributes[attribute] = value;
  return kOk;
}

Status Pools::GetAttributeInto(const Pool& pool, int attribute,
                               void* into) const {
  if (attribute < 1 || attribute > 8) return kInvalidValue;
  const uint64_t value = pool.attributes[attribute];
  if (attribute <= 3) {
    *static_cast<int*>(into) = static_cast<int>(value);
  } else {
    *static_cast<uint64_t*>(into) = value;
  }
  return kOk;
}

Status Pools::SetAccess(Pool* pool, int device, Access access) {
  Simulator& sim = Simulator::Get();
  if (device < 0 || device >= sim.config.devices) return kInvalidDevice;
  if (device == pool->device) {
    return access == Access::kReadWrite ? kOk : kInvalidValue;
  }
  if (access != Access::kNone && !sim.peers.Can(device, pool->device)) {
    return kInvalidDevice;
  }
  pool->access[device] = access;
  for (const auto& [chunk, bytes] : pool->chunks) {
    const Status status = sim.addresses.SetAccess(
        chunk, bytes, Location::kDevice, device, access);
    if (status != kOk) return status;
  }
  return kOk;
}

Access Pools::GetAccess(const Pool& pool, int device) const {
  if (device == pool.device) return Access::kReadWrite;
  auto found = pool.access.find(device);
  return found == pool.access.end() ? Access::kNone : found->second;
}

Pool* Pools::PoolAround(uint64_t address, BlockIterator* block) {
  if (!used_) return nullptr;
  for (auto& [handle, pool] : pools_) {
    auto next = pool->blocks.upper_bound(address);
    if (next == pool->blocks.begin()) continue;
    auto found = std::prev(next);
    if (address - found->first >= found->second.bytes) continue;
    *block = found;
    return pool.get();
  }
  return nullptr;
}

bool Pools::FindBlock(uint64_t address, uint64_t* start, uint64_t* bytes,
                      Pool** pool) {
  BlockIterator block;
  *pool = PoolAround(address, &block);
  if (*pool == nullptr || block->second.asked == 0) return false;
  *start = block->first;
  *bytes = block->second.asked;
  return true;
}

std::string Pools::Problem(uint64_t address, uint64_t bytes) {
  BlockIterator block;
  if (PoolAround(address, &block) == nullptr) return "";
  if (block->second.asked == 0) {
    return "no block of its memory pool is alive there; missing: the use "
           "before its cudaFreeAsync";
  }
  if (address + bytes > block->first + block->second.bytes) {
    return "its block of a memory pool ends after " +
           std::to_string(block->second.asked) + " bytes";
  }
  return "";
}

std::map<uint64_t, uint64_t> Pools::Live() const {
  std::map<uint64_t, uint64_t> live;
  for (const auto& [handle, pool] : pools_) {
    for (const auto& [address, block] : pool->blocks) {
      if (block.asked != 0) live[address] = block.asked;
    }
  }
  return live;
}

void Pools::Reset() {
  for (auto each = pools_.begin(); each != pools_.end();) {
    Pool& pool = *each->second;
    Trim(&pool, 0);
    const uint64_t reserved = Value(pool, PoolAttribute::kReservedCurrent);
    const uint64_t used = Value(pool, PoolAttribute::kUsedCurrent);
    const uint64_t fresh[9] = {0, 1, 1, 1, 0, reserved, reserved, used, used};
    std::copy(std::begin(fresh), std::end(fresh), pool.attributes);
    if (!pool.is_default && pool.chunks.empty()) {
      each = pools_.erase(each);
    } else {
      ++each;
    }
  }
  current_ = first_;
}

namespace {

// Nodes that allocate are not there: a graph that would need one is spoilt.
Status NotCaptured(Simulator& sim, Stream* stream) {
  Capture* capture = nullptr;
  const Status status = sim.captures.Enqueue(stream, &capture);
  if (status != kOk || capture == nullptr) return status;
  sim.captures.Invalidate(capture);
  return kCaptureUnsupported;
}

}  // namespace

Status AllocateAsync(const char*, uint64_t bytes, uint64_t pool_handle,
                     uint64_t stream_handle, uint64_t* address) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Status status = NotCaptured(sim, stream); status != kOk) {
    return status;
  }
  Pool* pool = pool_handle == 0 ? sim.pools.Current(stream->device)
                                : sim.pools.Find(pool_handle);
  if (pool == nullptr) return kInvalidValue;
  return sim.pools.Allocate(pool, bytes, stream, address);
}

Status FreeAsync(const char* name, uint64_t address, uint64_t stream_handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Status status = NotCaptured(sim, stream); status != kOk) {
    return status;
  }
  uint64_t start = 0;
  uint64_t bytes = 0;
  Pool* pool = nullptr;
  if (!sim.pools.FindBlock(address, &start, &bytes, &pool)) {
    if (!sim.addresses.IsMalloc(address)) return kInvalidValue;
    // Memory of cudaMalloc may go in a stream's order too; here that waits, as
    // cudaFree does.
    lock.unlock();
    return FreeDevice(name, address);
  }
  if (start != address) return kInvalidValue;
  sim.CheckHolds(name, address, bytes, true, /*own=*/true);
  if (!sim.async.load()) {
    return sim.pools.Free(address, VectorClock(), stream->index);
  }
  const VectorClock past = sim.streams.Past(stream);
  const uint64_t number = sim.streams.Submit(stream, nullptr);
  sim.NoteAccess(stream, past, number, name, address, bytes, Use::kWrite);
  for (const Segment& each : sim.Segments(address, bytes)) {
    sim.log.MarkFreed(each.line, each.bytes);
  }
  return sim.pools.Free(address, sim.streams.Past(stream), stream->index);
}

}  // namespace cudasim
