// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/copies.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

enum class Kind { kDevice, kPinned, kPageable };

struct Endpoint {
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t height = 0;
  bool write = false;
  Reach reach = Reach::kDirect;
  Kind kind = Kind::kPageable;

  uint64_t Span() const { return (height - 1) * pitch + width; }
};

Kind KindOf(const Simulator& sim, uint64_t address, uint64_t bytes) {
  if (sim.arena.IsDevice(address)) return Kind::kDevice;
  return sim.host.IsPinned(address, bytes) ? Kind::kPinned : Kind::kPageable;
}

char* Bytes(const Simulator& sim, const Endpoint& end) {
  return end.kind == Kind::kDevice ? sim.arena.View(end.address)
                                   : reinterpret_cast<char*>(end.address);
}

// Takes the pages of a large range in one call. A view has none after it was
// mapped, and 512 faults per 2 MiB cost four times the copy itself.
void Prefault(const Simulator& sim, const Endpoint& end) {
#if defined(MADV_POPULATE_READ) && defined(MADV_POPULATE_WRITE)
  constexpr uint64_t kPage = 4096;
  if (end.kind != Kind::kDevice || end.Span() < 64 * kPage) return;
  const uint64_t start = end.address / kPage * kPage;
  const uint64_t stop = (end.address + end.Span() + kPage - 1) / kPage * kPage;
  // Old kernels refuse; the pages then come one by one.
  (void)madvise(sim.arena.View(start), stop - start,
                end.write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
#else
  (void)sim;
  (void)end;
#endif
}

void Move(char* to, uint64_t to_pitch, const char* from, uint64_t from_pitch,
          uint64_t width, uint64_t height) {
  for (uint64_t row = 0; row < height; ++row) {
    std::memmove(to + row * to_pitch, from + row * from_pitch, width);
  }
}

void FillRows(char* to, const FillRequest& request) {
  for (uint64_t row = 0; row < request.height; ++row) {
    char* const start = to + row * request.pitch;
    if (request.value_bytes == 1) {
      std::memset(start, static_cast<int>(request.value), request.width);
      continue;
    }
    for (uint64_t at = 0; at < request.width; at += request.value_bytes) {
      std::memcpy(start + at, &request.value, request.value_bytes);
    }
  }
}

// Of the rows' bytes, to see whether they changed.
uint64_t Fingerprint(const char* from, const Endpoint& end) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15u;
  constexpr uint64_t kLanes = 8;
  // Lanes: a word waits for the multiplication of one eight words before.
  uint64_t lanes[kLanes] = {};
  uint64_t hash = end.width;
  for (uint64_t row = 0; row < end.height; ++row) {
    const char* const start = from + row * end.pitch;
    uint64_t at = 0;
    for (; at + 8 * kLanes <= end.width; at += 8 * kLanes) {
      uint64_t words[kLanes];
      std::memcpy(words, start + at, sizeof words);
      for (uint64_t i = 0; i < kLanes; ++i) {
        const uint64_t mixed = (lanes[i] ^ words[i]) * kPrime;
        lanes[i] = mixed ^ mixed >> 32;
      }
    }
    for (; at < end.width; ++at) {
      hash = (hash ^ static_cast<unsigned char>(start[at])) * 0x100000001B3u;
    }
  }
  for (const uint64_t lane : lanes) {
    hash = (hash ^ lane) * kPrime;
    hash ^= hash >> 32;
  }
  return hash;
}

