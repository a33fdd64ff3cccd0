// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/area_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace stratalloc {
namespace {

// The counters of the head, as they were when the file was read.
struct Head {
  std::uint64_t rings, ring_capacity, rings_offset, ring_stride;
  std::uint64_t names_offset, names_bytes, rings_used, names_used;
};

tl::unexpected<Error> NoArea(const std::string& path, const std::string& why) {
  return Fail(
      ErrorCode::kCorrupt,
      path + " is not a file of event rings that can be recovered: " + why +
          "; give the file that `stratalloc run --record` wrote "
          "to while the process was running");
}

bool Within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

// "" if every part lies in the file.
std::string WhyNot(const EventAreaHead& head, std::uint64_t size) {
  if (std::memcmp(head.magic, EventAreaHead::kMagic, sizeof(head.magic)) != 0) {
    return "it does not begin with STRATRNG";
  }
  if (head.version != EventAreaHead::kVersion ||
      head.head_bytes != sizeof(EventAreaHead)) {
    return "its version is " + std::to_string(head.version) +
           ", and this program reads version " +
           std::to_string(EventAreaHead::kVersion);
  }
  if (head.area_bytes > size) {
    return "it is truncated: " + std::to_string(size) + " of " +
           std::to_string(head.area_bytes) + " bytes";
  }
  if (!std::has_single_bit(head.ring_capacity) || head.rings == 0 ||
      head.ring_capacity > size / sizeof(Event) || head.rings > size ||
      head.rings_offset % sizeof(std::uint64_t) != 0 ||
      head.ring_stride % sizeof(std::uint64_t) != 0 ||
      head.ring_stride <
          sizeof(EventRing::Head) + head.ring_capacity * sizeof(Event)) {
    return "its rings cannot be of the size that it says";
  }
  if (head.ring_stride > size / head.rings ||
      !Within(head.rings_offset, head.rings * head.ring_stride, size) ||
      !Within(head.names_offset, head.names_bytes, size)) {
    return "its rings or names lie beyond its end";
  }
  return "";
}

void ReadNamesOf(const char* from, std::uint64_t bytes, AreaContent& content) {
  std::uint64_t at = 0;
  while (bytes - at >= sizeof(EventName)) {
    EventName name;
    std::memcpy(&name, from + at, sizeof(name));
    const std::uint64_t whole = sizeof(name) + RoundUp(name.bytes, 8);
    if (whole > bytes - at) break;
    const std::string_view text(from + at + sizeof(name), name.bytes);
    if (name.check != EventName::CheckOf(name.kind, name.id, text)) break;
    content.names.push_back({name.kind, name.id, std::string(text)});
    at += whole;
  }
  if (at != bytes) ++content.names_lost;  // from here on nobody can tell
}

double NsPerTick(const EventAreaHead& head) {
  const double length =
      static_cast<double>(head.tick_length.load(std::memory_order_relaxed)) /
      4294967296.0;
  // Between 100 GHz and 1 MHz; else the file is not to be believed.
  return length > 0.01 && length < 1000 ? length : 1.0;
}

}  // namespace

AreaContent ReadNames(const EventAreaHead& head) {
  AreaContent content;
  content.clock = {head.ticks, NsPerTick(head)};
  content.unix_ns = head.unix_ns;
  content.process = head.process;
  content.redacted = head.redacted != 0;
  content.events_lost = head.events_lost.load(std::memory_order_relaxed);
  content.names_lost = head.names_lost.load(std::memory_order_relaxed);
  content.stacks_lost = head.stacks_lost.load(std::memory_order_relaxed);
  ReadNamesOf(reinterpret_cast<const char*>(&head) + head.names_offset,
              std::min(head.names_used.load(std::memory_order_acquire),
                       head.names_bytes),
              content);
  return content;
}

Result<AreaContent> ReadArea(const char* bytes, std::uint64_t size,
                             const std::string& path) {
  if (size < sizeof(EventAreaHead)) {
    return NoArea(path, "it has " + std::to_string(size) + " bytes");
  }
  const EventAreaHead& head = *reinterpret_cast<const EventAreaHead*>(bytes);
  if (const std::string why = WhyNot(head, size); !why.empty()) {
    return NoArea(path, why);
  }
  AreaContent content = ReadNames(head);
  const std::uint64_t used =
      std::min(head.rings_used.load(std::memory_order_acquire), head.rings);
  for (std::uint64_t i = 0; i < used; ++i) {
    // A ring's words are written by nobody here.
    char* const base =
        const_cast<char*>(bytes) + head.rings_offset + i * head.ring_stride;
    const EventRing ring(
        reinterpret_cast<EventRing::Head*>(base),
        reinterpret_cast<EventRing::Word*>(base + sizeof(EventRing::Head)),
        head.ring_capacity);
    RingEvents& read = content.rings.emplace_back();
    read.thread = ring.head().thread.load(std::memory_order_relaxed);
    std::size_t whole_from = 0;
    const std::uint64_t lost = ring.Read(0, read.events, &whole_from);
    read.NoteLost(lost, whole_from);
    content.overwritten += lost;
  }
  return content;
}

Result<AreaContent> ReadAreaFile(const std::string& path) {
  const auto failed = [&path](const char* what) {
    return Fail(ErrorCode::kIo, path + " cannot be read: " + what + ": " +
                                    std::strerror(errno));
  };
  // Whoever opens a pipe waits for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return failed("open");
  struct stat found {};
  if (fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(descriptor);
    return NoArea(path, "it is no regular file");
  }
  const auto size = static_cast<std::uint64_t>(found.st_size);
  // A copy, since a mapped file that is cut meanwhile is a SIGBUS. Most of it
  // was never written, and holes are read as zeros from no disk.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 36;
  if (size > kMost) {
    close(descriptor);
    return NoArea(path, "it is larger than 64 GiB");
  }
  auto* const memory = static_cast<char*>(std::calloc(1, size + 8));
  if (memory == nullptr) {
    close(descriptor);
    return Fail(ErrorCode::kHostOutOfMemory,
                path + " has " + FormatBytes(size) +
                    ", and there is no memory for it here");
  }
  const std::unique_ptr<char, void (*)(void*)> owner(memory, &std::free);
  std::uint64_t at = 0;
  while (at < size) {
    const off_t data = lseek(descriptor, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0) break;  // only a hole is left, or the file was cut
    at = static_cast<std::uint64_t>(data);
    const off_t hole = lseek(descriptor, data, SEEK_HOLE);
    const std::uint64_t end =
        hole < 0 ? size : std::min(size, static_cast<std::uint64_t>(hole));
    while (at < end) {
      const ssize_t got =
          pread(descriptor, memory + at, end - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      at += static_cast<std::uint64_t>(got);
    }
    if (at < end) break;
  }
  close(descriptor);
  return ReadArea(memory, size, path);
}

}  // namespace stratalloc
