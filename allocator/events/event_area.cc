// SPDX-License-Identifier: Apache-2.0
#include "allocator/events/event_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "allocator/base/clock.h"
#include "allocator/base/ticks.h"

namespace stratalloc {
namespace {

constexpr std::uint64_t kPage = 4096;
static_assert(sizeof(EventAreaHead) <= kPage);

struct Layout {
  std::uint64_t ring_stride, names_offset, area_bytes;
};

Layout LayoutOf(const EventAreaOptions& options) {
  Layout layout{};
  layout.ring_stride = RoundUp(
      sizeof(EventRing::Head) + options.ring_capacity * sizeof(Event), kPage);
  layout.names_offset = kPage + options.rings * layout.ring_stride;
  layout.area_bytes =
      layout.names_offset +
      RoundUp(static_cast<std::uint64_t>(options.names_bytes), kPage);
  return layout;
}

Error FileError(const std::string& file, const char* what) {
  return Error{ErrorCode::kInvalidArgument,
               "events cannot be kept in " + file + ": " + what + ": " +
                   std::strerror(errno) +
                   "; choose a folder that can be written, on a disk with "
                   "room"};
}

// False, with errno, if the disk has no room for that part of the file.
bool Allocated(int descriptor, std::uint64_t from, std::uint64_t bytes) {
  if (bytes == 0) return true;
  do {
    errno = posix_fallocate(descriptor, static_cast<off_t>(from),
                            static_cast<off_t>(bytes));
  } while (errno == EINTR);
  return errno == 0;
}

// What failed, with errno, or nullptr.
const char* Prepare(int descriptor, const Layout& layout) {
  if (fchmod(descriptor, S_IRUSR | S_IWUSR) != 0) return "fchmod";
  if (ftruncate(descriptor, static_cast<off_t>(layout.area_bytes)) != 0) {
    return "ftruncate";
  }
  const bool room = Allocated(descriptor, 0, kPage) &&
                    Allocated(descriptor, layout.names_offset,
                              layout.area_bytes - layout.names_offset);
  return room ? nullptr : "no room for its head and names";
}

// -1: anonymous.
Result<void*> Map(int descriptor, const std::string& file, Bytes bytes) {
  const auto length = static_cast<std::size_t>(bytes);
  void* const memory =
      mmap(nullptr, length, PROT_READ | PROT_WRITE,
           (descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) |
               MAP_NORESERVE,
           descriptor, 0);
  if (memory != MAP_FAILED) return memory;
  if (descriptor >= 0) return tl::unexpected(FileError(file, "mmap"));
  return Fail(ErrorCode::kHostOutOfMemory,
              "no " + FormatBytes(bytes) +
                  " of addresses for event rings: " + std::strerror(errno) +
                  "; set fewer or shorter ones (ring_events)");
}

// In the area, with what stands before it.
std::uint64_t BytesOf(std::string_view name) {
  return sizeof(EventName) + RoundUp(name.size(), 8);
}

}  // namespace

std::uint32_t EventName::CheckOf(NameKind kind, std::uint32_t id,
                                 std::string_view text) {
  // FNV-1a: torn text, not an attacker, is what it is for.
  std::uint32_t sum = 2166136261u;
  const auto add = [&sum](unsigned char byte) {
    sum = (sum ^ byte) * 16777619u;
  };
  add(static_cast<unsigned char>(kind));
  for (int shift = 0; shift < 32; shift += 8) {
    add(static_cast<unsigned char>(id >> shift));
  }
  for (const char c : text) add(static_cast<unsigned char>(c));
  return sum;
}

Result<EventArea*> EventArea::Make(const EventAreaOptions& options) {
  if (options.rings == 0 || options.rings > 4096 ||
      !std::has_single_bit(options.ring_capacity) ||
      options.ring_capacity > (std::uint64_t{1} << 28)) {
    return Fail(ErrorCode::kInvalidArgument,
                "event rings: 1 to 4096 of them, each of a power of two of "
                "events up to 2^28");
  }
  const Layout layout = LayoutOf(options);
  int descriptor = -1;
  if (!options.file.empty()) {
    descriptor = open(options.file.c_str(),
                      O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                      S_IRUSR | S_IWUSR);
    if (descriptor < 0) return tl::unexpected(FileError(options.file, "open"));
    if (const char* const failed = Prepare(descriptor, layout)) {
      Error error = FileError(options.file, failed);
      unlink(options.file.c_str());
      close(descriptor);
      return tl::unexpected(std::move(error));
    }
  }
  Result<void*> memory =
      Map(descriptor, options.file, static_cast<Bytes>(layout.area_bytes));
  if (!memory) {
    if (descriptor >= 0) close(descriptor);
    return tl::unexpected(memory.error());
  }

  auto* const head = new (*memory) EventAreaHead{};
  std::memcpy(head->magic, EventAreaHead::kMagic, sizeof(head->magic));
  head->version = EventAreaHead::kVersion;
  head->head_bytes = sizeof(EventAreaHead);
  head->area_bytes = layout.area_bytes;
  head->rings = options.rings;
  head->ring_capacity = options.ring_capacity;
  head->rings_offset = kPage;
  head->ring_stride = layout.ring_stride;
  head->names_offset = layout.names_offset;
  head->names_bytes = static_cast<std::uint64_t>(options.names_bytes);
  head->unix_ns = UnixNs();
  head->ticks = NowTicks();
  head->redacted = options.redacted ? 1 : 0;
  head->process = static_cast<std::uint64_t>(getpid());
  auto* const area = new EventArea(*memory, descriptor, options.file);
  area->UpdateClock();
  return area;
}

EventArea::EventArea(void* memory, int descriptor, std::string file)
    : head_(*static_cast<EventAreaHead*>(memory)),
      descriptor_(descriptor),
      file_(std::move(file)) {}

bool EventArea::Reserve(std::uint64_t index) {
  return descriptor_ < 0 ||
         Allocated(descriptor_, head_.rings_offset + index * head_.ring_stride,
                   head_.ring_stride);
}

EventRing EventArea::ring(std::uint64_t index) const {
  char* const base = reinterpret_cast<char*>(&head_) + head_.rings_offset +
                     index * head_.ring_stride;
  return EventRing(
      reinterpret_cast<EventRing::Head*>(base),
      reinterpret_cast<EventRing::Word*>(base + sizeof(EventRing::Head)),
      head_.ring_capacity);
}

void EventArea::AddName(NameKind kind, std::uint32_t id,
                        std::string_view text) {
  UpdateClock();
  MutexLock lock(mutex_);
  AddNameLocked(kind, id, text);
}

void EventArea::AddNameLocked(NameKind kind, std::uint32_t id,
                              std::string_view text) {
  const std::uint64_t used = head_.names_used.load(std::memory_order_relaxed);
  if (BytesOf(text) > head_.names_bytes - used) {
    head_.names_lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const EventName name{kind, id, static_cast<std::uint32_t>(text.size()),
                       EventName::CheckOf(kind, id, text)};
  char* const place =
      reinterpret_cast<char*>(&head_) + head_.names_offset + used;
  std::memcpy(place, &name, sizeof(name));
  std::memcpy(place + sizeof(name), text.data(), text.size());
  head_.names_used.store(used + BytesOf(text), std::memory_order_release);
}

std::uint32_t EventArea::MarkOf(std::string_view text) {
  UpdateClock();
  MutexLock lock(mutex_);
  const auto known = marks_.find(std::string(text));
  if (known != marks_.end()) return known->second;
  const std::uint32_t number = ++last_mark_;
  if (marks_bytes_ + BytesOf(text) > head_.names_bytes / 2) {
    head_.names_lost.fetch_add(1, std::memory_order_relaxed);
    return number;
  }
  marks_bytes_ += BytesOf(text);
  AddNameLocked(NameKind::kMark, number, text);
  if (marks_.size() < kMostMarks) marks_.emplace(text, number);
  return number;
}

void EventArea::UpdateClock() {
  head_.tick_length.store(
      static_cast<std::uint64_t>(NsPerTick() * 4294967296.0),
      std::memory_order_relaxed);
}

}  // namespace stratalloc