// A device range that may not be used breaks the device.
bool Usable(Simulator& sim, const std::string& who, const Stream& stream,
            const Endpoint& end, const char* when) {
  if (end.kind != Kind::kDevice) return true;
  const char* kind = nullptr;
  std::string problem = sim.addresses.Problem(
      end.address, end.Span(), stream.device, end.write, &kind, end.reach);
  // Asked for after the free of its block: when it runs, that says nothing.
  if (problem.empty() && *when == '\0') {
    problem = sim.pools.Problem(end.address, end.Span());
    kind = kind::kUseAfterFree;
  }
  if (problem.empty()) return true;
  sim.violations.Add(kind, who + " on " + stream.Name() + when +
                               (end.write ? " writes " : " reads ") +
                               sim.BlockText(end.address, end.Span()) +
                               ", but " + problem);
  sim.Break(stream.device, kIllegalAddress);
  return false;
}

// Called when the bytes are about to move.
void CheckHolds(Simulator& sim, const char* name, const Stream& stream,
                const Endpoint& end) {
  if (end.kind != Kind::kDevice) return;
  sim.CheckHolds(std::string(name) + " on " + stream.Name(), end.address,
                 end.Span(), end.write, /*own=*/false);
}

// What the checker hears of it: the rows, or the whole span if they are many.
std::vector<cudasim_access> Accesses(const Endpoint& end) {
  if (end.kind == Kind::kPageable) return {};
  if (end.pitch == end.width || end.height > 1024) {
    return {{end.address, end.Span(), end.write ? 1 : 0}};
  }
  std::vector<cudasim_access> rows;
  for (uint64_t row = 0; row < end.height; ++row) {
    rows.push_back(
        {end.address + row * end.pitch, end.width, end.write ? 1 : 0});
  }
  return rows;
}

void Note(Simulator& sim, const char* name, Stream* stream,
          const VectorClock& past, uint64_t number, const Endpoint& end,
          Use use) {
  for (const cudasim_access& access : Accesses(end)) {
    sim.NoteAccess(stream, past, number, name, access.address, access.bytes,
                   use);
  }
}

// Is the address what the direction says? Memory on the host that was mapped
// into the arena counts as either.
bool Fits(const Simulator& sim, const Endpoint& end, bool device_wanted) {
  if ((end.kind == Kind::kDevice) == device_wanted) return true;
  uint64_t start = 0;
  const Mapping* mapping = sim.addresses.FindMapping(end.address, &start);
  return mapping != nullptr && mapping->extent->location != Location::kDevice;
}

// Where the bytes of an end lie: a device, or -1 for the host.
int PlaceOf(const Simulator& sim, const Endpoint& end) {
  if (end.kind != Kind::kDevice) return -1;
  uint64_t start = 0;
  const Mapping* mapping = sim.addresses.FindMapping(end.address, &start);
  return mapping != nullptr && mapping->extent->location == Location::kDevice
             ? mapping->extent->device
             : -1;
}

// The end has addresses and no bytes. The phantom mode cannot change while
// anything is mapped.
bool IsPhantom(const Simulator& sim, const Endpoint& end) {
  return sim.extents.phantom() && PlaceOf(sim, end) >= 0;
}

// What a copy to or from phantom memory does to the host.
void MoveNothing(const Simulator& sim, const Endpoint& to) {
  constexpr uint64_t kZeroed = 4096;
  if (IsPhantom(sim, to) || to.width * to.height > kZeroed) return;
  for (uint64_t row = 0; row < to.height; ++row) {
    std::memset(Bytes(sim, to) + row * to.pitch, 0, to.width);
  }
}

// The copy on the virtual clock. One within the host takes no device's time.
void Charge(Simulator& sim, Stream* stream, const Endpoint& to,
            const Endpoint& from, bool waits) {
  const Card& card = CardOf(stream->device);
  if (!card.modelled) return;
  const int place = PlaceOf(sim, to);
  const int source = PlaceOf(sim, from);
  if (place < 0 && source < 0) return;
  const Route route = source < 0        ? Route::kUp
                      : place < 0       ? Route::kDown
                      : place == source ? Route::kOnDevice
                                        : Route::kPeer;
  const bool pageable =
      to.kind == Kind::kPageable || from.kind == Kind::kPageable;
  for (const Endpoint* end : {&to, &from}) {
    sim.clock.Hold(stream, sim.addresses.ReadyAt(end->address, end->Span()));
  }
  const VirtualNs end =
      sim.clock.Copy(card, stream, route, pageable, from.width * from.height);
  // What a background thread brings is there for nobody before that.
  if (place >= 0 && sim.clock.IsBackground()) {
    sim.addresses.SetReadyAt(to.address, to.Span(), end);
  }
  if (waits) sim.clock.WaitUntil(end);
}

void ChargeFill(Simulator& sim, Stream* stream, const Endpoint& to,
                const FillRequest& fill) {
  const Card& card = CardOf(stream->device);
  if (!card.modelled) return;
  sim.clock.Hold(stream, sim.addresses.ReadyAt(to.address, to.Span()));
  sim.clock.Fill(card, stream, fill.width * fill.height);
}

// Both ends of a request, classified. kInvalidValue: an impossible request.
Status Endpoints(Simulator& sim, const char* name, const std::string& where,
                 const CopyRequest& request, Endpoint* to, Endpoint* from) {
  const bool flat = request.height == 1;
  *to = {request.destination, flat ? request.width : request.destination_pitch,
         request.width, request.height, true};
  *from = {request.source, flat ? request.width : request.source_pitch,
           request.width, request.height, false};
  to->reach = from->reach = request.peer ? Reach::kPeerCopy : Reach::kCopy;
  if (to->address == 0 || from->address == 0 || to->pitch < to->width ||
      from->pitch < from->width) {
    return kInvalidValue;
  }
  for (const Endpoint* end : {to, from}) {
    if (!sim.arena.IsView(end->address)) continue;
    sim.violations.Add(kind::kIllegalAddress,
                       std::string(name) + " on " + where + " was given " +
                           RangeText(end->address, end->Span()) +
                           ", which is the host's view of a device address");
    return kInvalidValue;
  }
  to->kind = KindOf(sim, to->address, to->Span());
  from->kind = KindOf(sim, from->address, from->Span());
  const int direction = static_cast<int>(request.direction);
  if (direction < 0 || direction > 4) return kInvalidValue;
  if (request.direction != Direction::kDefault &&
      (!Fits(sim, *to, (direction & 1) != 0) ||
       !Fits(sim, *from, (direction & 2) != 0))) {
    return kInvalidValue;
  }
  return kOk;
}

// Where a copy or fill is to go: *capture if its stream records.
Status Admit(Simulator& sim, Stream* stream, bool may_wait, Capture** capture) {
  *capture = nullptr;
  if (!sim.captures.any()) return kOk;
  if (may_wait) {
    if (const Status status = sim.captures.Unsafe(); status != kOk) {
      return status;
    }
  }
  const Status status = sim.captures.Enqueue(stream, capture);
  if (*capture == nullptr || !may_wait) return status;
  sim.captures.Invalidate(*capture);
  return kCaptureUnsupported;
}

}  // namespace

Status CopyWork(const char* name, const CopyRequest& request, Work* work) {
  Simulator& sim = Simulator::Get();
  Endpoint to, from;
  const Status status = Endpoints(sim, name, "a graph", request, &to, &from);
  if (status != kOk) return status;
  work->kind = NodeKind::kMemcpy;
  work->name = name;
  work->accesses = Accesses(from);
  work->reach = from.reach;
  const bool copy_in = to.kind == Kind::kDevice && from.kind != Kind::kDevice;
  for (cudasim_access access : Accesses(to)) {
    access.write = static_cast<int>(copy_in ? Use::kCopyIn : Use::kWrite);
    work->accesses.push_back(access);
  }
  work->charge = [&sim, to, from](Stream* stream) {
    Charge(sim, stream, to, from, /*waits=*/false);
  };
  work->run = [&sim, name, to, from](Lock&, Stream* stream) {
    CheckHolds(sim, name, *stream, to);
    CheckHolds(sim, name, *stream, from);
    if (IsPhantom(sim, to) || IsPhantom(sim, from)) {
      return MoveNothing(sim, to);
    }
    Prefault(sim, to);
    Prefault(sim, from);
    Move(Bytes(sim, to), to.pitch, Bytes(sim, from), from.pitch, to.width,
         to.height);
  };
  return kOk;
}

Status FillWork(const char* name, const FillRequest& request, Work* work) {
  Simulator& sim = Simulator::Get();
  FillRequest fill = request;
  if (fill.height == 1) fill.pitch = fill.width;
  if ((fill.value_bytes != 1 && fill.value_bytes != 2 &&
       fill.value_bytes != 4) ||
      fill.destination % fill.value_bytes != 0 || fill.pitch < fill.width) {
    return kInvalidValue;
  }
  Endpoint to{fill.destination, fill.pitch, fill.width, fill.height, true};
  to.kind = KindOf(sim, to.address, to.Span());
  if (to.kind == Kind::kPageable) return kInvalidValue;
  work->kind = NodeKind::kMemset;
  work->name = name;
  work->accesses = Accesses(to);
  work->charge = [&sim, to, fill](Stream* stream) {
    ChargeFill(sim, stream, to, fill);
  };
  work->run = [&sim, name, to, fill](Lock&, Stream* stream) {
    CheckHolds(sim, name, *stream, to);
    if (IsPhantom(sim, to)) return;
    Prefault(sim, to);
    FillRows(Bytes(sim, to), fill);
  };
  return kOk;
}

Status Copy(const char* name, const CopyRequest& request,
            uint64_t stream_handle, bool blocking) {
  if (request.width == 0 || request.height == 0) return kOk;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  Capture* capture = nullptr;
  if (const Status status = Admit(sim, stream, blocking, &capture);
      status != kOk) {
    return status;
  }
  Endpoint to, from;
  if (const Status status =
          Endpoints(sim, name, stream->Name(), request, &to, &from);
      status != kOk) {
    return status;
  }
  if (capture != nullptr) {
    Work work;
    const Status status = CopyWork(name, request, &work);
    if (status == kOk) sim.captures.Add(capture, stream, std::move(work));
    return status;
  }
  if (!Usable(sim, name, *stream, to, "") ||
      !Usable(sim, name, *stream, from, "")) {
    return kIllegalAddress;
  }
  // As on CUDA, a blocking copy between device ranges does not wait.
  const bool between_devices =
      to.kind == Kind::kDevice && from.kind == Kind::kDevice;
  Charge(sim, stream, to, from, blocking && !between_devices);
  const bool phantom = IsPhantom(sim, to) || IsPhantom(sim, from);
  if (!sim.async.load()) {
    CheckHolds(sim, name, *stream, to);
    CheckHolds(sim, name, *stream, from);
    if (phantom) {
      MoveNothing(sim, to);
      return kOk;
    }
    std::shared_lock<std::shared_mutex> gate(sim.bytes_gate);
    lock.unlock();
    Prefault(sim, to);
    Prefault(sim, from);
    Move(Bytes(sim, to), to.pitch, Bytes(sim, from), from.pitch, request.width,
         request.height);
    return kOk;
  }

  std::shared_ptr<std::vector<char>> staged;
  if (from.kind == Kind::kPageable && !phantom) {
    staged =
        std::make_shared<std::vector<char>>(request.width * request.height);
    Move(staged->data(), request.width, Bytes(sim, from), from.pitch,
         request.width, request.height);
  }
  // Pinned bytes that nothing queued will change: if they are not the same
  // when the copy runs, the program has written under it.
  const bool watched = from.kind == Kind::kPinned && !phantom &&
                       !sim.HasPendingWrite(from.address, from.Span());
  const uint64_t seen = watched ? Fingerprint(Bytes(sim, from), from) : 0;
  const VectorClock past = sim.streams.Past(stream);
  const uint64_t number = sim.streams.Submit(
      stream,
      [&sim, name, stream, to, from, staged, watched, seen, phantom](Lock&) {
        if (!Usable(sim, name, *stream, to, " (when it ran)") ||
            !Usable(sim, name, *stream, from, " (when it ran)")) {
          return;
        }
        if (watched && Fingerprint(Bytes(sim, from), from) != seen) {
          sim.violations.Add(
              kind::kHostWriteInFlight,
              std::string(name) + " on " + stream->Name() + " (operation " +
                  std::to_string(stream->executed + 1 - stream->base) +
                  ") had still to read " +
                  sim.BlockText(from.address, from.Span()) +
                  " when the host wrote there; missing edge: synchronise " +
                  stream->Name() +
                  ", or an event recorded on it after the copy, before "
                  "writing");
        }
        CheckHolds(sim, name, *stream, to);
        CheckHolds(sim, name, *stream, from);
        if (phantom) return MoveNothing(sim, to);
        Prefault(sim, to);
        Prefault(sim, from);
        const char* source = staged ? staged->data() : Bytes(sim, from);
        Move(Bytes(sim, to), to.pitch, source, staged ? from.width : from.pitch,
             to.width, to.height);
      });
  sim.streams.Delay(stream, sim.pressure.TakeSteps());
  Note(sim, name, stream, past, number, from, Use::kRead);
  Note(sim, name, stream, past, number, to,
       to.kind == Kind::kDevice && from.kind != Kind::kDevice ? Use::kCopyIn
                                                              : Use::kWrite);
  if ((blocking && !between_devices) || to.kind == Kind::kPageable) {
    sim.streams.Synchronize(lock, sim.streams.Past(stream));
    return sim.sticky[stream->device];
  }
  return kOk;
}

Status Fill(const char* name, const FillRequest& request,
            uint64_t stream_handle) {
  if (request.width == 0 || request.height == 0) return kOk;
  Simulator& sim = Simulator::Get();
  FillRequest fill = request;
  if (fill.height == 1) fill.pitch = fill.width;
  if (fill.destination % fill.value_bytes != 0 || fill.pitch < fill.width) {
    return kInvalidValue;
  }
  Endpoint to{fill.destination, fill.pitch, fill.width, fill.height, true};
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  Capture* capture = nullptr;
  if (const Status status = Admit(sim, stream, false, &capture);
      status != kOk) {
    return status;
  }
  if (capture != nullptr) {
    Work work;
    const Status status = FillWork(name, request, &work);
    if (status == kOk) sim.captures.Add(capture, stream, std::move(work));
    return status;
  }
  to.kind = KindOf(sim, to.address, to.Span());
  // Only the device's own and pinned memory can be filled by the device.
  if (to.kind == Kind::kPageable) return kInvalidValue;
  if (!Usable(sim, name, *stream, to, "")) return kIllegalAddress;
  ChargeFill(sim, stream, to, fill);
  const bool phantom = IsPhantom(sim, to);
  if (!sim.async.load()) {
    CheckHolds(sim, name, *stream, to);
    if (phantom) return kOk;
    std::shared_lock<std::shared_mutex> gate(sim.bytes_gate);
    lock.unlock();
    Prefault(sim, to);
    FillRows(Bytes(sim, to), fill);
    return kOk;
  }
  const VectorClock past = sim.streams.Past(stream);
  const uint64_t number = sim.streams.Submit(
      stream, [&sim, name, stream, to, fill, phantom](Lock&) {
        if (!Usable(sim, name, *stream, to, " (when it ran)")) return;
        CheckHolds(sim, name, *stream, to);
        if (phantom) return;
        Prefault(sim, to);
        FillRows(Bytes(sim, to), fill);
      });
  Note(sim, name, stream, past, number, to, Use::kWrite);
  return kOk;
}

}  // namespace cudasim
